"""Structured output of commands: valid or an error, and refused before a model is loaded."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ngtcli.config import Settings
from ngtcli.decoding.grammar.form import form_of
from tests.support.helpers import HARBOUR, in_terminal, ngt

ASK = ("ask", "-d", HARBOUR, "Who noticed the young oysters?")
FIELDS = "who, year int?, proof quote"


@pytest.fixture(scope="module")
def text() -> str:
    return Path(HARBOUR).read_text("utf-8")


def schema_of(concise: str) -> Any:
    """The JSON Schema of a concise schema."""
    form = form_of(Settings.of(schema=concise))
    assert form is not None
    return form.schema


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """The answer to ASK with FIELDS."""
    done = ngt(*ASK, "--schema", FIELDS)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_an_answer_is_valid_by_its_schema(answer: dict[str, Any], text: str) -> None:
    jsonschema.validate(answer, schema_of(FIELDS))
    assert list(answer) == ["who", "year", "proof"]
    assert answer["proof"] in text


@pytest.mark.parametrize("name", ["fields.json", "fields.txt", "@fields", "./fields"])
def test_a_schema_is_that_of_its_file(name: str, tmp_path: Path, answer: dict[str, Any]) -> None:
    (tmp_path / "fields.json").write_text(json.dumps(schema_of(FIELDS)))
    for concise in ("fields", "fields.txt"):
        (tmp_path / concise).write_text("who\nyear int?\nproof quote\n")
    done = ngt(*ASK, "--schema", name, cwd=tmp_path)
    assert json.loads(done.stdout) == answer


def test_an_absolute_path_is_a_schema_file(tmp_path: Path, answer: dict[str, Any]) -> None:
    (tmp_path / "fields").write_text("who\nyear int?\nproof quote\n")
    done = ngt(*ASK, "--schema", str(tmp_path / "fields"))
    assert json.loads(done.stdout) == answer


def test_a_single_word_is_a_field_even_if_a_file_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "who").write_text("year int?\n")
    done = ngt(*ASK, "--schema", "who", cwd=tmp_path)
    assert list(json.loads(done.stdout)) == ["who"]


def test_an_answer_may_have_several_items(tmp_path: Path) -> None:
    done = ngt(*ASK, "--schema-multi", "year int", "-o", str(tmp_path / "out.json"))
    assert done.returncode == 0
    items = json.loads((tmp_path / "out.json").read_text())["items"]
    assert all(list(item) == ["year"] for item in items)


def test_an_answer_is_one_of_the_choices() -> None:
    assert ngt(*ASK, "--choices", "yes,no way").stdout in (b"yes\n", b"no way\n")
    assert ngt(*ASK, "--choices", '["yes, sir", "no, sir"]').stdout in (b"yes, sir\n", b"no, sir\n")


def test_an_answer_matches_the_pattern() -> None:
    assert re.fullmatch(rb"[0-9]{4}\n", ngt(*ASK, "--regex", "[0-9]{4}").stdout)


def test_quotations_are_in_the_document_and_can_be_cited(text: str) -> None:
    quotations = ngt(*ASK, "--quote").stdout.decode().strip()
    assert quotations
    assert all(quotation in text for quotation in quotations.split("\n\n"))

    cited = ngt(*ASK, "--quote", "--cite").stdout.decode()
    assert cited.startswith(f"{quotations} [1]")
    assert "harbour.txt" in cited.splitlines()[-1]


TRUNCATED = (*ASK, "--schema", FIELDS, "--max-tokens", "6")


def test_a_truncated_answer_is_an_error_and_is_not_printed(tmp_path: Path) -> None:
    done = ngt(*TRUNCATED)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"the answer is incomplete: max_tokens was reached" in done.stderr


def test_a_truncated_answer_is_not_written(tmp_path: Path) -> None:
    assert ngt(*TRUNCATED, "-o", str(tmp_path / "a.json")).returncode == 1
    assert ngt(*TRUNCATED, "--html", str(tmp_path / "a.html")).returncode == 1
    assert not list(tmp_path.glob("a.*"))


def test_json_has_the_text_of_a_truncated_answer() -> None:
    done = ngt(*TRUNCATED, "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] == "length"
    assert answer["text"].startswith('{"who":')


def test_a_terminal_shows_the_text_of_a_truncated_answer() -> None:
    shown, code = in_terminal(*TRUNCATED)
    assert code == 1
    assert "who" in shown
    assert "incomplete" in shown


def test_a_truncated_answer_of_a_conversation_is_an_error() -> None:
    done = ngt("chat", "--schema", FIELDS, "-d", HARBOUR, "--max-tokens", "6", stdin=b"Who?\n")
    assert done.returncode == 1
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ("--schema", '{"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}}}'),
            2,
            "$.properties.a.minimum: minimum (5) is greater",
        ),
        (("--schema", "a foo"), 2, "unknown type 'foo' of the field 'a'"),
        (("--regex", ""), 2, "--regex is empty"),
        (("--schema", ""), 2, "--schema is empty"),
        (("--choices", ""), 2, "--choices is empty"),
        (("--set", "regex="), 2, "--regex is empty"),
        (("--choices", '["a", 1]'), 2, "--choices is"),
        (("--schema", "none.json"), 3, "none.json: no such file"),
        (("--schema", "a", "--regex", "b"), 2, "schema and regex are mutually exclusive"),
        (("--schema", "a", "--stop", "b"), 2, "--schema cannot be used with stop"),
        (("--schema", "a", "--engine", "vllm"), 2, "--schema"),
        (("--regex", "(a"), 2, "regex: "),
        (("--regex", ".*(a.{12}b|c.{12}d).*"), 2, "regex: its grammar would be too large"),
        (("--regex", "(\udc80"), 2, "regex: "),
    ],
)
def test_invalid_and_contradictory_flags_are_refused_before_a_model_is_loaded(
    flags: tuple[str, ...], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.engine.opening.open_engine", None)
    done = ngt(*ASK, *flags)
    assert done.returncode == code
    assert done.stdout == b""
    assert message in done.stderr.decode()


def test_a_schema_for_a_summary_is_refused() -> None:
    assert ngt("summarize", HARBOUR, "--schema", "a").returncode == 2
    done = ngt("summarize", HARBOUR, NGT_SCHEMA="a")
    assert done.returncode == 2
    assert b"--schema cannot be used with a summary" in done.stderr


def test_quotations_without_a_document_are_refused() -> None:
    done = ngt("generate", "Say it.", "--quote")
    assert done.returncode == 2
    assert b"no document to quote from" in done.stderr


def test_a_dry_run_shows_the_schema_with_its_bounds() -> None:
    done = ngt(*ASK, "--schema", FIELDS, "--dry-run", "--json")
    assert json.loads(done.stdout)["schema"] == schema_of(FIELDS)

    done = ngt(*ASK, "--schema", FIELDS, "--dry-run")
    assert b"maxLength" in done.stderr
    assert b"maxLength" not in done.stdout


@pytest.mark.parametrize("schema", ["total float: net/gross", "name: as in a.txt", "unit:m/s"])
def test_a_field_may_have_a_description_with_a_slash_or_a_dot(schema: str, tmp_path: Path) -> None:
    done = ngt(*ASK, "--schema", schema, "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == schema_of(schema)


@pytest.mark.parametrize("value", ["@my fields", " @my fields ", "./fields", " fields.json\n"])
def test_spaces_around_the_name_of_a_schema_file_are_ignored(value: str, tmp_path: Path) -> None:
    for name in ("my fields", "fields", "fields.json"):
        (tmp_path / name).write_text("total float, who")
    done = ngt(*ASK, "--schema", value, "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["schema"]["properties"]) == ["total", "who"]


def test_a_preset_may_have_a_schema(own_home: Path) -> None:
    presets = own_home / "config" / "presets"
    presets.mkdir(parents=True)
    (presets / "mine.yaml").write_text("""
