"""`--dtype auto` on a CPU: a checkpoint's own half precision where its trial says so."""

import json
import shutil
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import transformers

from ngtcli.decode import dtype_trial as room
from ngtcli.decode.dtype_trial import half_of, load_in_best, remembered_dtype, try_dtype
from ngtcli.decode.exactness import ExactRows
from ngtcli.decode.load import load_model
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import target_model
from ngtcli.draft.drafter import PassRows
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.model_files.dtypes import DtypeTrial, known
from ngtcli.system.json_form import to_json
from ngtcli.system.trials import here, results
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.weights.load_quantized import load_quantized
from ngtcli.weights.packed import Trial, remembered_trial, try_packing
from ngtcli.weights.places import packable
from tests.support.helpers import HARBOUR, FakeBackend, ngt
from tests.support.int8_layers import WAY
from tests.support.tiny_models import make_hf

pytestmark = pytest.mark.numeric

BF16 = torch.bfloat16
QUICK = DtypeTrial("m", "bfloat16", (1.0, 1.0, 2.0), (2.0, 3.0, 8.0), True)
SLOW = DtypeTrial("m", "bfloat16", (1.0, 4.0, 2.0), (2.0, 3.0, 8.0), True)
ODD = DtypeTrial("m", "bfloat16", (1.0, 1.0, 2.0), (2.0, 3.0, 8.0), False)


@pytest.mark.parametrize(("trial", "chosen"), [(QUICK, "bfloat16"), (SLOW, "float32"),
                                               (ODD, "float32")])  # fmt: skip
def test_a_trial_chooses_what_is_quicker_everywhere_and_exact(
    trial: DtypeTrial, chosen: str
) -> None:
    assert trial.chosen == chosen
    assert trial.reason.startswith("bfloat16 is 2.0, ")
    assert ("rows beside it" in trial.reason) == (trial is ODD)


def test_a_model_without_a_layer_to_time_is_not_said_to_be_as_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "worth_packing", lambda hf: [])
    nothing = try_dtype(make_hf("llama").to(BF16), "m")
    assert nothing.seconds == nothing.single == () and nothing.chosen == "float32"
    assert nothing.reason.startswith("no layer could be timed in bfloat16")
    assert msgspec.convert(to_json(nothing), DtypeTrial) == nothing
    with pytest.raises(ValueError):
        replace(QUICK, seconds=())


def test_a_trial_is_stored_and_one_that_is_wrong_is_refused() -> None:
    config = make_hf("llama").config
    file = remembered_dtype("m", config, BF16)
    assert file.load() is None
    file.save(QUICK)
    assert file.load() == QUICK and remembered_dtype("n", config, BF16).load() is None
    for changes in ({"dtype": "float32"}, {"seconds": (1.0,)}, {"single": (0.0, 1.0, 1.0)}):
        with pytest.raises(ValueError):
            replace(QUICK, **changes)


