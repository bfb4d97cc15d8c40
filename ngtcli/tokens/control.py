"""Control tokens of a tokenizer, and encoding without control tokens from text.

The parts of a prompt that the chat template wrote may contain control tokens; documents, questions
and names may not. The prompt is first encoded whole. If text gave a control token, the prompt is
encoded again by a copy of the tokenizer in which control tokens have names that no text contains.
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
        if self._fast is None:
            return Coded(self._slow(text, special, template), [])
        ids, spans = self._whole(text, special)
        controls = self._controls_in(text, ids, spans)
        if any(not _inside(span, template) for _, span in controls):
            ids, spans = self.encode_renamed(text, special, template)
        return Coded(ids, [start for start, _ in spans])

    def encode_renamed(
        self, text: str, special: bool, template: Spans
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and spans of `text` by the copy in which text gives no control tokens."""
        own = []
        for first, last in template:
            ids, spans = self._whole(text[first:last], False)
            for token, (start, end) in self._controls_in(text[first:last], ids, spans):
                own.append((token, (first + start, first + end)))
        return self._renamed.encode(text, special, own)

    @cached_property
    def _renamed(self) -> "_RenamedCopy":
        return _RenamedCopy(self._fast, self.texts)

    def _whole(self, text: str, special: bool) -> tuple[list[int], list[tuple[int, int]]]:
        coded = self._backend(
            text, add_special_tokens=special, return_offsets_mapping=True, verbose=False,
            split_special_tokens=False, return_attention_mask=False, return_token_type_ids=False,
        )  # fmt: skip
        return list(coded["input_ids"]), coded["offset_mapping"]

    def _controls_in(
        self, text: str, ids: list[int], spans: Spans
    ) -> list[tuple[int, tuple[int, int]]]:
        """(id, span) of the control tokens that are those of a part of `text`.

        A token's span may include white space around its name; the returned span is the name's. The
        token for unknown text counts only where its name is in the text.
        """
        found: list[tuple[int, tuple[int, int]]] = []
        if self.texts.keys().isdisjoint(ids):
            return found
        for token, (start, end) in zip(ids, spans, strict=True):
            if token not in self.texts or start == end:
                continue
            name = self.texts[token]
            at = text.find(name, start, end)
            if at >= 0:
                found.append((token, (at, at + len(name))))
            elif token != self.unknown:
                found.append((token, (start, end)))
        return found

    def _slow(self, text: str, special: bool, template: Spans) -> list[int]:
        """As `encode`, with a tokenizer written in Python, which gives no spans."""
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


class _RenamedCopy:
    """A copy of a fast tokenizer in which control tokens have random names.

    They are renamed in the vocabulary, too, since a Unigram model finds `</s>` there by itself.
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
        """Ids and spans of `text`, with the control tokens `controls` (id, span) and no others."""
        parts: list[str] = []
        # From a place in the renamed text on, what to add for the place in `text`.
        places, shifts = [0], [0]
        at = 0
        for token, (start, end) in controls:
            name = self._names[token]
            parts += [text[at:start], name]
            at = end
            shifts.append(shifts[-1] + end - start - len(name))
            places.append(end - shifts[-1])
        coded = self._copy.encode_batch(["".join([*parts, text[at:]])], add_special_tokens=special)
        ids = [self._ids.get(i, i) for i in coded[0].ids]

        def original(place: int) -> int:
            return place + shifts[bisect_right(places, place) - 1]

        return ids, [(original(start), original(end)) for start, end in coded[0].offsets]


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
