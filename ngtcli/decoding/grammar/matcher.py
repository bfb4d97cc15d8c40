"""Which tokens may follow in an answer that obeys a grammar, by llguidance.

A token is allowed where its bit of the mask is set. llguidance also takes tokens whose bit is not
set, other ways to write what must follow; here nobody gets to. End tokens are ours: they are
allowed exactly where the text may end, whatever the tokenizer says of them.
"""

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ngtcli.errors import MissingDependencyError, ModelError, UsageError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system.json_form import Schema
from ngtcli.words import shortened

_SIMPLER = "Make the schema simpler."
_WITHOUT = "Leave the schema out, or use a model with a tokenizer.json."


class Grammar:
    """A compiled grammar. It is immutable, and any number of answers may share it.

    Args:
        text: The grammar, as llguidance writes it.
        tokenizer: Of the model.
        size: The number of token ids that the model has logits for.
        ends: The ids that end an answer.

    Raises:
        UsageError: The text is no grammar, or one that is too large.
        MissingDependencyError: llguidance is not installed.
        ModelError: The tokenizer is not written in a tokenizer.json.
    """

    def __init__(self, text: str, tokenizer: Tokenizer, size: int, ends: Collection[int]) -> None:
        self.size = size
        self.ends = frozenset(end for end in ends if 0 <= end < size)
        # Of several ends the one that the tokenizer names is the likeliest.
        eos = getattr(tokenizer.backend, "eos_token_id", None)
        self.end = eos if eos in self.ends else min(self.ends, default=size)  # of none: no token
        words = _words(tokenizer, size, self.ends)
        # Without an end id llguidance takes another token for one.
        self.never = [token for token in words.eos_tokens if token not in self.ends]
        self._first = library().LLMatcher(words, text, log_level=0)
        if self._first.is_error():
            raise UsageError(
                f"invalid grammar: {in_a_line(self._first.get_error())}", hint=_SIMPLER
            )

    def start(self) -> "Matcher":
        """Return the state of an answer that has not begun."""
        return Matcher(self, self._first.deep_copy())


class Matcher:
    """The state of the grammar after the tokens of one answer.

    Args:
        grammar: The grammar.
        state: llguidance's LLMatcher.
        taken: The number of tokens so far, an end token included.
        over: Whether the last of them is an end token.
    """

    def __init__(self, grammar: Grammar, state: Any, taken: int = 0, over: bool = False) -> None:
        self.grammar = grammar
        self.taken = taken
        self._state = state
        self._over = over
        self._mask: bytes | None = None  # see `_bits`; None: not computed yet

    def copy(self) -> "Matcher":
        """Return a matcher in the same state, to look ahead with."""
        return Matcher(self.grammar, self._state.deep_copy(), self.taken, self._over)

    @property
    def accepts(self) -> bool:
        """Return whether the answer may end here."""
        return not self._over and bool(self._state.is_accepting())

    @property
    def ended(self) -> bool:
        """Return whether nothing may follow but an end token."""
        return self._over or bool(self._state.is_stopped() and self._state.is_accepting())

    @property
    def over(self) -> bool:
        """Return whether nothing may follow any more, not even an end token."""
        return self._over or not self.grammar.ends and self.ended

    def mask(self) -> npt.NDArray[np.bool_]:
        """Compute which tokens may follow, bool (size,). Raises ModelError as `allows`."""
        mask = np.zeros(self.grammar.size, np.bool_)
        packed = np.frombuffer(self._bits(), np.uint8)
        unpacked = np.unpackbits(packed, bitorder="little")[: len(mask)]
        mask[: len(unpacked)] = unpacked
        mask[self.grammar.never] = False
        mask[list(self.grammar.ends)] = self.accepts
        return mask

    def allows(self, token: int) -> bool:
        """Return whether a token may follow.

        Raises:
            ModelError: The tokenizer cannot write what must follow, or llguidance gives up.
        """
        if token in self.grammar.ends:
            return self.accepts
        bits = self._bits()
        if token >= min(self.grammar.size, 8 * len(bits)) or token in self.grammar.never:
            return False
        return bool(bits[token >> 3] >> (token & 7) & 1)

    def _bits(self) -> bytes:
        """Return the mask as llguidance packs it, the lowest bit first; end ids have no bit."""
        if self._mask is None:
            self._mask = b"" if self.ended else self._state.compute_bitmask()
            if self._state.is_error() or not (any(self._mask) or self.ended or self.accepts):
                why = in_a_line(self._state.get_error()) or "no token of the model may follow"
                hint = _SIMPLER if self._state.is_error() else _WITHOUT
                raise ModelError(f"the answer cannot continue under its schema: {why}", hint=hint)
        return self._mask

    def follow(self, token: int) -> bool:
        """Go on with a token if the grammar takes it, whether or not its bit is set.

        No mask is made, which is quicker. What is refused here is not allowed either.

        Returns:
            Whether the grammar takes it.
        """
        is_end = token in self.grammar.ends
        takes = self.accepts if is_end else self._state.try_consume_tokens([token])
        if self._over or not takes:
            return False
        self._over = is_end
        self.taken += 1
        self._mask = None
        return True

    def force(self, limit: int) -> list[int]:
        """Go on with the tokens that must follow, at most `limit` of them; return their ids.

        If only an end may follow, it is the usual one.
        """
        if self._over or limit < 1:
            return []
        forced: list[int] = []
        for token in self._state.compute_ff_tokens()[:limit]:
            if not self.follow(token):
                break
            forced.append(token)
        if len(forced) < limit and self.ended and self.follow(self.grammar.end):
            forced.append(self.grammar.end)
        return forced