class Model:
    """Stands in for a model that was loaded in a dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.dtype_reason, self.tree_reason = dtype, "", ""


@pytest.mark.parametrize(
    ("trial", "exact", "num_draft", "reads"),
    [
        (QUICK, True, 32, [[BF16], [BF16]]),
        (QUICK, False, 32, [[BF16, torch.float32], [torch.float32]]),
        (SLOW, True, 32, [[torch.float32], [torch.float32]]),
        (ODD, True, 32, [[torch.float32], [torch.float32]]),
        (ODD, False, None, [[BF16], [BF16]]),  # a draft model
        (SLOW, False, None, [[torch.float32], [torch.float32]]),
    ],
)
def test_a_model_is_read_in_the_dtype_that_is_chosen_and_tried_once(
    trial: DtypeTrial, exact: bool, num_draft: int | None, reads: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tried: list[Any] = []
    monkeypatch.setattr(room, "try_dtype", lambda hf, name: tried.append(name) or trial)
    rows = PassRows(36, 1) if exact else None
    monkeypatch.setattr(room.ExactRows, "of_any_number", lambda *_: rows)
    found = []
    for _ in reads:
        read: list[torch.dtype] = []
        made: list[weakref.ref[Model]] = []
        model = None

        def load(
            dtype: torch.dtype,
            read: list[torch.dtype] = read,
            made: list[weakref.ref[Model]] = made,
        ) -> Any:
            assert not [one for one in made if one() is not None]  # one at a time in memory
            read.append(dtype)
            made.append(weakref.ref(model := Model(dtype)))
            return model

        config, empty = make_hf("llama").config, lambda: None
        model = load_in_best("m", config, BF16, empty, load, lambda _: None, num_draft)
        assert model.dtype == read[-1] and "times as quick" in model.dtype_reason
        found.append(read)
    assert found == reads and tried == ["m"]


def test_the_checkpoints_dtype_is_read_from_its_configuration() -> None:
    config = make_hf("llama").config
    for dtype, half in (("bfloat16", BF16), (torch.float16, torch.float16), ("float32", None),
                        (None, None), ("something", None)):  # fmt: skip
        config.dtype = dtype
        assert half_of(config) == half


def test_layers_are_tried_in_both_dtypes_and_the_trial_of_packing_is_shared() -> None:
    hf = make_hf("llama", hidden_size=64, intermediate_size=128).to(BF16)
    found = try_dtype(hf, "m")
    assert found.dtype == "bfloat16" and results("packed", Trial)
    own = remembered_trial(hf).load()
    assert own is not None and found.seconds in (own.packed, own.unpacked)
    (single,) = try_packing(packable(hf), torch.float32)
    assert single.agrees and hf.dtype == BF16
    tiny = make_hf("llama", hidden_size=8, intermediate_size=8, vocab_size=20).to(BF16)
    assert try_dtype(tiny, "m").chosen == "float32"


@pytest.mark.skipif(WAY is None, reason="no product of 8-bit integers here")
@pytest.mark.parametrize("trial", [QUICK, SLOW])
@pytest.mark.parametrize("exact", [True, False])
def test_a_quantised_model_is_in_the_dtype_whose_passes_are_quicker_and_exact(
    trial: DtypeTrial, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_hf("llama").to(BF16)
    hf.save_pretrained(tmp_path)
    assert WAY is not None
    read = partial(load_quantized, str(tmp_path), way=WAY)
    tried: list[DtypeTrial] = []
    made: list[Any] = []

    def passes(own: TargetModel, single: TargetModel, name: str) -> DtypeTrial:
        tried.append(room_try_passes(own, single, name))
        assert (own.dtype, single.dtype) == (BF16, torch.float32)
        made.extend(map(weakref.ref, (own, single)))
        assert tried[0].dtype == "bfloat16" and tried[0].alike
        return trial

    monkeypatch.setattr(room, "try_passes", passes)
    rows = PassRows(36, 1) if exact else None
    monkeypatch.setattr(room.ExactRows, "of_any_number", lambda *_: rows)
    wanted = BF16 if exact and trial is QUICK else torch.float32
    true = read(dtype=wanted)[0]
    for _ in range(2):  # the second time it is stored
        load = lambda d: target_model(read(dtype=d)[0], Tokenizer(FakeBackend()), "m")  # noqa: E731
        empty = lambda: None  # noqa: E731
        model = load_in_best("m", hf.config, BF16, empty, load, lambda _: None, 32, str(WAY))
        assert model.dtype == model.hf.dtype == wanted and model.dtype_reason
        ids = torch.arange(3, 30)[None]
        with torch.inference_mode():
            assert torch.equal(model.hf(ids).logits, true(ids).logits)
        del model
        assert sum(one() is not None for one in made) <= 1  # the one that was chosen, till now
    assert len(tried) == 1
    assert remembered_dtype("m", hf.config, BF16).load() is None  # of one that is not quantised


room_try_passes = room.try_passes


@pytest.fixture(scope="module")
def half_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model as a checkpoint in bfloat16."""
    folder = tmp_path_factory.mktemp("models") / "half"
    shutil.copytree(BUILTIN_PATH, folder)
    hf = transformers.AutoModelForCausalLM.from_pretrained(BUILTIN_PATH, dtype=BF16)
    hf.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    return folder


