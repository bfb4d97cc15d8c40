"""Quality against float32: windows by brute force, figures against `transformers` and by hand."""

import gc
import json
import math
import weakref
from pathlib import Path
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
HALF = Settings.of(dtype="bfloat16", max_tokens=40)
TEXT = load([HARBOUR]).documents[0]


def compared(
    settings: Settings = HALF, texts: tuple[Document, ...] = (TEXT,), items: tuple[Item, ...] = ()
) -> QualityResult:
    return compare(settings, texts, items, None)


@given(st.integers(0, 60), st.integers(0, 2), st.integers(3, 20), st.integers(1, 20))
def test_windows_score_each_id_once_with_what_stands_in_front(
    length: int, marks: int, size: int, stride: int
) -> None:
    ids, start = list(range(100, 100 + length)), [7] * marks
    scored = []
    for passage in windows(ids, start, size, stride):
        own = list(passage.ids[marks:])
        assert len(passage.ids) <= size and list(passage.ids[:marks]) == start
        assert own == ids[own[0] - 100 : own[0] - 100 + len(own)]
        assert passage.first >= 1 and passage.scored >= 1
        scored += passage.ids[passage.first :]
    assert scored == (ids if marks else ids[1:])


def test_a_model_beside_itself_differs_in_nothing() -> None:
    """Except for what float16 takes from the log-probabilities that are kept."""
    model, passages = make_target("llama"), [Passage(tuple(range(1, 40)), 5), Passage((3, 4), 1)]
    base = score(model, passages, "float32")
    again = score(model, passages, "float32", base)
    assert base.tokens == 35 and base.beside == (None, None, None)
    change, kl, equal = again.beside
    assert again.perplexity == base.perplexity and (change, equal) == (0.0, 1.0)
    assert kl is not None and 0 <= kl < 1e-6


def test_kl_and_perplexity_are_those_of_the_formula_in_float64() -> None:
    one, other = make_target("qwen3", seed=1), make_target("qwen3", seed=2)
    passages = [Passage(tuple(range(2, 60)), 10)]
    made = score(other, passages, "other", score(one, passages, "one"))
    ids = torch.tensor(passages[0].ids)
    with torch.no_grad():
        p, q = (m.hf(input_ids=ids[None]).logits[0, 9:-1].double() for m in (one, other))
    of = torch.distributions.Categorical
    kl = torch.distributions.kl_divergence(of(logits=p), of(logits=q)).mean()
    assert made.beside[1] == pytest.approx(float(kl), rel=1e-4)
    loss = torch.nn.functional.cross_entropy(q, ids[10:])
    assert made.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert made.beside[2] == pytest.approx(float((p.argmax(-1) == q.argmax(-1)).double().mean()))


