"""The kinds of heads as they are trained: the network, its predictions on a batch, its files.

Each network reads the target's hidden states, which are not trained, and predicts from the
positions of the answers the tokens that follow, depth by depth.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from ngtcli.decoding.model import TargetModel
from ngtcli.errors import UsageError
from ngtcli.heads import dflash, eagle
from ngtcli.heads.files import Target
from ngtcli.heads.perceptrons import Hydra, Medusa
from ngtcli.heads.rows import HeadPass
from tests.tools.heads.folder import Plan, Sample

_SMALL_TARGET_LAYERS = 8  # a target with fewer layers is read at other depths; guess
_DFLASH_LAYERS = 2  # in a mask, one finds the last token and one what follows it; guess
_DFLASH_BLOCKS = 8  # blocks that are drawn from a sample in a step; guess
_LAYER_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
)
IGNORED = -100  # a target that does not count; the default of cross_entropy
Predictions = Iterator[tuple[Tensor, Tensor]]  # logits (n, vocabulary), targets int64 (n,)


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples padded on the right.

    Tokens are to be predicted from n positions: the last one of each prompt, and those of each
    answer but the last.

    Args:
        ids: Token ids, int64 (samples, length).
        lengths: Length of each sample without padding, int64 (samples,).
        samples: Index of the sample that each position belongs to, int64 (n,).
        positions: Each position in its sample, int64 (n,).
        seed: Seed for what a recipe draws at random.
    """

    ids: Tensor
    lengths: Tensor
    samples: Tensor
    positions: Tensor
    seed: int

    @classmethod
    def padded(
        cls, samples: Sequence[Sample], max_length: int, seed: int, device: torch.device
    ) -> "Batch":
        """Pad samples to a batch; of each sample at most the first `max_length` tokens count."""
        sequences = []
        positions = []
        for sample in samples:
            ids = torch.tensor([*sample.prompt, *sample.answer][:max_length])
            sequences.append(ids)
            positions.append(torch.arange(len(sample.prompt) - 1, len(ids) - 1))

        counts = torch.tensor([len(of_sample) for of_sample in positions])
        indices = torch.arange(len(samples)).repeat_interleave(counts)
        padded_ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        lengths = torch.tensor([len(ids) for ids in sequences])
        return cls(
            ids=padded_ids.to(device),
            lengths=lengths.to(device),
            samples=indices.to(device),
            positions=torch.cat(positions).to(device),
            seed=seed,
        )

    def targets(self, distance: int) -> Tensor:
        """The tokens `distance` behind each position, int64 (n,); IGNORED behind a sample's end."""
        return self.tokens_at(self.samples, self.positions + distance)

    def tokens_at(self, samples: Tensor, positions: Tensor) -> Tensor:
        """The tokens at positions of samples (int64, broadcast); IGNORED behind a sample's end."""
        tokens = self.ids[samples, positions.clamp(max=self.ids.shape[1] - 1)]
        return torch.where(positions < self.lengths[samples], tokens, IGNORED)

    def select(self, values: Tensor) -> Tensor:
        """Take the positions' values (n, ...) out of those of the batch, (samples, length, ...)."""
        return values[self.samples, self.positions]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a head is trained for: a model, the `target` made of it, and the plan with a depth."""

    model: TargetModel
    target: Target
    plan: Plan


@dataclass(frozen=True, slots=True)
class Recipe:
    """A kind of head in training.

    Args:
        make: Makes the network with its first weights, float32.
        predict: Yields for each depth the logits (n, vocabulary) and the true tokens, int64 (n,).
            It gets the network, the hidden states that it reads (samples, length, size), the batch
            and the number of depths.
        config: Makes the contents of config.json.
        rate: Learning rate for plans without one.
        depth: Depth for plans without one.
    """

    make: Callable[[Subject, Sequence[Sample]], Any]
    predict: Callable[[Any, Tensor, Batch, int], Predictions]
    config: Callable[[Subject], dict[str, Any]]
    rate: float = 1e-3  # guess; that of Medusa-1's authors
    depth: int = 4  # guess: few answers go farther where a head guesses alone


# --- Medusa-1 (arXiv 2401.10774, section 2.1.1); all weights begin at 0 ---


def _make_medusa(subject: Subject, samples: Sequence[Sample]) -> Medusa:
    plan = subject.plan
    network = Medusa(subject.target, plan.depth, own_scores=plan.own_scores)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network


def _predict_medusa(network: Medusa, states: Tensor, batch: Batch, depths: int) -> Predictions:
    for depth, logits in enumerate(network.logits(batch.select(states))):
        yield logits, batch.targets(depth + 2)


def _medusa_config(subject: Subject) -> dict[str, Any]:
    return {"medusa_num_heads": subject.plan.depth, "medusa_num_layers": 1}


# --- Hydra without a prefix layer (arXiv 2402.05109, section 3) ---


def _make_hydra(subject: Subject, samples: Sequence[Sample]) -> Hydra:
    """At first its layers pass the hidden state on unchanged."""
    plan = subject.plan
    network = Hydra(subject.target, plan.depth, own_scores=plan.own_scores)
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            _copy_input_part(module, 0 if name.endswith(".0.res_connection") else None)
    return network


def _predict_hydra(network: Hydra, states: Tensor, batch: Batch, depths: int) -> Predictions:
    inputs = batch.select(states)
    for depth in range(depths):
        previous = network.target.embed(batch.targets(depth + 1).clamp(min=0))
        inputs = torch.cat([inputs, previous], -1)
        yield network.logits(inputs, depth), batch.targets(depth + 2)


def _hydra_config(subject: Subject) -> dict[str, Any]:
    return {
        "hydra_head_arch": "mlp",
        "hydra_num_heads": subject.plan.depth,
        "grounded_heads": True,
    }


# --- EAGLE-3, trained depth by depth on its own states (arXiv 2503.01840, section 3.2) ---


def _make_eagle3(subject: Subject, samples: Sequence[Sample]) -> eagle.Eagle3:
    """It begins as the target's own layer that follows the deepest state it reads.

    (On the built-in model, 65% of the first guesses were right after 80 steps of 1,024 tokens. From
    random weights 9% were right after 150 steps.)
    """
    model = subject.model
    network = eagle.Eagle3(subject.target, _eagle3_config(subject))
    ids = most_frequent_tokens(samples, network.lm_head.out_features, model.vocabulary)
    network.ids = ids.to(model.device)
    with torch.no_grad():
        network.lm_head.weight.copy_(model.hf.get_output_embeddings().weight[network.ids])
    _copy_input_part(network.fc, 2)
    copy_layer(network.midlayer, model, network.target_layers[-1])
    return network


def _predict_eagle3(
    network: eagle.Eagle3, states: Tensor, batch: Batch, depths: int
) -> Predictions:
    following = nn.functional.pad(batch.ids[:, 1:], (0, depths - 1))
    states_by_depth = eagle3_states(network, states[:, :-1], network.target.embed(following))
    for depth, own_states in enumerate(states_by_depth):
        yield network.logits(batch.select(own_states)), batch.targets(depth + 2)


def eagle3_states(network: eagle.Eagle3, states: Tensor, embedded: Tensor) -> Iterator[Tensor]:
    """The layer's output at each depth, (batch, positions, hidden size).

    At depth d position i has read the tokens that follow positions i to i + d, and predicts the
    token after them. It attends to what a draft would see: the states of all positions up to i, and
    the head's own states of position i at each depth before.

    Args:
        network: The head.
        states: The target's hidden states, (batch, positions, layers x width).
        embedded: Embeddings of the token that follows the first position and of those after it,
            (batch, positions + depths - 1, hidden size).
    """
    count = states.shape[1]
    depths = embedded.shape[1] - count + 1
    cache = DynamicCache()
    positions = torch.arange(count, device=states.device)
    is_visible = positions[:, None] >= positions
    is_own = positions[:, None] == positions

    output = network.fuse(states)
    for depth in range(depths):
        step = HeadPass(cache, positions + depth, lambda layer, mask=is_visible: mask)  # type: ignore[misc]
        output = network.next_states(output, embedded[:, depth : depth + count], step)
        yield output
        is_visible = torch.cat([is_visible, is_own], 1)


def _eagle3_config(subject: Subject) -> dict[str, Any]:
    vocabulary = subject.model.vocabulary
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_config(subject),
        "draft_vocab_size": min(subject.plan.vocabulary or vocabulary, vocabulary),
        "eagle_aux_hidden_state_layer_ids": layers_read(subject.model.config.num_hidden_layers),
    }


# --- DFlash, trained on blocks drawn from the answers (arXiv 2602.06036) ---


def _make_dflash(subject: Subject, samples: Sequence[Sample]) -> dflash.DFlash:
    """Its layers begin as the target's own that end behind the deepest state it reads."""
    network = dflash.DFlash(subject.target, _dflash_config(subject))
    _copy_input_part(network.fc, 2)
    first = network.target_layers[-1] + 1 - len(network.layers)
    for number, layer in enumerate(network.layers, first):
        copy_layer(layer, subject.model, max(0, number))
    return network


