"""Heads that attend to positions read before (EAGLE, DFlash, MTP), against their formulas."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from ngtcli.drafting.guesses import WIDTH, Guessed
from ngtcli.errors import ModelError
from ngtcli.heads import dflash, eagle
from ngtcli.heads.eagle import Eagle
from ngtcli.heads.files import Target
from ngtcli.heads.kinds import load_head
from ngtcli.heads.layers import layer_config
from ngtcli.models.weights.linear import PackedLinear, prepack_floats
from tests.support.head_files import (
    BLOCK,
    DFLASH,
    DRAFT,
    EAGLE3,
    EPS,
    FIELDS,
    HEADS,
    MASK,
    PAIRS,
    SIZE,
    THETA,
    H,
    dflash_files,
    eagle3_files,
    mtp_folder,
    paths,
    save_head,
    tensors,
)
from tests.support.helpers import CONTEXT, VOCABULARY, examples
from tests.support.tiny_models import make_hf
from tests.tools.heads.recipes import dflash_states, eagle3_states

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def keep_unlikely_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans have unlikely nodes, too."""
    monkeypatch.setattr("ngtcli.heads.head._UNLIKELY", 0.0)


def load(name: str, hf: Any) -> Any:
    return load_head(name, hf, CPU, torch.float32)


# --- the formulas, in numpy ---


