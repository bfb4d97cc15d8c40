"""The form of an answer: concise schemas, bounds, refusals, and what their grammars take."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from functools import cache
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.errors import UsageError
from ngtcli.grammar.bounds import ITEMS, QUOTE, STRING, WHOLE
from ngtcli.grammar.form import AnswerForm, Field, form_of, grammar_of
from ngtcli.grammar.quotations import MOST_PIECES, pieces
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from tests.support.helpers import examples, share

Schema = dict[str, Any]


def form(schema: Schema | str, **more: Any) -> AnswerForm:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    found = form_of(Settings(**{"schema": text, **more}))
    assert found is not None
    return found


def objects(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


@cache
def words() -> Any:
    """The built-in model's tokens, which hold several characters each."""
    return llguidance.LLTokenizer(str(BUILTIN_PATH / "tokenizer.json"))


@cache
def closing() -> Any:
    """Which tokens begin with what ends a text, a list or an object."""
    return np.array([words().decode_str([i])[:1] in ('"', "]", "}") for i in range(8192)])


def walk(grammar: str, seed: int, hurry: float = 0.5) -> str:
    """An answer of tokens drawn from the masks; in a `hurry` those that close are preferred."""
    matcher, draw, ids = llguidance.LLMatcher(words(), grammar), random.Random(seed), list[int]()
    end, close = words().eos_token, closing()
    while not matcher.is_stopped():
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        free = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if end in free and (draw.random() < hurry or len(free) == 1):
            break
        near = free[close[free]] if draw.random() < hurry else free[:0]
        ids.append(int(draw.choice(near if len(near) else free[free != end])))
        assert matcher.consume_token(ids[-1])
    assert not matcher.get_error() and matcher.is_accepting()
    return str(words().decode_str(ids))


@cache
def single() -> Any:
    return llguidance.LLTokenizer("byte")


def takes(grammar: str, text: str) -> bool:
    """Whether the whole text is an answer, byte by byte."""
    matcher = llguidance.LLMatcher(single(), grammar)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


# --- the concise form ---


# What `llm.utils.schema_dsl` of llm 0.36 makes of these texts.
OF_LLM: list[tuple[str, Schema]] = [
    ("name", {"name": {"type": "string"}}),
    (
        "name, age int, bio: a short bio",
        {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "bio": {"type": "string", "description": "a short bio"},
        },
    ),
    (
        "a float\nb bool: x, y\n\nc str",
        {
            "a": {"type": "number"},
            "b": {"type": "boolean", "description": "x, y"},
            "c": {"type": "string"},
        },
    ),
    (" a ,b int ,", {"a": {"type": "string"}, "b": {"type": "integer"}}),
]


@pytest.mark.parametrize(("text", "properties"), OF_LLM)
def test_concise_schemas_are_those_of_llm(text: str, properties: Schema) -> None:
    ours = form(text).schema
    for key, theirs in properties.items():
        assert theirs.items() <= ours["properties"][key].items()
    assert list(ours["properties"]) == ours["required"] == list(properties)
    assert ours["additionalProperties"] is False
    multi = form_of(Settings(schema_multi=text))
    assert multi and multi.multi and multi.schema["properties"]["items"]["items"] == ours


def test_own_types_of_concise_schemas() -> None:
    text = (
        "due date?, state paid|open?, tags str[], proof quote: a line, total? float, days date[]?"
    )
    expected = (
        Field("due", "date", nullable=True),
        Field("state", "choice", choices=("paid", "open"), nullable=True),
        Field("tags", "str", is_list=True),
        Field("proof", "quote", "a line"),
        Field("total", "float", nullable=True),
        Field("days", "date", is_list=True, nullable=True),
    )
    assert form(text).fields == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name foo", "'foo' is no type, for the field 'name'"),
        ("a, a int", "'a int' is no field, or stands twice"),
        (",", "no field"),
        (": x", "is no field"),
        ("name str long", "is no field"),
        ('{"a":', "not JSON"),
        ("[1]", "no JSON object"),
        ('{"name": "string"}', "'name' is no keyword"),
        ("x" * 10_000_000, "more than 200,000 characters"),
        ('{"a":' * 10_000, "not JSON"),
    ],
)
def test_what_is_no_schema_is_told_in_a_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        form(text)


# --- JSON Schemas ---

QUOTES = {"type": "string", "format": "quote"}
LISTS: Schema = {"type": "string"}
for _ in range(60):
    LISTS = {"type": "array", "items": LISTS}
DOUBLING = {f"d{i}": objects(a={"$ref": f"#/$defs/d{i - 1}"}, b={"$ref": f"#/$defs/d{i - 1}"})
            for i in range(1, 40)}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (objects(total={"type": "integer", "minimum": 5, "maximum": 1}),
         "$.properties.total.minimum"),
        (objects(a={"type": "string", "minLength": 5, "maxLength": 1}), "$.properties.a.minLength"),
        (objects(a={"enum": []}), "$.properties.a.enum"),
        (objects(a={"type": "text"}), "$.properties.a.type"),
        (objects(a={"type": [["string"]]}), "$.properties.a"),
        (objects(a=3), "$.properties.a"),
        (objects(q={"type": "string", "format": "quote"}, a={"type": "array", "maxItems": -1}),
         "$.properties.a.maxItems"),
        (objects(a={"type": "string", "maxLength": "x"}), "$.properties.a"),
        (objects(a={"type": "array", "items": {"not": {}}}), "$.properties.a.items.not"),
        (objects(a={"type": "array", "uniqueItems": True}), "$.properties.a.uniqueItems"),
        (objects(a={"type": "string", "pattern": "(a"}), "$.properties.a.pattern"),
        (objects(a={"type": "string", "pattern": "(?=a)b"}), "$.properties.a.pattern"),
        (objects(a={"type": "string", "pattern": "a{100000000}"}), "$.properties.a"),
        (objects(a={"type": "string", "format": "regex"}), "$.properties.a.format"),
        (objects(a={"anyOf": [{"type": "null"}, {"enum": []}]}), "$.properties.a.anyOf[1].enum"),
        (objects(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}), "$.properties.a.oneOf"),
        (objects(a={"allOf": [{"type": "null"}, {"type": "string"}]}), "$.properties.a.allOf"),
        (objects(a={"$ref": "#"}), "$.properties.a.$ref: recursion"),
        ({"$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"},
         "$.$defs.x.items.$ref: recursion"),
        (objects(a={"$ref": "#/$defs/none"}), "$.properties.a"),
        (objects(a={"$ref": "http://example.com/x"}), "$.properties.a.$ref"),
        ({"$ref": "#/$defs/d39", "$defs": {"d0": {"type": "null"}, **DOUBLING}}, "more than 1000"),
        (LISTS, "40 levels"),
        (objects(a={**QUOTES, "pattern": "a"}), "$.properties.a: a quotation"),
        (objects(a={**QUOTES, "maxLength": 0}), "$.properties.a: a quotation"),
        (objects(a={**QUOTES, "maxLength": "x"}), "$.properties.a"),
        ({"type": "array", "items": QUOTES, "maxItems": "2"}, "$.maxItems"),
        ({"type": "array", "items": QUOTES, "minItems": -1}, "$.minItems"),
        ({"type": "array", "items": QUOTES, "uniqueItems": True}, "$.uniqueItems"),
        ({"properties": {f"p{i}": {"type": "null"} for i in range(900)}}, "$.properties: Parser"),
        ({"type": "array", "prefixItems": [QUOTES]}, "$: a quotation"),
    ],
)  # fmt: skip
def test_what_a_grammar_cannot_say_is_refused_with_its_path(schema: Schema, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        form(schema)
    assert place in str(caught.value) and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 and caught.value.hint


def test_all_that_is_unbounded_gets_a_bound() -> None:
    schema = objects(
        text={"type": "string"}, whole={"type": "integer"}, real={"type": "number"}, some={},
        list={"type": "array"}, free={"type": "object"}, at_least={"type": "integer", "minimum": 3},
    )  # fmt: skip
    of = form(schema).schema["properties"]
    assert of["text"]["maxLength"] == STRING and of["list"]["maxItems"] == ITEMS
    assert (of["whole"]["minimum"], of["whole"]["maximum"]) == (-WHOLE, WHOLE)
    assert (of["at_least"]["minimum"], of["at_least"]["maximum"]) == (3, WHOLE)
    grammar = grammar_of(form(objects(a={"type": "number"})))
    assert takes(grammar, '{"a": -1.123456}') and takes(grammar, f'{{"a": {WHOLE}}}')
    for number in ("1.1234567", f"{WHOLE + 1}", "1e5", "01"):
        assert not takes(grammar, f'{{"a": {number}}}')
    for text in ('{"a":1}', '{ "a": 1}', '{"a": 1, "b": 2}', '{"a": 1'):
        assert not takes(grammar, text)


def test_days_are_those_of_the_calendar() -> None:
    grammar = grammar_of(form("day date"))
    day, last = date(1899, 12, 1), date(2101, 1, 1)
    real = {(day + timedelta(i)).isoformat() for i in range((last - day).days)}
    tried = [f"{y}-{m:02}-{d:02}" for y in (1900, 2000, 2023, 2024)
             for m in range(14) for d in range(33)]  # fmt: skip
    wrong = [t for t in share(tried) if takes(grammar, f'{{"day": "{t}"}}') != (t in real)]
    assert not wrong


names = st.sampled_from(["a", "b", "ein Wort", "日", 'q"uote', "x/y"])
plain = st.one_of(
    st.fixed_dictionaries({"type": st.just("string")}, optional={"maxLength": st.integers(2, 9)}),
    st.sampled_from(
        [
            {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {},
            {"enum": ["x", 2, None, [1], {"k": 1.5}]}, {"const": 'a "b"\n'}, {"type": "object"},
            {"type": "number", "minimum": 0, "maximum": 0.25}, {"type": ["integer", "null"]},
            {"type": "string", "format": "date"}, {"type": "string", "pattern": "^[a-f]{2,5}$"},
            {"type": "integer", "exclusiveMinimum": 7}, {"type": "array"}, {"$ref": "#/$defs/own"},
            {"type": "object", "additionalProperties": {"type": "integer"}}, {"minLength": 3},
            {"allOf": [{"$ref": "#/$defs/own"}], "description": "one"},
        ]
    ),
)  # fmt: skip
schemas = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.builds(lambda p, n: objects(**p) | {"required": [*p][:n]},
                  st.dictionaries(names, inner, max_size=3), st.integers(0, 3)),
        st.builds(lambda i, n: {"type": "array", "items": i, "minItems": n},
                  inner, st.integers(0, 2)),
        st.builds(lambda i: {"anyOf": [i, {"type": "null"}]}, inner),
    ),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(schemas, st.integers(0, 2**32))
def test_what_is_drawn_from_the_masks_is_valid(schema: Schema, seed: int) -> None:
    """By the schema that was given, and by the bounded one; the keys in their order."""
    schema = {**schema, "$defs": {"own": objects(z={"type": "string", "maxLength": 3})}}
    if "$ref" in schema:
        schema = objects(a=schema) | {"$defs": schema["$defs"]}
    found = form(schema)
    value = json.loads(walk(grammar_of(found), seed))
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    jsonschema.validate(value, found.schema, jsonschema.Draft202012Validator)


# --- other forms ---


def test_a_regular_expression_is_matched_as_a_whole() -> None:
    for pattern in (r"\d{3}/[a-c]+", "^(yes|no)$", r'a "b"\n?', "x\ny", r"[^a]{1,4}"):
        own = form_of(Settings(regex=pattern))
        assert own is not None
        for seed in range(20):
            text = walk(grammar_of(own), seed)
            assert re.fullmatch(pattern, text), (pattern, text)
    for pattern in ("(a", "(?=a)b", "a{3000}", "a{100000000}"):
        with pytest.raises(UsageError, match="regex: "):
            form_of(Settings(regex=pattern))


def test_an_answer_is_one_of_the_choices() -> None:
    choices = ("yes", "yes and no", 'a "quoted" one', "日本", "back\\slash")
    own = form_of(Settings(choices=choices))
    assert own is not None
    assert {walk(grammar_of(own), seed) for seed in range(200)} == {*choices}
    with pytest.raises(UsageError, match="regex and choices together"):
        form_of(Settings(choices=choices, regex="a"))


TEXTS = (
    'The quay was built in 1902, says "Anna\'s log".\n\nIt cost  12\tmarks (C:\\new\\n).',
    '{"a": ["b", 1]}\n東京都は日本の首都です。港は1902年に開かれた。',
    "שלום עולם, זה מסמך. مرحبا بالعالم هذا نص. हिन्दी में लिखा है।",
)


def stretches(text: str) -> Iterator[str]:
    """By brute force all that may be quoted of a text: its pieces in a row, trimmed, in bounds."""
    cut = [0]
    for piece in pieces(text):
        cut.append(cut[-1] + len(piece))
    for first in cut:
        for last in cut:
            found = text[first:last]
            if found and found == found.strip() and len(found) <= QUOTE:
                yield found


def draws(grammar: str, count: int) -> Iterator[str]:
    return (walk(grammar, seed, hurry=0.1) for seed in range(count))


def test_quotations_are_stretches_of_the_documents_word_for_word() -> None:
    allowed = {stretch for text in TEXTS for stretch in stretches(text)}
    grammar = grammar_of(form("n int, proof quote, more quote[]?"), TEXTS)
    quoted = 0
    for drawn in draws(grammar, count := examples(600)):
        value = json.loads(drawn)
        for quote in [value["proof"], *(value["more"] or [])]:
            assert quote in allowed, quote
            quoted += 1
    assert quoted >= 1.5 * count
    for quote in share(sorted(allowed)[::7]):
        assert takes(
            grammar, json.dumps({"n": 1, "proof": quote, "more": None}, ensure_ascii=False)
        )


def test_an_answer_of_quotations_has_nothing_else() -> None:
    own = form_of(Settings(quote=True))
    assert own is not None
    paragraphs = [part for text in TEXTS for part in text.split("\n\n")]
    allowed = {stretch for text in paragraphs for stretch in stretches(text)}
    for drawn in draws(grammar_of(own, TEXTS), examples(100)):
        assert {*drawn.split("\n\n")} <= allowed
    with pytest.raises(UsageError, match="no document to quote from"):
        grammar_of(own, ["  \n"])


def test_of_a_book_a_part_is_quoted_and_that_is_said() -> None:
    said: list[str] = []
    grammar = grammar_of(form("q quote"), ["word " * MOST_PIECES, "the end"], said.append)
    assert takes(grammar, '{"q": "word word"}') and not takes(grammar, '{"q": "the end"}')
    assert len(said) == 1 and "nothing is quoted" in said[0]
    assert not takes(grammar_of(form("q quote"), ["one", "two"]), '{"q": "one two"}')


def test_pieces_are_the_text(texts: Sequence[str] = TEXTS) -> None:
    for text in texts:
        assert "".join(pieces(text)) == text