def library() -> Any:
    """Import llguidance. Raises MissingDependencyError."""
    try:
        import llguidance
    except ImportError:
        raise MissingDependencyError(
            "structured output requires the extra schema", hint="pip install 'ngtcli[schema]'"
        ) from None
    return llguidance


def matches(value: str, schema: Schema) -> bool:
    """Return whether a string is valid by a schema, which llguidance has compiled before.

    A pattern of that schema means here what it means for answers; Python's `re` has another syntax,
    and may search without end. A string that llguidance gives up on is not valid.
    """
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    state = _string_grammar(json.dumps(schema, sort_keys=True)).deep_copy()
    tokens = _byte_words().tokenize_bytes(text)
    return bool(state.try_consume_tokens(tokens) == len(tokens) and state.is_accepting())


@lru_cache(maxsize=64)  # one for each field with a pattern
def _string_grammar(schema: str) -> Any:
    grammar = library().LLMatcher.grammar_from_json_schema(schema)
    return library().LLMatcher(_byte_words(), grammar, log_level=0)


@lru_cache(maxsize=1)
def _byte_words() -> Any:
    """Make a tokenizer whose tokens are bytes."""
    return library().LLTokenizer("byte")


# llguidance's tokenizers, by the size and the end ids that they were made for.
_converted: WeakKeyDictionary[Tokenizer, dict[Any, Any]] = WeakKeyDictionary()


def _words(tokenizer: Tokenizer, size: int, ends: frozenset[int]) -> Any:
    """Convert a tokenizer to llguidance's LLTokenizer, with at least `size` ids.

    It takes 60 to 550 ms to make (measured), and is kept as long as the tokenizer lives.
    """
    by_key = _converted.setdefault(tokenizer, {})
    key = size, ends
    if key in by_key:
        return by_key[key]
    backend = tokenizer.backend
    fast = getattr(backend, "backend_tokenizer", None)
    if fast is None:
        raise ModelError(
            "structured output requires a fast tokenizer; this model has none", hint=_WITHOUT
        )
    vocab_size = max(size, len(backend))
    try:
        converted = library().LLTokenizer(
            fast.to_str(), n_vocab=vocab_size, eos_token=sorted(ends) or None
        )
    except ValueError as error:
        raise ModelError(
            f"this tokenizer does not work with structured output: {in_a_line(error)}",
            hint=_WITHOUT,
        ) from None
    return by_key.setdefault(key, converted)


def in_a_line(error: object) -> str:
    """Shorten an error of llguidance to a line of a terminal; "" if it says nothing."""
    lines = str(error).partition("<state>")[0].splitlines() or [""]
    line = next((text for text in lines if text.startswith("error: ")), lines[0])
    return shortened(line.replace("NoExtensionBias", "nothing matches it").strip(), 160)
