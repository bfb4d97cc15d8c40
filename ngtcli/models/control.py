"""Control tokens of a tokenizer, and encoding without control tokens from text.

The parts of a prompt that the chat template wrote may contain control tokens; documents, questions
and names may not. The prompt is encoded whole. If text gave a control token, it is encoded whole by
a copy of the tokenizer whose control tokens have names that no text has, after the names in the
template's parts were replaced by those. It is never encoded in parts where that can be helped: some
tokenizers put a space before each part.
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

# Marks such as <tool_call>, [INST] and <|im_end|> may be added tokens that are not called special.
_MARK = re.compile(r"[<\[{｟〈].*[>\]}｠〉]", re.DOTALL)
# Gemma adds the tags of HTML, which were text in its training; no template uses them.
_HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup"
    r"|code|p|ul|ol|li|br|div|span|a|pre)>"
)


@dataclass(frozen=True, slots=True)
class Coded:
    """Token ids and the index of their first characters; `starts` is empty if not known."""

    ids: list[int]
    starts: list[int]


class ControlTokens:
    """The control tokens of a `transformers` tokenizer; `texts` maps their ids to their names."""

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
        """The first name of a control token in `text`, "" if there is none."""
        found = self._search.search(text)
        return found.group() if found else ""

    def encode(self, text: str, special: bool, template: Spans) -> Coded:
        """The ids of `text`, in which control tokens come only from the spans of `template`.

        Without names of control tokens in the text they are those that the tokenizer gives. With
        `special` they are between the tokenizer's marks. Raises ModelError if text cannot be
        encoded without control tokens.
        """
        whole, forged = self._whole(text, special, template)
        if not forged:
            return whole
        if self._fast is not None:
            return self._renamed.encode(text, special, self._names_in(text, template))
        if not template:
            return self.encode_text(text, special)
        ids: list[int] = []
        starts: list[int] = []
        at = 0
        for first, last in [*template, (len(text), len(text))]:
            own = self.encode_text(text[at:first]), self._whole(text[first:last], False, ())[0]
            for place, coded in zip((at, first), own, strict=True):
                ids += coded.ids
                starts += [place + start for start in coded.starts]
            at = last
        return Coded(ids, starts)

    def encode_text(self, text: str, special: bool = False) -> Coded:
        """The ids of `text`, in which no control token stands. Raises as `encode`."""
        if self._fast is not None:
            return self._renamed.encode(text, special)
        ids = self._backend.encode(text, add_special_tokens=False, split_special_tokens=True)
        if stray := (self.texts.keys() - {self.unknown}).intersection(ids):
            raise ModelError(
                f"the tokenizer makes its control token {self.texts[min(stray)]} of plain text",
                hint="Take it out of the text, or name a model with a fast tokenizer.",
            )
        between = self._backend.build_inputs_with_special_tokens
        return Coded(list(between(ids) if special else ids), [])

    def _names_in(self, text: str, template: Spans) -> list[re.Match[str]]:
        """The names of control tokens that stand within the spans of `template`, in order."""
        return [name for span in template for name in self._search.finditer(text, *span)]

    @cached_property
    def _renamed(self) -> "_RenamedCopy":
        return _RenamedCopy(self._fast, self.texts)

    def _whole(self, text: str, special: bool, template: Spans) -> tuple[Coded, bool]:
        """What the tokenizer gives, and whether a control token stands outside of `template`."""
        if self._fast is None:  # written in Python; gives no spans
            ids = list(self._backend.encode(text, add_special_tokens=special))
            found = self._search.finditer(text)
            return Coded(ids, []), any(not _inside(m.span(), template) for m in found)
        coded = self._backend(
            text, add_special_tokens=special, return_offsets_mapping=True, verbose=False,
            split_special_tokens=False, return_attention_mask=False, return_token_type_ids=False,
        )  # fmt: skip
        ids, spans = list(coded["input_ids"]), coded["offset_mapping"]
        forged = False
        if not self.texts.keys().isdisjoint(ids):
            each = zip(ids, spans, strict=True)
            forged = any(i in self.texts and self._is_text(i, text, s, template) for i, s in each)
        return Coded(ids, [start for start, _ in spans]), forged

    def _is_text(self, token: int, text: str, span: tuple[int, int], template: Spans) -> bool:
        """Whether a control token was made of a part of `text` outside of `template`.

        Its span may include white space around its name. The token for unknown text counts only
        where its name is in the text.
        """
        if span[0] == span[1]:
            return False
        at = text.find(self.texts[token], *span)
        if at >= 0:
            span = at, at + len(self.texts[token])
        return (at >= 0 or token != self.unknown) and not _inside(span, template)


class _RenamedCopy:
    """A copy of a fast tokenizer in which control tokens have random names.

    They are renamed in the vocabulary, too, since a Unigram model finds `</s>` there by itself.
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
    ) -> Coded:
        """Encode `text`, of which only `controls` become control tokens.

        Args:
            text: The text of a prompt.
            special: Whether the tokenizer adds its own marks, such as `<s>`.
            controls: Matches of names of control tokens, in the order of their places.
        """
        pieces: list[str] = []
        renamed_starts = [0]  # where stretches begin in the text with the new names
        original_starts = [0]  # where the same stretches begin in `text`
        length = at = 0
        for match in controls:
            before = text[at : match.start()]
            name = self._names[match.group()]
            pieces += [before, name]
            at = match.end()
            renamed_starts += [length + len(before), length + len(before) + len(name)]
            original_starts += [match.start(), at]
            length += len(before) + len(name)
        pieces.append(text[at:])
        coded = self._copy.encode_batch(["".join(pieces)], add_special_tokens=special)[0]
        starts = []
        for start, _ in coded.offsets:
            stretch = bisect_right(renamed_starts, start) - 1
            starts.append(original_starts[stretch] + start - renamed_starts[stretch])
        return Coded([self._ids.get(i, i) for i in coded.ids], starts)


def _controls(name: str, special: bool, template: str) -> bool:
    """Whether an added token is a control token: special, in the template, or of a mark's form.

    White space and single characters, such as a "!" that is also used for padding, are text.
    """
    if len(name.strip(" \t\r\n\v\f▁")) < 2:
        return False
    if special:
        return True
    escaped = json.dumps(name, ensure_ascii=False)[1:-1]
    return escaped in template or bool(_MARK.fullmatch(name) and not _HTML.fullmatch(name))


def _inside(span: tuple[int, int], spans: Spans) -> bool:
    rank = bisect_right(spans, span[0], key=lambda s: s[0]) - 1
    return rank >= 0 and span[1] <= spans[rank][1]


def _rename(state: dict[str, Any], names: dict[str, str]) -> None:
    """Rename tokens (`names`: old to new) in all parts of a tokenizer's JSON, in place."""
    state["truncation"] = state["padding"] = None
    for token in state["added_tokens"]:
        if token["content"] in names:
            # To be found before the text is normalised, and inside words, too.
            token |= {"content": names[token["content"]], "normalized": False, "single_word": False}
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(t, t): i for t, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(t, t), *rest] for t, *rest in model["vocab"]]
    if "merges" in model:
        model["merges"] = [m for m in model["merges"] if not _makes(m, names)]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])


def _makes(merge: Any, names: dict[str, str]) -> bool:
    """Whether a merge takes or makes one of `names`."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
