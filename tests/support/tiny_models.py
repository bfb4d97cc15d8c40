"""Tiny models, drafters and naive tries that tests share."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers

from ngtcli.config import Settings
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.sampling import warp
from ngtcli.drafting.drafter import Context, Draft, Drafter, DraftSettings, Room
from ngtcli.drafting.guesses import Guessed
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.registry import parse_method
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights import convert
from ngtcli.models.weights.checkpoints import read_checkpoint
from ngtcli.models.weights.convert import Conversion
from ngtcli.models.weights.formats import WeightFormat
from ngtcli.models.weights.linear import packed_weights
from tests.support.helpers import CONTEXT, END, VOCABULARY, FakeBackend
from tests.support.runs import Run

# --- tiny models ---

GREEDY = Settings()
TINY_CONFIG = {
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


def make_hf(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random float32 model whose greedy choices are not near ties."""
    name, extra = FAMILIES[family]
    config = getattr(transformers, name)(**{**TINY_CONFIG, **extra, **changes})
    torch.manual_seed(seed)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    spread_logits(hf)
    return hf


def spread_logits(hf: Any) -> None:
    """Enlarge the weights of a random model, so that its greedy choices are not near ties."""
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)


def make_target(family: str = "llama", seed: int = 0, **changes: Any) -> TargetModel:
    return target_model(make_hf(family, seed, **changes), Tokenizer(FakeBackend()), family)


@contextmanager
def small_layers() -> Iterator[None]:
    """No layer is too small to be laid in blocks."""
    with patch.multiple(convert, _MIN_ELEMENTS=1, _MIN_ELEMENTS_HALF=1):
        yield


def pack_layers(hf: Any) -> int:
    """Lay all layers of a model in blocks; the bytes of those that are."""
    conversion = Conversion(WeightFormat(hf.dtype, packed=True))
    with small_layers():
        conversion.pack_rest(hf)
    return conversion._bytes


