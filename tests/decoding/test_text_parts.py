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
from tests.support.tiny_models import Scripted, decode, drafts_of, generate

VOCABULARY, END = 97, 2
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": END,
}
SEEN = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def whole_model(kind: str, **more: Any) -> Any:
    """A tiny one whose greedy choices are not near ties."""
    own = CONFIG_MAPPING[kind]()
    seen = {**SEEN, "model_type": own.vision_config.model_type}
    text = {**TEXT, "model_type": own.get_text_config().model_type}
    config = CONFIG_MAPPING[kind](text_config=text, vision_config=seen, **more)
    torch.manual_seed(0)
    hf = AutoModelForMultimodalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    return hf


@pytest.mark.parametrize("kind", ["gemma3", "llava", "mistral3", "idefics3", "smolvlm", "internvl"])
@pytest.mark.parametrize("kept_names", [True, False])
def test_a_text_part_is_read_alone_and_writes_what_the_whole_writes(
    kind: str, kept_names: bool, tmp_path: Path
) -> None:
    whole = whole_model(kind)
    whole.save_pretrained(tmp_path)
    if kept_names:  # as this version of the library has them, not as it writes them
        own = {
            name: one.clone()
            for name, one in whole.state_dict().items()
            if name not in whole.all_tied_weights_keys
        }
        save_file(own, tmp_path / "model.safetensors", {"format": "pt"})
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
