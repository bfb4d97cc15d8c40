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
from llguidance import LLMatcher

from ngtcli.config import Settings, choices_of
from ngtcli.decoding.grammar.bounds import ITEMS, QUOTE, STRING, WHOLE
from ngtcli.decoding.grammar.form import AnswerForm, Field, form_of, grammar_of
from ngtcli.decoding.grammar.process import Trials
from ngtcli.decoding.grammar.quotations import MOST_PIECES, pieces
from ngtcli.errors import UsageError
from ngtcli.models.checkpoint import BUILTIN_PATH
from tests.support.helpers import examples, sample_cases
from tests.support.recording_reporter import RecordingReporter

Schema = dict[str, Any]


def form(schema: Schema | str, **more: Any) -> AnswerForm:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    found = form_of(Settings.of(**{"schema": text, **more}))
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
    matcher = llguidance.LLMatcher(words(), grammar)
    draw = random.Random(seed)
    ids = list[int]()
    end = words().eos_token
    close = closing()
    while not matcher.is_stopped():
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        free = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if end in free and (draw.random() < hurry or len(free) == 1):
            break
        near = free[close[free]] if draw.random() < hurry else free[:0]
        ids.append(int(draw.choice(near if len(near) else free[free != end])))
        assert matcher.consume_token(ids[-1])
    assert not matcher.get_error()
    assert matcher.is_accepting()
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
    multi = form_of(Settings.of(schema_multi=text))
    assert multi
    assert multi.multi
    assert multi.schema["properties"]["items"]["items"] == ours


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
    ("kind", "type_name"),
    [("flot", "float"), ("Flaot", "float"), ("dat", "date"), ("number", "float")],
)
def test_a_misspelt_type_gets_the_type_that_it_resembles(kind: str, type_name: str) -> None:
    with pytest.raises(UsageError) as caught:
        form(f"total {kind}")
    assert caught.value.hint.startswith(f"Did you mean the type {type_name}?")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name foo", "unknown type 'foo' of the field 'name'"),
        ("invoice number", "unknown type 'number' of the field 'invoice'"),
        ("a, a int", "duplicate field 'a'"),
        (",", "no field"),
        (": x", "': x' has no name before the colon"),
        ("name str long", "'name str long' is more than a name and a type"),
        ("state paid | open", "'state paid | open' is more than a name and a type"),
        ("a|b", "'a|b' is not a name for a field"),
        ("'name'", "is not a name for a field"),
        ("?", "'?' is not a name for a field"),
        ("false", "false is not a JSON object"),
        ("null", "null is not a JSON object"),
        ("3", "3 is not a JSON object"),
        ('{"a":', "not JSON"),
        ("[1]", "not a JSON object"),
        (
            '{"type": "object", "properties": {"a": {}, "a": {"type": "integer"}}}',
            "duplicate key 'a'",
        ),
        ('{"type": "integer", "minimum": NaN}', "NaN is not a JSON number"),
        ('{"type": "number", "maximum": 1e999}', "1e999 is too large"),
        ('{"name": "string"}', "'name' is not a keyword"),
        ("x" * 10_000_000, "more than 200,000 characters"),
        ('{"a":' * 10_000, "not JSON"),
    ],
)
def test_what_is_no_schema_is_told_in_a_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        form(text)


def test_a_type_that_is_meant_is_the_only_one_proposed() -> None:
    with pytest.raises(UsageError) as caught:
        form("name string")
    assert caught.value.hint.startswith("Did you mean the type str? A name has no spaces: ")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "invoice number",
            "Did you mean the type float? A name has no spaces: write invoice_number. Types: str,",
        ),
        (
            "due day",
            "A name has no spaces: write due_day. Types: str, int, float, bool, date, quote",
        ),
        ("date of birth date", "A name has no spaces: write date_of_birth date"),
        ("date of birth", "A name has no spaces: write date_of_birth"),
        ("state paid | open", "A choice has no spaces: write state paid|open"),
    ],
)
def test_a_name_of_several_words_is_told_how_it_is_written(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        form(text)
    assert caught.value.hint.startswith(hint)


# --- JSON Schemas ---

QUOTES = {"type": "string", "format": "quote"}
LISTS: Schema = {"type": "string"}
for _ in range(60):
    LISTS = {"type": "array", "items": LISTS}
DOUBLING = {
    f"d{i}": objects(a={"$ref": f"#/$defs/d{i - 1}"}, b={"$ref": f"#/$defs/d{i - 1}"})
    for i in range(1, 40)
}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (
            objects(total={"type": "integer", "minimum": 5, "maximum": 1}),
            "$.properties.total.minimum",
        ),
        (objects(a={"type": "string", "minLength": 5, "maxLength": 1}), "$.properties.a.minLength"),
        (objects(a={"enum": []}), "$.properties.a.enum"),
        (objects(a={"type": "text"}), "$.properties.a.type"),
        (objects(a={"type": [["string"]]}), "$.properties.a"),
        (objects(a=3), "$.properties.a"),
        (
            objects(q={"type": "string", "format": "quote"}, a={"type": "array", "maxItems": -1}),
            "$.properties.a.maxItems",
        ),
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
        (objects(a={"$ref": "#"}), "$.properties.a.$ref: endless recursion"),
        (
            {
                "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}},
                "$ref": "#/$defs/x",
            },
            "$.$defs.x.items.$ref: endless recursion",
        ),
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
        (
            {"properties": {f"p{i}": {"type": "null"} for i in range(900)}},
            "$.properties: its grammar would be too large",
        ),
        ({"type": "array", "prefixItems": [QUOTES]}, "$: a quotation"),
    ],
)
def test_what_a_grammar_cannot_say_is_refused_with_its_path(schema: Schema, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        form(schema)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.hint


LEAST = -(2**63)  # the least of int64
FAR = 10**25  # beyond int64


@pytest.mark.parametrize(
    "part",
    [
        {"type": "integer", "maximum": LEAST},
        {"type": "integer", "minimum": -FAR, "maximum": -FAR},
        {"type": "integer", "minimum": LEAST - 1, "maximum": LEAST},
        {"type": "integer", "exclusiveMaximum": LEAST},
        {"type": "number", "maximum": -FAR},
        {"type": "integer", "minimum": 10**30},
        {"type": "integer", "minimum": 2**63},
        {"type": "integer", "exclusiveMinimum": 2**60},
        {"type": "integer", "minimum": 5, "exclusiveMaximum": 5},
        {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 6},
        {"type": "integer", "minimum": 0.2, "maximum": 0.8},
        {"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13},
        {"type": "integer", "multipleOf": 999_999_937},
        {"type": "integer", "multipleOf": 0},
        {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.0000000001},
        {"type": "integer", "minimum": "3"},
        {"type": "integer", "minimum": True},
        {"type": "string", "minLength": 10**30},
        {"type": "string", "minLength": 2.5},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "array", "minItems": -1},
        {"type": "string", "format": "date", "minLength": 20},
        {"type": "integer", "enum": [1, 2], "minimum": 3},
        {"const": 3, "maximum": -FAR},
        {"not": {"type": "integer", "maximum": LEAST}},
        {"if": {"type": "integer", "maximum": LEAST}},
        {"type": "string", "format": "date", "formatMinimum": "2020-01-01"},
        {"type": "string", "minLenght": 3},
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_no_answer_is_exactly_is_refused_in_words_of_json_schema(
    part: Schema, nested: bool
) -> None:
    """Some of these end the process of the grammar library, or give a number beyond the bounds."""
    schema = {"type": "object", "additionalProperties": part} if nested else objects(a=part)
    with pytest.raises(UsageError) as caught:
        form(schema)
    said = str(caught.value)
    assert said.startswith("schema: $.")
    assert "crash" not in said
    assert not re.search(
        r"Regex|fuel|lexeme|range \[|Failed to generate|Some\(|Unimplemented", said
    )


@pytest.mark.parametrize(
    ("part", "minimum", "maximum"),
    [
        ({"type": "integer", "minimum": LEAST, "maximum": 2**63 - 1}, 1 - 2**53, 2**53 - 1),
        ({"type": "integer", "minimum": -FAR}, 1 - 2**53, WHOLE),
        ({"type": "integer", "maximum": FAR}, -WHOLE, 2**53 - 1),
        ({"type": "number", "minimum": -FAR, "maximum": FAR}, 1 - 2**53, 2**53 - 1),
        ({"type": "integer", "exclusiveMinimum": 2.5, "exclusiveMaximum": 7}, 3, 6),
        ({"type": "integer", "multipleOf": 2.5, "minimum": 1, "maximum": 14}, 5, 10),
        ({"type": "number", "multipleOf": 0.25, "minimum": 0.1, "maximum": 1}, 0.25, 1),
        ({"type": "number", "minimum": 1e-300}, 1e-6, WHOLE),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, 1e-9, 0.5),
    ],
)
def test_bounds_of_numbers_are_clamped_where_the_answers_stay_valid(
    part: Schema, minimum: float, maximum: float
) -> None:
    found = form(objects(a=part))
    own = found.schema["properties"]["a"]
    assert own["minimum"] == minimum
    assert own["maximum"] == maximum
    for seed in range(5):
        value = json.loads(walk(grammar_of(found), seed))
        jsonschema.validate(value, objects(a=part), jsonschema.Draft202012Validator)


def test_bounds_say_nothing_of_values_of_another_type() -> None:
    schema = objects(a={"type": "string", "maximum": LEAST, "maxLength": 2})
    assert takes(grammar_of(form(schema)), '{"a": "xy"}')
    schema = objects(a={"enum": ["x", 3, 10**20], "minimum": 4})
    assert form(schema).schema["properties"]["a"]["enum"] == ["x", 10**20]


def test_a_schema_that_crashes_the_library_is_an_error_and_the_next_one_is_compiled() -> None:
    """Bounds are checked, so the crash is brought about by going past the check."""
    text = LLMatcher.grammar_from_json_schema(
        '{"type": "integer", "maximum": -1e25, "minimum": -1e25}'
    )
    with pytest.raises(UsageError, match="the grammar library crashes over it"):
        Trials().error(text)
    assert not Trials().error(LLMatcher.grammar_from_json_schema('{"type": "integer"}'))
    assert form("a, b int").kind == "json"


def test_a_grammar_may_take_only_so_much_time() -> None:
    text = LLMatcher.grammar_from_lark("start: " + " | ".join(f'"{i}" /a+/' for i in range(9999)))
    with pytest.raises(UsageError, match="takes more than 0.001 s"):
        Trials(seconds=0.001).error(text)
    assert not Trials().error(text)


@pytest.mark.parametrize("pattern", ["^(x{1,1000}){1,1000}$", "(.*a.{20}){30}"])
def test_a_pattern_that_is_too_large_only_behind_many_letters_is_refused_at_once(
    pattern: str,
) -> None:
    with pytest.raises(UsageError, match="its grammar would be too large"):
        form_of(Settings.of(regex=pattern))
    with pytest.raises(UsageError, match="its grammar would be too large"):
        form(objects(a={"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"required": ["a"], "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "x"}),
        (
            {"required": ["xa"], "patternProperties": {"^x": {"type": "integer"}}},
            {"xa": 1},
            {"xa": "x"},
        ),
        (
            {"required": ["xa"], "patternProperties": {"^x": objects(b={"type": "integer"})}},
            {"xa": {"b": 1}},
            {"xa": 1},
        ),
        (
            {
                "required": ["a"],
                "properties": {"b": {"type": "integer"}},
                "additionalProperties": {"type": "integer"},
            },
            {"b": 1, "a": 2},
            {"b": 1, "a": "x"},
        ),
        (objects(a={"$ref": "#/$defs/any"}) | {"$defs": {"any": True}}, {"a": "x"}, {"b": 1}),
        (
            objects(a={"$ref": "#/$defs/a~1b"}) | {"$defs": {"a/b": {"type": "integer"}}},
            {"a": 1},
            {"a": "x"},
        ),
        (
            objects(a={"$ref": "#/$defs/a~0%20b"}) | {"$defs": {"a~ b": {"type": "integer"}}},
            {"a": 1},
            {"a": "x"},
        ),
        (
            objects(a={"$ref": "#/$defs/x/properties/y"})
            | {"$defs": {"x": objects(y={"const": 2})}},
            {"a": 2},
            {"a": 3},
        ),
        (
            objects(a={"type": "null"}, b={"anyOf": [{"$ref": "#/$defs/l/prefixItems/0"}]})
            | {"$defs": {"l": {"prefixItems": [{"const": 5}]}}},
            {"a": None, "b": 5},
            {"a": None, "b": 6},
        ),
    ],
)
def test_answers_are_those_that_the_schema_allows(
    schema: Schema, valid: Schema, invalid: Schema
) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(valid)
    assert not validator.is_valid(invalid)
    grammar = grammar_of(form({"type": "object", **schema}))
    assert takes(grammar, json.dumps(valid))
    assert not takes(grammar, json.dumps(invalid))


def test_a_key_that_must_and_may_not_be_there_is_refused() -> None:
    schema = {"type": "object", "required": ["a"], "additionalProperties": False}
    with pytest.raises(UsageError, match=r"\$\.required: 'a' is both required and forbidden"):
        form(schema)


def test_a_pattern_that_takes_exponential_time_beside_a_required_key_is_refused() -> None:
    """Python would search for it in the server, for minutes and beyond any limit."""
    schema = {
        "type": "object",
        "required": ["a" * 60 + "!"],
        "patternProperties": {"^(a+)+$": {"type": "integer"}},
    }
    with pytest.raises(UsageError, match=r"patternProperties.*beside a key that must be there"):
        form(schema)


def test_all_that_is_unbounded_gets_a_bound() -> None:
    schema = objects(
        text={"type": "string"},
        whole={"type": "integer"},
        real={"type": "number"},
        some={},
        list={"type": "array"},
        free={"type": "object"},
        at_least={"type": "integer", "minimum": 3},
    )
    of = form(schema).schema["properties"]
    assert of["text"]["maxLength"] == STRING
    assert of["list"]["maxItems"] == ITEMS
    assert of["whole"]["minimum"] == -WHOLE
    assert of["whole"]["maximum"] == WHOLE
    assert of["at_least"]["minimum"] == 3
    assert of["at_least"]["maximum"] == WHOLE
    grammar = grammar_of(form(objects(a={"type": "number"})))
    assert takes(grammar, '{"a": -1.123456}')
    assert takes(grammar, f'{{"a": {WHOLE}}}')
    for number in ("1.1234567", f"{WHOLE + 1}", "1e5", "01"):
        assert not takes(grammar, f'{{"a": {number}}}')
    for text in ('{"a":1}', '{ "a": 1}', '{"a": 1, "b": 2}', '{"a": 1'):
        assert not takes(grammar, text)


def test_days_are_those_of_the_calendar() -> None:
    grammar = grammar_of(form("day date"))
    day = date(1899, 12, 1)
    last = date(2101, 1, 1)
    real = {(day + timedelta(i)).isoformat() for i in range((last - day).days)}
    tried = [
        f"{y}-{m:02}-{d:02}" for y in (1900, 2000, 2023, 2024) for m in range(14) for d in range(33)
    ]
    wrong = [t for t in sample_cases(tried) if takes(grammar, f'{{"day": "{t}"}}') != (t in real)]
    assert not wrong


names = st.sampled_from(["a", "b", "ein Wort", "日", 'q"uote', "x/y"])
limits = st.sampled_from([0, 1, 2.5, -3, 7, 1e-9, 1e20, -(2**63), 2**53, 10**25, -(10**25)])
ranges = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional=dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), limits)
    | {"multipleOf": st.sampled_from([1, 3, 2.5, 0.5])},
)
keyed = st.builds(  # objects of keywords that restrict each other
    lambda parts, names, needed: (
        {"type": "object", **parts, "required": needed} | ({"properties": names} if names else {})
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "additionalProperties": st.sampled_from(
                [True, False, {"type": "integer"}, {"enum": [1]}]
            ),
            "patternProperties": st.sampled_from(
                [{"^x": {"type": "integer"}}, {"x$": {"type": "string"}, "^[ab]": {"type": "null"}}]
            ),
            "maxProperties": st.integers(0, 3),
        },
    ),
    st.dictionaries(
        st.sampled_from(["a", "x"]), st.sampled_from([{"type": "integer"}, {}]), max_size=2
    ),
    st.lists(st.sampled_from(["a", "x", "ax", "c"]), max_size=2, unique=True),
)
plain = st.one_of(
    st.fixed_dictionaries({"type": st.just("string")}, optional={"maxLength": st.integers(2, 9)}),
    st.sampled_from(
        [
            {"type": "integer"},
            {"type": "number"},
            {"type": "boolean"},
            {"type": "null"},
            {},
            {"enum": ["x", 2, None, [1], {"k": 1.5}]},
            {"const": 'a "b"\n'},
            {"type": "object"},
            {"type": "number", "minimum": 0, "maximum": 0.25},
            {"type": ["integer", "null"]},
            {"type": "string", "format": "date"},
            {"type": "string", "pattern": "^[a-f]{2,5}$"},
            {"type": "integer", "exclusiveMinimum": 7},
            {"type": "array"},
            {"$ref": "#/$defs/own"},
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"minLength": 3},
            {"allOf": [{"$ref": "#/$defs/own"}], "description": "one"},
        ]
    ),
)
schemas = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.builds(
            lambda p, n: objects(**p) | {"required": [*p][:n]},
            st.dictionaries(names, inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(
            lambda i, n: {"type": "array", "items": i, "minItems": n}, inner, st.integers(0, 2)
        ),
        st.builds(lambda i: {"anyOf": [i, {"type": "null"}]}, inner),
    ),
    max_leaves=5,
)


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