def packed_from(folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder, whose weights are laid in blocks as they come."""
    config, taken = (
        transformers.AutoConfig.from_pretrained(folder),
        Conversion(WeightFormat(dtype, True)),
    )
    with small_layers():
        hf, report = read_checkpoint(str(folder), config, taken, dtype)
        assert not any(report.values())
        taken.pack_rest(hf)
    # None are in a dtype that the CPU has no kernel for.
    assert any(packed_weights(hf)) == (taken._bytes > 0)
    return hf


def prompts(count: int, vocabulary: int = VOCABULARY, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to 90 random ids, most of which repeat themselves."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        body = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 30))]
        out.append((body * 3)[: rng.randint(len(body), 90)])
    return out


# --- decoding ---


def decode(
    model: TargetModel, drafter, prompt, sampling=GREEDY, cache_policy=None, **limits
) -> Run:
    limits = {"max_tokens": 40, **limits}
    context = Context(prompt, outside=(tuple(prompt),), vocabulary=model.vocabulary)
    return Run(
        model, drafter, context, sampling, Limits(**limits), cache_policy=cache_policy
    ).finish()


def plain(model: TargetModel, prompt, sampling=GREEDY, **limits) -> list[int]:
    return decode(model, make_drafter("none", DraftSettings()), prompt, sampling, **limits).output


def generate(hf, prompt, max_tokens: int) -> list[int]:
    """The new ids of `transformers`' own greedy decoding."""
    with torch.no_grad():
        ids = torch.tensor([prompt])
        out = hf.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


def distribution(sampling: Settings, scores: torch.Tensor) -> torch.Tensor:
    """Warped probabilities, float64 (vocabulary,), of scores that nothing penalizes."""
    weights = warp(scores.float()[None], sampling)[0].double()
    return weights / weights.sum()


# --- drafting ---


class Scripted(Drafter):
    """A drafter that proposes what a function of the ids says."""

    def __init__(self, propose) -> None:
        self._propose = propose

    def propose(self, log: TokenLog, room: Room) -> Draft:
        return Draft(self._propose(list(log.token_ids), room.nodes))


def drafts_of(
    truth: Mapping[tuple[int, ...], Sequence[int]], wrong: int = 1
) -> Callable[[Sequence[int], int], DraftTree]:
    """Drafts that hold what follows the prompts of `truth`, behind `wrong` siblings of it."""

    def propose(ids: Sequence[int], budget: int) -> DraftTree:
        for prompt, output in truth.items():
            said = len(ids) - len(prompt)
            if tuple(ids) == (*prompt, *output[:said]):
                path = output[said : said + max(0, budget - wrong)]
                if path:
                    others = [(path[0] + 1 + i) % VOCABULARY for i in range(wrong)]
                    parents = (*[ROOT] * (wrong + 1), *range(wrong, wrong + len(path) - 1))
                    return DraftTree((*others, *path), parents)
        return DraftTree()

    return propose


def make_drafter(spec: str, settings: DraftSettings | None = None) -> Drafter:
    """A new drafter. Raises UsageError for an unknown method or a wrong option."""
    return parse_method(spec, settings or DraftSettings()).build()


class KnownHead:
    """A head that guesses what follows in one of some texts, and beside it a token too high."""

    depth = 5

    def __init__(self, kind: str, by_path: bool, texts: Sequence[Sequence[int]]) -> None:
        self.kind, self.by_path, self.texts = kind, by_path, [list(text) for text in texts]
        self.ids: list[int] = []

    def first(self, root: int) -> Guessed:
        assert self.ids[-1] == root
        length = len(self.ids)
        behind = next((text[length:] for text in self.texts if text[:length] == self.ids), [])
        known = [*behind, *self.depth * [1]][: self.depth]
        tokens = [[token, VOCABULARY - 1 - at % 2] for at, token in enumerate(known)]
        led = np.array([range(self.depth - 1), known[:-1]]) if self.by_path else None
        return Guessed(np.array(tokens, np.int32), np.tile([0.7, 0.2], (self.depth, 1)), led)


class KnownHeads:
    """Heads that read no hidden states but the text itself."""

    layers: tuple[int, ...] = ()
    reads_all = False

    def __init__(self, texts: Sequence[Sequence[int]], kinds: Sequence[str]) -> None:
        by_path = {"medusa": False, "dflash": False}
        self.guessers = [KnownHead(kind, by_path.get(kind, True), texts) for kind in kinds]
        self.texts = texts

    def of_kind(self, kind: str) -> "KnownHeads | None":
        return KnownHeads(self.texts, [kind]) if kind in LEARNED else None

    def reset(self, start: int = 0) -> None:
        pass

    def add(self, ids: list[int], states: Any) -> None:
        pass

    def follow(self, ids: Sequence[int]) -> bool:
        for head in self.guessers:
            head.ids = list(ids)
        return True


LEARNED = ("medusa", "hydra", "eagle", "eagle3", "dflash", "mtp")


def supply(method: str, corpus: Sequence[Sequence[int]] = ((1, 2, 3, 1, 2, 4),)) -> None:
    """Give a method what it needs beside a context; skip the test where that cannot be had."""
    if method == "rest":
        from ngtcli.drafting.tries.store import save_datastore

        save_datastore(corpus, "default", "", [])
    elif method == "suffix":
        pytest.importorskip("arctic_inference.suffix_decoding", exc_type=ImportError)


def check_tree(tree: DraftTree) -> None:
    """Raise ValueError unless the tree is well-formed."""
    if len(tree.tokens) != len(tree.parents):
        raise ValueError("tokens and parents differ in length")
    if not 0 <= tree.probes <= len(tree.tokens):
        raise ValueError("more probes than nodes")
    if any(not ROOT <= parent < i for i, parent in enumerate(tree.parents)):
        raise ValueError("a parent does not come before its child")
    edges = list(zip(tree.parents, tree.tokens, strict=True))[: tree.drafts]
    if len(set(edges)) != len(edges):
        raise ValueError("two siblings hold the same token")


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """The tokens from the root to each node."""
    out: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return set(out)


# --- the paper's trie, literally ---


class NaiveNode:
    def __init__(self) -> None:
        self.frequency = 0
        self.children: dict[int, NaiveNode] = {}


def algorithm_1(tokens: Sequence[int], n: int, lp: int) -> NaiveNode:
    """Algorithm 1 as written: for each full window, each sub-prefix P[j:] + S, token by token."""
    root = NaiveNode()
    for i in range(len(tokens) - n + 1):
        prefix, suffix = tokens[i : i + lp], tokens[i + lp : i + n]
        for j in range(lp):
            node = root
            for token in [*prefix[j:], *suffix]:
                node = node.children.setdefault(token, NaiveNode())
                node.frequency += 1
    return root


def padded(documents: Sequence[Sequence[int]], n: int) -> list[int]:
    """Documents with n unique sentinels around each, so that windows slide over both ends."""
    out: list[int] = []
    sentinel = -1
    for document in documents:
        for part in (None, document, None):
            if part is None:
                out += range(sentinel, sentinel - n, -1)
                sentinel -= n
            else:
                out += part
    return out


def saved(folder: Path, hf: Any, **how: Any) -> str:
    hf.save_pretrained(folder, **how)
    return str(folder)


@torch.inference_mode()
def scores(hf: Any) -> torch.Tensor:
    out: torch.Tensor = hf(torch.arange(3, 40)[None]).logits
    return out


def a_tree(nodes: int, seed: int = 0) -> DraftTree:
    rng = random.Random(seed)
    tokens = tuple(rng.sample(range(VOCABULARY), nodes))
    return DraftTree(tokens, tuple(rng.randrange(ROOT, i) for i in range(nodes)))
