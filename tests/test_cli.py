"""The commands as a shell runs them: streams, exit codes, JSON, files, interruption."""

import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ngtcli.cli.streams import piped_stdin
from ngtcli.draft.tree import DraftTree, verify
from ngtcli.draft.tree import Path as VerifiedPath
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system import sandbox
from tests.support import warm
from tests.support.helpers import HARBOUR, NGT, changed, in_terminal, ngt, wait_until_loading
from tests.support.warm import Warm


def test_text_goes_to_stdout_and_nothing_to_stderr() -> None:
    done = warm.run("summarize", HARBOUR, "--max-tokens", "40")
    assert done.returncode == 0 and done.stderr == b""
    text = done.stdout.decode()
    assert text.strip() and text.endswith("\n") and "\x1b" not in text


def test_standard_input_that_does_not_block_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with open(read, encoding="utf-8") as stdin, open(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stdin", stdin)
        stream = piped_stdin()
        assert stream is not None
        threading.Timer(0.05, pipe.write, [b"later\n"]).start()
        assert stream.readline() == b"later\n"


def test_stdin_is_a_document() -> None:
    data = Path(HARBOUR).read_bytes()
    expected = ngt("summarize", HARBOUR, "--max-tokens", "20").stdout
    assert ngt("summarize", "--max-tokens", "20", stdin=data).stdout == expected
    assert ngt("summarize", "-", "--max-tokens", "20", stdin=data).stdout == expected
    asked = ngt("ask", "Who saved the town?", "--max-tokens", "20", stdin=data)
    assert asked.returncode == 0 and asked.stdout


def test_json_is_one_object_with_the_names_of_the_field() -> None:
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
def test_a_damaged_trie_or_pool_is_made_again_with_one_line(
    own_home: Path, method: str, name: str, words: bytes
) -> None:
    arguments = ("summarize", HARBOUR, "--json", "--max-tokens", "5", "--method", method)
    first = json.loads(ngt(*arguments).stdout)
    assert first["trie"]["status"] == ("built" if method == "trie" else "none")
    (file,) = (own_home / "cache" / "tries").glob(name)
    file.write_bytes(file.read_bytes()[:-9])
    done = ngt(*arguments)
    assert done.returncode == 0 and done.stderr.count(b"\n") == 1 and words in done.stderr
    assert json.loads(done.stdout)["text"] == first["text"]
    assert ngt(*arguments).stderr == b""


HALF, INT8 = ("quality", "--dtype", "float16"), ("--quantize", "int8")
TRAIN = ("heads", "train", "-o", "{tmp}/b", "--kind")
ASK = ("ask", "-d", HARBOUR)
HEADS = (*ASK, "Who?", "--heads")
BAD = [
    (["sumarize", "x"], 2, "summarize"),
    (["summarize", "{tmp}/binary.txt"], 3, "binary"),
    (["summarize", HARBOUR, "--method", "tri"], 2, "Did you mean trie?"),
    (["summarize", HARBOUR, "-p", "sumarize"], 2, "Did you mean summarize?"),
    (["summarize", HARBOUR, "--set", "top_p=3"], 2, "top_p is 3.0"),
    (["summarize", HARBOUR, "--set", "n=3", "--set", "lp=3"], 2, "shorter than the window"),
    (["summarize", HARBOUR, "--device", "tpu"], 2, "cuda"),
    (["summarize", HARBOUR, "-m", "no/such-model"], 4, "no/such-model"),
    (["summarize", HARBOUR, "-o", "{tmp}/no/a.txt"], 2, "no such folder"),
    (["trie", "show", HARBOUR], 3, "ngt trie build"),
    (["summarize", "~nobody-here.txt"], 3, "home"),
    (["summarize", "x" * 5000], 3, "too long"),
    (["ask", "-p", "summarize", "-d", HARBOUR, "Why?"], 2, "place for a question"),
    ([*ASK, "Who?", "-o", "{tmp}"], 2, "a folder"),
    (["check", HARBOUR, "--drafts", "x"], 2, "16,32,64"),
    (["check", HARBOUR, "--drafts", "1000000"], 2, "not numbers from 1 to 1024"),
    (["summarize", "{tmp}/no.txt"], 3, "no such file"),
    (["summarize", "{tmp}/empty.txt"], 3, "empty"),
    (["ask", "Why?"], 3, "Give --docs FILE or FOLDER"),
    (["summarize"], 3, "Name a file or a folder"),
    (["summarize", "-m", "{tmp}", "{tmp}/a.txt"], 4, "no config.json"),
    (["summarize", "{tmp}/long.txt", "--overflow", "error"], 5, "--overflow truncate"),
    (["summarize", "{tmp}/a.txt", "-o", "{tmp}/circle"], 2, "circle"),
    (["summarize", "{tmp}/a.txt", "-o", "{tmp}", "--html", "{tmp}/a.html"], 2, "--html"),
    (["summarize", "{tmp}/a.txt", "-o", "{tmp}", "--explain"], 2, "--explain"),
    (["summarize", "{tmp}/a.txt", "-o", "{tmp}/" + "x" * 300 + "/"], 2, "file name too long"),
    (["summarize", "{tmp}/a.txt", "-o", ""], 2, "a folder"),
    (["summarize", "{tmp}/a.txt", "--seed", "9" * 30], 2, "9223372036854775807"),
    (["summarize", "{tmp}/a.txt", "--method", "none:x=1"], 2, "no option 'x'"),
    (["summarize", "{tmp}/a.txt", "-p", "y" * 5000], 2, "Known: ask, chat, extract, generate, "),
    (["ask", "-d", "{tmp}/a.txt", "Who", "built", "it"], 2, "ngt ask 'Who built it'"),
    (["ask", "-d", "{tmp}/a.txt", "{tmp}/empty.txt", "Who?"], 2, "Give -d before each document"),
    (["ask", "-d", "{tmp}/a.txt", " "], 2, "question is empty"),
    (["ask", "-d", "{tmp}/a.txt"], 2, "QUESTION"),
    (["summarize", "{tmp}/a.txt", "--dry-run", "-o", "{tmp}/b"], 2, "-o does nothing"),
    (["summarize", "{tmp}/a.txt", "--dry-run", "--json-tokens"], 2, "--dry-run --json"),
    (["summarize", "{tmp}/a.txt", "--json", "--color", "always"], 2, "--color always does nothing"),
    (["summarize", "{tmp}/a.txt", "-o", "{tmp}/b", "--color", "always"], 2, "does nothing with -o"),
    (["summarize", "{tmp}/a.txt", "--set", "top_p=0.5"], 2, "Give --temperature as well."),
    (["summarize", "{tmp}/a.txt", "--set", "n=9"], 2, "It is read by --method trie."),
    (["summarize", "{tmp}/a.txt", "--method", "trie", "--set", "pool=yes"], 2, "--method auto"),
    (["summarize", "{tmp}/a.txt", "--set", "pool_documents=yes", "--set", "pool=no"], 2,
     "Leave out --set pool=no."),
    (["summarize", "{tmp}/a.txt", "--set", "draft_model=builtin"], 2, "--method draft-model"),
    (["ask", "?", "--quantize", "int8", "--set", "packed=no"], 2, "packed=no does nothing with"),
    (["bench", "--quantize", "int8", "--set", "packed=no"], 2, "--set packed=no does nothing"),
    (["check", "--method", "none"], 2, "nothing to check"),
    (["check", "--num-draft", "8", "--drafts", "4"], 2, "Give one of them"),
    (["check", "--color", "always"], 2, "ngt check"),
    (["check", "--set", "min_p=0.1"], 2, "--temperature"),
    (["trie", "build", "{tmp}/a.txt", "--temperature", "1"], 2, "--temperature"),
    (["trie", "build", "{tmp}/a.txt", "--rest", "--set", "lp=2"], 2, "--set lp does nothing with"),
    (["trie", "list", "--seed", "1"], 2, "--seed"),
    (["summarize", "{tmp}/a.txt", "--num-drafts", "3"], 2, "--num-draft"),
    (["trie", "build", "{tmp}/a.txt", "--name", "x"], 2, "a trie has no name"),
    (["trie", "build", "{tmp}/a.txt", "--rest", "--name", "a:b"], 2, "without a colon"),
    (["summarize", "{tmp}/a.txt", "-p", ""], 2, "no preset ''"),
    (["summarize", "{tmp}/a.txt", "-m", ""], 2, "name is empty"),
    (["summarize", "-", "--cite", "--json"], 2, "--cite does nothing with --json"),
    (["summarize", "-", "-o", "-"], 2, "needs no name"),
    (["summarize", "-", "-o", "a", "--html", "./a"], 2, "-o and --html both name"),
    (["summarize", "-", "--force"], 2, "--force does nothing with no -o and no --html"),
    (["summarize", "-", "--html", "a", "--per-file", "-o", "b"], 2, "an answer for each file"),
    (["summarize", "-", "--per-file", "-o", "{tmp}", "--no-serve"], 2, "--serve does nothing"),
    (["summarize", "-", "--keep-warm", "10"], 2, "keep_warm is '10'"),
    (["serve", "--max-tokens", "9", "status"], 2, "does nothing with ngt serve status"),
    (["serve", "--host", "0.0.0.0"], 2, "--host does nothing with ngt serve without --http"),
    (["serve", "-d", "{tmp}/a.txt"], 2, "-d does nothing"),
    (["serve", "--http", "99999"], 2, "Give a port"),
    (["serve", "--http", "0.0.0.0:8421"], 2, "not this machine alone"),
    (["serve", "--http", "8421", "--host", "0.0.0.0"], 2, "lets other machines in"),
    (["serve", "--http", "8421", "--api-key-file", "{tmp}/no"], 2, "no such file"),
    (["serve", "--http", "8421", "-d", "{tmp}/no"], 3, "no such file"),
    (["docs", "show", "{tmp}/a.txt", "--text", "--passages"], 2, "--passages does nothing"),
    (["docs", "show", "{tmp}/a.txt", "--set", "passage_tokens=50"], 2, "Give --passages"),
    (["bench", "--methods", "nonsense"], 2, "no method can run"),
    (["bench", "--num-draft", "8,x"], 2, "--num-draft 16,32,64"),
    (["bench", "--json", "--markdown"], 2, "Give one of them"),
    (["bench", "--against", "vllm"], 2, "Known: hf"),
    (["bench", "--against", "hf", "--temperature", "1"], 2, "greedy"),
    (["bench", "--prompts", "{tmp}/no.jsonl"], 3, "no.jsonl"),
    (["bench", "--prompts", "{tmp}/bad.jsonl"], 3, "bad.jsonl:1: not JSON"),
    (["bench", "--prompts", "{tmp}/bad.jsonl", HARBOUR], 2, "and files or --docs"),
    (["bench", "--tasks", "rag"], 2, "Known: summarize, ask."),
    (["bench", "nowhere.txt"], 3, "nowhere.txt"),
    (["bench", "quality"], 2, "Give --dtype bfloat16"),
    (["bench", "quality", "--dtype", "float32"], 2, "compares with float32"),
    (["bench", *HALF, HARBOUR, "--limit", "2"], 2, "--tasks and --limit choose prompts"),
    (["bench", *HALF, "--prompts", "{tmp}/p.jsonl", HARBOUR], 2, "--prompts and files"),
    (["bench", *HALF, "--prompts", "{tmp}/p.jsonl"], 3, "no prompt has a reference"),
    (["bench", *HALF, "--temperature", "1"], 2, "--temperature"),
    (["tune"], 2, "nothing to sweep"),
    (["tune", "--sweep", "n=8", "--set", "n=9"], 2, "both swept and given"),
    (["tune", "--sweep", "n=8", "--json", "--csv"], 2, "--json and --csv"),
    (["tune", "--sweep", "n=8", "--method", "auto"], 2, "auto does not read n"),
    (["bench", HARBOUR, "--noise", "3"], 2, "tests.tools.datasets"),
    (["bench", "--replay", "{tmp}"], 2, "Give ngt bench replay RECORDING."),
    (["bench", HARBOUR, "--shape", "x"], 2, "python -m tests.tools.shapes"),
    (["tune", "--sweep", "n=8", "--replay", "x", "notes.txt"], 2, "eave out"),
    (["tune", "--sweep", "n=8", "--replay", "nowhere"], 3, "o recording"),
    (["tune", "--sweep", "seed=1,2", "--replay", "nowhere"], 2, "cannot tell what seed"),
    (["tune", "--sweep", "n=8", "--prompts", "p.jsonl", "notes.txt"], 2, "eave out one"),
    ([*ASK, "x", "--show-thinking", "--json"], 2, "--show-thinking does nothing with --json"),
    (["generate", ""], 2, "the prompt is empty"),
    (["generate", "one", "two"], 2, "ngt generate 'one two'"),
    (["generate", "@none.txt"], 3, "prompt @none.txt: no such file"),
    (["generate", "x", "--cite"], 2, "--cite does nothing with no documents"),
    (["generate", "x", "--overflow", "split"], 2, "makes summaries of parts"),
    (["generate", "x " * 5000], 5, "the prompt has 5"),
    (["generate", "x", "--predict", "{tmp}/a.txt", "--method", "suffix"], 2,
     "a predicted answer does nothing with --method suffix"),
    (["generate", "x", "--predict", "{tmp}/a.txt", "-o", "{tmp}/a.txt"], 2, "a.txt"),
    ([*TRAIN, "nonesuch", "-d", "x"], 2, "medusa"),
    ([*TRAIN, "medusa"], 2, "--data"),
    ([*TRAIN, "medusa", "-d", "nowhere.txt"], 3, "nowhere.txt"),
    ([*TRAIN, "eagle3", "-d", "x", *INT8], 2, "--quantize"),
    ([*TRAIN, "medusa", "-d", "x", "--inner", "9"], 2, "--inner does nothing with --kind"),
    ([*TRAIN, "hydra", "--model-scores", "-d", "x", *INT8], 2, "--quantize"),
    ([*HEADS, "{tmp}"], 4, "model.safetensors cannot be read (Error while"),
    ([*ASK, "Who?", "--method", "medusa"], 2,
     "method medusa: there is no head Name one with --heads."),
    ([*ASK, "Who?", *5 * ["--heads", "x"]], 2,
     "5 heads, and 4 are the most Name fewer with --heads."),
    ([*HEADS, "no/such/one"], 4, "no/such/one: no such folder Give a folder or hub id"),
    ([*HEADS, HARBOUR], 4, "a file, not a folder Give a folder or hub id"),
    ([*HEADS, "x", "--method", "trie"], 2, "--heads does nothing with --method trie It is"),
    ([*ASK, "x", "--overflow", "error", "--passages", "3"], 2, "--passages does nothing"),
    ([*ASK, "x", "--set", "passage_tokens=4"], 2, "passage_tokens is 4"),
    ([*ASK, "x", "--set", "passage_overlap=200"], 2, "passage_overlap is 200"),
    (["summarize", HARBOUR, "--overflow", "retrieve"], 2, "by a question"),
    (["summarize", HARBOUR, "--set", "device_map=auto", "--set", "packed=no"], 2,
     "--set packed=no does nothing with --set dev"),
    (["mcp", "-d", "nowhere"], 3, "nowhere: no such file or folder"),
    (["mcp", "-d", "-"], 2, "standard input has the protocol"),
    (["mcp"], 2, "--docs"),
    (["mcp", "-d", HARBOUR, "-m", "nowhere/at/all"], 4, "nowhere/at/all: no such folder"),
    (["mcp", "-d", HARBOUR, "--color", "always"], 2, "--color always does nothing with ngt mcp"),
    (["trie", "build", "--background", HARBOUR, "--name", "english"], 2, "english"),
    (["trie", "build", "--background", "--rest", HARBOUR], 2, "--rest"),
    (["trie", "build", "--rest", HARBOUR, "--name", "a\x1bb"], 2, r"the name is 'a\x1bb'"),
    (["trie", "build", "--background", HARBOUR, "--set", "n=8"], 2, "--set n"),
    (["summarize", HARBOUR, "--set", "background=english", "--method", "llma"], 2,
     "--set background does nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "words"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_told_in_two_lines_with_the_exit_code_of_the_table(
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
    assert (done.returncode, done.stdout) == (code, b""), said
    assert words in " ".join(said.replace("│", " ").split()) and "Traceback" not in said
    assert said.count("\n") == 2 or "Usage: ngt" in said
    assert not (tmp_path / "b").exists() and not list(own_home.glob("cache/tries/*"))


def test_a_models_own_code_is_never_run(tmp_path: Path) -> None:
    """Not even where a document says yes to the question that transformers would ask."""
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.C",
                    "AutoModelForCausalLM": "own.M", "AutoTokenizer": ["own.T", None]}})
    )  # fmt: skip
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    done = ngt("summarize", "-m", str(tmp_path), stdin=b"y\ny\ny\n")
    assert done.returncode == 4 and done.stdout == b"" and not (tmp_path / "ran").exists()


