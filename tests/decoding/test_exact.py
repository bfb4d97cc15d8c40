"""Exact decoding gives the tokens of plain decoding where rows out of place change the scores."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.config import Settings
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.exactness.layers import has_experts
from ngtcli.decoding.exactness.numerics import NOT_EXACT
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.exactness.trials import PathTrial, gives_equal_bits, is_exact
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import Origin, TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.reasoning import StreamPart, Thinking
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.registry import method_names
from ngtcli.errors import ModelError
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import CONTEXT, FakeBackend, ngt
from tests.support.recording_reporter import RecordingReporter
from tests.support.rounding import SAMPLINGS, Guessing, RoundingModel, rounded, rows_in_place, run
from tests.support.tiny_models import (
    KnownHeads,
    make_drafter,
    make_hf,
    make_target,
    pack_layers,
    supply,
)

pytestmark = pytest.mark.numeric

ROWS = 8


@pytest.fixture(autouse=True, scope="module")
def few_rows_in_place() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PassRows, "rows_in_place", rows_in_place)
        # Layers by themselves are the subject of test_exactness.
        patch.setattr("ngtcli.decoding.exactness.layers._COMPARED", 1 << 12)
        yield


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 20),
    st.integers(1, 70),
    st.integers(1, 12),
    SAMPLINGS,
    st.sampled_from(["none", "stop", "end", "thought"]),
)
def test_exact_decoding_gives_the_tokens_of_plain_decoding(
    seed: int, prompt_tokens: int, max_tokens: int, rows: int, sampling: Settings, end: str
) -> None:
    rng = random.Random(seed)
    model = RoundingModel(seed)
    prompt = [rng.randrange(12) for _ in range(prompt_tokens)]
    limits = Limits(max_tokens, 99)
    free, _ = run(model, make_drafter("none"), prompt, sampling, limits, rows)
    if end == "stop":
        start = rng.randrange(len(free.output))
        ending = model.tokenizer.backend.decode(free.output[start : start + 2])
        limits = Limits(max_tokens, 99, (ending,))
    elif end == "end":
        model.end_ids = frozenset({rng.choice(free.output)})
    elif end == "thought":
        marks = {rng.choice(free.output): StreamPart.REASONING, 11: StreamPart.ANSWER}
        thinking = Thinking(
            marks, {}, (10, 11, 10), StreamPart.REASONING, False, rng.randrange(max_tokens)
        )
        limits = replace(limits, thinking=thinking)
    plain, plain_text = run(model, make_drafter("none"), prompt, sampling, limits, rows)
    drafter = Guessing(free.output, seed)
    drafted, drafted_text = run(model, drafter, prompt, sampling, limits, rows)
    assert drafted.output == plain.output
    assert drafted_text == plain_text
    assert drafted.exact
    assert drafted.finish_reason == plain.finish_reason
    assert drafter.followed == [*prompt, *drafted.output]
    assert drafted.statistics.steps <= plain.statistics.steps
    assert drafted.statistics.new_tokens == len(drafted.output)


def _divergences(rows: int | None) -> tuple[int, int, int]:
    """Of 24 answers: how many differ from plain decoding; the passes; how often tentative tokens
    were wrong."""
    different = passes = retracted = 0
    for seed in range(24):
        model = RoundingModel(seed)
        limits = Limits(40, ROWS - 1)
        greedy = Settings()
        truth, _ = run(model, make_drafter("none"), [1, 2], greedy, limits, rows)
        model.count = 0
        drafter = Guessing(truth.output, seed)
        found, _ = run(model, drafter, [1, 2], greedy, limits, rows)
        different += found.output != truth.output
        passes += model.count
        retracted += drafter.retracted
    return different, passes, retracted


def test_without_exact_the_same_drafts_change_tokens() -> None:
    """The model would show a row that counts though it is out of place."""
    different, _, _ = _divergences(None)
    none, passes, retracted = _divergences(ROWS)
    assert different > 12
    assert none == 0
    assert passes < 24 * 40 / 1.5  # drafts are accepted
    assert retracted > 4


DRAFTING = [method for method in method_names() if method != "none"]


@cache
def plain_answers() -> tuple[list[list[int]], list[tuple[int, Settings, list[int]]]]:
    """Four texts that likely repeat themselves; of answers to them seed, sampling and plain ids."""
    texts = []
    for seed in range(4):
        model = RoundingModel(seed, 120)
        first, _ = run(model, make_drafter("none"), [1, 2, 3], Settings(), Limits(40), 64)
        texts.append([1, 2, 3, *first.output, 1, 2, 3])
    answers = []
    for seed in range(4):
        model = RoundingModel(seed, 120)
        sampling = Settings.of(temperature=seed % 2 * 0.3, seed=seed)
        truth, _ = run(model, make_drafter("none"), texts[seed], sampling, Limits(40, 63), 64)
        answers.append((seed, sampling, truth.output))
    return texts, answers


@pytest.mark.parametrize("method", DRAFTING)
def test_every_method_may_draft_exactly(method: str) -> None:
    """One drafter drafts for all answers, so that tentative tokens of one could harm the next."""
    texts, answers = plain_answers()
    supply(method, texts)
    pool = Pool(10_000, quotes=True)  # keeps answers whole
    settings = DraftSettings(
        learn_output=True,
        pool=pool,
        masks=(9, 9),
        heads=KnownHeads(texts, ["eagle3", "medusa"]),  # for `auto`
        assistant=AssistantModel(make_target("llama", vocab_size=12), Settings()),
    )
    drafter = make_drafter(method, settings)
    accepted = 0
    for seed, sampling, expected in answers:
        model = RoundingModel(seed, 120)
        drafted, _ = run(model, drafter, texts[seed], sampling, Limits(40, 63), 64)
        assert drafted.output == expected
        accepted += drafted.statistics.accepted_tokens
    drafter.close()
    assert accepted > 0
    if method == "auto":
        assert [answer.tolist() for answer in pool.answers] == [
            expected for _, _, expected in answers
        ]


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def small(family: str, dtype: torch.dtype) -> TargetModel:
    return target_model(make_hf(family).to(dtype), Tokenizer(FakeBackend()), family)


class Grouping:
    """Makes a model's scores depend on how many tokens are in a pass, as some kernels do."""

    def __init__(self, model: TargetModel) -> None:
        self._score = model.score
        model.score = self  # type: ignore[method-assign]

    def __call__(self, layout: Any) -> list[torch.Tensor]:
        return [scores + 0.125 * (len(layout.ids) % 3) for scores in self._score(layout)]


