"""What a start loads, and that loading less changes nothing."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.pretrained import (
    _TOKENIZER_CLASSES,
    load_config,
    load_tokenizer,
    tokenizer_class,
)
from tests.support.helpers import HARBOUR, NGT, assert_not_loaded

EXAMPLE = Path(__file__).parents[1] / "ngtcli" / "examples" / "harbour.txt"
TEXTS = [
    "",
    " ",
    "x",
    "The harbour at Wrenmouth was dug by hand.",
    "  two  spaces\n\n\tand tabs ",
    "naïve café – déjà vu",
    "안녕하세요 세계",
    "🐚🌊 e\u0301",
    "<s>a</s> <|end|>",
    "1234567 3.14",
]
SUFFIXES = ("", "Fast")


def make_tokenizer(kind: str, folder: Path) -> None:
    """Train a small tokenizer of that class and save it."""
    import transformers

    if kind in ("TokenizersBackend", "PreTrainedTokenizer"):
        shutil.copytree(BUILTIN_PATH, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        return
    new = getattr(transformers, kind)().train_new_from_iterator([EXAMPLE.read_text()], 400)
    new.save_pretrained(folder)


def declare(folder: Path, model: str, kind: str, **config: Any) -> None:
    """Say in the folder's files what kind of model it is and which class its tokenizer has."""
    about = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**about, "tokenizer_class": kind}))
    (folder / "config.json").write_text(json.dumps({"model_type": model, **config}))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("model", "kind"), sorted(_TOKENIZER_CLASSES))
def test_the_class_is_the_one_that_autotokenizer_chooses_and_gives_its_ids(
    model: str, kind: str, suffix: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    make_tokenizer(kind, tmp_path / "model")
    declare(tmp_path / "model", model, kind + suffix)
    auto = AutoTokenizer.from_pretrained(tmp_path / "model")
    own = load_tokenizer(str(tmp_path / "model")).backend
    assert tokenizer_class(str(tmp_path / "model")) == type(own).__name__
    assert type(own) is type(auto)
    assert own.backend_tokenizer.to_str() == auto.backend_tokenizer.to_str()
    for text in TEXTS:
        for special in (False, True):
            assert own.encode(text, add_special_tokens=special) == auto.encode(
                text, add_special_tokens=special
            )
    assert own.model_max_length == auto.model_max_length
    assert own.eos_token_id == auto.eos_token_id
    assert own.chat_template == auto.chat_template


@pytest.mark.parametrize(
    ("model", "kind", "config"),
    [
        ("mistral", "LlamaTokenizer", {}),  # depends on what else is installed
        ("phi3", "LlamaTokenizer", {}),
        ("unheard-of", "TokenizersBackend", {}),
        ("llama", "Qwen2Tokenizer", {}),
        ("llama", "TokenizersBackend", {"tokenizer_class": "GPT2Tokenizer"}),
        ("llama", "LlamaTokenizer", {}),  # the vocabulary is byte-level
    ],
)
def test_in_doubt_autotokenizer_chooses(
    model: str, kind: str, config: dict[str, Any], tmp_path: Path
) -> None:
    make_tokenizer("TokenizersBackend", tmp_path / "model")
    declare(tmp_path / "model", model, kind, **config)
    assert tokenizer_class(str(tmp_path / "model")) == ""


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"model_type": []}'])
def test_broken_files_are_left_to_autotokenizer(text: str, tmp_path: Path) -> None:
    make_tokenizer("TokenizersBackend", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(text)
    assert tokenizer_class(str(tmp_path / "model")) == ""


@pytest.mark.parametrize(
    "values",
    [
        {"vocab_size": 9, "max_position_embeddings": 77},
        {"vocab_size": 9},
        {
            "vocab_size": 9,
            "max_position_embeddings": 77,
            "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        },
        {
            "vocab_size": 9,
            "max_position_embeddings": 77,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 33,
                "short_factor": [1.0] * 64,
                "long_factor": [1.0] * 64,
            },
        },
    ],
)
def test_what_is_read_of_a_configuration_is_what_its_class_says(
    values: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **values}))
    for name in ("model.safetensors", "tokenizer.json"):  # a model's folder has them
        (tmp_path / name).write_bytes(b"")
    whole = AutoConfig.from_pretrained(tmp_path)
    own = load_config(str(tmp_path))
    for name in ("vocab_size", "max_position_embeddings"):
        assert getattr(own, name) == getattr(whole, name)
    kinds = [(getattr(c, "rope_parameters", None) or {}).get("rope_type") for c in (own, whole)]
    assert {kind or "default" for kind in kinds} == {kinds[1] or "default"}


def test_without_a_model_to_run_torch_is_not_loaded() -> None:
    commands = [
        ["summarize", HARBOUR, "--dry-run"],
        ["ask", "When?", "-d", HARBOUR, "--dry-run", "--set", "whole_tokens=0"],
        ["trie", "build", HARBOUR],
        ["trie", "show", HARBOUR],
        ["trie", "list"],
        ["env"],
    ]
    assert_not_loaded(commands, {"torch", "numba"})


