"""The commands as a shell runs them: streams, exit codes, JSON, files, interruption."""

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ngtcli.bench.live import Live
from ngtcli.bench.prompts import Item, example_texts
from ngtcli.cli.app import app
from ngtcli.cli.check import PROMPTS
from ngtcli.cli.streams import piped_stdin
from ngtcli.drafting.tree import DraftTree, verify
from ngtcli.drafting.tree import Path as VerifiedPath
from ngtcli.engine.report import with_sources
from ngtcli.errors import NgtError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.system import sandbox
from tests.support.helpers import (
    HARBOUR,
    NGT,
    copy_builtin_model,
    in_terminal,
    ngt,
    wait_until_loading,
    without_note,
)
from tests.support.warm import Warm


def test_non_blocking_standard_input_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with open(read, encoding="utf-8") as stdin, open(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stdin", stdin)
        stream = piped_stdin()
        assert stream is not None
        threading.Timer(0.05, pipe.write, [b"later\n"]).start()
        assert stream.readline() == b"later\n"


def test_a_piped_text_is_a_document() -> None:
    data = Path(HARBOUR).read_bytes()
    expected = ngt("summarize", HARBOUR, "--max-tokens", "20").stdout
    assert ngt("summarize", "--max-tokens", "20", stdin=data).stdout == expected
    assert ngt("summarize", "-", "--max-tokens", "20", stdin=data).stdout == expected
    asked = ngt("ask", "Who saved the town?", "--max-tokens", "20", stdin=data)
    assert asked.returncode == 0
    assert asked.stdout


def test_json_prints_one_object() -> None:
    done = ngt("summarize", HARBOUR, "--json-tokens", "--max-tokens", "60")
    body = json.loads(done.stdout)
    assert {"text", "task", "model", "method", "settings", "documents", "finish_reason"} <= set(
        body
    )
    s = body["statistics"]
    histogram = {int(k): v for k, v in s["acceptance_histogram"].items()}
    assert s["new_tokens"] == len(body["tokens"])
    assert s["steps"] == sum(histogram.values())
    assert s["accepted_tokens"] == sum(k * v for k, v in histogram.items())
    assert s["accepted_tokens"] == sum(t["origin"] != "model" for t in body["tokens"])
    assert "".join(t["text"] for t in body["tokens"]) == body["text"]
    assert body["documents"][0]["name"] == "harbour.txt"
    assert len(body["documents"][0]["sha256"]) == 64


@pytest.mark.parametrize(
    ("method", "name", "words"),
    [("trie", "*", b"rebuilt"), ("auto", "*.pool.safetensors", b"again")],
)
def test_a_damaged_trie_or_pool_is_rebuilt_with_one_warning(
    own_home: Path, method: str, name: str, words: bytes
) -> None:
    arguments = ("summarize", HARBOUR, "--json", "--max-tokens", "5", "--method", method)
    cut_off = b"ngt: the answer is cut off: it reached --max-tokens"
    first = json.loads(ngt(*arguments).stdout)
    assert first["trie"]["status"] == ("built" if method == "trie" else "none")
    (file,) = (own_home / "cache" / "tries").glob(name)
    file.write_bytes(file.read_bytes()[:-9])
    done = ngt(*arguments)
    assert done.returncode == 0
    damaged, *others = without_note(done.stderr).splitlines()
    assert words in damaged
    assert others == [cut_off]
    assert json.loads(done.stdout)["text"] == first["text"]
    assert without_note(ngt(*arguments).stderr).splitlines() == [cut_off]


# Exit code, words of what is told, and the command of each.
_WRONG_COMMANDS = Path(__file__).parents[1] / "support" / "wrong_commands.txt"
_WRONG = _WRONG_COMMANDS.read_text("utf-8").splitlines()
BAD = [
    ([word.replace("{harbour}", HARBOUR) for word in shlex.split(command)], int(code), words)
    for code, words, command in (line.split(" | ", 2) for line in _WRONG)
]
BAD += [
    (["summarize", "x" * 5000], 3, "too long"),
    (["summarize", "{tmp}/a.txt", "-o", "{tmp}/" + "x" * 300 + "/"], 2, "file name too long"),
    (["summarize", "{tmp}/a.txt", "--seed", "9" * 30], 2, "9223372036854775807"),
    (["summarize", "{tmp}/a.txt", "-p", "y" * 5000], 2, "Known: ask, chat, extract, generate, "),
    (["generate", "x " * 5000], 5, "the prompt has 5"),
    (["trie", "build", "--rest", HARBOUR, "--name", "a\x1bb"], 2, r"invalid name 'a\x1bb'"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD, ids=range(len(BAD)))
def test_errors_have_two_lines_and_their_exit_code(
    tmp_path: Path, own_home: Path, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "a.txt").write_text("The tide came in at noon.")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "long.txt").write_text("A word and another. " * 3000)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "p.jsonl").write_text('{"context": "The tide came in at noon."}')
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "model.safetensors").write_bytes(b"\x08damaged")
    done = ngt(*(a.replace("{tmp}", str(tmp_path)) for a in arguments))
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert done.stdout == b""
    assert words in " ".join(said.replace("│", " ").split())
    assert "Traceback" not in said
    assert said.count("\n") == 2 or "Usage: ngt" in said
    assert not (tmp_path / "b").exists()
    assert not list(own_home.glob("cache/tries/*"))


