"""Heads elsewhere than on a CPU: what is planned ahead is what they guess when they are asked."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from ngtcli.decode import replays
from ngtcli.decode.replays import Replays
from ngtcli.draft.drafter import DraftSettings
from ngtcli.draft.guesses import Guessed
from ngtcli.heads import head as room
from ngtcli.heads.files import Target
from ngtcli.heads.head import AtOnce, ByPath, Head
from ngtcli.heads.hydra import Hydra, prefix_layer
from ngtcli.heads.kinds import load_head
from ngtcli.heads.medusa import Medusa
from ngtcli.heads.reading import HeadRows
from tests.support.head_files import dflash_files, eagle3_files, mtp_folder
from tests.support.helpers import VOCABULARY
from tests.support.tiny_models import decode, make_drafter, make_hf, make_target, plain, prompts

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
            folder, layer_types=["full_attention", "sliding_attention"],
            use_sliding_window=True, sliding_window=5,
        )  # fmt: skip
    return load_head(name, target.hf, CPU, torch.float32), target.width


def load_target(folder: Path) -> Any:
    import transformers

    name = str(mtp_folder(folder, "deepseek", 1))
    return transformers.AutoModelForCausalLM.from_pretrained(name)


def planning(head: Head) -> Head:
    """The same head as on a device that is not the CPU."""
    head.plans, head._on_cpu = True, False
    head.reset()
    return head


@pytest.mark.parametrize("kind", ["medusa", "hydra", "prefix", "eagle3", "dflash", "mtp"])
def test_a_plan_says_what_the_head_says_when_asked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts read in pieces of any length, with gaps; nodes of a plan in any order, and others."""
    monkeypatch.setattr("ngtcli.heads.rows._LEAST", 32)  # so that buffers move
    rng, (asked, width) = random.Random(kind), made(kind, tmp_path / "head")
    ahead = planning(made(kind, tmp_path / "head")[0])
    at, size = 0, width * len(asked.layers)
    for _ in range(12):
        if rng.random() < 0.15:
            at = rng.choice([at + 3, 0])
            if not at:
                for head in (asked, ahead):
                    head.reset()
        rows = rng.choice([1, 2, 7, 9, 70])
        states = torch.randn(rows, size)
        following = torch.randint(VOCABULARY, (rows,))
        for head in (asked, ahead):
            head.read(states, following, at)
        at += rows
        if rng.random() < 0.7:
            check_same(asked, ahead, int(following[-1]), rng)


def check_same(asked: Head, ahead: Any, root: int, rng: random.Random) -> None:
    def agree(found: Any, true: Any) -> None:
        np.testing.assert_allclose(found.probabilities, true.probabilities, atol=1e-5)
        clear = true.probabilities[:, 0] - true.probabilities[:, 1] > 1e-4
        assert np.array_equal(found.tokens[clear, 0], true.tokens[clear, 0])

    for _ in range(2):  # asked again, it says the same
        plan, true = ahead.first(root), asked.first(root)
        agree(part(plan, range(len(true.tokens))), true)
    if not ahead.by_path:
        return
    assert plan.led is not None
    states = {0: 0}  # of the one that is asked, by those of the plan, whose nodes come in any order
    led = dict(enumerate(zip(*plan.led.tolist(), strict=True), 1))
    for _ in range(3):
        ready = [node for node, (parent, _) in led.items() if parent in states]
        chosen = rng.sample(ready, min(3, len(ready)))
        if chosen:
            parents = [states[led[node][0]] for node in chosen]
            found = cast(ByPath, asked).below(parents, [led[node][1] for node in chosen])
            agree(part(plan, chosen), found)
            states |= {node: len(states) + n for n, node in enumerate(chosen)}
            led = {node: both for node, both in led.items() if node not in states}


def part(of: Guessed, rows: Sequence[int]) -> Guessed:
    return Guessed(of.tokens[list(rows)], of.probabilities[list(rows)])


@pytest.mark.parametrize("kind", ["medusa", "hydra", "prefix", "eagle3", "dflash"])
def test_the_tokens_are_those_of_plain_decoding(kind: str, tmp_path: Path) -> None:
    model = make_target()
    heads = HeadRows([planning(made(kind, tmp_path / "head")[0])])
    for method in ("hydra" if kind == "prefix" else kind, "auto"):
        drafter = make_drafter(method, DraftSettings(heads=heads))
        for prompt in prompts(2):
            run = decode(model, drafter, prompt, max_tokens=30)
            assert run.output == plain(model, prompt, max_tokens=30)


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
    said = list[str]()
    replay, ran = Replays("all is", CPU, said.append), list[int]()

    def double(given: Tensor) -> tuple[Tensor]:
        ran.append(len(given))
        return (2 * given,)

    for n in (1, 2, 1, 2, 1):
        assert replay.run(n, double, torch.arange(n))[0].tolist() == [2 * i for i in range(n)]
    assert len(replay._captured) == (0 if fails else 2)
    assert len(said) == fails
    replay.forget()
    assert replay.run(1, double, torch.ones(1))[0].tolist() == [2.0] and not replay._captured


def test_plans_are_captured_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "graph_recorder", recorder(False))
    name, _ = eagle3_files(tmp_path / "head")
    head = planning(load_head(name, make_hf("llama"), CPU, torch.float32, warn=print))
    for at in range(0, 60, 3):
        head.read(torch.randn(3, 96), torch.tensor([4, 5, 6]), at)
        head.first(6)
    assert list(head._replays._captured) == [room._SIZES[0]]