def _predict_dflash(
    network: dflash.DFlash, states: Tensor, batch: Batch, depths: int
) -> Predictions:
    generator = torch.Generator().manual_seed(batch.seed)
    offsets = torch.arange(network.block, device=batch.ids.device)
    outputs = []
    targets = []
    for sample, length in enumerate(batch.lengths.tolist()):
        positions = batch.positions[batch.samples == sample]
        drawn = torch.randint(len(positions), (_DFLASH_BLOCKS,), generator=generator)
        # A block begins with the token after the position.
        anchors = positions[drawn.to(positions.device)] + 1
        tokens = batch.tokens_at(torch.tensor(sample), anchors[:, None] + offsets)
        sample_states = states[sample : sample + 1, :length]
        outputs.append(dflash_states(network, sample_states, tokens[:, 0], anchors))
        targets.append(tokens[:, 1:])

    all_outputs = torch.cat(outputs)
    all_targets = torch.cat(targets)
    for depth in range(depths):
        yield network.logits(all_outputs[:, depth]), all_targets[:, depth]


def dflash_states(
    network: dflash.DFlash, states: Tensor, tokens: Tensor, anchors: Tensor
) -> Tensor:
    """The network's output for several blocks of a sequence, (blocks, block - 1, hidden size).

    Mask number m of a block predicts the token m positions behind the anchor. A block attends to
    itself and to the sequence before it.

    Args:
        network: The head.
        states: The target's hidden states, (1, length, layers x hidden size).
        tokens: The first token of each block, int64 (blocks,).
        anchors: The positions of these tokens, int64 (blocks,).
    """
    blocks = len(anchors)
    size = network.block
    length = states.shape[1]
    device = states.device

    cache = DynamicCache()
    sequence = torch.arange(length, device=device)
    network.cache_sequence(states, HeadPass(cache, sequence, lambda layer: sequence))

    positions = (anchors[:, None] + torch.arange(size, device=device)).flatten()
    block_numbers = torch.arange(blocks, device=device).repeat_interleave(size)
    is_before = sequence < anchors.repeat_interleave(size)[:, None]
    is_same_block = block_numbers == block_numbers[:, None]
    mask = torch.cat([is_before, is_same_block], 1)

    ids = torch.full((blocks, size), network.mask, device=device)
    ids[:, 0] = tokens
    output = network.run_blocks(ids.flatten(), HeadPass(cache, positions, lambda layer: mask))
    return output[0].view(blocks, size, -1)[:, 1:]


