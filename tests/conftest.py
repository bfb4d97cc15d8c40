"""Tiny models and a fake tokenizer; nothing here needs a network or files outside the project."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ngtcli.storage import home

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: threads would only wait

# Compiling takes ten seconds: what is compiled is kept over all tests, whatever home they have.
os.environ.setdefault("NUMBA_CACHE_DIR", str(home("cache") / "compiled"))

SHARED = Path(os.environ.get("NGT_SHARED", Path(__file__).parents[2] / "shared")) / "data"
STORIES = SHARED / "models" / "stories260k"
VOCABULARY = 97
CONTEXT = 160
END = 3

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": END,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral-sliding": ("MistralConfig", {"sliding_window": 12}),
    "gemma": ("GemmaConfig", {}),
    "gemma2-sliding": ("Gemma2Config", {"sliding_window": 12, "query_pre_attn_scalar": 8}),
    "gemma3-sliding": ("Gemma3TextConfig", {"sliding_window": 12, "query_pre_attn_scalar": 8}),
}


class FakeBackend:
    """A tokenizer of one letter a token: id i is chr(32 + i)."""

    eos_token_id = END
    chat_template = None
    is_fast = False
    model_max_length = CONTEXT

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [min(ord(c) - 32, VOCABULARY - 1) for c in text if ord(c) >= 32]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(32 + i) for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {chr(32 + i): i for i in range(VOCABULARY)}


def make_hf(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random float32 model whose scores differ enough that greedy choices are not near ties."""
    import torch
    import transformers

    name, extra = FAMILIES[family]
    config = getattr(transformers, name)(**{**_COMMON, **extra, **changes})
    torch.manual_seed(seed)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    return hf


def make_target(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    from ngtcli.decode.model import TargetModel
    from ngtcli.tokens import Tokenizer

    return TargetModel(make_hf(family, seed, **changes), Tokenizer(FakeBackend()), family)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Settings and caches of a test are its own."""
    for name in list(os.environ):
        if name.startswith("NGT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "ngt-home"))
    yield tmp_path / "ngt-home"


def supply(method: str, corpus: Sequence[Sequence[int]] = ((1, 2, 3, 1, 2, 4),)) -> None:
    """Give a method what it needs beside a context; skip the test where that cannot be had."""
    if method == "rest":
        from ngtcli.draft.methods import datastore

        datastore.save(datastore.build_datastore(corpus), "default", "", [])
    elif method == "suffix":
        pytest.importorskip("arctic_inference.suffix_decoding", exc_type=ImportError)


def wait_until_loading(process: "subprocess.Popen[bytes]") -> None:
    """Return when `process`, a run of ngt, has begun to load torch, however slow the machine is."""
    maps = Path(f"/proc/{process.pid}/maps")
    patience = time.monotonic() + 60
    while maps.exists() and "libtorch" not in maps.read_text():
        assert time.monotonic() < patience
        time.sleep(0.05)
    if not maps.exists():
        time.sleep(2)  # no such file on this system
