"""Settings and presets of every odd kind: what is wrong is named, with its file; exit code 2."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ngtcli.cli.app import app
from ngtcli.config import (
    KINDS,
    PER_REQUEST,
    SETTINGS,
    Layer,
    Settings,
    Use,
    environment_and_file_layers,
    environment_layer,
    merge,
    settings_where,
    unknown_variables,
)
from ngtcli.drafting.drafter import DraftSettings, draft_settings
from ngtcli.engine.settings import apply_to_process, settings_of
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompts.preset import load_preset
from ngtcli.system.cache import cache_limit
from ngtcli.system.files import home
from ngtcli.system.yaml_file import SETTINGS_BYTES, parse_yaml
from tests.support.helpers import HARBOUR, ngt

TEMPLATE = "template: '{documents}'\n"


def run(*arguments: str, **environ: str) -> tuple[Result, int, str]:
    """A command in this process: its result, its exit code, and its error with the hint."""
    result = CliRunner().invoke(app, list(arguments), env=environ)
    if isinstance(result.exception, NgtError):
        error = result.exception
        return result, error.exit_code, f"{error}\n{error.hint}"
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result, result.exit_code, result.stderr


@pytest.fixture
def presets(own_home: Path) -> Path:
    folder = own_home / "config" / "presets"
    folder.mkdir(parents=True)
    return folder


def text(body: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(body)


def link(target: str) -> Callable[[Path], Any]:
    return lambda path: path.symlink_to(target)


# How a settings file or preset can be bad, and a word of what is said of it.
ODD_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder": (Path.mkdir, "is a directory"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "a link to /dev/zero": (link("/dev/zero"), "not a regular file"),
    "a dangling link": (link("/nowhere/at/all.yaml"), "broken link"),
    "too large": (text("# " + "x" * SETTINGS_BYTES), "more than 1 MB"),
    "Latin-1": (lambda path: path.write_bytes(b"n: caf\xe9"), "not UTF-8"),
    "a date that is none": (text("seed: 2026-13-45"), "line 1 ('2026-13-45'"),
    "6000 digits": (text("\nseed: " + "7" * 6000), "line 2"),
    "6000 hexadecimal digits": (text("seed: 0x" + "7" * 6000), "thousands of digits"),
    "deep lists": (text("[" * 20_000), "nested too deeply"),
    "deep mappings": (text("stop: " + "{a: " * 20_000), "nested too deeply"),
    "a list in itself": (text("stop: &a [*a]"), "an alias"),
    "a value repeated without end": (text("a: &a [x]\nb: &b [*a, *a]\n"), "an alias"),
    "a mapping in itself": (text("provenance: &a {b: *a}"), "an alias"),
    "one key twice": (text("n: 8\nn: 9"), "duplicate key 'n'"),
    "a Python object": (text("n: !!python/object/apply:os.getpid []"), "line 1"),
    "a control character": (text("n: \x01"), "not valid YAML"),
    "a list": (text("- n\n"), "not a mapping"),
    "a number as a key": (text("3: 4\n"), "not a mapping"),
    "a wrong type": (text("n: 2.5\n"), "n is 2.5"),
    "a word for a number": (text("n: many"), "It must be a whole number."),
    "a switch for a number": (text("n: true"), "n is true"),
    "a number for a choice": (text("overflow: 8"), "Choose from auto, error"),
    "a number for a list": (text("stop: 3"), "It must be a list of strings."),
    "out of range": (text("n: 99"), "n is 99"),
    "an unknown word": (text("ocr: pink"), "ocr is 'pink'"),
    "a wrong key": (text("num_drafts: 2\n"), "num_draft"),
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_bad_settings_file_is_named_with_exit_code_2(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = ODD_FILES[kind]
    make(tmp_path / "ngt.yaml")
    _, code, said = run("config", "show")
    assert code == 2
    assert "ngt.yaml" in said
    assert words in said
    assert len(said) < 400
    assert "\n" in said.strip()


# What ./ngt.yaml may set: how drafts and answers are made, and how documents are read. A new
# setting is decided upon here.
OF_PROJECTS = """
    method n lp num_draft learn_output background calibrate exact max_tokens think max_thinking
    temperature top_p top_k min_p seed repetition_penalty presence_penalty frequency_penalty system
    chat_template template_arg template_documents stop schema schema_multi regex choices quote
    ask_fields max_repeats overflow passages passage_tokens passage_overlap whole_tokens max_mb
    max_files max_depth strict encoding password field ocr ocr_language