def alone(folder: str, dtype: torch.dtype, text: str) -> list[tuple[float, Any]]:
    """By `transformers` alone, for windows of 512 and 256 fewer: mean loss and scores."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text.strip())["input_ids"]
    start, rest = (ids[:1], ids[1:]) if ids[0] == model.config.bos_token_id else ([], ids)
    out, done, at = [], 0, 0
    while done < len(rest):
        window = torch.tensor([start + rest[at : at + 512 - len(start)]])
        labels = window.clone()
        labels[:, : len(start) + done - at] = -100
        with torch.no_grad():
            made = model(input_ids=window, labels=labels)
        count = int((labels[:, 1:] != -100).sum())
        out += [(float(made.loss) * count, made.logits[0, -count - 1 : -1].double())]
        done, at = at + window.shape[1] - len(start), at + 256
    return out


@pytest.mark.search
@pytest.mark.parametrize(
    "folder", [str(BUILTIN_PATH), pytest.param(str(STORIES), marks=needs_stories)]
)
def test_the_figures_are_those_of_transformers(folder: str) -> None:
    made = compared(HALF.replace(model=folder))
    base, half = made.rows
    whole, halved = (alone(folder, d, TEXT.text) for d in (torch.float32, torch.bfloat16))
    tokens = sum(len(scores) for _, scores in whole)
    assert base.tokens == half.tokens == tokens and half.weights == "bfloat16"
    for row, windows_of in ((base, whole), (half, halved)):
        mean = sum(loss for loss, _ in windows_of) / tokens
        # The loss of a window is a bfloat16 mean there; ours is a float32 one.
        assert math.log(row.perplexity) == pytest.approx(mean, rel=1e-5 if row is base else 1e-2)
    of, kl, same = torch.distributions.Categorical, 0.0, 0
    for (_, p), (_, q) in zip(whole, halved, strict=True):
        kl += float(torch.distributions.kl_divergence(of(logits=p), of(logits=q)).sum())
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
    # Packed layers of ours sum in another order than those of `transformers`.
    assert half.kl_divergence == pytest.approx(kl / tokens, rel=0.1)
    assert half.equal_tokens == pytest.approx(same / tokens, abs=0.03)
    assert half.perplexity_change == pytest.approx(half.perplexity / base.perplexity - 1, rel=1e-2)


def test_reference_answers_are_scored_behind_their_prompts_and_answers_judged() -> None:
    items = tuple(
        Item(name, "ask", (TEXT,), "When was it dug?", (answer,))
        for name, answer in (
            ("right", "The harbour at Wrenmouth was dug by hand between 1871 and 1878."),
            ("wrong", "Boats sail there."),
        )
    )
    made = compared(HALF.replace(max_tokens=8), (), items)
    assert (made.scored, made.texts) == ("answers", 2)
    assert made.rows[0].tokens > 15 and 2 < made.rows[0].perplexity < 1000
    assert [row.judged for row in made.rows] == [2, 2]


@pytest.mark.loads
def test_one_model_is_gone_before_the_next_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    real, alive = live.LocalSession, list[weakref.ref[Any]]()

    def opened(*given: Any, **more: Any) -> Any:
        assert not any(ref() is not None for ref in alive)
        session = real(*given, **more)
        alive.append(weakref.ref(session.model.hf))
        return session

    monkeypatch.setattr(live, "LocalSession", opened)
    gc.collect()
    assert len(compared().rows) == len(alive) == 2


def test_as_many_passages_are_scored_as_fit_and_one_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passages = [Passage(tuple(range(10)), 5)] * 4
    for most, taken in ((2 * 100 * 10, 2), (2 * 100 * 14, 2), (2 * 100 * 15, 3), (1, 1)):
        monkeypatch.setattr(precision, "MOST_BYTES", most)
        found, note = precision._within(passages, 100)
        assert len(found) == taken and note.startswith(f"the first {5 * taken} of 20 tokens")
    monkeypatch.setattr(precision, "MOST_BYTES", 2 * 100 * 20)
    assert precision._within(passages, 100) == (passages, "")


class Letters:
    """A tokenizer of letters, with a mark before each text."""

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [1] * special + [ord(letter) for letter in text]


def test_windows_are_of_the_models_context_and_begin_with_the_tokenizers_mark() -> None:
    model: Any = SimpleNamespace(tokenizer=Letters(), context=100, vocabulary=128)
    text = Document("a", "abcdefghij" * 30)
    found = list(precision._passages(model, [text], [], []))
    assert {passage.ids[0] for passage in found} == {1}
    assert [(len(p.ids), p.scored) for p in found[:2]] == [(100, 99), (100, 50)]
    assert sum(passage.scored for passage in found) == 300


def test_of_a_reference_answer_is_scored_what_the_context_has_room_for() -> None:
    model: Any = SimpleNamespace(tokenizer=Letters(), context=10, vocabulary=128)
    item, prompt = Item("q", "ask", (), "?", (" an answer ",)), SimpleNamespace(ids=[3] * 6)
    (found,) = precision._passages(model, [], [item], [prompt])  # type: ignore[list-item]
    assert found == Passage((*prompt.ids, *map(ord, "an a")), 6)


def test_a_model_that_gives_all_scores_is_read_as_one_that_gives_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, passage = make_target("llama"), Passage(tuple(range(1, 20)), 12)
    last = [logs for logs, _ in distributions(model, passage)]
    monkeypatch.setattr(precision, "forward_parameters", lambda _: frozenset())
    for one, other in zip(last, distributions(model, passage), strict=True):
        assert torch.allclose(one, other[0], atol=1e-5)


@needs_stories
def test_questions_that_do_not_fit_are_left_out_where_texts_are_scored() -> None:
    stories, long = HALF.replace(model=str(STORIES)), Document("long", TEXT.text * 4)
    made = compared(stories, items=(Item("q", "ask", (long,), "When?", ("1871",)),))
    assert made.rows[0].judged is None and "no questions were asked: q:" in made.notes[0]


def test_scores_that_are_no_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target("llama")
    model.hf.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(ModelError, match="not numbers"):
        score(model, [Passage((1, 2, 3), 1)], "float16")
    with pytest.raises(InputError, match="nothing to score"):
        precision._within([], 100)


def test_excluded_tokens_do_not_spoil_the_divergence() -> None:
    model = make_target("llama")
    passage = Passage((1, 2, 3, 4), 1)
    model.hf.lm_head.bias = torch.nn.Parameter(torch.zeros(model.vocabulary))
    model.hf.lm_head.bias.data[5] = -math.inf
    assert all(torch.isfinite(logs).all() for logs, _ in distributions(model, passage))
    assert score(model, [passage], "b", score(model, [passage], "a")).divergence < 3e-6


def run(*arguments: str) -> Any:
    return tool(quality, "tests.tools.quality", *arguments)


def test_the_tool_prints_tables_and_writes_a_page(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The tide came in at noon. The slate came by rail.")
    half = ("--dtype", "bfloat16")
    done = run(*half, str(tmp_path / "a.txt"), "--html", str(tmp_path / "a.html"))
    assert done.returncode == 0, done.stderr
    warned = b"bfloat16 is slow on this CPU" in done.stderr
    assert warned != prepacks(torch.bfloat16) and done.stderr.count(b"\n") == warned
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("# Quality over ") and lines[0].endswith(" of 1 text")
    assert lines[1].split("\t") == [
        "weights",
        "perplexity",
        "against float32",
        "KL",
        "equal tokens",
    ]
    assert lines[2].startswith("float32\t") and lines[3].startswith("bfloat16\t")
    page = (tmp_path / "a.html").read_text()
    assert "against float32" in page and "python -m tests.tools.quality" in page
    prompts = tmp_path / "p.jsonl"
    line = {"question": "When?", "context": "It came at noon.", "answers": ["It came at noon."]}
    prompts.write_text(json.dumps(line))
    out = run(*half, "--prompts", str(prompts), "--markdown").stdout.decode()
    assert "of the reference answers to 1 prompt" in out and "| EM | F1 |" in out


@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, b"Give --dtype bfloat16", []),
        (2, b"compares with float32", ["--dtype", "float32"]),
        (2, b"--tasks and --limit", ["--dtype", "float16", HARBOUR, "--limit", "2"]),
        (
            2,
            b"--prompts cannot be combined with files",
            ["--dtype", "float16", "--prompts", "p.jsonl", HARBOUR],
        ),
        (2, b"--temperature", ["--dtype", "float16", "--temperature", "1"]),
    ],
)
def test_what_cannot_be_measured_is_refused(code: int, words: bytes, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == code and words in done.stderr


def test_prompts_without_reference_answers_are_refused(tmp_path: Path) -> None:
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"context": "It came at noon.", "question": "When?"}\n')
    done = run("--dtype", "float16", "--prompts", str(lines))
    assert done.returncode == 3 and b"no prompt has a reference" in done.stderr
