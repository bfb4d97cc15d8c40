"""Files of heads with random weights, in published forms."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_layers import MtpModel

from ngtcli.drafting.guesses import Guessed
from ngtcli.heads import dflash, eagle
from ngtcli.heads.files import WEIGHTS, Target
from tests.support.helpers import CONTEXT, VOCABULARY
from tests.support.tiny_models import make_hf

# The sizes of the tiny heads.
H = 32
SIZE = 8
HEADS = 4
PAIRS = 2
DRAFT = 40
EPS = 1e-5
THETA = 10_000.0
MASK = 5
BLOCK = 4
FIELDS = {
    "vocab_size": VOCABULARY,
    "hidden_size": H,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": PAIRS,
    "head_dim": SIZE,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
}
EAGLE3 = FIELDS | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "draft_vocab_size": DRAFT,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
}
DFLASH = FIELDS | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "block_size": BLOCK,
    "num_target_layers": 2,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1]},
}


def save_head(folder: Path, state: dict[str, Tensor], fields: dict[str, Any]) -> None:
    """Write a head with this state and this configuration, unchanged."""
    stored = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    save_file(stored, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(fields))


def paths(guess: Guessed) -> list[list[int]]:
    """Return the tokens that lead to each node of guesses by path."""
    paths_of_nodes: list[list[int]] = [[]]
    assert guess.led is not None
    for parent, token in zip(*guess.led.tolist(), strict=True):
        paths_of_nodes.append([*paths_of_nodes[parent], token])
    return paths_of_nodes


def tensors(network: torch.nn.Module, seed: int = 3) -> dict[str, Tensor]:
    """Draw random values for the state of a network."""
    torch.manual_seed(seed)
    state = {}
    for name, tensor in network.state_dict().items():
        values = torch.randn(tensor.shape)
        if tensor.ndim == 1:
            state[name] = 1 + values / 4
        else:
            state[name] = values * 1.5 / tensor.shape[1] ** 0.5
    return state


def target() -> Target:
    """A tiny model."""
    return Target(make_hf("llama"), torch.device("cpu"), torch.float32)


def eagle3_files(folder: Path, form: str = "own", **changes: Any) -> tuple[str, dict[str, Any]]:
    """Write a head in one of the forms; return the folder and the weights by the authors' names.

    The draft vocabulary has every second token from 3.
    """
    fields = EAGLE3 | changes
    norms = {name: value for name, value in changes.items() if name.startswith("norm_")}
    sizes = EAGLE3 | norms
    state = tensors(eagle.Eagle3(target(), sizes))
    state["d2t"] = torch.arange(DRAFT) + 3
    state["t2d"] = torch.isin(torch.arange(VOCABULARY), 2 * torch.arange(DRAFT) + 3)
    stored = state
    if form == "speculators":
        stored = {name.replace("midlayer.", "layers.0."): w for name, w in state.items()}
        stored["verifier_norm.weight"] = torch.ones(H)
        layer = {name: fields.pop(name) for name in (*FIELDS, "model_type")}
        fields |= {"speculators_model_type": "eagle3", "transformer_layer_config": layer}
    folder.mkdir(exist_ok=True)
    save_head(folder, stored, fields)
    return str(folder), {name: w.double().numpy() for name, w in state.items()}


def dflash_files(folder: Path, **changes: Any) -> tuple[str, dict[str, Any]]:
    state = tensors(dflash.DFlash(target(), DFLASH))
    folder.mkdir(exist_ok=True)
    save_head(folder, state, DFLASH | changes)
    return str(folder), {name: w.double().numpy() for name, w in state.items()}


MIXTURE = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
}
MTP: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": HEADS,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "head_dim": 4,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "glm": ("Glm4MoeConfig", {"partial_rotary_factor": 0.5}),
}


def mtp_folder(folder: Path, family: str, layers: int) -> Path:
    """Write a model with random weights; its file has MTP layers under their published names."""
    config_name, family_fields = MTP[family]
    fields = FIELDS | MIXTURE | family_fields
    config = getattr(transformers, config_name)(
        **fields, num_nextn_predict_layers=layers, eos_token_id=3
    )
    torch.manual_seed(1)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    mtp = MtpModel(hf, layers)
    with torch.no_grad():
        for parameter in [*hf.parameters(), *mtp.parameters()]:
            if parameter.ndim == 1:
                parameter.normal_(1.0, 0.2)
            else:
                parameter.normal_(0.0, 0.3)
    hf.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for key, tensor in mtp.layers.state_dict().items():
        layer, _, name = key.partition(".")
        name = name.replace("mtp_block.", "").replace("post_norm", "shared_head.norm")
        prefix = f"model.layers.{2 + int(layer)}."
        if ".experts." not in name:
            stored[prefix + name] = tensor.clone()
            continue
        parts = ["gate_proj", "up_proj"] if name.endswith("gate_up_proj") else ["down_proj"]
        for expert, weights in enumerate(tensor):
            for part, weight in zip(parts, weights.chunk(len(parts)), strict=True):
                stored[f"{prefix}mlp.experts.{expert}.{part}.weight"] = weight.clone()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder
