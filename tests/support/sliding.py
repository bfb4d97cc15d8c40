"""Small models whose layers have a sliding window, and the logits that they should give."""

from collections.abc import Sequence

import torch

from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.tree import DraftTree
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import FakeBackend
from tests.support.tiny_models import make_hf

SLIDING_FAMILIES = ("mistral-sliding", "gemma2-sliding", "gemma3-sliding")


def sliding_model(family: str, context: int, window: int = 12) -> TargetModel:
    """Make a model without end tokens; half the layers of Gemma 3 attend to all tokens."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if "gemma3" in family else {}
    hf = make_hf(family, max_position_embeddings=context, sliding_window=window, **kinds)
    hf.generation_config.eos_token_id = None
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    model.context = context
    model.end_ids = frozenset()
    return model


def path_to(tree: DraftTree, node: int) -> list[int]:
    """List the nodes from a child of the root down to a node; [] for the root (-1)."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = tree.parents[node]
    return path


def assert_logits_of_library(
    model: TargetModel,
    logits: torch.Tensor,
    token_ids: Sequence[int],
    tree: DraftTree,
    nodes: Sequence[int],
) -> None:
    """Compare logits after nodes with forward passes of transformers, without a cache.

    Args:
        model: The model.
        logits: (1 + nodes of the tree, vocab_size).
        token_ids: The tokens up to the root of the tree.
        tree: The tree.
        nodes: The nodes to compare, -1 for the root.
    """
    for node in nodes:
        path = [tree.tokens[step] for step in path_to(tree, node)]
        with torch.inference_mode():
            output = model.hf(torch.tensor([[*token_ids, *path]]), use_cache=False)
        assert torch.allclose(logits[node + 1], output.logits[0, -1], atol=2e-3, rtol=1e-3)
