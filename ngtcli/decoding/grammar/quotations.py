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
from ngtcli.system import reporting
from ngtcli.system.json_form import Schema

# Pieces of documents that are compiled, 160,000 characters of English; a piece takes 10 µs and 11
# of the million units that llguidance gives a grammar (measured).
MOST_PIECES = 60_000
MOST_QUOTATIONS = 5  # in an answer of quotations alone (guess)
_BETWEEN = "\x01"  # a piece between documents, which no quotation holds
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_APART = re.compile(f"[{UNSPACED}]")
# One character of a text, and one that is not white space; in JSON these are whole escapes, too.
_PLAIN = r"[^\x01]", r"[^\s\x01]"
_IN_JSON = r"[^\\\x01]|\\[^u]|\\u[0-9a-f]{4}", r'[^\s\\\x01]|\\["\\]|\\u[0-9a-f]{4}'


def pieces(text: str) -> Iterator[str]:
    """Split a text into words, white space and signs; joined they are the text again.

    >>> list(pieces("a  don't 日本"))
    ['a', '  ', 'don', "'", 't', ' ', '日', '本']
    """
    for kind, run in groupby(text, _kind):
        if kind:
            yield "".join(run)
        else:
            yield from run


def _kind(character: str) -> str:
    """Return the kind of piece that a character is a part of; "" if it stands by itself."""
    if character.isspace():
        return "space"
    is_mark = unicodedata.category(character)[0] == "M" or character in "\u200c\u200d"
    is_word = character.isalnum() or character == "_" or is_mark
    return "word" if is_word and not _APART.match(character) else ""


def plain_grammar(texts: Sequence[str]) -> str:
    """Write the Lark grammar of an answer that consists of quotations.

    Each quotation is from one paragraph; an empty line is between two. Raises UsageError where
    the texts are empty.
    """
    more = f'("\\n\\n" QUOTE{QUOTE}){{0,{MOST_QUOTATIONS - 1}}}'
    paragraphs = [part for text in texts for part in _PARAGRAPH.split(text)]
    documents = _documents(paragraphs, str)
    return f"start: ANSWER\nANSWER: QUOTE{QUOTE} {more}\n{_bounded(_PLAIN, QUOTE)}\n{documents}"


def json_with_quotes(schema: Schema, texts: Sequence[str]) -> str:
    """Write the Lark grammar of a bounded schema with quotations.

    Raises UsageError with the path of a quotation that cannot be there, or where the texts are
    empty.
    """
    rules: list[str] = []
    lengths: set[int] = set()
    start = f"start: {_rule(schema, '$', rules, lengths)}"
    quotes = [_bounded(_IN_JSON, max_length) for max_length in sorted(lengths)]
    escaped = _documents(texts, lambda piece: json.dumps(piece, ensure_ascii=False)[1:-1])
    return "\n".join([start, *rules, *quotes, escaped])


def _documents(texts: Sequence[str], escape: Callable[[str], str]) -> str:
    """Write the rule of all stretches of texts; warn where they are too long to be quoted whole.

    Args:
        texts: Of the documents.
        escape: Writes a piece as it is in an answer.
    """
    chunks: list[str] = []
    for text in texts:
        chunks += map(escape, pieces(text))
        chunks.append(_BETWEEN)
    if not any(chunk.strip() for chunk in chunks if chunk != _BETWEEN):
        raise UsageError("there is no document to quote from", hint="Give documents, as with -d.")
    left_out = sum(map(len, chunks[MOST_PIECES:]))
    if left_out:
        reporting.warn(f"the last {left_out:,} characters cannot be quoted: there is too much text")
    return f"DOCUMENTS: %regex {json.dumps({'substring_chunks': chunks[:MOST_PIECES]})}"


def _bounded(characters: tuple[str, str], max_length: int) -> str:
    """Write the rule of quotations that neither begin nor end with white space.

    Args:
        characters: Regular expressions of any character, and of one that is not white space.
        max_length: Characters of a quotation.
    """
    any_one, visible = characters
    more = f"(?:(?:{any_one}){{0,{max_length - 2}}}(?:{visible}))?" if max_length > 1 else ""
    return f"QUOTE{max_length}: DOCUMENTS & /(?s:(?:{visible}){more})/"


def _rule(schema: Any, path: str, rules: list[str], lengths: set[int]) -> str:
    """Append the rule of a part of a schema; return the rule's name.

    In an object with quotations no key may be left out.

    Args:
        schema: The part.
        path: Its path, for errors.
        rules: The rules so far.
        lengths: Gets the maximal lengths of its quotations.
    """

    def inner(part: Any, step: str) -> str:
        return _rule(part, f"{path}.{step}", rules, lengths)

    kinds = [kind for kind in types_of(schema) if kind != "null"]
    if QUOTES not in json.dumps(schema):
        body = f"%json {json_text(schema)}"
    elif (
        kinds == ["string"]
        and not {"minLength", "pattern", "enum", "const"} & {*schema}
        and schema["maxLength"]
    ):
        lengths.add(schema["maxLength"])
        body = f'"\\"" QUOTE{schema["maxLength"]} "\\""'
    elif kinds == ["array"] and "prefixItems" not in schema and schema["maxItems"]:
        min_items = schema.get("minItems", 0)
        item = inner(schema["items"], "items")
        more = f'(", " {item}){{{max(min_items - 1, 0)},{schema["maxItems"] - 1}}}'
        body = f'"[" {item} {more} "]"'
        if not min_items:
            body = f'"[]" | {body}'
    elif kinds == ["object"] and "patternProperties" not in schema:
        keys = {key: json.dumps(f"{json.dumps(key)}: ") for key in schema["properties"]}
        members = [
            f"{keys[name]} {inner(part, f'properties.{name}')}"
            for name, part in schema["properties"].items()
        ]
        body = '"{" ' + ' ", " '.join(members) + ' "}"'
    else:
        raise refused(path, "a quotation does not stand there")
    if "null" in types_of(schema):
        body += ' | "null"'
    name = f"r{len(rules)}"
    rules.append(f"{name}: {body}")
    return name