def _dflash_config(subject: Subject) -> dict[str, Any]:
    # EAGLE-3 names the layers that the states enter, DFlash those that they leave.
    layers = [layer - 1 for layer in layers_read(subject.model.config.num_hidden_layers)]
    return {
        "architectures": ["DFlashDraftModel"],
        **_layer_config(subject),
        "num_hidden_layers": _DFLASH_LAYERS,
        "block_size": subject.plan.depth + 1,
        "dflash_config": {
            "mask_token_id": unused_token(subject.model),
            "target_layer_ids": layers,
        },
    }


# --- what recipes share ---


@torch.no_grad()
def _copy_input_part(layer: nn.Linear, part: int | None) -> None:
    """Let a layer return one of the vectors that its input joins, by number, or 0 for None."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    if part is not None:
        size = layer.weight.shape[0]
        layer.weight[:, part * size : (part + 1) * size] = torch.eye(size)


@torch.no_grad()
def copy_layer(layer: nn.Module, model: TargetModel, number: int) -> None:
    """Give a layer the weights of the model's layer `number`, where names and sizes agree.

    A weight that reads an embedding beside a state gets the model's weight for both halves, since
    the states of the model's layers begin as an embedding.
    """
    layers = getattr(model.hf.get_decoder(), "layers", None)
    weights = dict(layers[number].named_parameters()) if layers is not None else {}
    for name, weight in layer.named_parameters():
        source_name = "input_layernorm.weight" if name == "hidden_norm.weight" else name
        source = weights.get(source_name)
        if source is None or source.ndim != weight.ndim or source.shape[0] != weight.shape[0]:
            continue
        repeats, remainder = divmod(weight.shape[-1], source.shape[-1])
        if remainder == 0:
            weight.copy_(source if source.ndim == 1 else source.repeat(1, repeats))


def most_frequent_tokens(samples: Sequence[Sample], count: int, vocabulary: int) -> Tensor:
    """The `count` most frequent tokens of the answers, ascending, int64 (count,).

    If the answers have fewer tokens, the first others of the vocabulary follow.
    """
    frequencies = Counter(token for sample in samples for token in sample.answer)
    by_frequency = sorted(frequencies, key=lambda token: (-frequencies[token], token))
    unique_tokens = list(dict.fromkeys([*by_frequency, *range(vocabulary)]))
    return torch.tensor(sorted(unique_tokens[:count]))


def layers_read(layers: int) -> list[int]:
    """The layers whose inputs EAGLE-3 and DFlash read, for a target of so many layers.

    For large targets these are the layers of EAGLE-3's authors; in small ones deeper layers are
    read, since they know more.

    >>> layers_read(32), layers_read(5)
    ([2, 16, 29], [1, 3, 4])
    """
    if layers >= _SMALL_TARGET_LAYERS:
        return [2, layers // 2, layers - 3]
    return [1, layers // 2 + 1, layers - 1]


def _layer_config(subject: Subject) -> dict[str, Any]:
    """The fields of config.json for layers of the target's own sizes."""
    model = subject.model
    values = {name: getattr(model.config, name, None) for name in _LAYER_FIELDS}
    default_width = values["intermediate_size"] or 4 * int(model.config.hidden_size)
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        **{name: value for name, value in values.items() if value is not None},
        "intermediate_size": subject.plan.inner or default_width,
        "max_position_embeddings": model.context,
        "vocab_size": model.vocabulary,
        "num_hidden_layers": 1,
    }


