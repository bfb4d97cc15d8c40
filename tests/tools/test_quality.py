"""Quality against float32: windows by brute force, figures against `transformers` and formulas."""

import gc
import json
import math
import weakref
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngtcli.bench import live
from ngtcli.bench.prompts import Item
from ngtcli.config import Settings
from ngtcli.documents.load import Document, load
from ngtcli.errors import InputError, ModelError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.weights.formats import prepacks
from tests.support.helpers import HARBOUR, STORIES, tool
from tests.support.tiny_models import make_target
from tests.tools.measuring import precision
from tests.tools.measuring.precision import Passage, compare, distributions, score, windows
from tests.tools.measuring.results import QualityResult
from tests.tools.quality import quality

needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="no stories260k")
BFLOAT16 = Settings.of(dtype="bfloat16", max_tokens=40)
TEXT = load([HARBOUR]).documents[0]
KL_LIMIT = 1e-6  # of equal models: their stored log-probabilities are float16


def compare_with_float32(
    settings: Settings = BFLOAT16,
    texts: tuple[Document, ...] = (TEXT,),
    items: tuple[Item, ...] = (),
) -> QualityResult:
    return compare(settings, texts, items, None)


@given(
    length=st.integers(0, 60),
    start_ids=st.integers(0, 2),
    size=st.integers(3, 20),
    stride=st.integers(1, 20),
)
def test_windows_score_each_id_once(length: int, start_ids: int, size: int, stride: int) -> None:
    ids = list(range(100, 100 + length))
    start = [7] * start_ids

    scored: list[int] = []
    for passage in windows(ids, start, size, stride):
        text_ids = list(passage.ids[start_ids:])
        offset = text_ids[0] - 100
        assert len(passage.ids) <= size
        assert list(passage.ids[:start_ids]) == start
        assert text_ids == ids[offset : offset + len(text_ids)]
        assert passage.first >= 1
        assert passage.scored >= 1
        scored += passage.ids[passage.first :]

    # Without start ids nothing stands before the first id, so it cannot be scored.
    assert scored == (ids if start_ids else ids[1:])


def test_a_model_does_not_differ_from_itself() -> None:
    model = make_target("llama")
    passages = [Passage(tuple(range(1, 40)), 5), Passage((3, 4), 1)]

    reference = score(model, passages, "float32")
    scored = score(model, passages, "float32", reference)

    change, divergence, equal_tokens = scored.differences
    assert reference.tokens == 35
    assert reference.differences == (None, None, None)
    assert scored.perplexity == reference.perplexity
    assert change == 0.0
    assert equal_tokens == 1.0
    assert divergence is not None
    assert 0 <= divergence < KL_LIMIT


def kl_divergences(reference_logits: Any, logits: Any) -> Any:
    """The KL divergence at each position, by torch.distributions."""
    return torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=reference_logits),
        torch.distributions.Categorical(logits=logits),
    )


def test_divergence_and_perplexity_are_the_formulas_in_float64() -> None:
    reference_model = make_target("qwen3", seed=1)
    model = make_target("qwen3", seed=2)
    passages = [Passage(tuple(range(2, 60)), 10)]

    reference = score(reference_model, passages, "reference")
    scored = score(model, passages, "other", reference)

    ids = torch.tensor(passages[0].ids)
    with torch.no_grad():
        reference_logits = reference_model.hf(input_ids=ids[None]).logits[0, 9:-1].double()
        logits = model.hf(input_ids=ids[None]).logits[0, 9:-1].double()
    loss = torch.nn.functional.cross_entropy(logits, ids[10:])
    divergence = kl_divergences(reference_logits, logits).mean()
    is_equal = reference_logits.argmax(-1) == logits.argmax(-1)
    assert scored.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert scored.differences[1] == pytest.approx(float(divergence), rel=1e-4)
    assert scored.differences[2] == pytest.approx(float(is_equal.double().mean()))