""".split()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_file_in_the_current_folder_sets_answers_and_reading_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it: what is loaded, fetched, kept and run is for the user to say."""
    monkeypatch.chdir(tmp_path)
    about = SETTINGS[name]
    value: Any = {str: "10m", int: 200, float: 0.5, tuple: ["x=1"]}.get(about.kind)
    if about.kind is int:
        value = min(value, int(about.within[1]))
    elif about.kind is bool:
        value = not about.default
    elif about.choices:
        value = next(choice for choice in about.choices if choice != about.default)
    (tmp_path / "ngt.yaml").write_text(json.dumps({name: value}))
    by_name = {layer.origin: layer for layer in environment_and_file_layers()}
    layer = by_name["ngt.yaml"]
    if name in OF_PROJECTS:
        assert name in layer.values
        assert not layer.ignored
    else:
        assert name not in layer.values
        assert layer.ignored == (name,)
        own = config_file({name: value})
        assert name in environment_and_file_layers()[2].values
        done = ngt("config", "show", cwd=tmp_path)
        said = done.stderr.decode()
        assert said.count("\n") == 1
        assert f"may not set {name}" in said
        assert about.flag in said
        assert str(own) in said


def config_file(values: dict[str, Any]) -> Path:
    """The user's own settings file, with these values."""
    path = home("config") / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("system", "@secret"),
        ("schema", "@secret"),
        ("schema", " @secret"),
        ("schema", "./secret"),
        ("schema", " ./secret"),
        ("schema", "s.json"),
        ("schema", " s.json "),
        ("schema", "s.txt"),
        ("schema", "~/s.md"),
        ("schema_multi", "@secret"),
    ],
)
def test_a_file_in_the_current_folder_has_no_other_file_read(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for file in ("secret", "s.txt", "s.md"):
        (tmp_path / file).write_text("the secret text int")
    (tmp_path / "s.json").write_text('{"type": "object", "properties": {"secret": {}}}')
    (tmp_path / "ngt.yaml").write_text(json.dumps({name: value}))
    done = ngt("summarize", HARBOUR, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert b"secret" not in done.stdout
    assert f"may not set {name}, which is ignored".encode() in done.stderr


def test_a_schema_without_a_file_may_stand_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "who").write_text("the secret text int")
    for schema in ("who", "total float: net/gross"):
        (tmp_path / "ngt.yaml").write_text(json.dumps({"schema": schema}))
        done = ngt("ask", "-d", HARBOUR, "Who?", "--dry-run", "--json", cwd=tmp_path)
        assert done.returncode == 0
        assert b"ignored" not in done.stderr
        assert [*json.loads(done.stdout)["schema"]["properties"]] == [schema.split()[0]]


@pytest.mark.parametrize("name", ["undefined", "klingon", "a\0b"])
def test_an_encoding_that_encodes_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="unknown encoding "):
        merge([Layer("flag", {"encoding": name})])


