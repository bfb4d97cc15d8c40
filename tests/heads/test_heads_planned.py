"""Heads on devices other than the CPU: plans in padded passes of few shapes, which are captured."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from ngtcli.decoding import replays
from ngtcli.decoding.replays import Replays
from ngtcli.drafting.guesses import Guessed
from ngtcli.heads import head as head_module
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


def make_head(kind: str, folder: Path) -> tuple[Head, int]:
    """A head with random weights, and the width of the target's hidden states."""
    torch.manual_seed(3)
    target = Target(make_hf("llama"), CPU, torch.float32)
    if kind == "medusa":
        return AtOnce(kind, Medusa(target, 3), target), target.width
    if kind in ("hydra", "prefix"):
        prefix = prefix_layer(target.config) if kind == "prefix" else None
        network = Hydra(target, 3, prefix=prefix).requires_grad_(False).eval()
        return ByPath("hydra", network, target), target.width
    if kind == "mtp":
        name = str(mtp_folder(folder, "deepseek", 1))
        hf = transformers.AutoModelForCausalLM.from_pretrained(name)
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


def use_padded_passes(head: Head) -> Head:
    """Let a head plan as on a device that is not the CPU."""
    head.pads = True
    head.reset()
    return head


@pytest.mark.parametrize("kind", ["medusa", "hydra", "prefix", "eagle3", "dflash", "mtp"])
def test_a_plan_of_padded_passes_is_that_of_unpadded_ones(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence is read in pieces of any length, with gaps and restarts.

    Plans with unlikely nodes and plans without them alternate.
    """
    monkeypatch.setattr("ngtcli.heads.rows._MIN_CAPACITY", 32)  # so that buffers grow
    rng = random.Random(kind)
    unpadded, width = make_head(kind, tmp_path / "head")
    padded = use_padded_passes(make_head(kind, tmp_path / "head")[0])
    state_size = width * len(unpadded.layers)

    position = 0
    for _ in range(12):
        if rng.random() < 0.15:
            position = rng.choice([position + 3, 0])
            if position == 0:
                unpadded.reset()
                padded.reset()
        count = rng.choice([1, 2, 7, 9, 70])
        states = torch.randn(count, state_size)
        following = torch.randint(VOCABULARY, (count,))
        monkeypatch.setattr(head_module, "_UNLIKELY", rng.choice([0.0, 0.0, 2.0]))
        unpadded.read(states, following, position)
        padded.read(states, following, position)
        position += count

        if rng.random() < 0.7:
            token = int(following[-1])
            guesses = padded.first(token)
            assert_same_probabilities(guesses, unpadded.first(token))
            assert padded.first(0) is guesses  # a second request gives the same plan


def nodes_of(guesses: Guessed) -> list[Any]:
    """A key of each node: its path, or its depth if the guesses do not depend on the path."""
    if guesses.led is None:
        return list(range(len(guesses.tokens)))
    return [tuple(path) for path in paths(guesses)]


def assert_same_probabilities(guesses: Guessed, expected: Guessed) -> None:
    """Compare the probabilities at the nodes of both plans.

    Of two nodes that are about equally likely, each plan may have another.
    """
    probabilities = dict(zip(nodes_of(guesses), guesses.probabilities, strict=True))
    compared = 0
    for node, row in zip(nodes_of(expected), expected.probabilities, strict=True):
        if node in probabilities:
            np.testing.assert_allclose(row, probabilities[node], atol=1e-5)
            compared += 1

    if expected.led is not None and head_module._UNLIKELY > 1:
        assert len(expected.tokens) == 1  # no node is likely enough to have children
        assert compared == 1
    else:
        assert compared > 0.9 * len(probabilities)


def graph_recorder(fails: bool) -> Callable[..., Any]:
    """In place of a device's recorder: a capture always reads the same input, as a graph does."""

    def capture(run: Any, example: Tensor) -> Any:
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        static_input = example.clone()

        def replay(packed: Tensor) -> Any:
            static_input.copy_(packed)
            return run(static_input)

        return replay

    return lambda: capture


def double(tensor: Tensor) -> tuple[Tensor]:
    return (2 * tensor,)


@pytest.mark.parametrize("fails", [False, True])
def test_a_size_that_ran_before_is_captured(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "graph_recorder", graph_recorder(fails))
    reporter = RecordingReporter()
    captured = reporter.of(lambda: Replays("all is", CPU, captures=True))

    for size in (1, 2, 1, 2, 1):
        (result,) = captured.run(size, double, torch.arange(size))
        assert result.tolist() == [2 * i for i in range(size)]

    assert len(captured._captured) == (0 if fails else 2)
    assert len(reporter.warnings) == (1 if fails else 0)

    captured.forget()
    (result,) = captured.run(1, double, torch.ones(1))
    assert result.tolist() == [2.0]
    assert not captured._captured


def test_a_capture_without_memory_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def capture(run: Any, example: Tensor) -> Any:
        attempts.append(len(example))
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("no memory")
        return run

    monkeypatch.setattr(replays, "graph_recorder", lambda: capture)
    reporter = RecordingReporter()
    captured = reporter.of(lambda: Replays("all is", CPU, captures=True))

    for _ in range(2 + replays.LATER):
        (result,) = captured.run(1, double, torch.ones(1))
        assert result.tolist() == [2.0]
        assert not captured._captured
    (result,) = captured.run(1, double, torch.ones(1))

    assert result.tolist() == [2.0]
    assert list(captured._captured) == [1]
    assert len(reporter.warnings) == 1


def test_plans_are_captured_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "graph_recorder", graph_recorder(fails=False))
    name, _ = eagle3_files(tmp_path / "head")
    head = use_padded_passes(load_head(name, make_hf("llama"), CPU, torch.float32, captures=True))

    for position in range(0, 60, 3):
        head.read(torch.randn(3, 96), torch.tensor([4, 5, 6]), position)
        head.first(6)

    assert list(head._replays._captured) == [head_module._SIZES[0]]


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_nan_in_one_sequence_does_not_reach_the_next(kind: str, tmp_path: Path) -> None:
    """Padded passes reuse a buffer, so values of an earlier sequence must be masked."""
    head, width = make_head(kind, tmp_path / "head")
    use_padded_passes(head)
    state_size = width * len(head.layers)
    following = torch.tensor([5] * 6)
    torch.manual_seed(1)
    states = torch.randn(2, state_size)
    head.read(states, following[:2], 0)
    expected = head.first(5)

    head.reset()
    head.read(torch.full((6, state_size), torch.nan), following, 0)
    head.first(5)
    head.reset()
    head.read(states, following[:2], 0)
    guesses = head.first(5)

    assert guesses.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_array_equal(guesses.probabilities, expected.probabilities)
