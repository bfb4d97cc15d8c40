"""Drafts of heads that attend to rows read before give the text that plain decoding gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import target_model
from ngtcli.draft.drafter import DraftSettings
from ngtcli.heads.head import Head
from ngtcli.heads.load import load_head
from ngtcli.heads.reading import HeadRows
from ngtcli.tokens.tokenizer import Tokenizer
from tests.support.head_files import dflash_files, eagle3_files, mtp_folder
from tests.support.helpers import FakeBackend
from tests.support.tiny_models import decode, make_drafter, make_target, plain, prompts

SAMPLED = Settings(temperature=0.7, seed=3)


class Watched(HeadRows):
    """Heads, and what they were given to read in the last text."""

    def __init__(self, heads: Sequence[Head]) -> None:
        super().__init__(heads)
        self.given: list[tuple[int, Tensor]] = []

    def of_kind(self, kind: str) -> "Watched":
        return Watched([head for head in self.guessers if head.kind == kind])

    def reset(self, start: int = 0) -> None:
        super().reset(start)
        self.given = []

    def add(self, ids: list[int], states: Tensor) -> None:
        super().add(ids, states)
        self.given += zip(ids, states.clone(), strict=True)


def heads_of(model: TargetModel, names: Sequence[str]) -> Watched:
    return Watched([load_head(name, model.hf, model.device, model.dtype) for name in names])


def check(model: TargetModel, heads: Watched, methods: Sequence[str]) -> None:
    """A greedy text and a sampled one by each method; what heads were given is the model's."""
    first, second = prompts(2, seed=4)
    for prompt, sampling in ((first, Settings()), (second, SAMPLED)):
        truth = plain(model, prompt, sampling, max_tokens=14)
        for method in methods:
            drafter: Any = make_drafter(method, DraftSettings(num_draft=12, heads=heads))
            run = decode(model, drafter, prompt, sampling, max_tokens=14)
            assert run.output == truth, method
            assert run.statistics.drafted_tokens > 0
            check_rows(model, drafter.heads, [*prompt, *truth])


def check_rows(model: TargetModel, heads: Watched, text: list[int]) -> None:
    ids = [token for token, _ in heads.given]
    assert ids == text[: len(ids)]
    with torch.no_grad():
        found = model.hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
    truth = torch.stack([found[layer][0] for layer in heads.layers], 1)
    torch.testing.assert_close(
        torch.stack([s for _, s in heads.given]), truth, atol=2e-4, rtol=2e-3
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral-sliding", "gemma3-sliding"])
def test_drafts_of_eagle3_and_dflash_change_no_text(tmp_path: Path, family: str) -> None:
    model = make_target(family)
    names = [eagle3_files(tmp_path / "eagle3")[0], dflash_files(tmp_path / "dflash")[0]]
    check(model, heads_of(model, names), ["eagle3", "dflash", "auto"])


@pytest.mark.parametrize(("family", "layers"), [("deepseek", 2), ("glm", 1)])
def test_drafts_of_mtp_layers_change_no_text(tmp_path: Path, family: str, layers: int) -> None:
    folder = mtp_folder(tmp_path / "model", family, layers)
    hf: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    check(model, heads_of(model, ["mtp"]), ["mtp", "auto"])