def test_a_folder_neither_empties_the_cache_nor_names_a_model(tmp_path: Path) -> None:
    ngt("docs", "list", HARBOUR)
    before = json.loads(ngt("cache", "list", "--json").stdout)
    (tmp_path / "ngt.yaml").write_text("cache_mb: 1\nmodel: someone/tracker\nmax_tokens: 3\n")
    done = ngt("summarize", HARBOUR, "--json", "--method", "none", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert answer["model"] == "builtin"
    assert answer["statistics"]["new_tokens"] == 3
    assert answer["settings"]["cache_mb"] == SETTINGS["cache_mb"].default
    assert b"may not set cache_mb, model" in done.stderr
    after = json.loads(ngt("cache", "list", "--json").stdout)
    documents = [next(s for s in held if s["name"] == "documents") for held in (before, after)]
    assert documents[0]["bytes"] <= documents[1]["bytes"]


# How a preset can be bad besides.
ODD_PRESETS = {
    "empty": (text(""), "lacks {documents}"),
    "a template without documents": (text("template: hello"), "lacks {documents}"),
    "a template that is no text": (text("template: 3"), "template is 3"),
    "an origin that is no mapping": (text(TEMPLATE + "provenance: me\n"), "provenance"),
}


@pytest.mark.parametrize("kind", ["a folder", "Latin-1", "a wrong key", *ODD_PRESETS])
def test_a_bad_preset_is_marked_and_the_others_are_listed(kind: str, presets: Path) -> None:
    make, words = {**ODD_FILES, **ODD_PRESETS}[kind]
    make(presets / "mine.yaml")
    result, code, _ = run("presets", "list", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert code == 0
    assert set(rows) == {"ask", "chat", "extract", "generate", "mine", "summarize"}
    assert "mine.yaml" in rows["mine"]["error"]
    assert [name for name in rows if "error" in rows[name]] == ["mine"]
    table, code, _ = run("presets", "list")
    assert code == 0
    assert "mine\tbroken: " in table.stdout
    assert "chat\tAnswer" in table.stdout
    _, code, said = run("summarize", "x.txt", "-p", "mine")
    assert code == 2
    assert "mine.yaml" in said
    assert words in said
    assert "-p NAME" in said


def test_a_broken_summarize_preset_does_not_hide_the_settings(presets: Path) -> None:
    (presets / "summarize.yaml").write_text("template: 3\n")
    result, code, _ = run("config", "show", "--json", "--set", "n=9")
    about = {"value": 9, "origin": "flag", "help": SETTINGS["n"].help}
    assert code == 0
    assert json.loads(result.stdout)["n"] == about
    assert "summarize.yaml" in result.stderr
    assert result.stderr.count("\n") == 1
    _, code, said = run("config", "show", "-p", "summarize")
    assert code == 2
    assert "summarize.yaml" in said
    _, code, said = run("summarize", "x.txt")
    assert code == 2
    assert "summarize.yaml" in said
    assert "-p NAME" in said
    assert run("summarize", "x.txt", "-p", "chat")[1] == 3  # continues, to the missing document


def test_dates_and_odd_keys_in_a_presets_origin_are_json(presets: Path) -> None:
    origin = "provenance: {date: 2026-11-21, 3: .nan, big: 0x" + "7" * 6000 + ", none: null}\n"
    (presets / "mine.yaml").write_text(TEMPLATE + origin)
    kept = load_preset("mine").provenance
    assert kept["date"] == "2026-11-21"
    assert kept["3"] == "nan"
    assert kept["none"] is None
    assert "thousands" in kept["big"]
    shown_as = json.loads(run("presets", "show", "mine", "--json")[0].stdout)
    assert shown_as["provenance"] == kept


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("NGT_STOP", "[" * 20_000, "NGT_STOP: nested too deeply"),
        ("NGT_STOP", "[&a [*a]]", "NGT_STOP: not valid YAML"),
        ("NGT_STOP", "[2026-13-45]", "NGT_STOP"),
        ("NGT_STOP", "[1, 2]", "NGT_STOP: stop is [1, 2]"),
        ("NGT_SEED", "2026-13-45", "NGT_SEED"),
        ("NGT_SEED", "7" * 6000, "NGT_SEED"),
        ("NGT_POOL", "perhaps", "NGT_POOL: pool is 'perhaps'"),
        ("NGT_HOME", "~nobody-of-this-name/x", "NGT_HOME is ~nobody-of-this-name/x"),
        ("NGT_TEMPERATURE", "nan", "temperature is NaN"),
        ("NGT_MAX_TOKENS", "0", "from 1 to 1000000."),
        ("NGT_TOP_P", "0", "from 0.000001 to 1."),
        ("NGT_PARSER_SECONDS", "0", "from 1 to 86400."),
        ("NGT_PARSER_MB", "199", "from 200 to 1000000."),
        ("NGT_SEED", "-1", "from 0 to 9223372036854775807."),
        ("NGT_COLOR", "x" * 9000, "xxx...xxx"),
    ],
)
def test_a_bad_variable_is_named_with_exit_code_2(variable: str, value: str, words: str) -> None:
    result, code, said = run("config", "show", **{variable: value})
    assert code == 2
    assert words in said
    assert len(said) < 400
    assert not result.stderr


def test_stop_strings_that_are_no_lists_are_taken_as_they_are() -> None:
    for stop in ("2026-13-45", "&a", "{", "- x", ": ", "*a"):
        assert environment_layer({"NGT_STOP": stop}).values == {"stop": (stop,)}


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NGT_N", "NGT_STOP", "NGT_POOL", "NGT_METHOD", "NGT_TEMPERATURE", "NGT_HOME"):
        monkeypatch.setenv(name, "")
    assert environment_and_file_layers()[0].values == {}


def test_an_unknown_variable_gets_one_line_with_the_nearest_name() -> None:
    environ = {"NGT_NUM_DRAFTS": "16", "NGT_ZZZZZZ": "1", "NGT_HOME": "/x", "NGT_N": "", "PATH": ""}
    assert unknown_variables(environ) == [
        ("NGT_NUM_DRAFTS", "Did you mean NGT_NUM_DRAFT?"),
        ("NGT_ZZZZZZ", "See ngt config show."),
    ]
    result, code, _ = run("config", "show", NGT_NUM_DRAFTS="16", NGT_SEED="3")
    assert code == 0
    assert result.stderr == "ngt: NGT_NUM_DRAFTS is not read. Did you mean NGT_NUM_DRAFT?\n"


