"""Many families, tiny and random: each type of model with how it is run and why."""

import random
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.support import DraftSupport, ExecutionMode, Obstacle
from ngtcli.drafting.tree import DraftTree, chain
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import FakeBackend
from tests.support.tiny_models import Scripted

VOCABULARY = 512
POSITIONS = 160
WINDOW = 16  # tokens; the second prompt is shorter, its answer ends beyond: so with chunks
NO_DECODER = "not a decoder"
ATTENDS_IN_CHUNKS = Obstacle.ATTENDS_IN_CHUNKS
CHOOSES_TOKENS = Obstacle.CHOOSES_TOKENS
KEEPS_STATE = Obstacle.KEEPS_STATE
NO_TREE_MASK = Obstacle.NO_TREE_MASK
STARTS_ANEW = Obstacle.STARTS_ANEW
# The drafts that a model verifies, and whether its own cache crops rejected tokens.
TREES = (DraftSupport.TREES, False)
CROPS = (DraftSupport.CHAINS, True)
RESTORES = (DraftSupport.CHAINS, False)
STEPS = (DraftSupport.NONE, False)
_WORDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_RECURRENT = {**_WORDS, "hidden_size": 64, "num_hidden_layers": 2}
_LLAMA = {
    **_WORDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
}
_ENCODER = {k: v for k, v in _LLAMA.items() if k not in ("num_key_value_heads", "head_dim")}
_GPT2 = {
    **_WORDS,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": POSITIONS,
    "tie_word_embeddings": False,
}
_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_LATENT = {
    **{k: v for k, v in _LLAMA.items() if k != "head_dim"},
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
_HALF = {
    **_WORDS,
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "max_position_embeddings": POSITIONS,
    "is_decoder": True,
}
_CHOSEN = {
    **_LATENT,
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_BOTH = {"layer_types": ["linear_attention", "full_attention"]}
_DELTA = {
    **_LLAMA,
    **_BOTH,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 32,
}
_ZAMBA = {
    **_LLAMA,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "mamba_d_state": 8,
    "layers_block_type": ["linear_attention", "linear_attention", "hybrid"],
}
_INKLING = {
    **_LLAMA,
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "local_layer_ids": [0],
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": WINDOW,
    "d_rel": 8,
    "unpadded_vocab_size": VOCABULARY,
}
_MAMBA = {
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "mamba_expand": 2,
}


@dataclass(frozen=True)
class Family:
    """A type of model with a tiny configuration, why it takes no trees, and how it is run."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    reason: Obstacle | str | None = None
    label: str = ""
    way: tuple[DraftSupport, bool] = TREES
    consistent: bool = True  # whether `generate` gives what one pass without a cache gives

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.label}" if self.label else self.kind


def _llamas() -> list[Family]:
    """Families whose configurations have the names of Llama's."""
    full = (
        "llama gemma phi olmo olmo2 cohere granite stablelm glm glm4 helium nemotron arcee ernie4_5"
        " seed_oss hunyuan_v1_dense gpt_neox persimmon diffllama apertus"
    )
    sliding = (
        "qwen2 qwen3 gemma2 gemma3_text mistral starcoder2 phi3 olmo3 cohere2 smollm3 exaone4"
        " vaultgemma"
    )
    windows = {**_LLAMA, "sliding_window": WINDOW, "use_sliding_window": True}
    return [
        *(Family(kind, _LLAMA) for kind in full.split()),
        *(Family(kind, windows) for kind in sliding.split()),
        *(Family(k, {**_LLAMA, **_EXPERTS}) for k in ("olmoe", "granitemoe", "ernie4_5_moe")),
        *(
            Family(k, {**windows, **_EXPERTS})
            for k in ("mixtral", "qwen2_moe", "qwen3_moe", "phimoe", "gpt_oss")
        ),
    ]


FAMILIES = [
    *_llamas(),
    Family("gpt2", _GPT2),
    Family("gptj", {**_GPT2, "rotary_dim": 8}),
    Family("codegen", {**_GPT2, "rotary_dim": 8}),
    Family("gpt_bigcode", _GPT2),
    Family("ctrl", {**_GPT2, "dff": 96}),
    Family("opt", {**_LLAMA, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    Family("biogpt", _ENCODER),
    Family("falcon", {**_ENCODER, "new_decoder_architecture": True, "num_kv_heads": 2}),
    Family("bert", {**_ENCODER, "is_decoder": True}),
    Family("roberta", {**_ENCODER, "is_decoder": True}),
    Family("electra", {**_ENCODER, "is_decoder": True, "embedding_size": 64}),
    Family(
        "deepseek_v2",
        {
            **_LATENT,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "moe_intermediate_size": 32,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    Family("minicpm3", _LATENT),
    Family(
        "llama4_text",
        {**_LLAMA, **_EXPERTS, "intermediate_size_mlp": 96, "layer_types": ["full_attention"] * 2},
        label="full",
    ),
    Family(
        "granitemoehybrid",
        {
            **_LLAMA,
            **_EXPERTS,
            **_MAMBA,
            "shared_intermediate_size": 32,
            "layer_types": ["full_attention"] * 2,
        },
        label="dense",
    ),
    Family(
        "gpt_neo",
        {
            **_WORDS,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global"], 2]],
            "window_size": WINDOW,
            "max_position_embeddings": POSITIONS,
        },
        label="global",
    ),
    Family(
        "gpt_neo",
        {
            **_WORDS,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "max_position_embeddings": POSITIONS,
        },
        NO_TREE_MASK,
        way=CROPS,
    ),
    Family(
        "bloom", {**_WORDS, "hidden_size": 64, "n_layer": 2, "n_head": 4}, NO_TREE_MASK, way=CROPS
    ),
    Family(
        "mpt",
        {**_WORDS, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": POSITIONS},
        NO_TREE_MASK,
        way=CROPS,
    ),
    Family("falcon", {**_ENCODER, "alibi": True}, NO_TREE_MASK, "alibi", CROPS),
    Family("bart", _HALF, NO_TREE_MASK, way=CROPS),
    Family("moshi", {**_LLAMA, "sliding_window": WINDOW}, consistent=False),
    Family("llama", {**_LLAMA, "sliding_window": WINDOW}, label="window", consistent=False),
    Family(
        "llama4_text",
        {
            **_LLAMA,
            **_EXPERTS,
            "intermediate_size_mlp": 96,
            "attention_chunk_size": WINDOW,
            "layer_types": ["chunked_attention", "full_attention"],
        },
        ATTENDS_IN_CHUNKS,
        way=CROPS,
    ),
    Family(
        "deepseek_v32",
        {
            **_LATENT,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_topk": 256,
            "first_k_dense_replace": 1,
        },
        CHOOSES_TOKENS,
        way=STEPS,
    ),
    *(
        Family(k, {**_RECURRENT, "state_size": 8}, STARTS_ANEW, way=STEPS)
        for k in ("mamba", "falcon_mamba")
    ),
    Family(
        "mamba2",
        {
            **_RECURRENT,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 1,
            "chunk_size": 16,
        },
        KEEPS_STATE,
        way=RESTORES,
    ),
    Family("rwkv", _RECURRENT, KEEPS_STATE, way=RESTORES),
    Family("bamba", {**_LLAMA, **_MAMBA, "attn_layer_indices": [1]}, KEEPS_STATE, way=RESTORES),
    Family("falcon_h1", {**_LLAMA, **_MAMBA, "mamba_d_ssm": 128}, KEEPS_STATE, way=RESTORES),
    Family(
        "granitemoehybrid",
        {
            **_LLAMA,
            **_EXPERTS,
            **_MAMBA,
            "shared_intermediate_size": 32,
            "layer_types": ["linear_attention", "full_attention"],
        },
        KEEPS_STATE,
        way=RESTORES,
    ),
    Family(
        "jamba",
        {
            **_LLAMA,
            "num_experts": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
        STARTS_ANEW,
        way=STEPS,
    ),
    Family("lfm2", {**_LLAMA, "full_attn_idxs": [1]}, KEEPS_STATE, way=CROPS),
    Family(
        "minimax",
        {
            **_LLAMA,
            **_EXPERTS,
            "block_size": 16,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        STARTS_ANEW,
        way=STEPS,
    ),
    *(
        Family(k, {**_DELTA, **_EXPERTS}, KEEPS_STATE, way=RESTORES)
        for k in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid")
    ),
    Family(
        "kimi_linear",
        {**_CHOSEN, **_BOTH, "linear_head_dim": 16, "linear_num_heads": 4},
        KEEPS_STATE,
        way=RESTORES,
    ),
    Family(
        "bailing_hybrid",
        {**_CHOSEN, **_BOTH, "head_dim": 16, "num_mtp_layers": 0},
        KEEPS_STATE,
        way=RESTORES,
    ),
    Family(
        "nemotron_h",
        {
            **_LLAMA,
            "num_hidden_layers": 3,
            "ssm_state_size": 8,
            "layers_block_type": ["linear_attention", "full_attention", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 1,
            "chunk_size": 16,
        },
        KEEPS_STATE,
        way=RESTORES,
    ),
    Family("zamba", _ZAMBA, KEEPS_STATE, way=RESTORES),
    Family(
        "zamba2",
        {
            **_ZAMBA,
            "n_mamba_heads": 8,
            "mamba_ngroups": 1,
            "chunk_size": 16,
            "num_mem_blocks": 1,
            "adapter_rank": 8,
        },
        KEEPS_STATE,
        way=RESTORES,
    ),
    Family(
        "zaya",
        {
            **_LLAMA,
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "router_hidden_size": 16,
            "moe_intermediate_size": 32,
        },
        KEEPS_STATE,
        way=RESTORES,
    ),
    *(Family(k, _INKLING, KEEPS_STATE, way=CROPS) for k in ("inkling_text", "inkling2_text")),
    *(
        Family(
            k,
            {
                **_LLAMA,
                **_EXPERTS,
                "layer_types": ["conv", "full_attention"],
                "num_dense_layers": 1,
            },
            KEEPS_STATE,
            way=CROPS,
        )
        for k in ("lfm2_moe", "lfm3")
    ),
    *(Family(k, _CHOSEN, CHOOSES_TOKENS, way=STEPS) for k in ("axk2", "glm_moe_dsa")),
    Family("roformer", {**_ENCODER, "is_decoder": True}, NO_TREE_MASK, way=CROPS),
    Family("mbart", _HALF, NO_TREE_MASK, way=CROPS),
    Family(
        "recurrent_gemma",
        {
            **_LLAMA,
            "lru_width": 64,
            "attention_window_size": WINDOW,
            "block_types": ["recurrent", "attention"],
        },
        STARTS_ANEW,
        way=STEPS,
    ),
    Family("bert", {**_ENCODER, "is_decoder": False}, NO_DECODER, "encoder"),
    Family(
        "cpmant",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "dim_head": 16,
            "dim_ff": 96,
            "num_hidden_layers": 2,
        },
        NO_DECODER,
    ),
]
NO_CACHE = Family("openai-gpt", _GPT2)  # whose models keep none
# They keep no cache in keys and values, or look at ids, which need values.
UNCOUNTED = {
    "rwkv",
    "recurrent_gemma",
    "bert-encoder",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "biogpt",
    "bart",
    "mbart",
    "moshi",
}
# Of these only the way to run them is tested, in less time.
OTHERS = [
    *(
        Family(k, {**_LLAMA, **_EXPERTS, "sliding_window": WINDOW})
        for k in (
            "afmoe aria_text beam bitnet cohere2_moe cwm doge exaone_moe flex_olmo flint glm4_moe"
            " gpt-sw3 gpt_neox_japanese granite_swa granitemoe_swa granitemoeshared hrm_text"
            " hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna"
            " mellum mimo_v2_flash minimax_m2 minimax_m3_vl_text ministral ministral3"
            " modernbert-decoder nanochat solar_open xglm"
        ).split()
    ),
    *(Family(k, _CHOSEN) for k in "axk1 deepseek_v3 dots1 glm4_moe_lite youtu".split()),
    *(
        Family(k, {**_ENCODER, "is_decoder": True})
        for k in "bert-generation big_bird megatron-bert rembert roc_bert".split()
    ),
    Family("xmod", {**_ENCODER, "is_decoder": True, "languages": ["en"], "default_language": "en"}),
    Family("whisper", _HALF),
    Family(
        "dbrx",
        {
            **_WORDS,
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": POSITIONS,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
            "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    Family(
        "gemma3n_text",
        {
            **_LLAMA,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": WINDOW,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.0] * 4,
            "intermediate_size": [96] * 4,
        },
    ),
    Family(
        "git",
        {
            **_LLAMA,
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 32,
            },
        },
    ),
    Family(
        "longcat_flash",
        {
            **_CHOSEN,
            "num_layers": 1,
            "ffn_hidden_size": 64,
            "moe_topk": 2,
            "expert_ffn_hidden_size": 32,
            "zero_expert_num": 2,
            "head_dim": 8,
        },
    ),
    *(
        Family(k, _HALF, NO_TREE_MASK, way=CROPS)
        for k in "marian mvp pegasus plbart blenderbot bigbird_pegasus trocr".split()
    ),
    *(
        Family(k, {**_LLAMA, **_EXPERTS}, CHOOSES_TOKENS, way=STEPS)
        for k in ("deepseek_v4", "hy_v4")
    ),
]


def reason_and_way(mode: ExecutionMode) -> tuple[Obstacle | None, tuple[DraftSupport, bool]]:
    """What `Family` says of a model, as found."""
    return mode.no_trees and mode.no_trees.obstacle, (mode.support, mode.crops)


def build(family: Family) -> Any:
    """A random float32 model whose greedy choices are no near ties."""
    kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family.kind]
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(kind(**family.values)).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3 if "q_proj" in name or "k_proj" in name else 0.16)
    hf.generation_config = transformers.GenerationConfig()  # an end token would shorten the test
    return hf


class LongBackend(FakeBackend):
    """Letters again, but no end token and no length of its own."""

    eos_token_id = None
    model_max_length = 10**30


def target(hf: Any, name: str) -> TargetModel:
    return target_model(hf, Tokenizer(LongBackend()), name)


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    body = [rng.randrange(VOCABULARY) for _ in range(20)]
    return [body[:1], body[:5], (body * 4)[:70]]


def chained(truth: list[int], start: int) -> Scripted:
    """Chains of which all, some or no tokens are right, of 0 to 7 tokens."""

    def propose(ids: list[int], budget: int) -> DraftTree:
        right, wrong = len(ids) % 4, len(ids) % 5
        tokens = truth[len(ids) - start :][: right + 1]
        bad = [(tokens[right] + 1 + i) % VOCABULARY for i in range(wrong)] if tokens[right:] else []
        return chain([*tokens[:right], *bad])

    return Scripted(propose)


def family(name: str) -> Family:
    return next(family for family in [*FAMILIES, *OTHERS] if family.name == name)