@settings(max_examples=300, deadline=None)
@given(st.one_of(ranges, keyed, ranges.map(lambda r: objects(a=r))), st.integers(0, 2**32))
def test_what_small_schemas_allow_is_valid_or_they_are_refused(schema: Schema, seed: int) -> None:
    try:
        found = form(objects(v=schema))
    except UsageError as error:
        assert str(error).startswith("schema: $")
        assert "crash" not in str(error)
        return
    value = json.loads(walk(grammar_of(found), seed))
    jsonschema.validate(value, objects(v=schema), jsonschema.Draft202012Validator)


# --- other forms ---


def test_a_regular_expression_is_matched_as_a_whole() -> None:
    for pattern in (r"\d{3}/[a-c]+", "^(yes|no)$", r'a "b"\n?', "x\ny", r"[^a]{1,4}"):
        own = form_of(Settings.of(regex=pattern))
        assert own is not None
        for seed in range(20):
            text = walk(grammar_of(own), seed)
            assert re.fullmatch(pattern, text), (pattern, text)
    for pattern in ("(a", "(?=a)b", "a{3000}", "a{100000000}"):
        with pytest.raises(UsageError, match="regex: "):
            form_of(Settings.of(regex=pattern))


def test_an_answer_is_one_of_the_choices() -> None:
    choices = ("yes", "yes and no", 'a "quoted" one', "日本", "back\\slash")
    own = form_of(Settings.of(choices=choices))
    assert own is not None
    assert {walk(grammar_of(own), seed) for seed in range(200)} == {*choices}
    choices = choices_of('["yes, sir", "no"]', "--choices")
    own = form_of(Settings.of(choices=choices))
    assert own is not None
    assert {walk(grammar_of(own), seed) for seed in range(50)} == {"yes, sir", "no"}
    with pytest.raises(UsageError, match="regex and choices are mutually exclusive"):
        form_of(Settings.of(choices=choices, regex="a"))


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
    for quote in sample_cases(sorted(allowed)[::7]):
        assert takes(
            grammar, json.dumps({"n": 1, "proof": quote, "more": None}, ensure_ascii=False)
        )


def test_an_answer_of_quotations_has_nothing_else() -> None:
    own = form_of(Settings.of(quote=True))
    assert own is not None
    paragraphs = [part for text in TEXTS for part in text.split("\n\n")]
    allowed = {stretch for text in paragraphs for stretch in stretches(text)}
    for drawn in draws(grammar_of(own, TEXTS), examples(100)):
        assert {*drawn.split("\n\n")} <= allowed
    with pytest.raises(UsageError, match="no document to quote from"):
        grammar_of(own, ["  \n"])


def test_of_a_book_a_part_is_quoted_and_that_is_said() -> None:
    reported = RecordingReporter()
    texts = ["word " * MOST_PIECES, "the end"]
    grammar = reported.of(lambda: grammar_of(form("q quote"), texts))
    assert takes(grammar, '{"q": "word word"}')
    assert not takes(grammar, '{"q": "the end"}')
    (warning,) = reported.warnings
    assert "cannot be quoted" in warning
    assert not takes(grammar_of(form("q quote"), ["one", "two"]), '{"q": "one two"}')


def test_pieces_are_the_text(texts: Sequence[str] = TEXTS) -> None:
    for text in texts:
        assert "".join(pieces(text)) == text