def transformers_windows(folder: str, dtype: torch.dtype, text: str) -> list[tuple[float, Any]]:
    """The summed loss and the logits of each window, by `transformers` alone.

    Windows have 512 ids and begin 256 ids apart.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text.strip())["input_ids"]
    start: list[int] = []
    if ids[0] == model.config.bos_token_id:
        start = ids[:1]
        ids = ids[1:]

    results = []
    begin = 0
    scored_until = 0
    while scored_until < len(ids):
        window = torch.tensor([start + ids[begin : begin + 512 - len(start)]])
        labels = window.clone()
        labels[:, : len(start) + scored_until - begin] = -100  # ignored
        with torch.no_grad():
            output = model(input_ids=window, labels=labels)
        count = int((labels[:, 1:] != -100).sum())
        logits = output.logits[0, -count - 1 : -1].double()
        results.append((float(output.loss) * count, logits))
        scored_until = begin + window.shape[1] - len(start)
        begin += 256
    return results


@pytest.mark.search
@pytest.mark.parametrize(
    "folder", [str(BUILTIN_PATH), pytest.param(str(STORIES), marks=needs_stories)]
)
def test_the_figures_are_those_of_transformers(folder: str) -> None:
    float32_row, bfloat16_row = compare_with_float32(BFLOAT16.replace(model=folder)).rows
    float32_windows = transformers_windows(folder, torch.float32, TEXT.text)
    bfloat16_windows = transformers_windows(folder, torch.bfloat16, TEXT.text)

    tokens = sum(len(logits) for _, logits in float32_windows)
    assert bfloat16_row.weights == "bfloat16"
    # The loss of a window is a mean in bfloat16 there, and in float32 here.
    rows = (
        (float32_row, float32_windows, 1e-5),
        (bfloat16_row, bfloat16_windows, 1e-2),
    )
    for row, results, tolerance in rows:
        mean_loss = sum(loss for loss, _ in results) / tokens
        assert row.tokens == tokens
        assert math.log(row.perplexity) == pytest.approx(mean_loss, rel=tolerance)
    ratio = bfloat16_row.perplexity / float32_row.perplexity
    assert bfloat16_row.perplexity_change == pytest.approx(ratio - 1, rel=1e-2)

    divergence = 0.0
    equal_tokens = 0
    for (_, reference), (_, logits) in zip(float32_windows, bfloat16_windows, strict=True):
        divergence += float(kl_divergences(reference, logits).sum())
        equal_tokens += int((reference.argmax(-1) == logits.argmax(-1)).sum())
    # Packed layers sum in another order than those of `transformers`.
    assert bfloat16_row.kl_divergence == pytest.approx(divergence / tokens, rel=0.1)
    assert bfloat16_row.equal_tokens == pytest.approx(equal_tokens / tokens, abs=0.03)


def test_reference_answers_are_scored_after_their_prompts_and_answers_judged() -> None:
    answers = {
        "right": "The harbour at Wrenmouth was dug by hand between 1871 and 1878.",
        "wrong": "Boats sail there.",
    }
    items = tuple(
        Item(id, "ask", (TEXT,), "When was it dug?", (answer,)) for id, answer in answers.items()
    )

    result = compare_with_float32(BFLOAT16.replace(max_tokens=8), (), items)

    assert result.scored == "answers"
    assert result.texts == 2
    assert result.rows[0].tokens > 15
    assert 2 < result.rows[0].perplexity < 1000
    assert [row.judged for row in result.rows] == [2, 2]


@pytest.mark.loads
def test_a_model_is_freed_before_the_next_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    local_session = live.LocalSession
    models: list[weakref.ref[Any]] = []

    def open_session(*args: Any, **options: Any) -> Any:
        assert all(model() is None for model in models)
        session = local_session(*args, **options)
        models.append(weakref.ref(session.model.hf))
        return session

    monkeypatch.setattr(live, "LocalSession", open_session)
    gc.collect()

    assert len(compare_with_float32().rows) == 2
    assert len(models) == 2


@pytest.mark.parametrize(
    ("max_bytes", "passages"),
    [
        (2 * 100 * 10, 2),
        (2 * 100 * 14, 2),
        (2 * 100 * 15, 3),
        (1, 1),
    ],
)
def test_as_many_passages_are_scored_as_fit_but_at_least_one(
    max_bytes: int, passages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "MOST_BYTES", max_bytes)
    # Each of them takes 2 bytes for each of 5 tokens and 100 entries of the vocabulary.
    taken, note = precision._within([Passage(tuple(range(10)), 5)] * 4, 100)

    assert len(taken) == passages
    assert note.startswith(f"the first {5 * passages} of 20 tokens")


def test_nothing_is_noted_if_all_passages_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    passages = [Passage(tuple(range(10)), 5)] * 4
    monkeypatch.setattr(precision, "MOST_BYTES", 2 * 100 * 20)
    assert precision._within(passages, 100) == (passages, "")


class LetterTokenizer:
    """A tokenizer of letters that puts the id 1 before each text."""

    def encode(self, text: str, special: bool = False) -> list[int]:
        ids = [ord(letter) for letter in text]
        return [1, *ids] if special else ids


def test_windows_fit_the_context_and_begin_with_the_start_ids() -> None:
    model: Any = SimpleNamespace(tokenizer=LetterTokenizer(), context=100, vocabulary=128)
    text = Document("a", "abcdefghij" * 30)

    passages = list(precision._passages(model, [text], [], []))

    assert {passage.ids[0] for passage in passages} == {1}
    assert [len(passage.ids) for passage in passages[:2]] == [100, 100]
    assert [passage.scored for passage in passages[:2]] == [99, 50]
    assert sum(passage.scored for passage in passages) == 300


def test_a_reference_answer_is_cut_at_the_context() -> None:
    model: Any = SimpleNamespace(tokenizer=LetterTokenizer(), context=10, vocabulary=128)
    item = Item("q", "ask", (), "?", (" an answer ",))
    prompt: Any = SimpleNamespace(ids=[3] * 6)

    (passage,) = precision._passages(model, [], [item], [prompt])

    assert passage.ids == (*prompt.ids, *map(ord, "an a"))
    assert passage.first == 6


def test_a_model_without_logits_to_keep_is_scored_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target("llama")
    passage = Passage(tuple(range(1, 20)), 12)
    expected = [log_probabilities for log_probabilities, _ in distributions(model, passage)]

    monkeypatch.setattr(precision, "forward_parameters", lambda _: frozenset())
    results = [log_probabilities for log_probabilities, _ in distributions(model, passage)]

    assert len(results) == len(expected)
    for part, expected_part in zip(results, expected, strict=True):
        assert torch.allclose(part, expected_part, atol=1e-5)


@needs_stories
def test_questions_that_do_not_fit_are_left_out_if_texts_are_scored() -> None:
    long_document = Document("long", TEXT.text * 4)
    item = Item("q", "ask", (long_document,), "When?", ("1871",))

    result = compare_with_float32(BFLOAT16.replace(model=str(STORIES)), items=(item,))

    assert result.rows[0].judged is None
    assert "no questions were asked: q:" in result.notes[0]


def test_logits_that_are_not_numbers_are_an_error() -> None:
    model = make_target("llama")
    model.hf.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(ModelError, match="not numbers"):
        score(model, [Passage((1, 2, 3), 1)], "float16")


def test_no_passages_are_an_error() -> None:
    with pytest.raises(InputError, match="nothing to score"):
        precision._within([], 100)


def test_excluded_tokens_leave_the_divergence_finite() -> None:
    model = make_target("llama")
    passage = Passage((1, 2, 3, 4), 1)
    bias = torch.zeros(model.vocabulary)
    bias[5] = -math.inf
    model.hf.lm_head.bias = torch.nn.Parameter(bias)

    for log_probabilities, _ in distributions(model, passage):
        assert torch.isfinite(log_probabilities).all()
    reference = score(model, [passage], "reference")
    scored = score(model, [passage], "other", reference)
    assert scored.divergence / scored.tokens < KL_LIMIT


def run_quality(*arguments: str) -> CompletedProcess[bytes]:
    return tool(quality, "tests.tools.quality", *arguments)


def test_the_tool_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    text_file = tmp_path / "a.txt"
    page_file = tmp_path / "a.html"
    text_file.write_text("The tide came in at noon. The slate came by rail.")

    process = run_quality("--dtype", "bfloat16", str(text_file), "--html", str(page_file))

    assert process.returncode == 0, process.stderr
    lines = process.stdout.decode().splitlines()
    assert lines[0].startswith("# Quality over ")
    assert lines[0].endswith(" of 1 text")
    assert lines[1].split("\t") == [
        "weights",
        "perplexity",
        "against float32",
        "KL",
        "equal tokens",
    ]
    assert lines[2].startswith("float32\t")
    assert lines[3].startswith("bfloat16\t")
    page = page_file.read_text()
    assert "against float32" in page
    assert "python -m tests.tools.quality" in page

    # Nothing but the warning about slow bfloat16 is printed, and only on CPUs it is true of.
    if prepacks(torch.bfloat16):
        assert process.stderr == b""
    else:
        assert b"bfloat16 is slow on this CPU" in process.stderr
        assert process.stderr.count(b"\n") == 1


def test_the_tool_scores_prompts_with_reference_answers(tmp_path: Path) -> None:
    prompts_file = tmp_path / "prompts.jsonl"
    line = {"question": "When?", "context": "It came at noon.", "answers": ["It came at noon."]}
    prompts_file.write_text(json.dumps(line))

    process = run_quality("--dtype", "bfloat16", "--prompts", str(prompts_file), "--markdown")

    table = process.stdout.decode()
    assert "of the reference answers to 1 prompt" in table
    assert "| EM | F1 |" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], b"Give --dtype bfloat16"),
        (["--dtype", "float32"], b"compares with float32"),
        (["--dtype", "float16", HARBOUR, "--limit", "2"], b"--tasks and --limit"),
        (
            ["--dtype", "float16", "--prompts", "p.jsonl", HARBOUR],
            b"--prompts cannot be combined with files",
        ),
        (["--dtype", "float16", "--temperature", "1"], b"--temperature"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], message: bytes) -> None:
    process = run_quality(*arguments)
    assert process.returncode == 2
    assert message in process.stderr


def test_prompts_without_reference_answers_are_refused(tmp_path: Path) -> None:
    prompts_file = tmp_path / "prompts.jsonl"
    prompts_file.write_text('{"context": "It came at noon.", "question": "When?"}\n')

    process = run_quality("--dtype", "float16", "--prompts", str(prompts_file))

    assert process.returncode == 3
    assert b"no prompt has a reference" in process.stderr
