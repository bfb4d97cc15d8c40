r"""Grammars of quotations: stretches of documents, word for word, alone or as values in JSON.

A quotation is words, white space and signs in a row, neither first nor last of which is white
space; of scripts without spaces between words each character is a word. In JSON a text stands
escaped, and its pieces are cut only at whole escapes: `a "b"` is `a`, ` `, `\"`, `b`, `\"`.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from ngtcli.documents.text import UNSPACED
from ngtcli.errors import UsageError
from ngtcli.grammar.bounds import QUOTE, json_text, refused
from ngtcli.system.json_form import Schema

# Pieces of documents that are compiled, 160,000 characters of English; a piece takes 10 µs and 11
# of the million units that llguidance gives a grammar (measured).
MOST_PIECES = 60_000
MOST_QUOTATIONS = 5  # in an answer of quotations alone; guess
_BETWEEN = "\x01"  # a piece between documents, which no quotation holds
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_APART = re.compile(f"[{UNSPACED}]")
# One character of a text, and one that is not white space; in JSON these are whole escapes, too.
_PLAIN = r"[^\x01]", r"[^\s\x01]"
_IN_JSON = r"[^\\\x01]|\\[^u]|\\u[0-9a-f]{4}", r'[^\s\\\x01]|\\["\\]|\\u[0-9a-f]{4}'

Warn = Callable[[str], object]


def has_quotes(schema: Any) -> bool:
    """Whether a part of a schema is a quotation."""
    parts = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and schema.get("format") == "quote":
        return True
    return isinstance(schema, dict | list) and any(map(has_quotes, parts))


def pieces(text: str) -> Iterator[str]:
    """The words, white space and signs of a text, which together are it.

    >>> list(pieces("a  don't 日本"))
    ['a', '  ', 'don', "'", 't', ' ', '日', '本']
    """
    for kind, run in groupby(text, _kind):
        own = "".join(run)
        yield from [own] if kind else own


def _kind(character: str) -> str:
    """What a character is a part of, "" for what stands by itself."""
    if character.isspace():
        return "space"
    is_mark = unicodedata.category(character)[0] == "M" or character in "\u200c\u200d"
    is_word = character.isalnum() or character == "_" or is_mark
    return "word" if is_word and not _APART.match(character) else ""


def plain_grammar(texts: Sequence[str], warn: Warn) -> str:
    """The Lark grammar of an answer of quotations, an empty line between two.

    Each is within a paragraph. Raises UsageError where the texts are empty.
    """
    paragraphs = [part for text in texts for part in _PARAGRAPH.split(text)]
    more = f'("\\n\\n" QUOTE){{0,{MOST_QUOTATIONS - 1}}}'
    own = f"DOCUMENTS & {_bounded(_PLAIN, QUOTE)}"
    rules = ["start: ANSWER", f"ANSWER: QUOTE {more}", f"QUOTE: {own}"]
    return "\n".join([*rules, _documents(paragraphs, str, warn)])


def json_with_quotes(schema: Schema, texts: Sequence[str], warn: Warn) -> str:
    """The Lark grammar of a bounded schema with quotations.

    Raises UsageError with the path of one that cannot be, or where the texts are empty.
    """
    rules = _Rules()
    start = f"start: {rules.of(schema, '$')}"
    lengths = [f"QUOTE{n}: DOCUMENTS & {_bounded(_IN_JSON, n)}" for n in sorted(rules.lengths)]
    escaped = _documents(texts, lambda piece: json.dumps(piece, ensure_ascii=False)[1:-1], warn)
    return "\n".join([start, *rules.lines, *lengths, escaped])


def _documents(texts: Sequence[str], form: Callable[[str], str], warn: Warn) -> str:
    """The rule of stretches of texts, each piece in this form."""
    found: list[str] = []
    for text in texts:
        found += [*pieces(text), _BETWEEN]
    if not any(piece.strip() for piece in found if piece != _BETWEEN):
        raise UsageError("there is no document to quote from", "Give documents, as with -d.")
    if left := sum(map(len, found[MOST_PIECES:])):
        warn(f"quotations are of the first {MOST_PIECES:,} words and signs: {left:,} characters"
             " more are not quoted")  # fmt: skip
    chunks = [form(piece) if piece != _BETWEEN else piece for piece in found[:MOST_PIECES]]
    return f"DOCUMENTS: %regex {json.dumps({'substring_chunks': chunks})}"


def _bounded(characters: tuple[str, str], most: int) -> str:
    """An expression for up to so many characters, white space neither first nor last."""
    one, black = characters
    more = f"(?:(?:{one}){{0,{most - 2}}}(?:{black}))?" if most > 1 else ""
    return f"/(?s:(?:{black}){more})/"


class _Rules:
    """Writes the parts of a schema as rules; `lengths` are those of its quotations."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lengths: set[int] = set()

    def of(self, schema: Any, path: str) -> str:
        """The name of the rule of a part. Raises UsageError."""
        says = (
            f"%json {json_text(schema)}" if not has_quotes(schema) else self._quoting(schema, path)
        )
        self.lines.append(f"r{len(self.lines)}: {says}")
        return f"r{len(self.lines) - 1}"

    def _quoting(self, schema: Schema, path: str) -> str:
        for name in ("anyOf", "oneOf"):
            if name in schema:
                each = enumerate(schema[name])
                return " | ".join([self.of(one, f"{path}.{name}[{i}]") for i, one in each])
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        main = (
            "string"
            if schema.get("format") == "quote"
            else "array"
            if "items" in schema
            else "object"
        )
        writers = {"string": self._quote, "array": self._list, "object": self._object}
        if main not in kinds:
            raise refused(path, "a quotation does not stand there")
        rest = [kind for kind in kinds if kind != main]
        others = [self.of({"type": rest}, path)] if rest else []
        return " | ".join([writers[main](schema, path), *others])

    def _quote(self, schema: Schema, path: str) -> str:
        for name in {"minLength", "pattern", "enum", "const"} & {*schema}:
            raise refused(f"{path}.{name}", "a quotation cannot have it")
        self.lengths.add(schema["maxLength"])
        return f'"\\"" QUOTE{schema["maxLength"]} "\\""'

    def _list(self, schema: Schema, path: str) -> str:
        least, most = schema.get("minItems", 0), schema["maxItems"]
        if "prefixItems" in schema or not most:
            raise refused(path, "a quotation does not stand there")
        item = self.of(schema["items"], f"{path}.items")
        some = f'"[" {item} (", " {item}){{{max(least - 1, 0)},{most - 1}}} "]"'
        return some if least else f'"[]" | {some}'

    def _object(self, schema: Schema, path: str) -> str:
        """All keys in their order: beside quotations none is left out."""
        if "patternProperties" in schema or not schema.get("properties"):
            raise refused(path, "a quotation does not stand in an object with free keys")
        pairs = []
        for key, own in schema["properties"].items():
            name = json.dumps(json.dumps(key, ensure_ascii=False) + ": ", ensure_ascii=False)
            pairs.append(f"{name} {self.of(own, f'{path}.properties.{key}')}")
        within = ' ", " '.join(pairs)
        return f'"{{" {within} "}}"'
