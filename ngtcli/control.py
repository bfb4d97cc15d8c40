"""Which of a tokenizer's tokens control a model, and encoding text so that it never becomes one.

A chat template's own pieces may hold control tokens; documents, questions and names may not. The
whole is encoded at once first. Only if a control token came out of text, it is encoded again by a
muted copy of the tokenizer, in which no control token has a name that a text could hold.
"""

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngtcli.errors import ModelError

# A span is (first character, character after the last).
Spans = Sequence[tuple[int, int]]

# Marks such as <tool_call>, [INST] and <|im_end|> may be added without being called special.
_MARK = re.compile(r"[<\[{｟〈].*[>\]}｠〉]", re.DOTALL)
# Gemma adds the tags of HTML, which it read as text in training; no template uses them.
_HTML = re.compile(
    r"</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup"
    r"|code|p|ul|ol|li|br|div|span|a|pre)>"
)


@dataclass(frozen=True, slots=True)
class Coded:
    """Token ids and the character each starts at; no starts where the tokenizer cannot tell."""

    ids: list[int]
    starts: list[int]


class ControlTokens:
    """The control tokens of one `transformers` tokenizer: ids to their texts."""

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
        self._muted: _Muted | None = None

    def first_in(self, text: str) -> str:
        """The first text of a control token in `text`, "" where there is none."""
        found = self._search.search(text)
        return found.group() if found else ""

    def encode(self, text: str, special: bool, template: Spans) -> Coded:
        """Ids in which control tokens come from the spans of `template` alone.

        Where no text looks like a control token they are the ids of the whole. With `special` the
        tokenizer's own marks stand around it. Raises ModelError where text cannot be kept text.
        """
        if self._fast is None:
            return Coded(self._slow(text, special, template), [])
        ids, spans = self._whole(text, special)
        if self._strays(text, ids, spans, template):
            ids, spans = self._encode_muted(text, special, template)
        return Coded(ids, [start for start, _ in spans])

    def _whole(self, text: str, special: bool) -> tuple[list[int], list[tuple[int, int]]]:
        coded = self._backend(
            text, add_special_tokens=special, return_offsets_mapping=True, verbose=False,
            split_special_tokens=False, return_attention_mask=False, return_token_type_ids=False,
        )  # fmt: skip
        return list(coded["input_ids"]), coded["offset_mapping"]

    def _strays(self, text: str, ids: list[int], spans: Spans, template: Spans) -> bool:
        """Whether a control token stands for something outside `template`."""
        if self.texts.keys().isdisjoint(ids):
            return False
        return any(not _inside(place, template) for _, place in self._controls_in(text, ids, spans))

    def _controls_in(
        self, text: str, ids: list[int], spans: Spans
    ) -> list[tuple[int, tuple[int, int]]]:
        """(id, span) of control tokens that stand for a part of `text`, not of what is unknown.

        A token may take the white space beside it along; the span is that of its own text.
        """
        found: list[tuple[int, tuple[int, int]]] = []
        for token, (start, end) in zip(ids, spans, strict=True):
            if token not in self.texts or start == end:
                continue
            part, name = text[start:end], self.texts[token]
            at = part.find(name)
            if at >= 0:
                found.append((token, (start + at, start + at + len(name))))
            elif token != self.unknown:
                found.append((token, (start, end)))
        return found

    def _encode_muted(
        self, text: str, special: bool, template: Spans
    ) -> tuple[list[int], list[tuple[int, int]]]:
        if self._muted is None:
            self._muted = _Muted(self._fast, self.texts)
        return self._muted.encode(text, special, self._in_template(text, template))

    def _in_template(self, text: str, template: Spans) -> list[tuple[int, tuple[int, int]]]:
        """(id, span) of the control tokens that the template itself writes, in order."""
        found = []
        for first, last in template:
            ids, spans = self._whole(text[first:last], False)
            for token, (start, end) in self._controls_in(text[first:last], ids, spans):
                found.append((token, (first + start, first + end)))
        return found

    def _slow(self, text: str, special: bool, template: Spans) -> list[int]:
        """As `encode`, by a tokenizer written in Python, which tells no places."""
        matches = list(self._search.finditer(text))
        if all(_inside(m.span(), template) for m in matches):
            return list(self._backend.encode(text, add_special_tokens=special))
        names = {name: token for token, name in self.texts.items()}
        ids: list[int] = []
        at = 0
        for first, last in [*template, (len(text), len(text))]:
            for m in self._search.finditer(text, first, last):
                ids += [*self._split(text[at : m.start()]), names[m.group()]]
                at = m.end()
        ids += self._split(text[at:])
        return list(self._backend.build_inputs_with_special_tokens(ids)) if special else ids

    def _split(self, text: str) -> list[int]:
        if not text:
            return []
        ids = self._backend.encode(text, add_special_tokens=False, split_special_tokens=True)
        if stray := (self.texts.keys() - {self.unknown}).intersection(ids):
            raise ModelError(
                f"the tokenizer makes its control token {self.texts[min(stray)]} of plain text",
                "Take it out of the text, or name a model with a fast tokenizer.",
            )
        return list(ids)


class _Muted:
    """A copy of a fast tokenizer whose control tokens bear names that are drawn at random.

    Its vocabulary, too, holds the names, for a Unigram model finds `</s>` there by itself.
    """

    def __init__(self, fast: Any, texts: dict[int, str]) -> None:
        from tokenizers import Tokenizer

        secret = secrets.token_hex(8)
        self._names = {token: f"\ue000{secret}{token:x}\ue001" for token in texts}
        state = json.loads(fast.to_str())
        _rename(state, {texts[token]: name for token, name in self._names.items()})
        self._copy = Tokenizer.from_str(json.dumps(state))
        self._ids = {self._copy.token_to_id(t["content"]): t["id"] for t in state["added_tokens"]}

    def encode(
        self, text: str, special: bool, controls: Sequence[tuple[int, tuple[int, int]]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and spans of `text`, with `controls` (id, span) in it as what they are."""
        parts: list[str] = []
        places, shifts = [0], [0]  # from a place in the named text on: what leads back to `text`
        at = shift = 0
        for token, (start, end) in controls:
            name = self._names[token]
            parts += [text[at:start], name]
            at, shift = end, shift + end - start - len(name)
            places.append(end - shift)
            shifts.append(shift)
        coded = self._copy.encode_batch(["".join([*parts, text[at:]])], add_special_tokens=special)
        ids = [self._ids.get(i, i) for i in coded[0].ids]

        def back(place: int) -> int:
            return place + shifts[bisect_right(places, place) - 1]

        return ids, [(back(start), back(end)) for start, end in coded[0].offsets]


def _controls(name: str, special: bool, template: str) -> bool:
    """Whether an added token controls the model: a special one, a template's, or a mark by shape.

    White space and single characters, such as a "!" that also serves as padding, are text.
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
    """Give the tokens `names` other names in a tokenizer's JSON: added, in the model, unknown."""
    state["truncation"] = state["padding"] = None
    for token in state["added_tokens"]:
        if token["content"] in names:
            # Found as it stands, before the text is normalised and whatever stands beside it.
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
    """Whether a merge reads or writes one of `names`."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
