"""In what form a model is computed: rules by the CPU's flags, and exactness; no timing."""

import json
import shutil
import weakref
from typing import Any

import pytest
import torch
import transformers

from ngtcli.decoding import load as room
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.load import ModelSpec, load_model, plan
from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.weights import formats
from ngtcli.models.weights.convert import convertible
from ngtcli.models.weights.formats import (
    DtypeChoice,
    WeightFormat,
    dtype_by_rule,
    half_of,
    prepacks,
)
from ngtcli.models.weights.linear import packed_weights
from ngtcli.system.cpu import instruction_sets
from ngtcli.system.reporting import reporting_to
from ngtcli.system.trials import Trial
from tests.support.helpers import HARBOUR, ngt
from tests.support.int8_layers import KERNEL
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import make_hf

pytestmark = pytest.mark.numeric

BF16 = torch.bfloat16
F16 = torch.float16
F32 = torch.float32
needs_half = pytest.mark.skipif(not prepacks(BF16), reason="no products in bfloat16 here")


@pytest.mark.parametrize(
    ("half", "bits", "has", "dtype", "words"),
    [
        (BF16, 0, {"avx512_bf16", "avx512_fp16"}, BF16, "multiplies it (avx512_bf16)"),
        (BF16, 0, {"avx512_bf16", "amx_bf16"}, BF16, "multiplies it (amx_bf16)"),
        (BF16, 0, {"bf16"}, BF16, "multiplies it (bf16)"),
        (BF16, 0, {"avx512_vnni", "f16c"}, F32, "no instructions for bfloat16"),
        (F16, 0, {"avx512_bf16", "f16c"}, F32, "no instructions for float16"),
        (F16, 0, {"avx512_fp16"}, F16, "multiplies it (avx512_fp16)"),
        (BF16, 8, {"amx_bf16", "amx_int8"}, F32, "as fast between layers of 8 bits"),
        (None, 0, {"amx_bf16"}, F32, ""),
    ],
)
def test_the_dtype_is_that_which_the_cpu_multiplies(
    half: Any, bits: int, has: set[str], dtype: Any, words: str
) -> None:
    choice = dtype_by_rule(half, bits, frozenset(has))
    assert choice.dtype == dtype
    assert choice.by_rule == bool(words)
    assert choice.why.endswith(words)


def test_the_checkpoints_dtype_is_read_from_its_configuration() -> None:
    config = make_hf("llama").config
    for dtype, half in (
        ("bfloat16", BF16),
        (F16, F16),
        ("float32", None),
        (None, None),
        ("something", None),
    ):
        config.dtype = dtype
        assert half_of(config) == half


@pytest.fixture(scope="module")
def half_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built-in model as a checkpoint in bfloat16."""
    folder = tmp_path_factory.mktemp("models") / "half"
    shutil.copytree(BUILTIN_PATH, folder)
    hf = transformers.AutoModelForCausalLM.from_pretrained(BUILTIN_PATH, dtype=BF16)
    hf.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    return str(folder)


@pytest.fixture
def multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that multiplies bfloat16."""
    monkeypatch.setattr(room, "instruction_sets", lambda: frozenset({"avx512_bf16"}))


@needs_half
@pytest.mark.usefixtures("multiplies")
@pytest.mark.parametrize(
    ("exact", "num_draft", "reads"),
    [
        (True, 32, [[BF16], [BF16]]),
        (False, 32, [[BF16, F32], [F32]]),
        (False, None, [[BF16], [BF16]]),  # a draft model
    ],
)
def test_half_precision_stays_where_it_is_exact_and_is_read_once_where_it_is_not(
    exact: bool,
    num_draft: int | None,
    reads: list[Any],
    half_folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Exactness, "any_number", lambda *_: PassRows(36, 1) if exact else None)
    read = list[Any]()
    models = list[weakref.ref[Any]]()
    read_model = room.read

    def read_and_count(planned: Any) -> Any:
        # There is never more than one model in memory.
        assert all(reference() is None for reference in models)
        read.append(planned.format.dtype)
        hf = read_model(planned)
        models.append(weakref.ref(hf))
        return hf

    monkeypatch.setattr(room, "read", read_and_count)
    for expected_reads in reads:
        read.clear()
        model = load_model(ModelSpec(half_folder, "cpu", num_draft=num_draft))
        assert read == expected_reads
        assert model.dtype == read[-1]
        assert model.hf.dtype == read[-1]
        assert any(packed_weights(model.hf))
        words = "multiplies" if exact or num_draft is None else "depend on the rows beside it"
        assert words in model.origin.dtype_why
        del model


