"""Flags without effect are named in one warning each, and the command continues."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from ngtcli.cli.answer import PassagesOption
from ngtcli.cli.answer_flags import AnswerFlags, Output, effective_output
from ngtcli.cli.checks import COLORED, TABLE, NoEffect, Situation, warn_of_no_effect
from ngtcli.cli.command import command
from ngtcli.config import SETTINGS, Setting
from tests.support.helpers import HARBOUR, ngt
from tests.support.recording_reporter import RecordingReporter

# A command line for each situation, which ends at a file or a model that is not there.
LINES = {
    Situation.GREEDY: "summarize nowhere.txt",
    Situation.OWN_ENGINE: "summarize nowhere.txt",
    Situation.VLLM: "summarize nowhere.txt --engine vllm",
    Situation.QUANTIZED: "summarize nowhere.txt --quantize int8",
    Situation.MAPPED: "summarize nowhere.txt --set device_map=auto",
    Situation.NO_AUTO: "summarize nowhere.txt --method trie",
    Situation.NO_HEADS: "summarize nowhere.txt --method trie",
    Situation.NO_TRIE: "summarize nowhere.txt --method llma",
    Situation.NO_DRAFT_MODEL: "summarize nowhere.txt",
    Situation.NO_POOL: "summarize nowhere.txt --set pool=no",
    Situation.ALL_IS_READ: "ask -d nowhere.txt Who? --overflow truncate",
    Situation.ONE_SUMMARY: "summarize nowhere.txt",
    Situation.ONE_ANSWER: "ask -d nowhere.txt Who?",
    Situation.NO_DOCUMENTS: "generate Hello -m ./nowhere",
    Situation.EACH: "ask --each -d nowhere.txt Who?",
    Situation.EACH_ON_STDOUT: "ask --each -d nowhere.txt Who?",
    Situation.TABLE: "ask --each -d nowhere.txt Who? -o table.csv",
    Situation.JSON: "ask -d nowhere.txt Who? --json",
    Situation.SCHEMA: "ask -d nowhere.txt Who? --schema who",
    Situation.DRY_RUN: "ask -d nowhere.txt Who? --dry-run",
    Situation.NO_FILE: "summarize nowhere.txt",
    Situation.BATCH_ON_STDOUT: "batch nowhere.jsonl",
    Situation.STREAM: "batch - -o out.jsonl",
    Situation.EXTRACT_ON_STDOUT: "extract nowhere.txt --schema who",
    Situation.NO_COLOR: "batch nowhere.jsonl",
    Situation.DATASTORE: "trie build nowhere.txt --rest",
    Situation.NO_PASSAGES: "docs show nowhere.txt",
}
OTHERS = {"top_p": "0.5", "min_p": "0.5", "keep_warm": "9s", "passages": "2"}  # than the default
VALUES = {
    "--limit": ["2"],
    "--predict": [HARBOUR],
    "--html": ["page.html"],
    "-o": ["out.txt"],
    "--sources": ["columns"],
}
CASES = [(row, flag) for row in TABLE for flag in row.flags]


def setting_of(flag: str) -> Setting | None:
    return next((setting for setting in SETTINGS.values() if setting.flag == flag), None)


def words_for(flag: str) -> list[str]:
    """The words that give a flag another value than its default."""
    if flag == COLORED:
        return flag.split()
    setting = setting_of(flag)
    if setting is None:
        return [flag, *VALUES.get(flag, [])]
    if setting.is_switch and not flag.startswith("--set"):
        return [f"--no-{flag[2:]}" if setting.default is True else flag]
    value = OTHERS.get(setting.name, "x")
    if setting.is_switch:
        value = "no" if setting.default is True else "yes"
    elif setting.choices:
        value = next(choice for choice in setting.choices if choice != setting.default)
    elif setting.kind is int and setting.name not in OTHERS:
        value = str(setting.default + 1)
    if flag.startswith("--set"):
        return ["--set", f"{setting.name}={value}"]
    return [f"{flag}={value}"]


@pytest.mark.parametrize(
    ("row", "flag"), CASES, ids=[f"{row.situation.name} {flag}" for row, flag in CASES]
)
def test_a_flag_without_effect_gets_one_warning(
    row: NoEffect, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ngt(*LINES[row.situation].split(), *words_for(flag), stdin=b'{"context": "High."}\n')
    stderr = done.stderr.decode()
    assert stderr.count(f"ngt: {flag} has no effect {row.words}\n") == 1
    assert done.returncode != 2, stderr
    assert "Traceback" not in stderr


def test_every_situation_has_a_row_and_a_line() -> None:
    assert {row.situation for row in TABLE} == set(Situation) == set(LINES)


@pytest.mark.parametrize("line", sorted(set(LINES.values())))
def test_flags_that_are_not_given_get_no_warning(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ngt(*line.split(), stdin=b"")
    assert b"has no effect" not in done.stderr


def test_a_flag_in_two_rows_is_named_once() -> None:
    reported = RecordingReporter()
    situations = [Situation.JSON, Situation.SCHEMA]
    values = {"--cite": True, "--show-thinking": False}
    reported.of(lambda: warn_of_no_effect(situations, values))
    assert reported.warnings == ["--cite has no effect with --json, which has both"]


def test_flags_without_effect_do_not_change_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = ("ask", "-d", HARBOUR, "When is high tide?")
    plain = ngt(*ask, "--json")
    cited = ngt(*ask, "--json", "--cite", "--show-thinking")
    assert plain.returncode == cited.returncode == 0
    texts = [json.loads(done.stdout)["text"] for done in (plain, cited)]
    assert texts[0] == texts[1] != ""
    dry = ngt(*ask, "--dry-run", "-o", "out.txt", "--html", "page.html")
    assert dry.returncode == 0
    assert b"tide" in dry.stdout
    assert not {"out.txt", "page.html"} & {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("flag", "command"),
    [
        ("--heads", "ask Who? notes.txt --method trie"),
        ("--heads", "ask Who? notes.txt --method trie --each"),
        ("--heads", "summarize notes.txt --method none"),
        ("--heads", "extract notes.txt --schema who --method trie"),
        ("--set draft_model", "ask Who? notes.txt --method trie"),
        ("--set draft_model", "summarize notes.txt"),
    ],
)
def test_unused_heads_and_draft_models_need_not_exist(
    flag: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("The harbour master of Polwick is Ann Trewin.\n")
    done = ngt(*command.split(), *f"{flag}=./nowhere".split())
    stderr = done.stderr.decode()
    assert f"ngt: {flag} has no effect " in stderr
    assert done.returncode == 0, stderr


def output_of(flags: Collection[str]) -> Output:
    """Return the output of a command line with these flags."""
    outputs: list[Output] = []

    @command("answer")
    def answer(show_passages: PassagesOption = False, *, answer_flags: AnswerFlags) -> None:
        """Keep the output."""
        outputs.append(answer_flags.output(shows_passages=show_passages))

    words = [word for flag in flags for word in words_for(flag)]
    with answer.make_context("ngt", words) as context:
        answer.invoke(context)
    return outputs[0]


OUTPUT_FLAGS = set(Output().given_flags())


@pytest.mark.parametrize("row", TABLE, ids=[row.situation.name for row in TABLE])
def test_a_flag_without_effect_is_as_if_it_was_not_given(row: NoEffect) -> None:
    effective = effective_output(output_of(OUTPUT_FLAGS), [row.situation])
    assert effective == output_of(OUTPUT_FLAGS - {*row.flags})


@pytest.mark.parametrize("flag", sorted(OUTPUT_FLAGS))
def test_a_flag_is_given_where_it_is_on_the_command_line(flag: str) -> None:
    flags = output_of([flag]).given_flags()
    assert {name for name, is_given in flags.items() if is_given} == {flag}


@pytest.mark.parametrize("form", ["--json", "--json-tokens"])
def test_a_table_has_its_sources_though_json_has_no_effect_on_it(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("ask", "When is high tide?", HARBOUR, "--each", "--cite")
    plain = ngt(*command, "-o", "plain.csv")
    other = ngt(*command, "-o", "other.csv", form)
    assert plain.returncode == other.returncode == 0
    assert b"--cite has no effect" not in other.stderr
    assert Path("other.csv").read_text() == Path("plain.csv").read_text()