def test_a_command_line_is_read_without_pydantic() -> None:
    commands = [
        ["summarize", HARBOUR, "--dry-run", "--seed", "1", "-t", "0.5", "--stop", "x"],
        ["ask", "When?", HARBOUR, "--dry-run", "--limit", "1", "-o", "unused.txt"],
        ["extract", HARBOUR, "--schema", "name", "--dry-run", "--doubt", "0.5"],
        ["presets", "show", "ask"],
    ]
    assert_not_loaded(commands, {"pydantic"})


def test_an_answer_loads_no_part_of_scipy_that_it_does_not_use() -> None:
    command = ["summarize", HARBOUR, "--max-tokens", "8", "--no-serve"]
    assert_not_loaded([command], {"scipy.linalg", "scipy.optimize"})


LISTS = """
import json
import re
from pathlib import Path

import ngtcli.models.weights
import transformers.models
from ngtcli.models.hf import list_conversions
from transformers import conversion_mapping
from transformers.utils import import_utils

models = Path(transformers.__file__).parent / "models"
folders = [path for path in models.rglob("*") if path.is_dir() and path.name != "__pycache__"]
listed = import_utils.create_import_structure_from_path.cache_info().misses
import_utils.create_import_structure_from_path.cache_clear()
structure = import_utils.define_import_structure(str(models / "__init__.py"))
names = {name for files in structure.values() for names in files.values() for name in names}

list_conversions()
kept = conversion_mapping._checkpoint_conversion_mapping_cache
compiled = sum(isinstance(t.compiled_sources, re.Pattern) for ts in kept.values() for t in ts)
differing = [
    name
    for name, transforms in conversion_mapping._build_checkpoint_conversion_mapping().items()
    if [t.compiled_sources for t in transforms]
    != [t.compiled_sources for t in conversion_mapping.get_checkpoint_conversion_mapping(name)]
]
print(json.dumps([listed, len(folders) + 1, names <= {*dir(transformers.models)}]))
print(json.dumps([len(kept), compiled, differing]))
"""


def test_lists_of_the_libraries_models_are_made_once_and_are_theirs() -> None:
    done = subprocess.run([sys.executable, "-c", LISTS], capture_output=True, text=True, check=True)
    files, conversions = map(json.loads, done.stdout.splitlines())
    listed, folders, knows_all = files
    assert listed < 1.1 * folders  # packages of single models list their own files
    assert knows_all
    count, compiled, differing = conversions
    assert count > 50
    assert compiled == 0
    assert differing == []


def test_the_status_follows_what_is_done(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from ngtcli.cli.app import app

    long = tmp_path / "long.txt"
    long.write_text(EXAMPLE.read_text() * 4)
    command = ["summarize", str(long), "-v", "--max-tokens", "4", "--set", "pool=yes"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if line.endswith("…")]
    once = ("Compiling", "Trying", "Packing", "Counting")  # as this machine needs them
    told = [line for line in lines if not line.startswith(once)]
    told = told[told.index("Starting …") :]
    assert told[:4] == [
        "Starting …",
        "Loading builtin …",
        "Preparing to draft …",
        "Measuring what a forward pass costs …",
    ]
    assert len(told) == 5  # no bar where nothing can be wiped
    assert re.fullmatch(r"Reading the prompt: 2\d\d\d tokens …", told[4])


def test_the_listing_says_of_each_command_what_the_command_says() -> None:
    from ngtcli.cli.app import COMMANDS, load

    for name, listed in COMMANDS.items():
        assert load(name).help.split("\n\n")[0] == listed.line
        assert load(name).name == name


def test_imports_without_collection_leave_collection_as_it_was() -> None:
    import gc

    from ngtcli.system.process import without_garbage_collection

    before = gc.get_freeze_count()
    with without_garbage_collection():
        import json  # noqa: F401

        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    # Objects that were frozen before may go meanwhile; nothing new was loaded, so none come.
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before
    with pytest.raises(ImportError), without_garbage_collection():
        raise ImportError
    assert gc.isenabled()


def test_a_models_memory_is_free_for_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import gc
    import weakref

    from ngtcli.engine import local as session
    from tests.support.helpers import ngt

    made: list[weakref.ref[Any]] = []
    load = session.load_model

    def noted(*arguments: Any, **options: Any) -> Any:
        model = load(*arguments, **options)
        made.append(weakref.ref(model))
        return model

    monkeypatch.setattr(session, "load_model", noted)
    for _ in range(2):
        assert ngt("summarize", HARBOUR, "--max-tokens", "2").returncode == 0
    gc.collect()
    assert [model() for model in made] == [None, None]


@pytest.mark.skipif(sys.platform != "linux", reason="needs GNU's OpenMP library")
@pytest.mark.parametrize("chosen", ["", "active"])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(chosen: str) -> None:
    """By what the OpenMP library says when torch loads it."""
    environ = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        environ.pop(name, None)
    if chosen:
        environ["OMP_WAIT_POLICY"] = chosen
    command = [*NGT, "summarize", HARBOUR, "--max-tokens", "1"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    spins = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert done.returncode == 0, done.stderr
    assert spins
    assert all((int(count) > 0) == (chosen == "active") for count in spins)