def test_valid_yaml_is_read_as_the_safe_loader_reads_it() -> None:
    body = "a: [1, 2.5, true, null, x]\nb: {c: 2026-11-21, d: '3'}\ne: |\n  two\n  lines\n"
    import yaml

    assert parse_yaml(body, "here") == yaml.safe_load(body)


# --- options that would be ignored ---


@pytest.mark.parametrize(
    "given",
    [
        "--set top_p=0.5 --temperature 0.7",
        "--set top_p=0.5 --temperature 0",  # as scripts give them together
        "--seed 3",  # greedy decoding repeats itself, as was asked for
        "--set top_k=0 --set top_p=1",
        "--method trie --set n=9 --set lp=2 --set learn_output=yes --set pool=no",
        "--method none --set n=9 --num-draft 8 --set pool=yes",
        "--json --color never",
        "--json --json-tokens",
        "--dry-run --json --temperature 1",
    ],
)
def test_options_with_an_effect_or_nothing_to_lose_are_taken(given: str) -> None:
    assert run("summarize", "nowhere.txt", *given.split())[1] == 3  # on to the missing document


def test_settings_of_files_and_variables_need_not_matter_to_each_command(monkeypatch) -> None:
    given = {"NGT_N": "9", "NGT_TOP_P": "0.5", "NGT_COLOR": "always", "NGT_POOL": "true"}
    assert run("summarize", "nowhere.txt", "--json", **given)[1] == 3


def test_drafters_are_given_the_settings_that_decide_drafts_with_the_same_bounds() -> None:
    names = [*settings_where(Use.TRIE), "num_draft"]
    changed = Settings.of(n=9, lp=2, num_draft=5, learn_output=True)
    for settings in (Settings(), changed):
        own = draft_settings(settings)
        assert all(getattr(own, name) == settings.get(name) for name in names)
    assert draft_settings(Settings()) == DraftSettings()
    for name, value in (("n", 1), ("n", 65), ("lp", 0), ("num_draft", -1), ("num_draft", 1025)):
        for kind in (Settings.of, DraftSettings):
            with pytest.raises(UsageError, match=f"{name} is {value}"):
                kind(**{name: value})


def test_defaults_are_among_what_settings_may_be() -> None:
    for name, setting in SETTINGS.items():
        setting.check(setting.default)
        assert setting.kind in KINDS, name


def test_a_number_beyond_every_float_is_out_of_range_in_whatever_setting() -> None:
    for number in (10**400, -(10**400)):
        with pytest.raises(UsageError, match="min_p"):
            merge([Layer("somewhere", {"min_p": SETTINGS["min_p"].typed(number, "somewhere")})])


def test_reading_settings_changes_nothing_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(cache_limit, "max_bytes", 7)
    settings = settings_of([Layer("flag", {"cache_mb": 3})]).settings
    assert "HF_HUB_OFFLINE" not in os.environ
    assert cache_limit.max_bytes == 7
    apply_to_process(settings)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert cache_limit.max_bytes == 3_000_000


def test_a_hub_is_asked_where_one_of_the_models_is_not_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(cache_limit, "max_bytes", 0)
    apply_to_process(Settings.of(model=str(tmp_path), embedder="nobody/nothing"))
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.mark.parametrize("name", PER_REQUEST)
def test_what_a_line_may_set_is_never_for_the_user_alone(name: str) -> None:
    assert Use.USER_ONLY not in SETTINGS[name].uses


def test_settings_that_the_method_does_not_read_do_not_part_a_batch() -> None:
    trie = Settings.of(method="trie:lp=2").drafting
    assert trie.effective == Settings.of(method="trie:lp=2", pool=False).drafting.effective
    assert trie.effective != Settings.of(method="trie:lp=2", n=9).drafting.effective
    auto = Settings().drafting
    assert auto.effective == Settings.of(n=9).drafting.effective
    assert auto.effective != Settings.of(pool=False).drafting.effective


def test_flat_values_make_the_same_settings_and_unknown_names_are_refused() -> None:
    settings = Settings.of(model="x", max_tokens=9, field="a", color="never")
    assert Settings.of(**settings.values()) == settings
    assert settings.values().keys() == SETTINGS.keys()
    with pytest.raises(TypeError, match="unknown setting max_tokans"):
        Settings.of(max_tokans=9)