@pytest.mark.usefixtures("multiplies")
@pytest.mark.parametrize("why", ["", "it is otherwise"])
def test_why_a_rule_chose_a_dtype_decides_nothing(
    why: str, half_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision that is not exact is given up, whatever the reason for choosing it says."""
    monkeypatch.setattr(Exactness, "any_number", lambda *_: None)
    choice = DtypeChoice(BF16, True, why)
    monkeypatch.setattr(room, "dtype_by_rule", lambda *_: choice)
    for _ in range(2):  # the trial runs, then its stored result is used
        assert load_model(ModelSpec(half_folder, "cpu", num_draft=32)).dtype == F32
    model = load_model(ModelSpec(half_folder, "cpu", "bfloat16", num_draft=32))
    assert model.dtype == BF16


@needs_half
def test_the_weights_are_those_that_the_named_dtype_gives(
    half_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for instructions, name in (({"avx512_bf16"}, "bfloat16"), (set(), "float32")):
        monkeypatch.setattr(
            room, "instruction_sets", lambda instructions=instructions: frozenset(instructions)
        )
        by_rule = load_model(ModelSpec(half_folder, "cpu"))
        by_name = load_model(ModelSpec(half_folder, "cpu", name))
        assert by_rule.dtype == by_name.dtype == getattr(torch, name)
        assert not by_name.origin.dtype_why
        tensors = by_rule.hf.state_dict()
        expected = by_name.hf.state_dict()
        assert tensors.keys() == expected.keys()
        for key, tensor in tensors.items():
            pair = [t.to_dense() if t.is_mkldnn else t for t in (tensor, expected[key])]
            assert torch.equal(*pair)


@pytest.mark.usefixtures("multiplies")
def test_named_and_built_in_dtypes_are_not_chosen_by_rule(half_folder: str) -> None:
    for spec in (
        ModelSpec("builtin", "cpu"),
        ModelSpec(half_folder, "cpu", "float32"),
        ModelSpec(half_folder, "cpu", packed=False),
    ):
        weight_format = plan(spec).format
        assert weight_format.dtype == F32
        assert not weight_format.chosen_by_rule
    # Half precision is always packed.
    assert plan(ModelSpec(half_folder, "cpu", drafts=False)).format.packed
    assert not plan(ModelSpec("builtin", "cpu", drafts=False)).format.packed


@pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here")
@pytest.mark.usefixtures("multiplies")
def test_between_layers_of_8_bits_is_float32(half_folder: str) -> None:
    model = load_model(ModelSpec(half_folder, "cpu", quantize="int8", num_draft=32))
    assert model.dtype == F32
    assert "layers of 8 bits" in model.origin.dtype_why
    assert all(storage.bits == 8 for storage in packed_weights(model.hf))


def test_naming_half_precision_without_a_kernel_gets_a_warning(
    half_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "prepacks", lambda dtype: dtype == F32)
    reported = RecordingReporter()
    with reporting_to(reported):
        for dtype in ("bfloat16", "float32"):
            load_model(ModelSpec(half_folder, "cpu", dtype))
    (line,) = reported.warnings
    assert line.startswith("bfloat16 is slow on this CPU")
    assert "--dtype float32" in line


def test_bfloat16_is_taken_by_gpus_that_multiply_it(
    half_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _=None: (1 << 34, 1 << 34))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    reported = RecordingReporter()
    for has, expected in ((True, "auto"), (False, F16)):

        def supported(including_emulation: bool = True, has: bool = has) -> bool:
            return has or including_emulation

        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        planned = plan(ModelSpec(half_folder, "cuda"))
        assert planned.format.dtype == expected
        assert not planned.format.chosen_by_rule
        assert plan(ModelSpec(half_folder, "cuda", "bfloat16")).format.dtype == BF16
        with monkeypatch.context() as patch:
            patch.setattr(room, "read_checkpoint", fail)
            with pytest.raises(ModelError, match="no GPU here"), reporting_to(reported):
                room.read(planned)
        assert torch.backends.cudnn.allow_tf32 is False
    (line,) = reported.warnings
    assert "emulates bfloat16" in line
    assert "--dtype bfloat16" in line


def fail(*_: object, **__: object) -> Any:
    raise ModelError("no GPU here", hint="")


@pytest.mark.parametrize("allowed", ["high", "medium", "one device"])
def test_float32_means_float32(allowed: str) -> None:
    """A program that ngt runs in may have allowed less; what is remembered meanwhile is apart."""
    cpu = torch.device("cpu")
    reported = RecordingReporter()
    full = Trial("ways", cpu, (), bool).key
    try:
        if allowed == "one device":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.set_float32_matmul_precision("medium")
            torch.backends.cuda.matmul.allow_tf32 = False
        else:
            torch.set_float32_matmul_precision(allowed)
        assert Trial("ways", cpu, (), bool).key != full
        for _ in range(2):
            reported.of(lambda: load_model(ModelSpec("builtin", "cpu")))
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
    assert Trial("ways", cpu, (), bool).key == full
    (line,) = reported.warnings
    assert "float32" in line


def test_weights_stay_unpacked_without_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, architecture, dtype, can in (
        (set(), "x86_64", F32, False),
        ({"avx2"}, "x86_64", F32, True),
        ({"bf16"}, "aarch64", F32, False),
        ({"bf16"}, "aarch64", BF16, True),
    ):
        monkeypatch.setattr(formats, "architecture", lambda kind=architecture: kind)
        monkeypatch.setattr(formats, "instruction_sets", lambda has=has: frozenset(has))
        monkeypatch.setattr(formats, "prepack_floats", lambda weight: weight)
        assert prepacks.__wrapped__(dtype) == can
    hf = make_hf("llama").to(BF16)
    monkeypatch.setattr("ngtcli.models.weights.convert.prepacks", lambda dtype: False)
    assert convertible(hf, WeightFormat(BF16, packed=True)) == []


def test_the_tokens_are_those_of_plain_decoding_and_v_names_the_feature(half_folder: str) -> None:
    words = ["summarize", HARBOUR, "-m", half_folder, "--max-tokens", "24", "--device", "cpu"]
    plain = ngt(*words, "--method", "none")
    drafted = ngt(*words, "-v")
    assert plain.stdout == drafted.stdout
    assert plain.stdout
    told = " ".join(drafted.stderr.decode().split())
    choice = dtype_by_rule(BF16, 0, instruction_sets())
    dtype = str(choice.dtype)[6:]
    # A trial finds on some CPUs (with AMX) that half precision is not exact.
    by_rule = f"Computed in {dtype}: {choice.why}"
    by_trial = f"Computed in float32: {dtype} is not exact here"
    assert by_rule in told or by_trial in told
