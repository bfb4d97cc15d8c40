"""Models for images too: their part for text, by itself, is what the whole is on text."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModelForMultimodalLM

from ngtcli.decoding.probe import target_model
from ngtcli.errors import ModelError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.checkpoints import empty_model, read_checkpoint
from tests.support.helpers import FakeBackend
from tests.support.tiny_models import (
    TINY_CONFIG,
    Scripted,
    decode,
    drafts_of,
    generate,
    spread_logits,
)

VISION_CONFIG = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def whole_model(kind: str) -> Any:
    """A tiny multimodal model whose greedy choices are not near ties."""
    default = CONFIG_MAPPING[kind]()
    vision = {**VISION_CONFIG, "model_type": default.vision_config.model_type}
    text = {**TINY_CONFIG, "model_type": default.get_text_config().model_type}
    config = CONFIG_MAPPING[kind](text_config=text, vision_config=vision)
    torch.manual_seed(0)
    hf = AutoModelForMultimodalLM.from_config(config).eval()
    spread_logits(hf)
    return hf


@pytest.mark.parametrize("kind", ["gemma3", "llava", "mistral3", "idefics3", "smolvlm", "internvl"])
@pytest.mark.parametrize("kept_names", [True, False])
def test_a_text_part_is_read_alone_and_writes_what_the_whole_writes(
    kind: str, kept_names: bool, tmp_path: Path
) -> None:
    whole = whole_model(kind)
    whole.save_pretrained(tmp_path)
    if kept_names:  # as this version of the library has them, not as it writes them
        weights = {
            name: weight.clone()
            for name, weight in whole.state_dict().items()
            if name not in whole.all_tied_weights_keys
        }
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    hf, report = read_checkpoint(str(tmp_path), config, None, torch.float32)
    assert not any(report.values())
    assert hf.config.model_type == config.get_text_config().model_type
    assert sum(p.numel() for p in hf.parameters()) < sum(p.numel() for p in whole.parameters())
    model = target_model(hf, Tokenizer(FakeBackend()), kind)
    assert model.takes_drafts
    for seed in range(3):
        prompt = [int(i) for i in torch.randperm(80)[: 12 + seed] + 3]
        expected = generate(whole, prompt, 24)
        drafter = Scripted(drafts_of({tuple(prompt): expected}, wrong=2))
        assert decode(model, drafter, prompt, max_tokens=24).output == expected


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "paligemma"])
def test_a_model_whose_text_part_does_not_load_by_itself_is_an_error(kind: str) -> None:
    with pytest.raises(ModelError, match=f"^{kind} models are multimodal, and transformers"):
        empty_model(CONFIG_MAPPING[kind]())
