"""Fitting the escapes of `auto` to recordings."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from ngtcli.draft.auto.core.blend import COPIED, OWN, PROMPT, SCORES
from ngtcli.draft.auto.escapes import fitted_escapes
from ngtcli.measure.replay import select
from ngtcli.measure.traces import Trace, TraceWriter
from tests.tools import fit_escapes


def copying(count: int) -> list[Trace]:
    """Outputs that copy their prompts, so that every match is right."""
    rng = random.Random(2)
    out = []
    for i in range(count):
        prompt = tuple(rng.randrange(50) for _ in range(40))
        out.append(Trace(str(i), "copy", prompt, prompt[:30], 30))
    return out


def test_fitting_lowers_the_surprise_and_trusts_what_was_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    escapes, losses = fit_escapes.fit([copying(4)], rounds=3)
    assert losses[2] < losses[0]
    assert escapes.shape == fitted_escapes().shape
    assert escapes[PROMPT, 3:].min() < 0.4  # matches in the prompt: 0.5 before
    assert "nats a token" in capsys.readouterr().err


def test_only_the_questions_that_ids_odd_selects_are_fitted_on() -> None:
    odd = Trace("q81/2", "", (1, 2, 3, 1, 2), (3, 1, 2, 3), 4)
    others = [Trace(id, "", (5, 6, 5), (6, 5, 6), 3) for id in ("doc2-5", "82/1", "none")]
    assert select([odd, *others], [], None, "odd") == [odd]
    assert fit_escapes.fit([[odd, *others]], 2)[1] == fit_escapes.fit([[odd]], 2)[1]


def test_a_fitted_table_can_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TraceWriter(tmp_path / "t", "print", "tiny", 97) as writer:
        for trace in copying(3):
            writer.add(trace.id, trace.task, trace.prompt_ids, trace.output_ids)
    table = tmp_path / "escapes.json"
    arguments = ["fit", str(tmp_path / "t"), "--rounds", "1", "--out", str(table)]
    monkeypatch.setattr(sys, "argv", arguments)
    fit_escapes.main()
    stored = json.loads(table.read_text())
    assert stored["fitted_on"] == "tiny, odd ids, all tasks"
    assert np.array(stored["escapes"]).shape == fitted_escapes()[OWN:SCORES].shape
    assert np.array(stored["copies"]).shape == fitted_escapes()[COPIED:].shape
