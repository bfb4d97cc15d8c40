"""The fit of the stage's first weights: which ids teach it, and the same file every time."""

import json
from pathlib import Path

import numpy as np

from ngtcli.drafting.auto.core.cells import FEATURES, SIZE
from tests.tools.fit_stage import as_json, main
from tests.tools.measuring.traces import TraceWriter

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 4]
ANSWER = [5, 6, 7, 8, 9, 5, 6, 7, 8]


def record(folder: Path, answers: dict[str, list[int]]) -> Path:
    """A recording of answers to PROMPT by their ids."""
    with TraceWriter(folder, "no tokenizer", "some model", 16) as writer:
        for name, answer in answers.items():
            writer.add(name, "task", PROMPT, answer)
    return folder


def fitted(folder: Path, output: Path, *words: str) -> str:
    """The file of weights that were fitted on the recording in `folder`."""
    main([str(folder), "--output", str(output), *words])
    return output.read_text(encoding="utf-8")


def test_only_odd_ids_teach(tmp_path: Path) -> None:
    odd = record(tmp_path / "odd", {"1": ANSWER, "3": ANSWER})
    both = record(tmp_path / "both", {"1": ANSWER, "2": ANSWER[::-1], "3": ANSWER})
    weights = fitted(odd, tmp_path / "odd.json")
    assert weights == fitted(both, tmp_path / "both.json")
    assert weights != fitted(both, tmp_path / "all.json", "--ids", "all")


def test_what_was_copied_became_likelier(tmp_path: Path) -> None:
    weights = json.loads(fitted(record(tmp_path / "rec", {"1": ANSWER * 3}), tmp_path / "w.json"))
    orders = np.array(weights["texts"]["factors"]).reshape(weights["texts"]["shape"])
    assert orders.max() > 1.05


def test_a_file_has_the_factors_and_the_kept_share_of_the_sums() -> None:
    weights = np.stack([np.linspace(0.5, 2.0, SIZE), np.full(SIZE, 10.0)])
    stored = json.loads(as_json(weights, 0.5))
    assert list(stored) == [feature.name for feature in FEATURES]
    factors = [factor for entry in stored.values() for factor in entry["factors"]]
    np.testing.assert_allclose(factors, weights[0], rtol=1e-3)
    assert {square for entry in stored.values() for square in entry["squares"]} == {5.0}