@pytest.mark.parametrize("family", ["qwen2", "gemma2-sliding"])
def test_passes_give_equal_bits_unless_grouping_shows(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = rounded(make_hf(family))
    # Rounding so coarsely hides the ends of vectors, too.
    monkeypatch.setattr(
        "ngtcli.decoding.exactness.whole_vectors.has_two_formulas", lambda *_: False
    )
    for rows in (PassRows.fixed(16), PassRows.fixed(1), PassRows(8, 1), PassRows(36, 4)):
        assert gives_equal_bits(model, rows, 128)
    Grouping(model)
    for rows in (PassRows.fixed(16), PassRows(16, 1), PassRows(36, 4)):
        assert not gives_equal_bits(model, rows, 128)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("qwen2", torch.bfloat16), ("qwen2", torch.float16), ("gemma2-sliding", torch.bfloat16)],
)
def test_what_the_check_says_of_this_machine_holds_for_other_texts(
    family: str, dtype: torch.dtype
) -> None:
    model = small(family, dtype)
    if not gives_equal_bits(model, PassRows.fixed(16), 128):
        pytest.skip("this machine's kernels give other bits: --exact is refused")
    with torch.inference_mode():
        shape = PassRows.fixed(16)
        assert all(PathTrial(model, text, 5 + 9 * text, shape, 128).agrees() for text in (1, 5, 8))


def with_experts(seed: int) -> Any:
    config = transformers.MixtralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=None,
    )
    torch.manual_seed(seed)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    hf.set_experts_implementation("eager")  # the grouped products know no float64
    return hf


