"""Heads elsewhere than on a CPU: plans in passes of few shapes, which are captured."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ngtcli.decoding import replays
from ngtcli.decoding.replays import Replays
from ngtcli.drafting.guesses import Guessed
from ngtcli.heads import head as room
from ngtcli.heads.files import Target
from ngtcli.heads.head import AtOnce, ByPath, Head
from ngtcli.heads.kinds import load_head
from ngtcli.heads.perceptrons import Hydra, Medusa, prefix_layer
from tests.support.head_files import dflash_files, eagle3_files, mtp_folder, paths
from tests.support.helpers import VOCABULARY
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import make_hf

pytestmark = pytest.mark.numeric
CPU = torch.device("cpu")


def made(kind: str, folder: Path) -> tuple[Head, int]:
    """A head with random weights, and the width of the target's states."""
    torch.manual_seed(3)
    target = Target(make_hf("llama"), CPU, torch.float32)
    if kind == "medusa":
        return AtOnce(kind, Medusa(target, 3), target), target.width
    if kind in ("hydra", "prefix"):
        prefix = prefix_layer(target.config) if kind == "prefix" else None
        network = Hydra(target, 3, prefix=prefix).requires_grad_(False).eval()
        return ByPath("hydra", network, target), target.width
    if kind == "mtp":
        hf = load_target(folder)
        return load_head("mtp", hf, CPU, torch.float32), hf.config.hidden_size
    if kind == "eagle3":
        name, _ = eagle3_files(folder)
    else:
        name, _ = dflash_files(
            folder,
            layer_types=["full_attention", "sliding_attention"],
            use_sliding_window=True,
            sliding_window=5,
        )
    return load_head(name, target.hf, CPU, torch.float32), target.width


def load_target(folder: Path) -> Any:
    import transformers

    name = str(mtp_folder(folder, "deepseek", 1))
    return transformers.AutoModelForCausalLM.from_pretrained(name)


def planning(head: Head) -> Head:
    """The same head as on a device that is not the CPU."""
    head.pads = True
    head.reset()
    return head


@pytest.mark.parametrize("kind", ["medusa", "hydra", "prefix", "eagle3", "dflash", "mtp"])
def test_a_plan_in_a_padded_pass_is_that_of_the_rows_themselves(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts read in pieces of any length, with gaps; in turns as far as is likely, and whole."""
    monkeypatch.setattr("ngtcli.heads.rows._MIN_CAPACITY", 32)  # so that buffers move
    rng, (free, width) = random.Random(kind), made(kind, tmp_path / "head")
    padded = planning(made(kind, tmp_path / "head")[0])
    at, size = 0, width * len(free.layers)
    for _ in range(12):
        if rng.random() < 0.15:
            at = rng.choice([at + 3, 0])
            if not at:
                for head in (free, padded):
                    head.reset()
        rows = rng.choice([1, 2, 7, 9, 70])
        states, following = torch.randn(rows, size), torch.randint(VOCABULARY, (rows,))
        monkeypatch.setattr(room, "_UNLIKELY", rng.choice([0.0, 0.0, 2.0]))
        for head in (free, padded):
            head.read(states, following, at)
        at += rows
        if rng.random() < 0.7:
            check_same(*(head.first(int(following[-1])) for head in (free, padded)))
            assert padded.first(0) is padded.first(0)  # asked again, it says the same


def check_same(true: Guessed, found: Guessed) -> None:
    """All that both say, which may be otherwise where nodes are about as likely."""
    keys = [
        [*map(str, range(len(one.tokens)) if one.led is None else paths(one))]
        for one in (true, found)
    ]
    others = dict(zip(keys[1], found.probabilities, strict=True))
    pairs = zip(keys[0], true.probabilities, strict=True)
    both = [(shares, others[key]) for key, shares in pairs if key in others]
    ends = true.led is not None and room._UNLIKELY > 1
    assert len(true.tokens) == len(both) == 1 if ends else len(both) > 0.9 * len(others)
    for shares, other in both:
        np.testing.assert_allclose(shares, other, atol=1e-5)


def recorder(fails: bool) -> Callable[..., Any]:
    """In the place of a device's: what is captured reads one input, as a graph does."""
    captured = list[int]()

    def capture(run: Any, example: Tensor) -> Any:
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        captured.append(len(example))
        given = example.clone()

        def replay(packed: Tensor) -> Any:
            given.copy_(packed)
            return run(given)

        return replay

    return lambda: capture


@pytest.mark.parametrize("fails", [False, True])
def test_what_ran_before_is_captured(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "graph_recorder", recorder(fails))
    reported = RecordingReporter()
    replay = reported.of(lambda: Replays("all is", CPU, captures=True))
    ran = list[int]()

    def double(given: Tensor) -> tuple[Tensor]:
        ran.append(len(given))
        return (2 * given,)

    for n in (1, 2, 1, 2, 1):
        assert replay.run(n, double, torch.arange(n))[0].tolist() == [2 * i for i in range(n)]
    assert len(replay._captured) == (0 if fails else 2)
    assert len(reported.warnings) == fails
    replay.forget()
    assert replay.run(1, double, torch.ones(1))[0].tolist() == [2.0]
    assert not replay._captured


def test_what_memory_did_not_suffice_to_capture_is_tried_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = iter([True])

    def capture(run: Any, example: Tensor) -> Any:
        if next(short, False):
            raise torch.OutOfMemoryError("no memory")
        return run

    monkeypatch.setattr(replays, "graph_recorder", lambda: capture)
    reported = RecordingReporter()
    replay = reported.of(lambda: Replays("all is", CPU, captures=True))
    runs = 2 + replays.LATER
    for run in range(runs + 1):
        assert not replay._captured or run == runs
        assert replay.run(1, lambda one: (2 * one,), torch.ones(1))[0].tolist() == [2.0]
    assert list(replay._captured) == [1]
    assert len(reported.warnings) == 1


def test_plans_are_captured_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "graph_recorder", recorder(False))
    name, _ = eagle3_files(tmp_path / "head")
    head = planning(load_head(name, make_hf("llama"), CPU, torch.float32, captures=True))
    for at in range(0, 60, 3):
        head.read(torch.randn(3, 96), torch.tensor([4, 5, 6]), at)
        head.first(6)
    assert list(head._replays._captured) == [room._SIZES[0]]


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_numbers_that_are_none_of_one_text_do_not_reach_the_next(kind: str, tmp_path: Path) -> None:
    """A padded pass reads a buffer that stays: its rows after those of the text are masked."""
    head, width = made(kind, tmp_path / "head")
    planning(head)
    size, following = width * len(head.layers), torch.tensor([5] * 6)
    torch.manual_seed(1)
    states = torch.randn(2, size)
    head.read(states, following[:2], 0)
    right = head.first(5)
    head.reset()
    head.read(torch.full((6, size), torch.nan), following, 0)
    head.first(5)
    head.reset()
    head.read(states, following[:2], 0)
    guessed = head.first(5)
    assert guessed.tokens.tolist() == right.tokens.tolist()
    np.testing.assert_array_equal(guessed.probabilities, right.probabilities)