template: "{documents} {question}"
schema:
  type: object
  properties:
    b: {type: boolean}
  required: [b]
""")
    assert list(json.loads(ngt(*ASK, "-p", "mine").stdout)) == ["b"]


QUESTION = {"question": "Who?", "context": "Anna signed it."}


def run_batch(*lines: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """Run a batch of these lines; return the exit code and the rows."""
    stdin = "".join(f"{json.dumps(line)}\n" for line in lines)
    done = ngt("batch", "-", stdin=stdin.encode())
    return done.returncode, [json.loads(row) for row in done.stdout.splitlines()]


def test_lines_of_a_batch_may_have_schemas() -> None:
    code, rows = run_batch(
        QUESTION | {"schema": "name"},
        QUESTION | {"schema": {"enum": ["x", "y"]}},
        QUESTION | {"schema": {"type": "string", "maxLength": 3}},
        QUESTION | {"settings": {"choices": ["p", "q"]}},
    )
    assert code == 0
    concise, enum, short, choices = (row["text"] for row in rows)
    assert list(json.loads(concise)) == ["name"]
    assert json.loads(enum) in ("x", "y")
    assert len(json.loads(short)) <= 3
    assert choices in ("p", "q")


def test_lines_of_a_batch_with_invalid_schemas_fail() -> None:
    huge = {"properties": {"i": {"type": "integer", "maximum": -(2**63)}}, "required": ["i"]}
    code, rows = run_batch(
        QUESTION | {"schema": "a foo"},
        QUESTION | {"schema": {"type": "object", **huge}},
        {"context": "Anna signed it.", "schema": "a"},
    )
    assert code == 7
    unknown_type, too_large, summary = (row["error"]["message"] for row in rows)
    assert "unknown type 'foo'" in unknown_type
    assert "$.properties.i.maximum: numbers beyond" in too_large
    assert "with a summary" in summary


def test_a_truncated_answer_of_a_batch_has_its_finish_reason() -> None:
    code, rows = run_batch(QUESTION | {"schema": "a", "settings": {"max_tokens": 2}})
    assert code == 0
    assert rows[0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("flags", "max_tokens"), [((), 2048), (("--max-tokens", "256"), 256), (("-p", "generate"), 512)]
)
def test_structured_output_has_a_larger_default_of_max_tokens(
    flags: tuple[str, ...], max_tokens: int
) -> None:
    done = ngt("ask", "-d", HARBOUR, "Who?", "--choices", "he,she", "--json", *flags)
    assert json.loads(done.stdout)["settings"]["max_tokens"] == max_tokens
