"""What is refused before a model answers: names, folders, weights, configurations, scores."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from huggingface_hub.errors import IncompleteSnapshotError

from ngtcli.config import Settings
from ngtcli.decoding import probe
from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.decoding.probe import find_batching, target_model
from ngtcli.decoding.support import DraftSupport
from ngtcli.drafting.tree import DraftTree, chain
from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import find
from ngtcli.models.hub import Remote
from ngtcli.models.pretrained import ContextLimit, context_limit, read_config
from ngtcli.models.tokenizer import Tokenizer
from tests.support.families import FAMILIES as MANY
from tests.support.families import LongBackend, build, reason_and_way, target
from tests.support.helpers import HARBOUR, FakeBackend, assert_not_loaded, copy_builtin_model, ngt
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import (
    GREEDY,
    Scripted,
    decode,
    generate,
    make_hf,
    make_target,
    plain,
    prompts,
)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"num_hidden_layers": 7}, r"lack model\.layers\.5\..* and 16 more"),
        ({"intermediate_size": 700}, r"down_proj.weight has shape 256×704 .* 256×700"),
        ({"model_type": "bert"}, "lack bert"),
        ({"model_type": "t5"}, "T5 is not a decoder"),
        ({"max_position_embeddings": 0}, "max_position_embeddings: 0"),
    ],
)
def test_a_model_that_its_files_do_not_fill_is_refused(
    tmp_path: Path, values: dict[str, Any], told: str
) -> None:
    with pytest.raises(ModelError, match=told) as caught:
        load_model(ModelSpec(copy_builtin_model(tmp_path / "model", **values), device="cpu"))
    assert caught.value.exit_code == 4
    assert caught.value.hint


@pytest.mark.parametrize(
    ("values", "words"), [({"num_hidden_layers": 4}, ["model.layers.4.", "7 more"]), ({}, [])]
)
def test_weights_that_are_left_over_get_one_warning_and_a_whole_checkpoint_none(
    tmp_path: Path, values: dict[str, Any], words: list[str]
) -> None:
    reported = RecordingReporter()
    folder = copy_builtin_model(tmp_path / "model", **values)
    reported.of(lambda: load_model(ModelSpec(folder, device="cpu", packed=False)))
    told = reported.warnings
    assert len(told) == bool(words)
    assert all(word in told[0] for word in words)


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


def test_a_pickle_that_runs_code_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copy_builtin_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({"a": _Harm()}, tmp_path / "model" / "pytorch_model.bin")
    with warnings.catch_warnings(record=True) as heard, pytest.raises(ModelError, match="pickle"):
        warnings.simplefilter("always")
        load_model(ModelSpec(folder, device="cpu"))
    assert not heard
    assert capfd.readouterr() == ("", "")


def test_names_are_judged_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "Qwen2.5-7B" / "config.json").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name, told, hint in (
        ("models/x/Qwen2.5-7B", "no such folder", "-m builtin"),
        ("./models/Qwen2.5-7", "no such folder", "models/Qwen2.5-7B?"),
        ("~/no/such", "no such folder", ""),
        ("/no/such", "no such folder", ""),
        ("x" * 5000, "no such folder", ""),
        ("Builtin", "no such model", "Did you mean builtin?"),
        ("model.gguf", "no such file", ""),
        ("file", "a file, not a folder", ""),
        ("models/Qwen2.5-7B", "no config.json", ""),
        ("nobody/nothing", "HF_HUB_OFFLINE is set", ""),
        ("biultin", "HF_HUB_OFFLINE is set", "Did you mean builtin?"),
    ):
        with pytest.raises(ModelError, match=told) as caught:
            find(name)
        assert hint in caught.value.hint
    for missing, told in (("*.safetensors", "no weights"), ("tok*", "no tokenizer")):
        folder = tmp_path / told
        copy_builtin_model(folder)
        for file in folder.glob(missing):
            file.unlink()
        with pytest.raises(ModelError, match=told):
            find(str(folder))


def test_a_model_in_the_cache_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = copy_builtin_model(tmp_path / "snapshot")
    files = dict.fromkeys(os.listdir(folder), 1)
    asked: list[str] = []

    def ask(name: str) -> Remote:
        asked.append(name)
        if name == "some/broken":
            return Remote(name, None, "", files, {})
        raise ModelError("offline")

    monkeypatch.setattr("ngtcli.models.hub.ask", ask)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: folder)
    assert find("some/cached") == folder
    assert not asked
    with monkeypatch.context() as m:  # another program has read it without its card
        lacking = IncompleteSnapshotError("README.md", snapshot_path=folder)
        m.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=lacking))
        assert find("some/usable") == folder
        assert not asked
    (tmp_path / "snapshot" / "model.safetensors").unlink()  # a download that broke off
    assert find("some/broken") == "some/broken"
    with pytest.raises(ModelError, match="offline"):
        find("some/unusable")


def test_a_missing_model_is_told_without_torch() -> None:
    words = ["ask", "Who?", "-d", HARBOUR, "-m", "./nowhere/model"]
    assert_not_loaded([words], {"torch", "transformers", "huggingface_hub"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Settings.of(temperature=0.8), Settings.of(repetition_penalty=1.2)],
    ids=["greedy", "sampled", "penalized"],
)
def test_scores_that_are_no_numbers_are_an_error(value: float, sampling: Settings) -> None:
    hf = make_hf("llama")
    model = target_model(hf, Tokenizer(FakeBackend()), "broken")
    with torch.no_grad():
        hf.model.norm.weight.fill_(value)
        hf.lm_head.weight.abs_()
    drafter = Scripted(lambda ids, budget: chain([5, 6]))
    with pytest.raises(ModelError, match="logits are not numbers") as caught:
        decode(model, drafter, [4, 5, 6], sampling)
    assert "float32" in caught.value.hint


def test_drafts_end_with_the_rows_of_the_context() -> None:
    """GPT-Neo keeps a table with a row for each place in the cache: a wide tree ran past it."""
    family = next(f for f in MANY if f.name == "gpt_neo-global")
    hf = build(family)
    model = target(hf, family.name)
    prompt = [i % 50 for i in range(model.context - 20)]
    expected = generate(hf, prompt, 20)

    def wide(ids: list[int], budget: int) -> DraftTree:
        truth = expected[len(ids) - len(prompt) :][:3]
        wrong = tuple(range(100, 140))
        return DraftTree((*truth, *wrong), (*range(-1, len(truth) - 1), *[-1] * len(wrong)))

    run = decode(model, Scripted(wide), prompt, num_draft=64)
    assert run.output == expected
    assert run.statistics.accepted_tokens > 5


@pytest.mark.parametrize("kind", ["gpt_neo", "mpt", "bloom", "falcon-alibi"])
def test_the_probe_finds_faults_however_small_the_scores(kind: str) -> None:
    hf = build(next(f for f in MANY if f.name == kind))
    with torch.no_grad():
        hf.get_output_embeddings().weight.mul_(1e-3)
    assert not target(hf, kind).verifies_trees


def test_nested_rope_parameters_have_long_factors_behind_their_border() -> None:
    long = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    near = {"rope_type": "default", "rope_theta": 10000.0}
    model = make_target(
        "gemma3-sliding", rope_parameters={"full_attention": long, "sliding_attention": near}
    )
    assert model.context > 100
    prompt = list(range(5, 45))
    model.end_ids = frozenset()
    model.hf.generation_config.eos_token_id = None
    assert plain(model, prompt, max_tokens=12) == generate(model.hf, prompt, 12)


def test_every_name_of_the_context_length_is_read() -> None:
    tokenizer = Tokenizer(LongBackend())
    for config, length in (
        (transformers.MptConfig(max_seq_len=77), 77),
        (transformers.GPT2Config(n_positions=66), 66),
        (transformers.LlamaConfig(max_position_embeddings=55), 55),
        (transformers.BloomConfig(), 1 << 20),
    ):
        assert context_limit(config, tokenizer).tokens == length


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "length"),
    [
        # As the card of Qwen2.5 has it.
        (
            transformers.Qwen2Config(
                max_position_embeddings=32768,
                rope_parameters={**YARN, "original_max_position_embeddings": 32768},
            ),
            131072,
        ),
        (transformers.Qwen2Config(max_position_embeddings=32768, rope_parameters=YARN), 131072),
        # The number is the scaled one already.
        (
            transformers.Qwen2Config(
                max_position_embeddings=131072,
                rope_parameters={**YARN, "original_max_position_embeddings": 32768},
            ),
            131072,
        ),
        (transformers.LlamaConfig(max_position_embeddings=4096, rope_parameters=LINEAR), 32768),
        (
            transformers.LlamaConfig(
                max_position_embeddings=131072,
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            ),
            131072,
        ),
        # Gemma 3 scales its layers of full attention alone, and says the scaled number.
        (
            transformers.Gemma3TextConfig(
                max_position_embeddings=131072,
                rope_parameters={
                    "full_attention": LINEAR,
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            ),
            131072,
        ),
    ],
)
def test_scaled_rotary_positions_lengthen_the_context(config: Any, length: int) -> None:
    assert context_limit(config, None) == ContextLimit(length)


def test_a_model_with_scaled_positions_decodes_beyond_those_it_was_trained_on() -> None:
    hf = make_hf("llama", max_position_embeddings=32, rope_parameters={**LINEAR, "factor": 4.0})
    model = target_model(hf, Tokenizer(LongBackend()), "x")
    assert model.context == 128
    prompt = [3, 9, 27, 14] * 12
    output = plain(model, prompt, max_tokens=30)
    assert len(output) == 30
    assert output == generate(hf, prompt, 30)


def test_a_shorter_limit_of_the_tokenizer_is_explained() -> None:
    backend = LongBackend()
    backend.model_max_length = 2048
    limit = context_limit(
        transformers.LlamaConfig(max_position_embeddings=8192), Tokenizer(backend)
    )
    assert limit.tokens == 2048
    assert "model_max_length is 2048" in limit.reason
    assert "8192" in limit.reason


def test_plain_prefill_makes_one_row_of_scores() -> None:
    hf = build(next(f for f in MANY if f.name == "bamba"))
    model = target(hf, "bamba")
    rows: list[int] = []
    hf.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[1]))
    model.start(0)
    model.prefill(list(range(100)))
    assert set(rows) == {1}


def test_end_ids_come_from_the_configuration_where_generation_has_none() -> None:
    hf = make_hf("llama")
    hf.generation_config.eos_token_id = None
    hf.config.eos_token_id = [7, 9]
    assert target_model(hf, Tokenizer(LongBackend()), "x").end_ids == {7, 9}
    hf.generation_config.eos_token_id = [4]
    assert target_model(hf, Tokenizer(FakeBackend()), "x").end_ids == {4, 3}


def test_generation_settings_of_the_checkpoint_are_left_unused_and_named() -> None:
    hf = make_hf("llama")
    prompt = prompts(1)[0]
    expected = generate(hf, prompt, 30)
    hf.generation_config.repetition_penalty = 1.3
    hf.generation_config.suppress_tokens = expected[:3]
    model = target_model(hf, Tokenizer(FakeBackend()), "x")
    assert model.unused == {"repetition_penalty": 1.3, "suppress_tokens": expected[:3]}
    assert plain(model, prompt, max_tokens=30) == expected


def test_probe_results_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = build(next(f for f in MANY if f.name == "gpt_neo"))
    mode = target(hf, "gpt_neo").mode
    stored = probe.remembered_mode(hf)
    assert stored.load() == mode
    with monkeypatch.context() as m:
        m.setattr(probe, "find_mode", lambda _: pytest.fail("probed again"))
        assert target(hf, "gpt_neo").mode == mode
    with pytest.raises(ValueError):
        replace(mode, support=DraftSupport.TREES)
    with pytest.raises(ValueError):
        replace(mode.no_trees, detail="\x1b[31m")


def test_a_window_longer_than_a_probe_can_try_is_not_believed() -> None:
    family = next(f for f in MANY if f.name == "gpt_neo")
    values = {**family.values, "window_size": 5000, "max_position_embeddings": 6000}
    hf = build(type(family)("gpt_neo", values))
    assert "window_size of 5000" in target(hf, "gpt_neo").mode.why


def test_minimax_reads_a_prompt_in_one_pass() -> None:
    """With a linear layer first it miscounts what it has read in passes of several tokens."""
    family = next(f for f in MANY if f.name == "minimax")
    kinds = ["linear_attention", "full_attention"] * 2
    hf = build(
        type(family)("minimax", {**family.values, "num_hidden_layers": 4, "layer_types": kinds})
    )
    model = target(hf, "minimax")
    assert not model.mode.chunks
    prompt = [i % 300 for i in range(150)]
    model.start(0)
    model.prefill(prompt[:-1], chunk=40)
    scores = model.forward(prompt[-1], DraftTree())[0]
    with torch.no_grad():
        whole = hf(torch.tensor([prompt])).logits[0, -1]
    assert torch.allclose(scores, whole, atol=1e-3)


@pytest.mark.parametrize("kind", "mamba bamba jamba recurrent_gemma gpt_oss gpt_neo bloom".split())
def test_a_probe_in_bfloat16_finds_what_one_in_float32_finds(kind: str) -> None:
    """Some give float32 scores after passes in bfloat16, where rounding is larger all the same."""
    family = next(f for f in MANY if f.name == kind)
    model = target(build(family).to(torch.bfloat16), kind)
    assert reason_and_way(model.mode) == (family.reason, family.way)


@pytest.mark.parametrize("quantized", [True, False])
def test_only_what_rounds_to_8_bits_may_differ_by_that_in_float32(
    quantized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = build(next(f for f in MANY if f.name == "phi3"))
    hf.lm_head.register_forward_hook(lambda _, given, out: out * (1 + out.shape[1] % 3 / 100))
    monkeypatch.setattr("ngtcli.decoding.logits.quantized_bits", lambda hf: 8 if quantized else 0)
    if quantized:
        model = target(hf, "phi3")
        assert model.takes_drafts
        assert find_batching(model).is_supported
    else:
        with pytest.raises(ModelError, match="not a decoder"):
            target(hf, "phi3")


@pytest.mark.parametrize(
    "fields", [{"num_hidden_layers": 10**9}, {"text_config": {"num_hidden_layers": 10**9}}]
)
def test_a_number_of_layers_without_sense_is_refused(fields: Any, tmp_path: Path) -> None:
    folder = copy_builtin_model(tmp_path / "model", **fields)
    with pytest.raises(ModelError, match="1000000000 layers"):
        read_config(folder, folder)
    done = ngt("summarize", "-m", folder, HARBOUR)
    assert done.returncode == 4
    assert b"1000000000 layers" in done.stderr