def fault(_: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
    """Change about one in thirty of the rows of which an expert gets no other row.

    Some CPUs do so in float16.
    """
    hidden, expert_ids = inputs[:2]
    counts = torch.bincount(expert_ids.flatten(), minlength=6)
    is_changed = (counts[expert_ids] == 1).any(-1) & (
        (hidden.abs().sum(-1) * 4096).long() % 33 == 0
    )
    return out + is_changed[:, None] / 4096


@pytest.mark.parametrize("rows", [2, 32])
def test_a_rare_fault_of_experts_with_a_single_row_is_found(rows: int) -> None:
    for seed in range(2):
        hf = with_experts(seed)
        model = rounded(hf)
        if seed == 0 and rows == 32:  # the fewest passes
            assert gives_equal_bits(model, PassRows.fixed(rows), 128)
        for layer in hf.model.layers:
            layer.mlp.experts.register_forward_hook(fault)
        assert not gives_equal_bits(model, PassRows.fixed(rows), 128)


def test_models_with_experts_are_told_by_their_parts() -> None:
    assert has_experts(with_experts(0))
    assert not has_experts(make_hf("llama"))


def test_trials_are_stored_for_models_with_known_weights_only(
    threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status lines count the trials that were run and not read from the store."""
    reporter = RecordingReporter()

    def passes_trial(model: TargetModel, weights: str) -> bool:
        model.origin = Origin(weights)
        return reporter.of(lambda: is_exact(model, PassRows.fixed(8), 128))

    assert passes_trial(rounded(make_hf("llama")), "")
    assert passes_trial(rounded(make_hf("llama")), "")
    assert len(reporter.statuses) == 2
    assert passes_trial(rounded(make_hf("llama")), "a")
    assert passes_trial(rounded(make_hf("llama")), "a")
    assert len(reporter.statuses) == 3
    inexact = rounded(make_hf("llama"))
    Grouping(inexact)
    assert passes_trial(inexact, "a")
    assert not passes_trial(inexact, "b")
    assert not passes_trial(inexact, "b")
    assert len(reporter.statuses) == 4
    monkeypatch.setattr("ngtcli.decoding.exactness.trials.gives_equal_bits", lambda *_: True)
    packed = small("llama", torch.float32)
    pack_layers(packed.hf)
    passes_trial(packed, "a")
    assert len(reporter.statuses) == 5
    threads(2)
    passes_trial(rounded(make_hf("llama")), "a")
    assert len(reporter.statuses) == 6


def test_a_model_that_cannot_be_exact_is_refused_and_stays_as_it_is() -> None:
    """`--exact` refuses it, `auto` does not; its later forward passes are the usual ones."""
    reporter = RecordingReporter()
    hopeless = rounded(make_hf("qwen2"))
    Grouping(hopeless)
    attention = hopeless.hf.config._attn_implementation
    rows = PassRows.fixed(32)
    exactness = Exactness(hopeless)
    for _ in range(2):
        with pytest.raises(ModelError, match="cannot decode exactly") as caught:
            reporter.of(lambda: exactness.numerics("on", 32, 100))
        assert caught.value.exit_code == 4
        assert hopeless.hf.config._attn_implementation == attention
    assert len(reporter.statuses) == 3  # passes of 1 to 36 rows, of 4 to 36, of 32
    assert reporter.of(lambda: exactness.numerics("auto", 32, 100)) == NOT_EXACT
    assert not gives_equal_bits(hopeless, rows, 128)
    assert len(reporter.statuses) == 3


def test_the_flag_and_the_file_say_exact(tmp_path: Path) -> None:
    def shown(*words: str, **environ: str) -> Any:
        done = ngt("config", "show", "--json", *words, cwd=tmp_path, **environ)
        return json.loads(done.stdout)["exact"]["value"]

    assert shown() == "auto"
    assert shown(NGT_EXACT="off") == "off"
    (tmp_path / "ngt.yaml").write_text("exact: on\n")  # YAML reads this as true
    assert shown() == "on"


def test_check_compares_exactly(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(
        "The harbour was dug by hand. Four hundred labourers cut the basin out of clay."
    )
    words = [str(text), *"--dtype bfloat16 --exact --max-tokens 16 --set threads=1".split()]
    done = ngt("check", *words, "--drafts", "8", "--json")
    if b"cannot decode exactly" in done.stderr:
        pytest.skip("this machine's kernels give other bits in bfloat16")
    body = json.loads(done.stdout)
    assert body["exact"]
    assert body["identical"] == body["runs"] == 1
    Draft202012Validator(build("check")).validate(body)
    answer = ngt("summarize", *words, "--num-draft", "8", "-v", "--json")
    assert json.loads(answer.stdout)["exact"]
    assert b"Exact: " in answer.stderr