@pytest.mark.parametrize("trial", [QUICK, SLOW])
def test_a_model_is_what_loading_in_that_dtype_gives(
    half_folder: Path, trial: DtypeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "try_dtype", lambda hf, name: trial)
    monkeypatch.setattr(room.ExactRows, "of_any_number", lambda *_: PassRows(36, 1))
    for _ in range(2):
        auto = load_model(str(half_folder), device="cpu")
        named = load_model(str(half_folder), device="cpu", dtype=trial.chosen)
        assert auto.dtype == named.dtype == getattr(torch, trial.chosen)
        assert auto.attention == named.attention and not named.dtype_reason
        ours, theirs = auto.hf.state_dict(), named.hf.state_dict()
        assert ours.keys() == theirs.keys()
        for name, one in ours.items():
            same = [t.to_dense() if t.is_mkldnn else t for t in (one, theirs[name])]
            assert torch.equal(*same)


def test_a_folder_is_tried_once_by_whatever_path_it_is_named(
    half_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    monkeypatch.setattr(room, "try_dtype", lambda hf, name: tried.append(name) or SLOW)
    (tmp_path / "link").symlink_to(half_folder)
    monkeypatch.chdir(half_folder.parent)
    files = set()
    for name in (str(half_folder), f"./{half_folder.name}/", half_folder.name, "../" * 20 +
                 str(half_folder)[1:], str(tmp_path / "link")):  # fmt: skip
        load_model(name, device="cpu")
        files.add(len(known()))
    assert tried == [str(half_folder.resolve())] and len(files) == 1


def test_only_results_of_these_versions_and_switches_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for threads in (4, 1):
        config = SimpleNamespace(to_json_string=lambda use_diff, threads=threads: str(threads))
        trial = replace(QUICK, threads=threads, where=here())
        remembered_dtype("m", config, BF16).save(trial)
    assert [trial.threads for trial in known()] == [1, 4]
    with monkeypatch.context() as patch:
        patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
        assert not known()
    monkeypatch.setattr("ngtcli.system.trials.__version__", "0")
    assert not known()


def test_exactness_is_asked_of_the_weights_at_each_load_and_for_the_drafts_to_come(
    half_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def of_any_number(rows: ExactRows, num_draft: int, tokens: int) -> PassRows | None:
        asked.append(num_draft)
        return PassRows(num_draft, 1) if num_draft < 64 else None

    monkeypatch.setattr(room, "try_dtype", lambda hf, name: QUICK)
    monkeypatch.setattr(room.ExactRows, "of_any_number", of_any_number)
    path = str(half_folder)
    for num_draft, dtype in ((32, BF16), (8, BF16), (64, torch.float32), (32, torch.float32)):
        model = load_model(path, device="cpu", num_draft=num_draft)
        assert model.dtype == dtype and model.dtype_reason
    assert asked == [32, 8, 64]  # once it is not exact, it is not read in half precision again


def test_float32_checkpoints_and_named_dtypes_are_not_tried(half_folder: Path) -> None:
    assert load_model("builtin", device="cpu").dtype == torch.float32
    assert load_model(str(half_folder), device="cpu", dtype="float32").dtype == torch.float32
    assert load_model(str(half_folder), device="cpu", packed=False).dtype == torch.float32
    assert not known()


def test_the_tokens_are_those_of_plain_decoding_and_v_and_env_tell_the_dtype(
    half_folder: Path,
) -> None:
    words = ["summarize", HARBOUR, "-m", str(half_folder), "--max-tokens", "24", "--device", "cpu"]
    plain, drafted = ngt(*words, "--method", "none"), ngt(*words, "-v")
    assert plain.stdout == drafted.stdout and plain.stdout
    told = " ".join(drafted.stderr.decode().split())
    assert "times as quick as float32 over 1, 8 and 32 rows" in told
    chosen = "bfloat16" if "Computed in bfloat16" in told else "float32"
    assert f"Computed in {chosen}: " in told
    assert (chosen == "bfloat16") == ("Exact: " in told)
    facts = json.loads(ngt("env", "--json").stdout)
    assert facts["dtypes"][0].startswith(f"{chosen} for {half_folder} (")