def unused_token(model: TargetModel) -> int:
    """A token that stands in no text, to use as a mask.

    It is the padding token, else a token without a text, else a special one. Raises UsageError if
    there is none.
    """
    backend: Any = model.tokenizer.backend
    token_count = len(backend) if hasattr(backend, "__len__") else model.vocabulary
    without_text = range(token_count, model.vocabulary)
    special = getattr(backend, "all_special_ids", ())
    used = {*model.end_ids, model.config.bos_token_id}
    for token in (model.config.pad_token_id, *without_text, *special):
        if token is not None and 0 <= token < model.vocabulary and token not in used:
            return int(token)
    raise UsageError(
        f"{model.name} has no token left that can stand for a mask",
        hint="Choose another kind of head: medusa, hydra or eagle3.",
    )


RECIPES = {
    "medusa": Recipe(_make_medusa, _predict_medusa, _medusa_config),
    "hydra": Recipe(_make_hydra, _predict_hydra, _hydra_config),
    "eagle3": Recipe(_make_eagle3, _predict_eagle3, _eagle3_config, rate=5e-4),  # guess
    # Both are guesses; published blocks guess 15 tokens.
    "dflash": Recipe(_make_dflash, _predict_dflash, _dflash_config, rate=5e-4, depth=7),
}
