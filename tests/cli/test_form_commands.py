"""Answers in a form by commands: whole or not at all, refused before a model is loaded."""

import json
from pathlib import Path

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


def test_answers_match_the_schema_of_a_flag_or_a_file(tmp_path: Path, text: str) -> None:
    done = ngt(*ASK, "--schema", FIELDS)
    form = form_of(Settings.of(schema=FIELDS))
    assert form is not None, done.stderr
    assert done.returncode == 0
    value = json.loads(done.stdout)
    jsonschema.validate(value, form.schema)
    assert list(value) == ["who", "year", "proof"]
    assert value["proof"] in text
    (tmp_path / "fields.json").write_text(json.dumps(form.schema))
    for name in ("fields", "fields.txt", "who"):
        (tmp_path / name).write_text("who\nyear int?\nproof quote\n")
    for name in ("fields.json", "fields.txt", "@fields", "./fields", tmp_path / "fields"):
        assert ngt(*ASK, "--schema", name, cwd=tmp_path).stdout == done.stdout
    of_who = ngt(*ASK, "--schema", "who", cwd=tmp_path)  # a word alone is no file
    assert list(json.loads(of_who.stdout)) == ["who"]
    many = ngt(*ASK, "--schema-multi", "year int", "-o", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())["items"]
    assert many.returncode == 0
    assert all(list(one) == ["year"] for one in found)


def test_choices_a_pattern_and_quotations(text: str) -> None:
    assert ngt(*ASK, "--choices", "yes,no way").stdout in (b"yes\n", b"no way\n")
    assert ngt(*ASK, "--choices", '["yes, sir", "no, sir"]').stdout in (b"yes, sir\n", b"no, sir\n")
    assert ngt(*ASK, "--regex", "[0-9]{4}").stdout.strip().isdigit()
    quoted = ngt(*ASK, "--quote").stdout.decode().strip()
    assert quoted
    assert all(one in text for one in quoted.split("\n\n"))
    cited = ngt(*ASK, "--quote", "--cite").stdout.decode()
    assert cited.startswith(f"{quoted} [1]")
    assert "harbour.txt" in cited.splitlines()[-1]


def test_a_truncated_structured_answer_is_an_error(tmp_path: Path) -> None:
    half = (*ASK, "--schema", FIELDS, "--max-tokens", "6")
    done = ngt(*half)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"the answer is incomplete: max_tokens was reached" in done.stderr
    assert ngt(*half, "-o", tmp_path / "a.json").returncode == 1
    assert ngt(*half, "--html", tmp_path / "a.html").returncode == 1
    assert not [*tmp_path.glob("a.*")]
    done = ngt(*half, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["finish_reason"] == "length"
    assert found["text"].startswith('{"who":')
    shown, code = in_terminal(*half)
    assert code == 1
    assert "who" in shown
    assert "incomplete" in shown
    chat = ngt("chat", "--schema", FIELDS, "-d", HARBOUR, "--max-tokens", "6", stdin=b"Who?\n")
    assert chat.returncode == 1
    assert chat.stdout == b""


@pytest.mark.parametrize(
    ("words", "code", "says"),
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
def test_contradictory_forms_are_refused_before_loading(
    words: tuple[str, ...], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.engine.opening.open_engine", None)
    done = ngt(*ASK, *words)
    assert done.returncode == code
    assert done.stdout == b""
    assert says in done.stderr.decode()


def test_a_summary_has_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ngt("summarize", HARBOUR, "--schema", "a").returncode == 2
    monkeypatch.setenv("NGT_SCHEMA", "a")
    done = ngt("summarize", HARBOUR)
    assert done.returncode == 2
    assert b"--schema cannot be used with a summary" in done.stderr
    done = ngt("generate", "Say it.", "--quote", NGT_SCHEMA="")
    assert done.returncode == 2
    assert b"no document to quote from" in done.stderr


def test_a_dry_run_shows_the_schema_with_its_bounds() -> None:
    done = ngt(*ASK, "--schema", FIELDS, "--dry-run", "--json")
    form = form_of(Settings.of(schema=FIELDS))
    assert form is not None
    assert json.loads(done.stdout)["schema"] == form.schema
    done = ngt(*ASK, "--schema", FIELDS, "--dry-run")
    assert b"maxLength" in done.stderr
    assert b"maxLength" not in done.stdout


@pytest.mark.parametrize("text", ["total float: net/gross", "name: as in a.txt", "unit:m/s"])
def test_a_field_may_have_a_description_with_a_slash(text: str, tmp_path: Path) -> None:
    done = ngt(*ASK, "--schema", text, "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    form = form_of(Settings.of(schema=text))
    assert form is not None
    assert json.loads(done.stdout)["schema"] == form.schema


@pytest.mark.parametrize("given", ["@my fields", " @my fields ", "./fields", " fields.json\n"])
def test_a_schema_is_read_from_its_file(given: str, tmp_path: Path) -> None:
    for name in ("my fields", "fields", "fields.json"):
        (tmp_path / name).write_text("total float, who")
    done = ngt(*ASK, "--schema", given, "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [*json.loads(done.stdout)["schema"]["properties"]] == ["total", "who"]


def test_a_preset_and_lines_of_a_batch_have_schemas(own_home: Path, tmp_path: Path) -> None:
    presets = own_home / "config" / "presets"
    presets.mkdir(parents=True)
    wording = 'template: "{documents} {question}"\nschema:\n  type: object\n  properties:\n'
    (presets / "mine.yaml").write_text(wording + "    b: {type: boolean}\n  required: [b]\n")
    assert [*json.loads(ngt(*ASK, "-p", "mine").stdout)] == ["b"]
    line = {"question": "Who?", "context": "Anna signed it."}
    schemas = ["name", {"enum": ["x", "y"]}, "a foo", {"type": "string", "maxLength": 3}]
    more = [{"settings": {"choices": ["p", "q"]}}, {"schema": "a", "settings": {"max_tokens": 2}}]
    lines = [line | {"schema": one} for one in schemas] + [line | one for one in more]
    lines.append({"context": "Anna.", "schema": "a"})
    least = {"properties": {"i": {"type": "integer", "maximum": -(2**63)}}, "required": ["i"]}
    lines.append(line | {"schema": {"type": "object", **least}})
    source = "".join(f"{json.dumps(one)}\n" for one in lines)
    done = ngt("batch", "-", stdin=source.encode(), cwd=tmp_path)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 7
    assert [*json.loads(found[0]["text"])] == ["name"]
    assert found[1]["text"] in ('"x"', '"y"')
    assert len(json.loads(found[3]["text"])) <= 3
    assert "unknown type 'foo'" in found[2]["error"]["message"]
    assert found[4]["text"] in ("p", "q")
    assert found[5]["finish_reason"] == "length"
    assert "with a summary" in found[6]["error"]["message"]
    assert "$.properties.i.maximum: numbers beyond" in found[7]["error"]["message"]


@pytest.mark.parametrize(
    ("more", "tokens"), [((), 2048), (("--max-tokens", "256"), 256), (("-p", "generate"), 512)]
)
def test_structured_output_has_a_larger_default_of_max_tokens(
    more: tuple[str, ...], tokens: int
) -> None:
    done = ngt("ask", "-d", HARBOUR, "Who?", "--choices", "he,she", "--json", *more)
    assert json.loads(done.stdout)["settings"]["max_tokens"] == tokens