def test_a_models_own_code_is_never_run(tmp_path: Path) -> None:
    """Not even where a document says yes to the question that transformers would ask."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "own",
                "auto_map": {
                    "AutoConfig": "own.C",
                    "AutoModelForCausalLM": "own.M",
                    "AutoTokenizer": ["own.T", None],
                },
            }
        )
    )
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    done = ngt("summarize", "-m", str(tmp_path), stdin=b"y\ny\ny\n")
    assert done.returncode == 4
    assert done.stdout == b""
    assert not (tmp_path / "ran").exists()


def test_names_and_questions_need_not_be_utf_8(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"b.txt"):
        with open(os.path.join(os.fsencode(tmp_path), name), "w") as file:
            file.write("The tide came in at noon that day.")
    asked = os.fsdecode(b"caf\xe9?")  # as Python reads the words of a command
    done = ngt("ask", "-d", str(tmp_path), asked, "--max-tokens", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_an_answer_cut_by_a_full_context_says_so(tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    model = copy_builtin_model(tmp_path / "model", max_position_embeddings=560)
    text.write_text("the " * 514)
    asked = (
        "summarize",
        str(text),
        "-m",
        model,
        "--json",
        "--max-tokens",
        "200",
        "--overflow",
        "error",
    )
    done = ngt(*asked)
    body = json.loads(done.stdout)
    figures = body["statistics"]
    assert body["finish_reason"] == "context"
    assert b"context is full" in done.stderr
    assert figures["prompt_tokens"] + figures["new_tokens"] == 560
    assert not body["truncated"]
    done = ngt(*asked, "--overflow", "truncate")
    body = json.loads(done.stdout)
    assert body["truncated"]
    assert body["finish_reason"] != "context"
    assert b"context is full" not in done.stderr


@pytest.mark.parametrize(("method", "words"), [("trie", b"not cached"), ("auto", b"not stored")])
def test_an_unwritable_cache_or_full_disk_does_not_stop_an_answer(
    tmp_path: Path, method: str, words: bytes
) -> None:
    import resource

    given = ("summarize", HARBOUR, "--max-tokens", "3", "--method", method)
    (tmp_path / "file").write_text("")
    found = [ngt(*given, NGT_HOME=str(tmp_path / "file"))]
    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, most))
    try:
        found.append(ngt(*given))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert all(done.returncode == 0 and done.stdout and words in done.stderr for done in found)


def test_a_closed_pipe_is_silent() -> None:
    with Warm("summarize", HARBOUR) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert without_note(process.stderr.read()) == b""
    assert process.returncode == 0


def test_ctrl_c_keeps_the_text_so_far_and_exits_130() -> None:
    """Endless sampling, interrupted after its first words."""
    with Warm("summarize", HARBOUR, "--temperature", "9", "--max-tokens", "3000") as process:
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready
        first = os.read(process.stdout.fileno(), 10)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first + rest
    assert b"interrupted" in errors
    assert b"Traceback" not in errors


def test_interruption_while_loading_is_quiet() -> None:
    with subprocess.Popen(
        [*NGT, "summarize", HARBOUR], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_until_loading(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_a_terminal_sees_colors_and_a_summary() -> None:
    out, code = in_terminal("summarize", HARBOUR, NO_COLOR="", columns=60)
    assert code == 0
    assert "\x1b[4;36m" in out
    assert "The built-in model is a demonstration, made only" in out
    # In 60 columns the line is broken between its two facts.
    assert re.search(r"\d+ tokens in [\d.]+ s \([\d.]+/s, [\d.]+× by drafting\)\x1b", out)
    assert "100% quoted from 1 document" in out
    assert "acceptance length" not in out
    assert "Sources:" not in out
    told = in_terminal("summarize", HARBOUR, "-v", NO_COLOR="1")[0]  # leaves the underline
    assert "acceptance length" in told
    assert "Sources:" in told
    assert "\x1b[4m" in told
    assert "36m" not in told
    assert b"\x1b[4" in ngt("summarize", HARBOUR, "--color", "always").stdout


def test_a_hostile_document_cannot_reach_the_terminal(tmp_path: Path) -> None:
    hostile = tmp_path / "a\x1b]0;owned\x07.txt"
    hostile.write_text("The key is \x1b[31;1m\x1b]0;owned\x07\x9b2J under the mat, he said. " * 8)
    out, code = in_terminal("ask", "-d", str(hostile), "Where is the key?", "-v", "--dry-run")
    assert code == 0
    assert "under the mat" in out
    answer, _ = in_terminal("ask", "-d", str(hostile), "Where is the key?")
    for text in (out, answer, in_terminal("summarize", str(hostile) + "x")[0]):
        assert "\x1b]" not in text
        assert "\x07" not in text
        assert "\x9b" not in text
        assert "\x1b[31" not in text


def test_datastores_are_built_listed_shown_used_and_cleared() -> None:
    without = ngt("summarize", HARBOUR, "--method", "rest")
    assert without.returncode == 3
    assert "ngt trie build" in without.stderr.decode()
    built = json.loads(ngt("trie", "build", "--rest", HARBOUR, "--json").stdout)
    assert built["name"] == "default"
    assert Path(built["path"]).exists()
    named = json.loads(ngt("trie", "build", HARBOUR, "--rest", "--name", "sea", "--json").stdout)
    assert named["tokens"] == built["tokens"]
    assert named["path"] != built["path"]
    rows = json.loads(ngt("trie", "list", "--json").stdout)
    assert {(r["kind"], r["name"]) for r in rows} == {
        ("datastore", "default"),
        ("datastore", "sea"),
    }
    assert built["path"] in {r["path"] for r in rows}
    plain = ngt("summarize", HARBOUR, "--method", "none", "--max-tokens", "20").stdout
    for method in ("rest", "rest:datastore=sea"):
        assert ngt("summarize", HARBOUR, "--method", method, "--max-tokens", "20").stdout == plain
    assert json.loads(ngt("cache", "clear", "datastores", "--json").stdout)["files"] == 2


def test_env_says_what_confines_parsers() -> None:
    facts = json.loads(ngt("env", "--json").stdout)
    assert facts["device"] in ("cpu", "cuda", "mps")
    assert facts["torch"]
    assert all(f"{what} ({means})" in facts["parsers"] for means, what in sandbox.holds().items())


def test_check_exits_6_if_drafting_changes_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that accepts whatever is drafted must be caught."""

    def broken(tree: DraftTree, choose: Callable[[int, list[int]], int]) -> VerifiedPath:
        if not len(tree):
            return verify(tree, choose)
        return VerifiedPath((0,), (tree.tokens[0], choose(0, [tree.tokens[0]])))

    monkeypatch.setattr("ngtcli.decoding.step.verify", broken)
    drafts = ("--set", "calibrate=no", "--drafts", "4")  # else none may pay on a busy machine
    done = ngt("check", HARBOUR, "--json", *drafts, "--max-tokens", "12")
    assert done.returncode == 6, done.stderr
    body = json.loads(done.stdout)
    bad = [r for r in body["results"] if not r["identical"]]
    assert bad
    assert all(r["margin"] is not None for r in bad)
    assert b"differ" in done.stderr