def test_names_and_questions_in_foreign_bytes(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", b"b.txt"):
        with open(os.path.join(os.fsencode(tmp_path), name), "w") as file:
            file.write("The tide came in at noon that day.")
    asked = os.fsdecode(b"caf\xe9?")  # as Python reads the words of a command
    done = ngt("ask", "-d", str(tmp_path), asked, "--max-tokens", "3")
    assert done.returncode == 0 and done.stdout, done.stderr


def test_an_answer_cut_by_a_full_context_says_so(tmp_path: Path) -> None:
    text, model = tmp_path / "long.txt", changed(tmp_path / "model", max_position_embeddings=560)
    text.write_text("the " * 514)
    asked = ("summarize", str(text), "-m", model, "--json", "--max-tokens", "200", "--overflow",
             "error")  # fmt: skip
    done = ngt(*asked)
    body = json.loads(done.stdout)
    figures = body["statistics"]
    assert body["finish_reason"] == "context" and b"context is full" in done.stderr
    assert figures["prompt_tokens"] + figures["new_tokens"] == 560 and not body["truncated"]
    done = ngt(*asked, "--overflow", "truncate")
    body = json.loads(done.stdout)
    assert body["truncated"] and body["finish_reason"] != "context"
    assert b"context is full" not in done.stderr


@pytest.mark.parametrize(("method", "words"), [("trie", b"not cached"), ("auto", b"not stored")])
def test_an_unwritable_cache_or_a_full_disk_costs_only_the_cache(
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
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_ctrl_c_keeps_what_came_and_exits_130() -> None:
    """Endless sampling, interrupted after its first words."""
    with Warm("summarize", HARBOUR, "--temperature", "9", "--max-tokens", "3000") as process:
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready
        first = os.read(process.stdout.fileno(), 10)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first + rest and b"interrupted" in errors and b"Traceback" not in errors


def test_interruption_while_loading_is_quiet() -> None:
    with subprocess.Popen(
        [*NGT, "summarize", HARBOUR], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_until_loading(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in errors


def test_a_terminal_sees_colours_and_a_summary() -> None:
    out, code = in_terminal("summarize", HARBOUR, NO_COLOR="", columns=60)
    assert code == 0 and "\x1b[4;36m" in out and "small demonstration" in out
    facts = out[out.rindex("tokens/s") - 40 :]
    assert "acceptance length" in facts and "Sources:" not in out
    assert all(len(line) < 80 for line in facts.splitlines()[-3:])
    told = in_terminal("summarize", HARBOUR, "-v", NO_COLOR="1")[0]  # leaves the underline
    assert "Sources:" in told and "\x1b[4m" in told and "36m" not in told
    assert b"\x1b[4" in ngt("summarize", HARBOUR, "--color", "always").stdout


def test_a_hostile_document_cannot_reach_the_terminal(tmp_path: Path) -> None:
    hostile = tmp_path / "a\x1b]0;owned\x07.txt"
    hostile.write_text("The key is \x1b[31;1m\x1b]0;owned\x07\x9b2J under the mat, he said. " * 8)
    out, code = in_terminal("ask", "-d", str(hostile), "Where is the key?", "-v", "--dry-run")
    assert code == 0 and "under the mat" in out
    answer, _ = in_terminal("ask", "-d", str(hostile), "Where is the key?")
    for text in (out, answer, in_terminal("summarize", str(hostile) + "x")[0]):
        assert "\x1b]" not in text and "\x07" not in text and "\x9b" not in text
        assert "\x1b[31" not in text


def test_datastores_are_built_listed_shown_used_and_cleared() -> None:
    without = ngt("summarize", HARBOUR, "--method", "rest")
    assert without.returncode == 3 and "ngt trie build" in without.stderr.decode()
    built = json.loads(ngt("trie", "build", "--rest", HARBOUR, "--json").stdout)
    assert built["name"] == "default" and Path(built["path"]).exists()
    named = json.loads(ngt("trie", "build", HARBOUR, "--rest", "--name", "sea", "--json").stdout)
    assert named["tokens"] == built["tokens"] and named["path"] != built["path"]
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
    assert facts["device"] in ("cpu", "cuda", "mps") and facts["torch"]
    assert all(f"{what} ({means})" in facts["parsers"] for means, what in sandbox.holds().items())


def test_check_exits_6_where_drafting_changes_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that accepts whatever is drafted must be caught."""

    def broken(tree: DraftTree, choose: Callable[[int, list[int]], int]) -> VerifiedPath:
        if not len(tree):
            return verify(tree, choose)
        return VerifiedPath((0,), (tree.tokens[0], choose(0, [tree.tokens[0]])))

    monkeypatch.setattr("ngtcli.decode.decoder.verify", broken)
    drafts = ("--set", "calibrate=no", "--drafts", "4")  # else none may pay on a busy machine
    done = ngt("check", HARBOUR, "--json", *drafts, "--max-tokens", "12")
    assert done.returncode == 6, done.stderr
    body = json.loads(done.stdout)
    bad = [r for r in body["results"] if not r["identical"]]
    assert bad and all(r["margin"] is not None for r in bad) and b"differ" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "words", "code"),
    [
        (["-m", "./no-model"], "no such folder", 4), (["-m", "MODEL"], "chat template fails", 4),
        (["--method", "auto:typo=1"], "typo", 2), (["--set", "background=x"], "no background", 2),
        (["--device", "mps"], "no mps device here", 4),
    ],
)  # fmt: skip
def test_a_wrong_model_template_or_setting_is_told_before_any_document_is_opened(
    tmp_path: Path, wrong: list[str], words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a document was looked at")

    monkeypatch.setattr("ngtcli.documents.load.find", opened)
    monkeypatch.setattr("ngtcli.cli.batch.scan", opened)
    text, model = tmp_path / "a.txt", tmp_path / "model"
    text.write_text("The tide came in at noon.")
    model.mkdir()
    for path in BUILTIN_PATH.iterdir():
        (model / path.name).symlink_to(path)
    (model / "chat_template.jinja").unlink()
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }")
    wrong = [str(model) if word == "MODEL" else word for word in wrong]
    commands = [
        ["summarize", str(text)], ["summarize", str(text), "-o", f"{tmp_path}/out/"],
        ["ask", "When?", "-d", str(text)], ["batch", str(text), "-o", str(tmp_path / "out.jsonl")],
        ["check", str(text)], ["tune", str(text), "--sweep", "num_draft=4,8"],
    ]  # fmt: skip
    if "--method" not in wrong:
        commands.append(["bench", str(text), "--methods", "auto,none"])
    for command in commands:
        done = ngt(*command, *wrong)
        assert done.returncode == code and words in done.stderr.decode(), (command, done.stderr)
    assert ngt("summarize", str(text), "-m", str(model), "--dry-run").returncode == 4
