"""The fit of the stage's first weights: which answers it learns from, and the file it writes."""

import json
from pathlib import Path

import numpy as np

from ngtcli.drafting.auto.core.cells import FEATURES, SIZE
from tests.tools.fit_stage import as_json, main
from tests.tools.measuring.traces import TraceWriter

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 4]
ANSWER = [5, 6, 7, 8, 9, 5, 6, 7, 8]


def record(folder: Path, answers: dict[str, list[int]]) -> Path:
    """Write a recording of answers to PROMPT, by their ids; return its folder."""
    with TraceWriter(folder, "no tokenizer", "some model", 16) as writer:
        for name, answer in answers.items():
            writer.add(name, "task", PROMPT, answer)
    return folder


def fit(recording: Path, output: Path, *flags: str) -> str:
    """Fit the weights on a recording; return the text of the file."""
    main([str(recording), "--output", str(output), *flags])
    return output.read_text(encoding="utf-8")


def test_only_answers_with_odd_ids_are_learned(tmp_path: Path) -> None:
    odd = record(tmp_path / "odd", {"1": ANSWER, "3": ANSWER})
    both = record(tmp_path / "both", {"1": ANSWER, "2": ANSWER[::-1], "3": ANSWER})

    weights = fit(odd, tmp_path / "odd.json")

    assert weights == fit(both, tmp_path / "both.json")
    assert weights != fit(both, tmp_path / "all.json", "--ids", "all")


def test_tokens_copied_from_the_prompt_become_more_likely(tmp_path: Path) -> None:
    recording = record(tmp_path / "recording", {"1": ANSWER * 3})

    feature = json.loads(fit(recording, tmp_path / "weights.json"))["texts"]

    assert max(feature["factors"]) > 1.05


def test_a_file_has_the_factors_and_a_share_of_the_squares() -> None:
    weights = np.stack([np.linspace(0.5, 2.0, SIZE), np.full(SIZE, 10.0)])

    stored = json.loads(as_json(weights, 0.5))

    factors: list[float] = []
    squares: list[float] = []
    for entry in stored.values():
        factors += entry["factors"]
        squares += entry["squares"]
    assert list(stored) == [feature.name for feature in FEATURES]
    np.testing.assert_allclose(factors, weights[0], rtol=1e-3)
    assert set(squares) == {5.0}
