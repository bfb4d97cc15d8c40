"""The plugin of `llm`: its models, options and fragments, by that tool's own command line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import llm
import pytest
import sqlite_utils
from click.testing import CliRunner
from llm.cli import cli
from llm.migrations import migrate
from llm.plugins import pm

from ngtcli.draft.steps import Statistics, Step, Token
from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.model_files.quantized import Kept
from ngtcli.serve import llm_model, llm_plugin
from ngtcli.session.events import Ended, Event, Message, Stepped, Wants
from ngtcli.session.question import Question
from tests.support.helpers import fill
from tests.support.warm import Warm

WORDS = ("High ", "tide ", "at nine.")


@pytest.fixture(scope="module")
def new_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty log of the tool, which takes some seconds to make."""
    path = tmp_path_factory.mktemp("llm") / "logs.db"
    migrate(sqlite_utils.Database(path))
    return path


@pytest.fixture(autouse=True)
def own_llm(tmp_path: Path, new_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool's folder is the test's; the plugin is there, installed or not."""
    (tmp_path / "llm").mkdir()
    shutil.copy(new_log, tmp_path / "llm")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    if not pm.has_plugin("ngt"):
        pm.register(llm_plugin, "ngt")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The questions, each of which has the same answer."""
    questions: list[Question] = []

    def events(question: Question, wants: Wants) -> Generator[Event]:
        questions.append(question)
        yield Message("status", "Loading …")
        yield Message("warn", "not everything fits")
        thought = Token(1, "", thought="Hm.")
        yield Stepped(Step((thought,)))
        yield Stepped(Step(tuple(Token(2, word) for word in WORDS)))
        statistics = Statistics(prompt_tokens=11, new_tokens=4, drafted_tokens=9, accepted_tokens=2)
        yield Ended(finish_reason="stop", statistics=statistics)

    monkeypatch.setattr(llm_model._ANSWERER, "_events", events)
    return questions


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def logged() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("logs", "--json", "-n", "0").stdout)
    return found


def test_models_on_this_machine_and_that_of_the_settings_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub" / "models--org--small").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("NGT_MODEL", "/models/mine")
    built_in = Kept(str(BUILTIN_PATH), tmp_path, 1, "int8")  # quantised, it has no second name
    monkeypatch.setattr(llm_model, "kept", lambda: [built_in])
    lines = run("models", "list").stdout.splitlines()
    names = [line.removeprefix("NgtModel: ") for line in lines if "ngt/" in line]
    assert names == ["ngt/builtin", "ngt/org/small", "ngt//models/mine (aliases: ngt)"]
    monkeypatch.setenv("NGT_MAX_TOKENS", "many")  # another model's user is not to be stopped by it
    assert "ngt/builtin (aliases: ngt)" in run("models", "list").stdout


def test_options_are_the_settings_with_their_help(asked: list[Question]) -> None:
    shown = run("models", "list", "--options", "-m", "ngt/builtin").stdout
    for words in ("max_tokens: int", "temperature: float", "docs: str", "Seed of sampling."):
        assert words in shown
    assert "system" not in shown
    run("-m", "ngt", "Who?", "-o", "max_tokens", "7", "-o", "seed", "3", "-o", "temperature", "0.5",
        "-o", "stop", "END", "-s", "Be brief.")  # fmt: skip
    settings = asked[0].settings
    assert (settings.max_tokens, settings.seed, settings.temperature) == (7, 3, 0.5)
    assert (settings.stop, settings.system, settings.model) == (("END",), "Be brief.", "builtin")
    for option, value, words in (
        ("max_tokens", "0", "Give a value from 1 to 1000000."),
        ("max_tokens", "many", "valid integer"),
        ("docs", "/nowhere", "no such file or folder"),
        ("overflow", "split", "--overflow split makes summaries"),
    ):
        assert words in run("-m", "ngt", "Who?", "-o", option, value, code=1).output


def test_schemas_of_llm_are_those_of_the_question(asked: list[Question]) -> None:
    run("-m", "ngt", "Who?", "--schema", "name, age int: in years")
    run("-m", "ngt", "Who?", "--schema-multi", "name str")
    fields, many = (json.loads(question.settings.schema) for question in asked)
    assert fields["properties"]["age"] == {"type": "integer", "description": "in years"}
    assert fields["required"] == ["name", "age"] and many["properties"]["items"]["type"] == "array"
    wrong = json.dumps({"type": "object", "properties": {"a": {"$ref": "#"}}})
    assert "recursion" in run("-m", "ngt", "Who?", "--schema", wrong, code=1).output


def test_an_answer_is_streamed_logged_and_counted(asked: list[Question]) -> None:
    done = run("-m", "ngt/builtin", "When?")
    assert done.stdout == "High tide at nine.\n" and "ngt: not everything fits" in done.stderr
    (line,) = logged()
    assert (line["model"], line["response"]) == ("ngt/builtin", "High tide at nine.")
    assert (line["input_tokens"], line["output_tokens"]) == (11, 4)
    assert json.loads(line["token_details"])["accepted_tokens"] == 2
    response = llm.get_model("ngt/builtin").prompt("When?")
    assert [event.chunk for event in response.stream_events()] == ["Hm.", *WORDS]
    assert response.text() == "High tide at nine." and response.usage().input == 11
    assert (asked[0].task, asked[0].question, asked[0].documents) == ("generate", "When?", ())


