"""`ngt schema` describes what --json prints: real output is held against it, key by key."""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from ngtcli.cli.answer_object import FINISH_REASONS
from ngtcli.cli.app import COMMANDS, load
from ngtcli.cli.schema import build, exit_codes
from ngtcli.errors import UsageError
from ngtcli.system.json_form import schema_of
from tests.support.helpers import HARBOUR, ROOT_FOLDER, copy_builtin_model, ngt

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8000,
    "max_position_embeddings": 4096,
}


def printed(*arguments: str, code: int = 0) -> Any:
    done = ngt(*arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@cache
def described(command: str) -> Draft202012Validator:
    return Draft202012Validator(build(command))


def check(output: Any, command: str) -> None:
    for name in (command, ""):
        described(name).validate(output)


@cache
def answers() -> tuple[Any, ...]:
    """Answers of methods that print different keys; the same for all tests."""
    few = ("--max-tokens", "6")
    return (
        printed("summarize", HARBOUR, "--json", *few),
        printed("summarize", HARBOUR, "--json-tokens", *few, "--method", "trie", "--stop", "zz"),
        printed("ask", "-d", HARBOUR, "Who?", "--json-tokens", "--method", "none"),
    )


def test_the_schema_is_one_of_draft_2020_12() -> None:
    assert printed("schema") == build()
    for command in ("", "summarize", "check", "trie list"):
        Draft202012Validator.check_schema(build(command))
    assert printed("schema", "trie", "list") == build("trie list")
    with pytest.raises(UsageError) as caught:
        build("sumarize")
    assert caught.value.hint == "Did you mean summarize?"


def test_answers_are_as_described() -> None:
    for body in answers():
        check(body, body["task"])
        assert body["finish_reason"] in FINISH_REASONS
    assert "policy" in answers()[0]
    assert "tokens" in answers()[1]


def test_truncated_answers_and_dry_runs_are_as_described(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("The tide came in at noon that day. " * 90)
    model = copy_builtin_model(tmp_path / "model", max_position_embeddings=560)
    long = ("summarize", str(tmp_path / "long.txt"), "-m", model, "--json")
    cut = printed(*long, "--overflow", "truncate", "--max-tokens", "2", "--method", "none")
    assert cut["truncated"]
    check(cut, "summarize")
    check(printed("ask", "-d", HARBOUR, "Who?", "--dry-run", "--json"), "ask")
    refused = printed(*long, "--dry-run", "--overflow", "error", code=5)
    check(refused, "summarize")


def test_a_key_that_is_not_described_is_refused_anywhere() -> None:
    """Otherwise output and schema could drift apart unseen."""
    validator = described("summarize")
    whole = answers()[1]
    for place in ((), ("settings",), ("statistics",), ("trie",), ("documents", 0), ("tokens", 0)):
        body = deepcopy(whole)
        inner = body
        for step in place:
            inner = inner[step]
        inner["new"] = 1
        with pytest.raises(ValidationError):
            validator.validate(body)
    for name in set(whole) - {"tokens"}:
        with pytest.raises(ValidationError):
            validator.validate({k: v for k, v in whole.items() if k != name})


def test_measurements_are_as_described(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The tide came in at noon. The tide came in at noon.")
    text = str(tmp_path / "a.txt")
    swept = ("tune", "--sweep", "num_draft=2,4", "--rounds", "1", "--json")
    check(printed(*swept, text, "--max-tokens", "4"), "tune")


def test_every_command_that_prints_json_has_a_schema() -> None:
    def below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", {})
        for name, subcommand in inner.items():
            yield from below(subcommand, f"{words} {name}")
        if not inner:
            yield words, command

    commands = dict(pair for name in COMMANDS for pair in below(load(name), name))
    with_json = {w for w, c in commands.items() if any("--json" in p.opts for p in c.params)}
    assert {"env", "trie show", "cache clear"} < with_json
    with_schema = {words for words in commands if not ngt("schema", *words.split()).returncode}
    assert with_schema == with_json | {"batch"}


def test_what_is_built_listed_and_removed_is_as_described(own_home: Path) -> None:
    built = []
    for more in ((), ("--rest",), ()):  # the last from the cache
        built.append(printed("trie", "build", HARBOUR, "--json", *more))
        check(built[-1], "trie build")
    rows = printed("trie", "list", "--json")
    assert {row["kind"] for row in rows} == {"trie", "datastore"}
    check(rows, "trie list")
    check(printed("trie", "show", HARBOUR, "--json"), "trie show")
    printed("summarize", HARBOUR, "--json", "--max-tokens", "40", "--set", "pool_documents=yes")
    check(printed("cache", "show", "pools", "--json"), "cache show")
    check(printed("cache", "clear", "pools", "--json"), "cache clear")


@pytest.mark.parametrize(
    "command",
    [
        "config show --stop a",
        "presets list",
        "presets show ask",
        "models list",
        "cache path",
        "env",
    ],
)
def test_what_is_set_and_where_is_as_described(own_home: Path, command: str) -> None:
    folder = own_home / "config" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("template: 3\n")
    body = printed(*command.split(), "--json")
    name = " ".join(command.split()[:2])
    check(body, name)
    assert command != "presets list" or any("error" in row for row in body)
    with pytest.raises(ValidationError):
        check({**body, "new": ""} if isinstance(body, dict) else [*body, 1], name)


def test_settings_out_of_range_are_none() -> None:
    validator = described("config show")
    body = printed("config", "show", "--json")
    for name, value in (("n", 1), ("device", "tpu"), ("stop", "a"), ("pool", 1), ("top_p", 2.0)):
        with pytest.raises(ValidationError):
            validator.validate({**body, name: {"value": value, "origin": "flag"}})


def test_the_exit_codes_are_those_of_the_manual() -> None:
    page = (ROOT_FOLDER / "ngtcli" / "manual" / "exit-codes.md").read_text()
    for entry in exit_codes()["oneOf"]:
        assert f"| {entry['const']}" in page
        assert entry["description"]
    assert [e["const"] for e in exit_codes()["oneOf"]] == [0, 1, 2, 3, 4, 5, 6, 7, 130]


def test_an_exit_code_of_several_errors_is_described_by_the_general_one() -> None:
    descriptions = {e["const"]: e["description"] for e in exit_codes()["oneOf"]}
    assert descriptions[1] == "Something failed."
    assert descriptions[2] == "A flag, a setting or a preset is wrong."


def test_what_has_no_schema_is_not_guessed() -> None:
    with pytest.raises(TypeError):
        schema_of(complex)
    assert schema_of(int | None) == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
