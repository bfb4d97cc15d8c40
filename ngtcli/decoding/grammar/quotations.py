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

from ngtcli.decoding.grammar.bounds import QUOTE, QUOTES, json_text, refused, types_of
from ngtcli.documents.text import UNSPACED
from ngtcli.errors import UsageError
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
    """The Lark grammar of an answer of quotations, each of a paragraph, an empty line between two.

    Raises UsageError where the texts are empty.
    """
    more = f'("\\n\\n" QUOTE{QUOTE}){{0,{MOST_QUOTATIONS - 1}}}'
    paragraphs = [part for text in texts for part in _PARAGRAPH.split(text)]
    documents = _documents(paragraphs, str, warn)
    return f"start: ANSWER\nANSWER: QUOTE{QUOTE} {more}\n{_bounded(_PLAIN, QUOTE)}\n{documents}"


def json_with_quotes(schema: Schema, texts: Sequence[str], warn: Warn) -> str:
    """The Lark grammar of a bounded schema with quotations.

    Raises UsageError with the path of one that cannot be, or where the texts are empty.
    """
    rules, lengths = list[str](), set[int]()
    start = f"start: {_rule(schema, '$', rules, lengths)}"
    quotes = [_bounded(_IN_JSON, most) for most in sorted(lengths)]
    escaped = _documents(texts, lambda piece: json.dumps(piece, ensure_ascii=False)[1:-1], warn)
    return "\n".join([start, *rules, *quotes, escaped])


def _documents(texts: Sequence[str], form: Callable[[str], str], warn: Warn) -> str:
    """The rule of stretches of texts, each piece in this form."""
    found = [piece for text in texts for piece in (*map(form, pieces(text)), _BETWEEN)]
    if not any(piece.strip() for piece in found if piece != _BETWEEN):
        raise UsageError("there is no document to quote from", hint="Give documents, as with -d.")
    if left := sum(map(len, found[MOST_PIECES:])):
        warn(f"nothing is quoted of the last {left:,} characters: they are too many")
    return f"DOCUMENTS: %regex {json.dumps({'substring_chunks': found[:MOST_PIECES]})}"


def _bounded(characters: tuple[str, str], most: int) -> str:
    """The rule of quotations of up to so many characters, white space neither first nor last."""
    one, black = characters
    more = f"(?:(?:{one}){{0,{most - 2}}}(?:{black}))?" if most > 1 else ""
    return f"QUOTE{most}: DOCUMENTS & /(?s:(?:{black}){more})/"


def _rule(schema: Any, path: str, rules: list[str], lengths: set[int]) -> str:
    """The name of the rule of a part, which `rules` get; `lengths` those of its quotations.

    Beside quotations no key is left out.
    """

    def inner(one: Any, at: str) -> str:
        return _rule(one, f"{path}.{at}", rules, lengths)

    kinds = [kind for kind in types_of(schema) if kind != "null"]
    if QUOTES not in json.dumps(schema):
        says = f"%json {json_text(schema)}"
    elif (
        kinds == ["string"]
        and not {"minLength", "pattern", "enum", "const"} & {*schema}
        and schema["maxLength"]
    ):
        lengths.add(schema["maxLength"])
        says = f'"\\"" QUOTE{schema["maxLength"]} "\\""'
    elif kinds == ["array"] and "prefixItems" not in schema and schema["maxItems"]:
        least, item = schema.get("minItems", 0), inner(schema["items"], "items")
        some = f'"[" {item} (", " {item}){{{max(least - 1, 0)},{schema["maxItems"] - 1}}} "]"'
        says = some if least else f'"[]" | {some}'
    elif kinds == ["object"] and "patternProperties" not in schema:
        keys = {key: json.dumps(f"{json.dumps(key)}: ") for key in schema["properties"]}
        each = [f"{keys[k]} {inner(v, f'properties.{k}')}" for k, v in schema["properties"].items()]
        says = '"{" ' + ' ", " '.join(each) + ' "}"'
    else:
        raise refused(path, "a quotation does not stand there")
    rules.append(f"r{len(rules)}: {says}" + ' | "null"' * ("null" in types_of(schema)))
    return f"r{len(rules) - 1}"
