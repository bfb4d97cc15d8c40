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
_WITHOUT = "Leave the schema out, or give a model with a tokenizer.json."


class Grammar:
    """`text`, a grammar as llguidance writes it, over the first `size` ids of a tokenizer.

    `ends` are the ids that end an answer. Immutable; any number of texts may share one. Raises
    UsageError where it is none or too large, or llguidance is missing; ModelError for a tokenizer
    that is not written in a tokenizer.json.
    """

    def __init__(self, text: str, tokenizer: Tokenizer, size: int, ends: Collection[int]) -> None:
        self.size, self.ends = size, frozenset(end for end in ends if 0 <= end < size)
        # Of several ends the one that the tokenizer names is the likeliest.
        own = getattr(tokenizer.backend, "eos_token_id", None)
        self.end = own if own in self.ends else min(self.ends, default=size)  # of none: no token
        words = _words(tokenizer, size, self.ends)
        # Without an end id llguidance takes another token for one.
        self.never = [token for token in words.eos_tokens if token not in self.ends]
        self._first = library().LLMatcher(words, text, log_level=0)
        if self._first.is_error():
            what = f"the grammar is not usable: {in_a_line(self._first.get_error())}"
            raise UsageError(what, hint=_SIMPLER)

    def start(self) -> "Matcher":
        """The state of an answer that has not begun."""
        return Matcher(self, self._first.deep_copy())


class Matcher:
    """The state of one answer, of which `taken` tokens are known, an end token included."""

    def __init__(self, grammar: Grammar, state: Any, taken: int = 0, over: bool = False) -> None:
        self.grammar, self.taken = grammar, taken
        self._state, self._over = state, over  # whether an end token was taken
        self._mask: bytes | None = None  # see `_bits`; None: not known yet

    def copy(self) -> "Matcher":
        """One in the same state, to look ahead."""
        return Matcher(self.grammar, self._state.deep_copy(), self.taken, self._over)

    @property
    def accepts(self) -> bool:
        """Whether the answer may end here."""
        return not self._over and bool(self._state.is_accepting())

    @property
    def ended(self) -> bool:
        """Whether nothing may follow but an end token."""
        return self._over or bool(self._state.is_stopped() and self._state.is_accepting())

    @property
    def over(self) -> bool:
        """Whether nothing follows any more, not even an end token."""
        return self._over or not self.grammar.ends and self.ended

    def mask(self) -> npt.NDArray[np.bool_]:
        """Which tokens may follow, bool (size,). Raises ModelError as `allows`."""
        bits, mask = np.frombuffer(self._bits(), np.uint8), np.zeros(self.grammar.size, np.bool_)
        found = np.unpackbits(bits, bitorder="little")[: len(mask)]
        mask[: len(found)] = found
        mask[self.grammar.never] = False
        mask[list(self.grammar.ends)] = self.accepts
        return mask

    def allows(self, token: int) -> bool:
        """Whether `token` may follow.

        Raises ModelError where the tokenizer cannot write what must follow, or llguidance gives up.
        """
        if token in self.grammar.ends:
            return self.accepts
        bits = self._bits()
        known = token < min(self.grammar.size, 8 * len(bits)) and token not in self.grammar.never
        return known and bool(bits[token >> 3] >> (token & 7) & 1)

    def _bits(self) -> bytes:
        """The mask as llguidance packs it, the lowest bit first; of end ids it says nothing."""
        if self._mask is None:
            self._mask = b"" if self.ended else self._state.compute_bitmask()
            if self._state.is_error() or not (any(self._mask) or self.ended or self.accepts):
                why = in_a_line(self._state.get_error()) or "no token of the model may follow"
                hint = _SIMPLER if self._state.is_error() else _WITHOUT
                raise ModelError(f"the answer cannot go on by its schema: {why}", hint=hint)
        return self._mask

    def follow(self, token: int) -> bool:
        """Go on with `token` if the grammar takes it, whether or not its bit is set; whether so.

        No mask is made, which is quicker. What is refused here is not allowed either.
        """
        is_end = token in self.grammar.ends
        takes = self.accepts if is_end else self._state.try_consume_tokens([token])
        if self._over or not takes:
            return False
        self._over, self.taken, self._mask = is_end, self.taken + 1, None
        return True

    def force(self, most: int) -> list[int]:
        """Go on with what must follow, `most` tokens at most; their ids.

        Where only an end may follow it is the usual one.
        """
        if self._over or most < 1:
            return []
        found: list[int] = self._state.compute_ff_tokens()[:most]
        found = found[: next((i for i, one in enumerate(found) if not self.follow(one)), most)]
        end = self.grammar.end
        return [*found, end] if len(found) < most and self.ended and self.follow(end) else found


def library() -> Any:
    """The module llguidance. Raises MissingDependencyError."""
    try:
        import llguidance
    except ImportError:
        what = "an answer by a schema needs the extra schema"
        raise MissingDependencyError(what, hint="pip install 'ngtcli[schema]'") from None
    return llguidance


def matches(value: str, schema: Schema) -> bool:
    """Whether a text is valid by the schema of a string, which the library has compiled before.

    A pattern of that schema means here what it means for answers; Python's `re` knows another
    syntax, and may take without end. What the library gives up on is not valid.
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
    """A tokenizer whose tokens are bytes."""
    return library().LLTokenizer("byte")


_kept: WeakKeyDictionary[Tokenizer, dict[Any, Any]] = WeakKeyDictionary()


def _words(tokenizer: Tokenizer, size: int, ends: frozenset[int]) -> Any:
    """llguidance's form of a tokenizer, of at least `size` ids, which is kept as long as that.

    It takes 60 to 550 ms to make (measured).
    """
    kept, key, backend = _kept.setdefault(tokenizer, {}), (size, ends), tokenizer.backend
    if key in kept:
        return kept[key]
    fast = getattr(backend, "backend_tokenizer", None)
    if fast is None:
        raise ModelError("no schema with this model: its tokenizer has no fast form", hint=_WITHOUT)
    room = max(size, len(backend))
    try:
        own = library().LLTokenizer(fast.to_str(), n_vocab=room, eos_token=sorted(ends) or None)
    except ValueError as error:
        raise ModelError(
            f"no schema with this tokenizer: {in_a_line(error)}", hint=_WITHOUT
        ) from None
    return kept.setdefault(key, own)


def in_a_line(error: object) -> str:
    """What an error of llguidance's says, as far as a terminal's line goes; "" for nothing."""
    lines = str(error).partition("<state>")[0].splitlines() or [""]
    line = next((one for one in lines if one.startswith("error: ")), lines[0])
    return shortened(line.replace("NoExtensionBias", "nothing matches it").strip(), 160)