def rms_norm(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def rotate(x: Any, position: int) -> Any:
    """Apply rotary position embeddings to (heads, SIZE): the halves of a head are the pairs."""
    angles = position / THETA ** (np.arange(0, SIZE, 2) / SIZE)
    first = x[:, : SIZE // 2]
    second = x[:, SIZE // 2 :]
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ],
        axis=1,
    )


def softmax(x: Any) -> Any:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


KeyValue = tuple[Any, Any]  # keys and values of a position, (heads, SIZE) each


class Layer:
    """The attention and the MLP of a decoder layer, for one position at a time."""

    def __init__(self, weights: dict[str, Any], prefix: str) -> None:
        self.weights = {
            name.removeprefix(prefix): weight
            for name, weight in weights.items()
            if name.startswith(prefix)
        }

    def project(self, name: str, x: Any) -> Any:
        """Queries, keys or values, (heads, SIZE), normed if the layer has a norm for them."""
        heads = (self.weights[f"self_attn.{name}_proj.weight"] @ x).reshape(-1, SIZE)
        norm = self.weights.get(f"self_attn.{name}_norm.weight")
        return heads if norm is None else rms_norm(heads, norm)

    def key_value(self, x: Any, position: int) -> KeyValue:
        return rotate(self.project("k", x), position), self.project("v", x)

    def attend(self, x: Any, position: int, key_values: Sequence[KeyValue]) -> Any:
        queries = rotate(self.project("q", x), position)
        outputs = []
        for head, query in enumerate(queries):
            group = head // (HEADS // PAIRS)
            scores = np.array([keys[group] @ query for keys, _ in key_values])
            weights = softmax(scores / np.sqrt(SIZE))
            values = np.array([values[group] for _, values in key_values])
            outputs.append(weights @ values)
        return self.weights["self_attn.o_proj.weight"] @ np.concatenate(outputs)

    def mlp(self, x: Any) -> Any:
        gate = self.weights["mlp.gate_proj.weight"] @ x
        up = self.weights["mlp.up_proj.weight"] @ x
        return self.weights["mlp.down_proj.weight"] @ (silu(gate) * up)


class EagleFormula:
    """The common part of EAGLE and EAGLE-3: one layer over positions that are added in turn.

    An index counts the positions in the order in which they were added.
    """

    def __init__(self, weights: dict[str, Any], layer: Layer, embedding: Any) -> None:
        self.weights = weights
        self.layer = layer
        self.embedding = embedding
        self.key_values: list[KeyValue] = []
        self.positions: list[int] = []

    def add(self, state: Any, token: int, position: int, visible: Sequence[int]) -> Any:
        """The layer's output at a further position, which attends to those of `visible` and itself.

        Args:
            state: The hidden state of the position.
            token: The token that follows it.
            position: The position in the sequence.
            visible: Indices of the positions before it.
        """
        raise NotImplementedError

    def probabilities(self, output: Any) -> Any:
        """The probabilities of all tokens of the target after an output of the layer."""
        raise NotImplementedError

    def forget(self, count: int) -> None:
        """Forget all positions but the first `count`."""
        del self.key_values[count:]
        del self.positions[count:]


class Eagle3Formula(EagleFormula):
    def __init__(
        self,
        weights: dict[str, Any],
        embedding: Any,
        norm_before_residual: bool = False,
        window: int = CONTEXT,
    ) -> None:
        super().__init__(weights, Layer(weights, "midlayer."), embedding)
        self.norm_before_residual = norm_before_residual
        self.window = window

    def add(self, state: Any, token: int, position: int, visible: Sequence[int]) -> Any:
        weights = self.layer.weights
        normed_state = rms_norm(state, weights["hidden_norm.weight"])
        normed_token = rms_norm(self.embedding[token], weights["input_layernorm.weight"])
        x = np.concatenate([normed_token, normed_state])

        own_index = len(self.key_values)
        self.key_values.append(self.layer.key_value(x, position))
        self.positions.append(position)
        in_window = [
            index
            for index in [*visible, own_index]
            if position - self.positions[index] < self.window
        ]
        residual = normed_state if self.norm_before_residual else state
        attention = self.layer.attend(x, position, [self.key_values[i] for i in in_window])
        hidden = residual + attention
        return hidden + self.layer.mlp(rms_norm(hidden, weights["post_attention_layernorm.weight"]))

    def fuse(self, states: Any) -> Any:
        """Join the states of the target's layers to one."""
        norm = self.weights.get("input_norm.weight")
        return self.weights["fc.weight"] @ (states if norm is None else rms_norm(states, norm))

    def probabilities(self, output: Any) -> Any:
        logits = self.weights["lm_head.weight"] @ rms_norm(output, self.weights["norm.weight"])
        ids = self.weights["d2t"].astype(int) + np.arange(DRAFT)
        probabilities = np.zeros(VOCABULARY)
        probabilities[ids] = softmax(logits)
        return probabilities


class Eagle1Formula(EagleFormula):
    """EAGLE and EAGLE-2, which predict by the target's output layer."""

    def __init__(self, weights: dict[str, Any], output_weight: Any) -> None:
        super().__init__(weights, Layer(weights, "layers.0."), weights["embed_tokens.weight"])
        self.output_weight = output_weight

    def add(self, state: Any, token: int, position: int, visible: Sequence[int]) -> Any:
        inputs = np.concatenate([self.embedding[token], state])
        x = self.weights["fc.weight"] @ inputs + self.weights["fc.bias"]

        own_index = len(self.key_values)
        self.key_values.append(self.layer.key_value(x, position))
        self.positions.append(position)
        key_values = [self.key_values[index] for index in [*visible, own_index]]
        hidden = x + self.layer.attend(x, position, key_values)
        norm = self.layer.weights["post_attention_layernorm.weight"]
        return hidden + self.layer.mlp(rms_norm(hidden, norm))

    def probabilities(self, output: Any) -> Any:
        return softmax(self.output_weight @ output)


def dflash_probabilities(
    weights: dict[str, Any], hf: Any, states: Any, root: int, window: int | None
) -> Any:
    """The probabilities of the tokens behind the root, (BLOCK - 1, VOCABULARY).

    Args:
        weights: The head's weights.
        hf: The target.
        states: The target's hidden states of the sequence before the root.
        root: The token that follows it.
        window: The window of the second layer, which is then causal; None: it has none.
    """
    embedding = hf.get_input_embeddings().weight.detach().numpy()
    output_weight = hf.get_output_embeddings().weight.detach().numpy()
    length = len(states)
    context = [
        rms_norm(weights["fc.weight"] @ state, weights["hidden_norm.weight"]) for state in states
    ]
    block = [embedding[root]] + (BLOCK - 1) * [embedding[MASK]]

    for number in range(2):
        layer = Layer(weights, f"layers.{number}.")
        has_window = window is not None and number == 1
        inputs = [rms_norm(x, layer.weights["input_layernorm.weight"]) for x in block]
        key_values = [
            layer.key_value(x, position) for position, x in enumerate([*context, *inputs])
        ]
        for i in range(BLOCK):
            position = length + i
            visible = key_values
            if has_window:
                visible = key_values[max(0, position - window + 1) : position + 1]
            hidden = block[i] + layer.attend(inputs[i], position, visible)
            norm = layer.weights["post_attention_layernorm.weight"]
            block[i] = hidden + layer.mlp(rms_norm(hidden, norm))

    outputs = np.stack([rms_norm(x, weights["norm.weight"]) for x in block[1:]])
    return softmax(outputs @ output_weight.T)


# --- comparisons ---


def assert_most_likely(guesses: Guessed, expected: Sequence[Any]) -> None:
    """Compare guesses with the most likely tokens of distributions (nodes, VOCABULARY)."""
    assert guesses.tokens.shape == (len(expected), WIDTH)
    assert guesses.probabilities.shape == (len(expected), WIDTH)
    rows = zip(guesses.tokens, guesses.probabilities, expected, strict=True)
    for tokens, probabilities, distribution in rows:
        np.testing.assert_allclose(probabilities, distribution[tokens], atol=2e-5)
        highest = np.sort(distribution)[::-1][:WIDTH]
        np.testing.assert_allclose(probabilities, highest, atol=2e-5)


def assert_plan_follows(
    guesses: Guessed, formula: EagleFormula, output: Any, length: int, start: int = 0
) -> None:
    """Compare all nodes of a plan with a formula, whose state does not change.

    Args:
        guesses: The plan.
        formula: The formula, which has read the sequence.
        output: Its output at the last position of the sequence.
        length: Number of positions of the sequence.
        start: Its first position.
    """
    assert guesses.led is not None
    assert guesses.led.shape[1] == 8 * (eagle.DEPTH - 1)

    outputs = [output]  # of each node
    ancestors: list[list[int]] = [[]]  # of each node, itself included, as the formula's indices
    for parent, token in zip(*guesses.led.tolist(), strict=True):
        own_index = len(formula.key_values)
        position = start + length + len(ancestors[parent])
        visible = [*range(length), *ancestors[parent]]
        outputs.append(formula.add(outputs[parent], token, position, visible))
        ancestors.append([*ancestors[parent], own_index])
    formula.forget(length)

    assert_most_likely(guesses, [formula.probabilities(each) for each in outputs])


def random_sequence(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Random hidden states (length, width), and the tokens that follow each."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(4, VOCABULARY, (length,), generator=generator)
    return torch.randn(length, width, generator=generator), ids


def embeddings_of(hf: Any) -> Any:
    return hf.get_input_embeddings().weight.detach().double().numpy()


# --- EAGLE ---


@pytest.mark.parametrize("form", ["own", "speculators"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_before_residual": True},
        {"norm_before_fc": True},
        {"max_position_embeddings": 6},
    ],
    ids=["plain", "residual", "fc", "window"],
)
def test_eagle3_guesses_what_its_formula_gives(
    tmp_path: Path, form: str, changes: dict[str, Any]
) -> None:
    name, weights = eagle3_files(tmp_path / "head", form, **changes)
    hf = make_hf("llama")
    head = load(name, hf)
    assert head.kind == "eagle3"
    assert head.layers == (0, 1, 1)
    assert head.reads_all
    assert head.by_path

    states, ids = random_sequence(30, 3 * H)
    formula = Eagle3Formula(
        weights,
        embeddings_of(hf),
        norm_before_residual=changes.get("norm_before_residual", False),
        window=changes.get("max_position_embeddings", CONTEXT),
    )
    # A prompt of 9 tokens, then steps that accept some tokens each.
    for start, end in ((0, 9), (9, 11), (11, 12), (12, 19)):
        head.read(states[start:end], ids[start:end], start)
        for i in range(start, end):
            fused = formula.fuse(states[i].double().numpy())
            output = formula.add(fused, int(ids[i]), i, range(i))
        if end > 9:
            guesses = head.first(int(ids[end - 1]))
            assert_plan_follows(guesses, formula, output, end)


def test_eagle3_reads_a_sequence_with_a_gap_as_one_that_begins_behind_it(tmp_path: Path) -> None:
    name, weights = eagle3_files(tmp_path / "head")
    hf = make_hf("llama")
    head = load(name, hf)
    assert head.first(4).tokens.shape == (1, 0)  # nothing is read yet

    states, ids = random_sequence(8, 3 * H)
    head.read(states[:5], ids[:5], 0)
    head.first(4)
    head.read(states[5:], ids[5:], 100)
    assert_eagle3_has_read(head, weights, hf, states[5:], ids[5:], start=100)

    head.reset()
    head.read(states[5:], ids[5:], 0)
    assert_eagle3_has_read(head, weights, hf, states[5:], ids[5:], start=0)


def assert_eagle3_has_read(
    head: Any, weights: dict[str, Any], hf: Any, states: Tensor, ids: Tensor, start: int
) -> None:
    """Compare a head's plan with the formula that reads this sequence and nothing else."""
    formula = Eagle3Formula(weights, embeddings_of(hf))
    for i in range(len(ids)):
        fused = formula.fuse(states[i].double().numpy())
        output = formula.add(fused, int(ids[i]), start + i, range(i))
    assert_plan_follows(head.first(int(ids[-1])), formula, output, len(ids), start)


def test_eagle3_in_training_predicts_what_it_drafts(tmp_path: Path) -> None:
    name, _ = eagle3_files(tmp_path / "head")
    hf = make_hf("llama")
    head = load(name, hf)
    states, ids = random_sequence(10, 3 * H)
    head.read(states, ids, 0)
    guesses = head.first(int(ids[-1]))

    # The nodes on the way to a node of depth 2.
    node_paths = paths(guesses)
    deepest = next(path for path in node_paths if len(path) == 2)
    nodes = [node_paths.index(deepest[:depth]) for depth in range(3)]
    embedded = hf.get_input_embeddings()(torch.tensor([*ids.tolist(), *deepest]))
    outputs = list(eagle3_states(head.network, states[None], embedded[None]))

    assert [output.shape for output in outputs] == 3 * [(1, 10, H)]
    for output, node in zip(outputs, nodes, strict=True):
        expected = head.network.logits(output[0, 9]).softmax(-1).topk(WIDTH)
        expected_tokens = 2 * expected.indices + 3  # the draft vocabulary of eagle3_files
        np.testing.assert_allclose(guesses.probabilities[node], expected.values.detach(), atol=1e-5)
        assert guesses.tokens[node].tolist() == expected_tokens.tolist()


def test_eagle_guesses_what_its_formula_gives(tmp_path: Path) -> None:
    fields = FIELDS | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    hf = make_hf("llama")
    network = Eagle(Target(hf, CPU, torch.float32), layer_config(fields), embeds=True, bias=True)
    state_dict = tensors(network)
    save_head(tmp_path, state_dict, fields)
    head = load(str(tmp_path), hf)
    assert head.kind == "eagle"
    assert head.layers == (-1,)
    assert head.by_path

    states, ids = random_sequence(9, H)
    weights = {name: tensor.double().numpy() for name, tensor in state_dict.items()}
    output_weight = hf.get_output_embeddings().weight.detach().double().numpy()
    formula = Eagle1Formula(weights, output_weight)
    for i in range(9):
        output = formula.add(states[i].double().numpy(), int(ids[i]), i, range(i))
    head.read(states[:5], ids[:5], 0)
    head.read(states[5:], ids[5:], 5)

    assert_plan_follows(head.first(int(ids[-1])), formula, output, 9)


# --- DFlash ---


@pytest.mark.parametrize("window", [None, 5])
def test_dflash_guesses_what_its_formula_gives(tmp_path: Path, window: int | None) -> None:
    changes: dict[str, Any] = {}
    if window is not None:
        changes = {
            "layer_types": ["full_attention", "sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": window,
        }
    name, weights = dflash_files(tmp_path / "head", **changes)
    hf = make_hf("llama")
    add_target_weights(tmp_path / "head" / "model.safetensors")
    head = load(name, hf)
    assert head.kind == "dflash"
    assert head.layers == (1, -1)
    assert head.depth == BLOCK - 1
    assert head.reads_all
    assert not head.by_path

    states, ids = random_sequence(30, 2 * H)
    for start, end in ((0, 7), (7, 9), (9, 10), (10, 16)):
        head.read(states[start:end], ids[start:end], start)
        if end > 7:
            root = int(ids[end - 1])
            expected = dflash_probabilities(weights, hf, states[:end].numpy(), root, window)
            assert_most_likely(head.first(root), expected)


def add_target_weights(path: Path) -> None:
    """Add wrong weights of the target to a head's file; a head must use the target's own."""
    stored = load_file(path)
    stored["lm_head.weight"] = torch.ones(VOCABULARY, H)
    stored["embed_tokens.weight"] = torch.ones(VOCABULARY, H)
    stored["verifier_norm.weight"] = stored["norm.weight"].clone()
    save_file(stored, path)


def test_dflash_in_training_predicts_what_it_drafts(tmp_path: Path) -> None:
    name, _ = dflash_files(tmp_path / "head")
    hf = make_hf("llama")
    head = load(name, hf)
    states, ids = random_sequence(20, 2 * H)
    anchors = torch.tensor([12, 6])  # the tokens there follow positions 11 and 5
    outputs = dflash_states(head.network, states[None], ids[anchors - 1], anchors)
    probabilities = hf.lm_head(outputs).softmax(-1).detach().double().numpy()

    for expected, anchor in zip(probabilities, anchors.tolist(), strict=True):
        head.reset()
        head.read(states[:anchor], ids[:anchor], 0)
        assert_most_likely(head.first(int(ids[anchor - 1])), expected)


# --- MTP ---


def mtp_layer_output(model: Any, states: Tensor, tokens: Sequence[int]) -> Tensor:
    """The first layer's output (length, H) for a whole sequence, without a cache."""
    length = len(tokens)
    positions = torch.arange(length)[None]
    mask = torch.full((length, length), -1e9).triu(1)[None, None]
    embedded = model.embed_tokens(torch.tensor(tokens))[None]
    rotation = model.rotary_emb(embedded, position_ids=positions)
    output: Tensor = model.layers[0](embedded, states[None], rotation, mask, positions, None)
    return output[0]


@torch.no_grad()
def mtp_probabilities(
    model: Any, states: Tensor, following: Sequence[int], path: Sequence[int]
) -> Any:
    """The probabilities after a sequence and a path of a plan, layer outputs as states.

    Args:
        model: The MTP layers.
        states: The target's hidden states.
        following: The token that follows each; the last is the root of the plan.
        path: The tokens behind the root.
    """
    length = len(states)
    tokens = [*following, *path]
    for depth in range(len(path) + 1):
        output = mtp_layer_output(model, states, tokens[: length + depth])
        states = torch.cat([states, output[-1:]])
    return model.shared_head(output[-1]).softmax(-1).double().numpy()


@pytest.mark.search
@pytest.mark.parametrize(("family", "layers"), [("deepseek", 3), ("glm", 1)])
def test_mtp_layers_guess_what_they_give_over_whole_sequences(
    tmp_path: Path, family: str, layers: int
) -> None:
    folder = mtp_folder(tmp_path / "model", family, layers)
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    if family == "glm":
        # ngt may have packed the output layer.
        packed = prepack_floats(hf.lm_head.weight.detach())
        if packed is not None:
            hf.lm_head = PackedLinear(packed, None)
    ignored_keys = hf._keys_to_ignore_on_load_unexpected
    head = load("mtp", hf)
    for loaded in (head, load(str(folder), hf)):
        assert loaded.kind == "mtp"
        assert loaded.layers == (-1,)
        assert loaded.by_path
    assert hf._keys_to_ignore_on_load_unexpected == ignored_keys
    assert head.depth == 4

    states, ids = random_sequence(12, H)
    tokens = ids.tolist()
    for start, end in ((0, 1), (1, 6), (6, 8), (8, 12)):
        head.read(states[start:end], ids[start:end], start)
        guesses = head.first(tokens[end - 1])
        expected = [
            mtp_probabilities(head.network._model, states[:end], tokens[:end], path)
            for path in paths(guesses)
        ]
        assert_most_likely(guesses, expected)


# --- refusals ---


FILES = {"eagle3": (eagle3_files, EAGLE3), "dflash": (dflash_files, DFLASH)}
NEW_KEYS = ("partial_rotary_factor", "selector_rank", "projector_type", "rope_theta")
ODD_VALUES = (None, -1, 0, 1, 3, 64, 98, 10**9, 0.5, "wide", [], [0, 1], [0, 1, 2], {})


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_a_head_with_any_config_is_loaded_or_refused_in_one_line(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    make_files, fields = FILES[kind]
    folder = tmp_path_factory.mktemp("head")
    name, _ = make_files(folder)
    keys = st.sampled_from([*fields, *NEW_KEYS])
    values = st.sampled_from(ODD_VALUES)
    changes = data.draw(st.dictionaries(keys, values, min_size=1, max_size=2))
    (folder / "config.json").write_text(json.dumps(fields | changes))

    try:
        load(name, make_hf("llama"))
    except ModelError as error:
        assert str(error).startswith(f"{name}: ")
        assert "\n" not in str(error)
        assert error.hint
        assert error.exit_code == 4


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}),  # of a model of two layers
        ("eagle3", {"vocab_size": 98}),
        ("eagle3", {"draft_vocab_size": 41}),
        ("eagle3", {"partial_rotary_factor": 0.5}),
        ("dflash", {"num_target_layers": 3}),
        ("dflash", {"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 1]}}),
        ("dflash", {"num_hidden_layers": 10**9}),
        ("dflash", {"selector_rank": 8}),
        ("dflash", {"block_size": 10**9}),
    ],
)
def test_a_head_for_another_model_or_formula_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    make_files, fields = FILES[kind]
    name, _ = make_files(tmp_path / "head")
    (tmp_path / "head" / "config.json").write_text(json.dumps(fields | changes))

    with pytest.raises(ModelError):
        load(name, make_hf("llama"))


def test_a_model_without_mtp_layers_is_refused() -> None:
    with pytest.raises(ModelError, match="a llama model has no MTP layers"):
        load("mtp", make_hf("llama"))


def test_eagle3_layers_are_numbered_as_each_form_says() -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    without_layers = {name: value for name, value in EAGLE3.items() if name != key}
    nested = {"eagle_config": {key: [1, 3, 5]}}  # this form names outputs of layers
    assert eagle.layers_read(without_layers, 32) == (2, 16, 29)
    assert eagle.layers_read(without_layers | nested, 8) == (2, 4, 6)


def test_dflash_layers_are_numbered_as_each_form_says() -> None:
    assert dflash.layers_read({"target_layer_ids": [0, 1]}, 2) == (1, -1)
    assert dflash.layers_read({"aux_hidden_state_layer_ids": [1, 2]}, 2) == (1, -1)