def test_check_reports_how_many_prompts_it_ran() -> None:
    words = ("check", HARBOUR, "--drafts", "4", "--max-tokens", "2")
    body = json.loads(ngt(*words, "--limit", "2", "--json").stdout)
    available = body["prompts_available"]
    assert body["prompts"] == 2 < available
    assert len({result["name"] for result in body["results"]}) == 2
    lines = ngt(*words, "--limit", "2").stdout.decode().splitlines()
    assert lines[-1].startswith(f"# 2 of {available} prompts were checked")
    for all_of_them in ((), ("--limit", "0"), ("--limit", "99")):
        done = ngt(*words, *all_of_them)
        assert f"4\t{available}\t".encode() in done.stdout
        assert b"were checked" not in done.stdout


def test_check_runs_summaries_and_questions_of_the_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Item] = []

    def no_check(source: Live, *_: object) -> None:
        taken.extend(source.items)
        raise NgtError("enough")

    monkeypatch.setattr("ngtcli.bench.check.run_check", no_check)
    ngt("check")
    assert len(taken) == PROMPTS
    assert {item.task for item in taken} == {"summarize", "ask"}
    names = {document.name for item in taken for document in item.documents}
    assert names == {document.name for document in example_texts().documents}


WRONG = [
    ("-m nobody/nothing", 4, "nobody/nothing"),
    ("-m ./no-model", 4, "no such folder"),
    ("-m broken", 4, "Correct the chat template"),
    ("--device mps", 4, "has no mps device"),
    ("-m model --system Brief.", 4, "fails: None here"),
    ("--set background=mine", 2, "no longer keeps backgrounds of your own"),
    ("--method auto:typo=1", 2, "typo"),
]
COMMANDS = {  # and how many of these each may be given
    "summarize nowhere.txt": 7,
    "summarize nowhere.txt -o out/": 7,
    "ask -d nowhere.txt Who?": 7,
    "check nowhere.txt": 7,
    "batch in.jsonl": 7,
    "bench nowhere.txt --methods auto,none": 6,
    "tune nowhere.txt --sweep n=8,9": 5,
    "summarize nowhere.txt --dry-run": 3,
    "trie build nowhere.txt": 2,
    "trie show nowhere.txt": 2,
    "docs list nowhere.txt": 2,
    "docs show nowhere.txt": 2,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_models_and_settings_are_reported_before_documents_are_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ngtcli.cli.batch.scan", None
    )  # which reads lines, and looks at their paths
    (tmp_path / "in.jsonl").write_text('{"paths": ["nowhere.txt"]}\n')
    refuses = "{{ raise_exception('None here') if messages[1:] }}{{ messages[0].content }}"
    for name, template in (("model", refuses), ("broken", "{{ messages[0].content }")):
        shutil.copytree(BUILTIN_PATH, tmp_path / name, copy_function=os.symlink)
        (tmp_path / name / "chat_template.jinja").unlink()
        (tmp_path / name / "chat_template.jinja").write_text(template)
    for wrong, code, words in WRONG[: COMMANDS[command]]:
        done = ngt(*command.split(), *wrong.split(), cwd=tmp_path)
        assert done.returncode == code, (wrong, done.stderr)
        assert words in done.stderr.decode()


@pytest.mark.parametrize(
    ("flags", "compared"), [([], False), (["--cite"], True), (["--json"], True), (["-v"], True)]
)
def test_sources_are_computed_only_if_they_are_shown(
    flags: list[str], compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison takes a tenth of a second for each megabyte of documents."""
    calls = []

    def count(*args: Any) -> Any:
        calls.append(args)
        return with_sources(*args)

    monkeypatch.setattr("ngtcli.engine.submissions.with_sources", count)
    words = ["ask", "When is the tide high?", "-d", HARBOUR, "--max-tokens", "4", *flags]
    app(words, standalone_mode=False)
    assert bool(calls) == compared