def test_a_conversation_goes_on_with_its_turns(asked: list[Question]) -> None:
    run("-m", "ngt/builtin", "When?", "-s", "Be brief.")
    run("-c", "And then?")
    assert asked[1].task == "chat" and asked[1].question == "And then?"
    assert [(t.role, t.text) for t in asked[1].turns] == [
        ("user", "When?"), ("assistant", "High tide at nine."),
    ]  # fmt: skip
    conversation = llm.get_model("ngt").conversation()
    for question in ("a", "b", "c"):
        conversation.prompt(question, system="Be brief.").text()
    assert [t.text for t in asked[-1].turns] == [
        "a", "High tide at nine.", "b", "High tide at nine.",
    ]  # fmt: skip
    assert asked[-1].settings.system == "Be brief."


def test_documents_come_by_an_option_or_as_fragments(asked: list[Question], tmp_path: Path) -> None:
    notes = fill(tmp_path / "notes", a_txt="High tide is at nine.", sub__a_txt="Slate.", b_png="x")
    run("-m", "ngt", "When?", "-o", "docs", str(notes))
    assert (asked[0].task, len(asked[0].documents)) == ("ask", 2)
    run("-m", "ngt", "When?", "-f", f"ngt:{notes}")
    question = asked[1]
    assert (question.task, question.question) == ("generate", "When?")
    assert [(d.name, d.text) for d in question.documents] == [
        ("notes/a.txt", "High tide is at nine."), ("sub/a.txt", "Slate."),
    ]  # fmt: skip
    found = llm_model.fragments(str(notes))
    assert [str(f) for f in found] == ["High tide is at nine.", "Slate."]
    assert [f.source for f in found] == [str(notes / "a.txt"), str(notes / "sub" / "a.txt")]
    wrong = run("-m", "ngt", "When?", "-f", f"ngt:{tmp_path}/none", code=1)
    assert "no such file or folder" in wrong.output
    run("-m", "ngt", "Who?", "-f", str(notes / "a.txt"))
    assert [d.text for d in asked[-1].documents] == ["High tide is at nine."]


def test_errors_are_a_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def events(question: Question, wants: Wants) -> Generator[Event]:
        raise ModelError("the model is gone", "Name another.")
        yield

    monkeypatch.setattr(llm_model._ANSWERER, "_events", events)
    done = run("-m", "ngt/builtin", "Who?", code=1)
    assert done.output == "Error: the model is gone. Name another.\n"


START = """
import sys
from llm.plugins import pm
from ngtcli.serve import llm_plugin
if not pm.has_plugin("ngt"):
    pm.register(llm_plugin, "ngt")
from llm.cli import cli
loaded = lambda: sorted(name for name in sys.modules if name.split(".")[0] in %r)
cli(["--help"], standalone_mode=False)
assert loaded() == ["ngtcli", "ngtcli.serve", "ngtcli.serve.llm_plugin"], loaded()
cli(["models", "list"], standalone_mode=False)
assert not [name for name in loaded() if not name.startswith("ngtcli")], loaded()
"""


def test_help_loads_nothing_of_ours_and_listing_nothing_heavy() -> None:
    ours = {"ngtcli", "torch", "transformers", "tokenizers", "numba"}
    done = subprocess.run([sys.executable, "-c", START % ours], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ngt/builtin" in done.stdout


ANSWERS = """
import sys, threading
from llm.plugins import pm
from ngtcli.serve import llm_plugin
if not pm.has_plugin("ngt"):
    pm.register(llm_plugin, "ngt")
from llm.cli import cli
folder, question = sys.argv[1:]
for arguments in (["-o", "docs", folder], ["-f", "ngt:" + folder], ["-c"]):
    options = ["-o", "max_tokens", "8", *arguments]
    cli([*(["-m", "ngt/builtin"] if "-c" not in arguments else []), question, *options],
        standalone_mode=False)
cli(["logs", "--json"], standalone_mode=False)
# A thread in torch would abort the interpreter when it ends.
assert "model" not in [thread.name for thread in threading.enumerate()]
"""


def test_the_built_in_model_answers_and_goes_on(tmp_path: Path) -> None:
    notes = fill(tmp_path / "notes", a_txt="High tide is at nine.\n\nBarges carry slate.")
    own = {"LLM_USER_PATH": os.environ["LLM_USER_PATH"]}
    with Warm(str(notes), "When is high tide?", code=ANSWERS, **own) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    lines = json.loads(out[out.index(b"\n[") :])
    assert len(lines) == 3 and all(0 < line["output_tokens"] <= 8 for line in lines)
    assert all(line["input_tokens"] > 8 and line["response"] for line in lines)
    assert lines[0]["response"] in out.decode()
