"""Control tokens of a tokenizer, and how text is encoded so that it never becomes one.

The parts of a prompt that the chat template wrote may contain control tokens; documents, questions
and names may not. First the prompt is encoded as a whole. If other text became a control token, the
prompt is encoded again by a copy of the tokenizer whose control tokens have random names, after the
names in the template's parts were replaced by these. Only a tokenizer written in Python, which has
no such copy, encodes a prompt in parts; some tokenizers put a space before each part.
"""

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ngtcli.errors import ModelError

# A span is (first character, character after the last).
Spans = Sequence[tuple[int, int]]

# Added tokens such as <tool_call>, [INST] and <|im_end|> are control tokens even if the tokenizer
# does not call them special.
_MARK = re.compile(r"[<\[{｟〈].*[>\]}｠〉]", re.DOTALL)
# Gemma has tokens for tags of HTML. They are text: no template uses them.
_HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup"
    r"|code|p|ul|ol|li|br|div|span|a|pre)>"
)


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoded text.

    Attributes:
        ids: Token ids.
        starts: The index in the text of each token's first character; empty if not known.
    """

    ids: list[int]
    starts: list[int]


class ControlTokens:
    """The control tokens of a `transformers` tokenizer.

    Attributes:
        texts: The names of the control tokens, by id.
        unknown: The id of the token for unknown text, if there is one.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._fast: Any = getattr(backend, "backend_tokenizer", None)
        self.unknown: int | None = getattr(backend, "unk_token_id", None)
        added = getattr(backend, "added_tokens_decoder", None) or {}
        template = json.dumps(getattr(backend, "chat_template", None) or "", ensure_ascii=False)
        self.texts: dict[int, str] = {
            int(i): t.content for i, t in added.items() if _controls(t.content, t.special, template)
        }
        longest_first = sorted(self.texts.values(), key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def first_in(self, text: str) -> str:
        """Return the first name of a control token in `text`, "" if there is none."""
        match = self._search.search(text)
        return match.group() if match else ""

    def encode(self, text: str, special: bool, template: Spans) -> Encoding:
        """Encode a prompt, in which only the template's parts may become control tokens.

        Unless other text has the name of a control token, the result is the tokenizer's own.

        Args:
            text: The prompt.
            special: Whether the tokenizer adds its marks, such as `<s>`.
            template: The spans of `text` that the chat template wrote.

        Raises:
            ModelError: The tokenizer cannot encode the text without control tokens.
        """
        encoding, is_forged = self._encode_directly(text, special, template)
        if not is_forged:
            return encoding
        if self._fast is not None:
            return self._renamed.encode(text, special, self._names_in(text, template))
        if not template:
            return self.encode_text(text, special)
        ids: list[int] = []
        end = 0
        for first, last in [*template, (len(text), len(text))]:
            ids += self.encode_text(text[end:first]).ids
            ids += self._encode_directly(text[first:last], False, ())[0].ids
            end = last
        return Encoding(ids, [])

    def encode_text(self, text: str, special: bool = False) -> Encoding:
        """Encode text of which nothing may become a control token. Args and errors: `encode`."""
        if self._fast is not None:
            return self._renamed.encode(text, special)
        ids = self._backend.encode(text, add_special_tokens=False, split_special_tokens=True)
        control_ids = (self.texts.keys() - {self.unknown}).intersection(ids)
        if control_ids:
            raise ModelError(
                f"plain text becomes the control token {self.texts[min(control_ids)]} in this"
                " model's tokenizer",
                hint="Remove it from the text, or use a model with a fast tokenizer.",
            )
        if special:
            ids = self._backend.build_inputs_with_special_tokens(ids)
        return Encoding(list(ids), [])

    def _names_in(self, text: str, template: Spans) -> list[re.Match[str]]:
        """Find the names of control tokens within the spans of `template`, in order."""
        matches: list[re.Match[str]] = []
        for first, last in template:
            matches += self._search.finditer(text, first, last)
        return matches

    @cached_property
    def _renamed(self) -> "_RenamedCopy":
        return _RenamedCopy(self._fast, self.texts)

    def _encode_directly(self, text: str, special: bool, template: Spans) -> tuple[Encoding, bool]:
        """Encode by the tokenizer itself; also return whether other text became a control token."""
        if self._fast is None:  # a tokenizer written in Python gives no spans
            ids = list(self._backend.encode(text, add_special_tokens=special))
            names = self._search.finditer(text)
            return Encoding(ids, []), any(not _inside(name.span(), template) for name in names)
        encoded = self._backend(
            text,
            add_special_tokens=special,
            return_offsets_mapping=True,
            verbose=False,
            split_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        ids = list(encoded["input_ids"])
        spans = encoded["offset_mapping"]
        encoding = Encoding(ids, [start for start, _ in spans])
        if self.texts.keys().isdisjoint(ids):
            return encoding, False
        for token, span in zip(ids, spans, strict=True):
            if token in self.texts and self._is_forged(token, text, span, template):
                return encoding, True
        return encoding, False

    def _is_forged(self, token: int, text: str, span: tuple[int, int], template: Spans) -> bool:
        """Return whether a control token comes from a part of `text` outside of `template`.

        Its span may include white space around its name. The token for unknown text counts only if
        its name is in the text.
        """
        if span[0] == span[1]:
            return False
        name = self.texts[token]
        start = text.find(name, *span)
        if start >= 0:
            return not _inside((start, start + len(name)), template)
        return token != self.unknown and not _inside(span, template)


class _RenamedCopy:
    """A copy of a fast tokenizer in which control tokens have random names.

    They are renamed in the vocabulary, too: a Unigram model would find `</s>` there by itself.
    """

    def __init__(self, fast: Any, texts: dict[int, str]) -> None:
        from tokenizers import Tokenizer

        secret = secrets.token_hex(8)
        state = json.loads(fast.to_str())
        self._names = {name: f"\ue000{secret}{i:x}\ue001" for i, name in texts.items()}
        _rename(state, self._names)
        self._copy = Tokenizer.from_str(json.dumps(state))
        self._ids = {self._copy.token_to_id(t["content"]): t["id"] for t in state["added_tokens"]}

    def encode(
        self, text: str, special: bool = False, controls: Sequence[re.Match[str]] = ()
    ) -> Encoding:
        """Encode `text`, of which only `controls` become control tokens.

        Args:
            text: The text of a prompt.
            special: Whether the tokenizer adds its own marks, such as `<s>`.
            controls: Matches of names of control tokens, from left to right.
        """
        pieces: list[str] = []
        renamed_starts = [0]  # where pieces begin in the text with the new names
        original_starts = [0]  # where the same pieces begin in `text`
        length = 0  # characters with the new names so far
        end = 0  # of the match before
        for match in controls:
            before = text[end : match.start()]
            name = self._names[match.group()]
            pieces += [before, name]
            end = match.end()
            renamed_starts += [length + len(before), length + len(before) + len(name)]
            original_starts += [match.start(), end]
            length += len(before) + len(name)
        pieces.append(text[end:])
        encoded = self._copy.encode_batch(["".join(pieces)], add_special_tokens=special)[0]
        starts = []
        for start, _ in encoded.offsets:
            piece = bisect_right(renamed_starts, start) - 1
            starts.append(original_starts[piece] + start - renamed_starts[piece])
        return Encoding([self._ids.get(i, i) for i in encoded.ids], starts)


def _controls(name: str, special: bool, template: str) -> bool:
    """Return whether an added token is a control token.

    It is one if it is special, or occurs in the template, or looks like markup. White space and
    single characters, such as a "!" that is also used for padding, are text.
    """
    if len(name.strip(" \t\r\n\v\f▁")) < 2:
        return False
    if special:
        return True
    escaped = json.dumps(name, ensure_ascii=False)[1:-1]
    return escaped in template or bool(_MARK.fullmatch(name) and not _HTML.fullmatch(name))


def _inside(span: tuple[int, int], spans: Spans) -> bool:
    """Return whether a span lies within one of the spans, which are ascending."""
    index = bisect_right(spans, span[0], key=lambda s: s[0]) - 1
    return index >= 0 and span[1] <= spans[index][1]


def _rename(state: dict[str, Any], names: dict[str, str]) -> None:
    """Rename tokens (`names`: old to new) in all parts of a tokenizer's JSON, in place."""
    state["truncation"] = None
    state["padding"] = None
    for token in state["added_tokens"]:
        if token["content"] in names:
            token["content"] = names[token["content"]]
            # The new names are to be found before text is normalized, and inside words, too.
            token["normalized"] = False
            token["single_word"] = False
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(token, token), *fields] for token, *fields in model["vocab"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _involves(merge, names)]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])


def _involves(merge: str | Sequence[str], names: dict[str, str]) -> bool:
    """Return whether one of `names` is a part or the result of a merge of a BPE model."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
