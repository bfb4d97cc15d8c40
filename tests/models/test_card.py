"""What a model's card says to ngt: settings that suit the model, and the scripts that it reads."""

import json
import shutil
from pathlib import Path

import pytest

from ngtcli.documents.load import Document
from ngtcli.errors import UsageError
from ngtcli.models.card import load_card, script_words
from ngtcli.models.checkpoint import BUILTIN_PATH
from tests.support.helpers import ngt, without_note

PARAGRAPHS = [
    "The slate quarry was opened in 1802 by two brothers.\n",
    "A ferry crosses the sound four times a day in summer.\n",
]


def card(folder: Path, text: str) -> str:
    (folder / "README.md").write_text(text)
    return str(folder)


def shown(*arguments: str, **environ: str) -> dict[str, dict[str, object]]:
    settings_shown = json.loads(ngt("config", "show", "--json", *arguments, **environ).stdout)
    return {
        name: {key: setting[key] for key in ("value", "origin")}
        for name, setting in settings_shown.items()
    }


def test_the_card_stands_above_the_default_and_below_all_else(tmp_path: Path) -> None:
    assert shown()["passages"] == {"value": 1, "origin": "card of builtin"}
    assert shown("--passages", "7")["passages"]["origin"] == "flag"
    assert shown(NGT_PASSAGES="7")["passages"] == {"value": 7, "origin": "environment"}
    folder = card(tmp_path, "# A model\n")
    assert shown("-m", folder)["passages"] == {"value": -1, "origin": "default"}
    assert shown(NGT_MODEL=folder)["whole_tokens"] == {"value": 0, "origin": "default"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("---\nngt: {settings: {passages: 1, engine: vllm}}\n---\n", "'engine' is not a setting"),
        ("---\nngt: {settings: {passages: -2}}\n---\n", "passages is -2"),
        ("---\nngt: [1]\n---\n", "invalid value of the key ngt"),
    ],
)
def test_a_card_sets_nothing_else(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        load_card(card(tmp_path, text))


@pytest.mark.parametrize("text", ["", "---\nlanguage: en\n---\n", "---\n[: *\n---\n", "---\n- 1\n"])
def test_cards_without_a_key_for_ngt_set_nothing(tmp_path: Path, text: str) -> None:
    model_card = load_card(card(tmp_path, text))
    assert not model_card.settings.values
    assert not model_card.reads
    assert not model_card.scripts


def test_other_scripts_are_named(tmp_path: Path) -> None:
    english = Document("a.txt", PARAGRAPHS[0])
    hindi = Document("h.txt", "यह एक घर है।")
    assert script_words("builtin", [english], "Wer ist das, bitte schön? Ω") == ""
    words = script_words("builtin", [english, hindi], "这是什么?")
    assert words == (
        "the built-in model reads English; the question and h.txt are in CJK and Devanagari script"
    )
    assert script_words("builtin", [Document("1.txt", "12 % of 3 + 4")], "") == ""
    assert script_words(card(tmp_path, "# A model\n"), [], "这是什么?") == ""  # names none


SAYING = [
    "ask -d h.txt Rooms?",
    "ask -d h.txt Rooms? --dry-run",
    "summarize h.txt",
    "batch -",
    "extract h.txt --schema rooms --set ask_fields=no --overflow split",
]


@pytest.mark.parametrize("command", SAYING)
def test_a_command_says_once_that_a_script_is_not_read(tmp_path: Path, command: str) -> None:
    (tmp_path / "h.txt").write_text("यह एक घर है। इसमें दो कमरे हैं।\n" * 3)
    line = json.dumps({"paths": ["h.txt"], "question": "How many rooms?"}).encode()
    done = ngt(*command.split(), "--max-tokens", "4", stdin=line, cwd=tmp_path)
    messages = [line for line in done.stderr.decode().splitlines() if "reads English" in line]
    assert messages == ["ngt: the built-in model reads English; h.txt is in Devanagari script"]


def test_the_builtin_model_gets_one_passage_even_where_all_fit(tmp_path: Path) -> None:
    for i, text in enumerate(PARAGRAPHS):
        (tmp_path / f"{i}.txt").write_text(text * 20)
    ask = "ask -d 0.txt -d 1.txt --json --max-tokens 4".split()
    ask.append("When was the slate quarry opened?")
    done = ngt(*ask, cwd=tmp_path)
    read = json.loads(done.stdout)["retrieval"]["passages"]
    assert [passage["document"] for passage in read] == [0]
    assert b"ngt: documents of more than 240 tokens are not read whole: only 1 of " in done.stderr
    unlimited = ngt(*ask, "--set", "whole_tokens=0", cwd=tmp_path)
    assert json.loads(unlimited.stdout)["retrieval"] is None
    assert without_note(unlimited.stderr).splitlines() == [
        b"ngt: the answer is cut off: it reached --max-tokens"
    ]
    for i, text in enumerate(PARAGRAPHS):  # short ones are read whole
        (tmp_path / f"{i}.txt").write_text(text)
    assert json.loads(ngt(*ask, cwd=tmp_path).stdout)["retrieval"] is None


def test_a_copy_of_the_builtin_model_has_its_card(tmp_path: Path) -> None:
    shutil.copy(BUILTIN_PATH / "README.md", tmp_path)
    assert load_card(str(tmp_path)).settings.values == load_card("builtin").settings.values


def test_a_name_below_the_home_of_nobody_has_no_card() -> None:
    assert load_card("~nobody-of-this-name/model").settings.values == {}
