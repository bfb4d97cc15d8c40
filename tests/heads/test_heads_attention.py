"""Heads that attend to rows read before, EAGLE-3, DFlash and MTP, against their formulas."""

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
from ngtcli.heads import dflash as dflash_config
from ngtcli.heads import eagle
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
def whole_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans with unlikely nodes, too."""
    monkeypatch.setattr("ngtcli.heads.head._UNLIKELY", 0.0)


# --- the formulas ---


def normed(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def rotated(x: Any, position: int) -> Any:
    """(heads, SIZE): pairs half a head apart, turned by the position over powers of THETA."""
    angles = position / THETA ** (np.arange(0, SIZE, 2) / SIZE)
    a, b = x[:, : SIZE // 2], x[:, SIZE // 2 :]
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return np.concatenate(turned, 1)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Layer:
    """The attention of one layer, a row at a time, and its perceptron."""

    def __init__(self, weights: dict[str, Any], prefix: str) -> None:
        self.w = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}

    def split(self, name: str, x: Any) -> Any:
        heads = (self.w[f"self_attn.{name}_proj.weight"] @ x).reshape(-1, SIZE)
        norm = self.w.get(f"self_attn.{name}_norm.weight")
        return heads if norm is None else normed(heads, norm)

    def pair(self, x: Any, position: int) -> tuple[Any, Any]:
        return rotated(self.split("k", x), position), self.split("v", x)

    def attend(self, x: Any, position: int, pairs: Sequence[tuple[Any, Any]]) -> Any:
        queries, out = rotated(self.split("q", x), position), []
        for head, query in enumerate(queries):
            own = head // (HEADS // PAIRS)
            weights = softmax(np.array([keys[own] @ query for keys, _ in pairs]) / np.sqrt(SIZE))
            out.append(sum(w * values[own] for w, (_, values) in zip(weights, pairs, strict=True)))
        return self.w["self_attn.o_proj.weight"] @ np.concatenate(out)

    def perceive(self, x: Any) -> Any:
        gate, up = (self.w[f"mlp.{n}_proj.weight"] @ x for n in ("gate", "up"))
        return self.w["mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)


class Eagle3:
    """Rows of an EAGLE-3 head: each has a position, keys and values, and what leaves the layer."""

    def __init__(
        self,
        weights: dict[str, Any],
        embedding: Any,
        residual: bool = False,
        window: int = CONTEXT,
        name: str = "midlayer.",
        plain: Any = None,
    ) -> None:
        self.w, self.layer = weights, Layer(weights, name)
        self.embedding, self.residual, self.window = embedding, residual, window
        self.plain = plain  # the target's last layer, for EAGLE and EAGLE-2
        self.pairs: list[tuple[Any, Any]] = []
        self.positions: list[int] = []

    def row(self, state: Any, token: int, position: int, seen: Sequence[int]) -> Any:
        """What leaves the layer at a further row, which sees those of `seen`, and itself."""
        w, norm = self.layer.w, normed(state, self.layer.w["hidden_norm.weight"])
        x = np.concatenate([normed(self.embedding[token], w["input_layernorm.weight"]), norm])
        self.pairs.append(self.layer.pair(x, position))
        self.positions.append(position)
        near = [
            i for i in [*seen, len(self.pairs) - 1] if position - self.positions[i] < self.window
        ]
        at = self.layer.attend(x, position, [self.pairs[i] for i in near])
        out = (norm if self.residual else state) + at
        return out + self.layer.perceive(normed(out, w["post_attention_layernorm.weight"]))

    def plain_row(self, state: Any, token: int, position: int, seen: Sequence[int]) -> Any:
        """The same for EAGLE and EAGLE-2."""
        joined = np.concatenate([self.embedding[token], state])
        x = self.w["fc.weight"] @ joined + self.w["fc.bias"]
        self.pairs.append(self.layer.pair(x, position))
        out = x + self.layer.attend(x, position, [self.pairs[i] for i in [*seen, -1]])
        normal = normed(out, self.layer.w["post_attention_layernorm.weight"])
        return out + self.layer.perceive(normal)

    def fused(self, states: Any) -> Any:
        norm = self.w.get("input_norm.weight")
        return self.w["fc.weight"] @ (states if norm is None else normed(states, norm))

    def probabilities(self, out: Any) -> Any:
        """Of all tokens of the target."""
        if self.plain is not None:
            return softmax(self.plain @ out)
        found = np.zeros(VOCABULARY)
        ids = self.w["d2t"].astype(int) + np.arange(DRAFT)
        found[ids] = softmax(self.w["lm_head.weight"] @ normed(out, self.w["norm.weight"]))
        return found


def dflash(w: dict[str, Any], hf: Any, states: Any, root: int, window: int | None) -> Any:
    """Probabilities (BLOCK - 1, VOCABULARY) after a text; the second layer has the window."""
    table = hf.get_input_embeddings().weight.detach().numpy()
    text = [normed(w["fc.weight"] @ row, w["hidden_norm.weight"]) for row in states]
    rows = [table[token] for token in [root] + (BLOCK - 1) * [MASK]]
    for n in range(2):
        layer = Layer(w, f"layers.{n}.")
        before = [normed(row, layer.w["input_layernorm.weight"]) for row in rows]
        pairs = [layer.pair(row, at) for at, row in enumerate([*text, *before])]
        for i, at in enumerate(range(len(text), len(text) + BLOCK)):
            first = max(0, at - window + 1) if window and n else 0
            end = at + 1 if window and n else len(pairs)  # a layer with a window is causal
            rows[i] = rows[i] + layer.attend(before[i], at, pairs[first:end])
            after = normed(rows[i], layer.w["post_attention_layernorm.weight"])
            rows[i] = rows[i] + layer.perceive(after)
    out = np.stack([normed(row, w["norm.weight"]) for row in rows[1:]])
    return softmax(out @ hf.get_output_embeddings().weight.detach().numpy().T)


# --- what they are compared with ---


def check(guess: Guessed, wanted: Sequence[Any]) -> None:
    """The guesses are the likeliest tokens of the distributions (m, VOCABULARY)."""
    assert guess.tokens.shape == guess.probabilities.shape == (len(wanted), WIDTH)
    for tokens, found, true in zip(guess.tokens, guess.probabilities, wanted, strict=True):
        np.testing.assert_allclose(found, true[tokens], atol=2e-5)
        np.testing.assert_allclose(found, np.sort(true)[::-1][:WIDTH], atol=2e-5)


def text(rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Random states (rows, width) and the tokens that follow."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(4, VOCABULARY, (rows,), generator=generator)
    return torch.randn(rows, width, generator=generator), ids


# --- EAGLE-3 ---


@pytest.mark.parametrize("form", ["own", "speculators"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"max_position_embeddings": 6}],
    ids=["plain", "residual", "fc", "window"],
)
def test_eagle3_guesses_what_its_formulas_give(
    tmp_path: Path, form: str, changes: dict[str, Any]
) -> None:
    name, weights = eagle3_files(tmp_path / "head", form, **changes)
    hf = make_hf("llama")
    head = load_head(name, hf, CPU, torch.float32)
    assert (head.kind, head.layers, head.reads_all, head.by_path) == (
        "eagle3",
        (0, 1, 1),
        True,
        True,
    )
    states, ids = text(30, 3 * H)
    table = hf.get_input_embeddings().weight.detach().double().numpy()
    window = changes.get("max_position_embeddings", CONTEXT)
    truth = Eagle3(weights, table, changes.get("norm_before_residual", False), window)
    outs = [
        truth.row(truth.fused(states[i].double().numpy()), int(ids[i]), i, range(i))
        for i in range(30)
    ]
    for start, end in ((0, 9), (9, 11), (11, 12), (12, 19)):  # a prompt in pieces, accepted rows
        head.read(states[start:end], ids[start:end], start)
        if end > 9:
            check_plan(head.first(int(ids[end - 1])), truth, outs[end - 1], end)


def check_plan(guess: Guessed, truth: Eagle3, out: Any, end: int, start: int = 0) -> None:
    """All nodes of a plan after `end` rows from `start` on, of which the last gave `out`."""
    after, rows, pairs = [out], [list[int]()], len(truth.pairs)  # those that each state sees
    row = truth.row if truth.plain is None else truth.plain_row
    assert guess.led is not None
    assert guess.led.shape[1] == 8 * (eagle.DEPTH - 1)
    for parent, token in zip(*guess.led.tolist(), strict=True):
        seen, position = rows[parent], start + end + len(rows[parent])
        after.append(row(after[parent], token, position, [*range(end), *seen]))
        rows.append([*seen, len(truth.pairs) - 1])
    check(guess, [truth.probabilities(out) for out in after])
    del truth.pairs[pairs:], truth.positions[pairs:]


def test_eagle3_reads_a_text_whose_beginning_is_missing_and_then_another(tmp_path: Path) -> None:
    name, weights = eagle3_files(tmp_path / "head")
    hf = make_hf("llama")
    head = load_head(name, hf, CPU, torch.float32)
    assert head.first(4).tokens.shape == (1, 0)  # nothing is read
    states, ids = text(8, 3 * H)
    head.read(states[:5], ids[:5], 0)
    head.first(4)
    head.read(states[5:], ids[5:], 100)  # what it knew does not reach there
    table = hf.get_input_embeddings().weight.detach().double().numpy()
    for start in (100, 0):
        truth = Eagle3(weights, table)
        for n, i in enumerate(range(5, 8)):
            fused = truth.fused(states[i].double().numpy())
            out = truth.row(fused, int(ids[i]), start + n, range(n))
        check_plan(head.first(int(ids[-1])), truth, out, 3, start)
        head.reset()
        head.read(states[5:], ids[5:], 0)


def test_eagle3_in_training_sees_what_a_draft_sees(tmp_path: Path) -> None:
    name, _ = eagle3_files(tmp_path / "head")
    hf = make_hf("llama")
    head: Any = load_head(name, hf, CPU, torch.float32)
    states, ids = text(10, 3 * H)
    head.read(states, ids, 0)
    guess = head.first(int(ids[-1]))
    way = [[*path] for path in paths(guess)]
    node = next(n for n, path in enumerate(way) if len(path) == 2)
    embedded = hf.get_input_embeddings()(torch.tensor([*ids.tolist(), *way[node]]))
    made = [*eagle3_states(head.network, states[None], embedded[None])]
    assert [one.shape for one in made] == 3 * [(1, 10, H)]
    for depth, at in enumerate((0, way.index(way[node][:1]), node)):
        scores = head.network.logits(made[depth][0, 9]).softmax(-1).topk(WIDTH)
        np.testing.assert_allclose(guess.probabilities[at], scores.values.detach(), atol=1e-5)
        assert guess.tokens[at].tolist() == (2 * scores.indices + 3).tolist()


def test_eagle_guesses_what_its_formulas_give(tmp_path: Path) -> None:
    fields = FIELDS | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    hf = make_hf("llama")
    target = Target(hf, CPU, torch.float32)
    state = tensors(Eagle(target, layer_config(fields), embeds=True, bias=True))
    save_head(tmp_path, state, fields)
    head = load_head(str(tmp_path), hf, CPU, torch.float32)
    assert (head.kind, head.layers, head.by_path) == ("eagle", (-1,), True)
    states, ids = text(9, H)
    weights = {name: w.double().numpy() for name, w in state.items()}
    scores = hf.get_output_embeddings().weight.detach().double().numpy()
    truth = Eagle3(weights, weights["embed_tokens.weight"], name="layers.0.", plain=scores)
    rows = states.double().numpy()
    outs = [truth.plain_row(rows[i], int(ids[i]), i, range(i)) for i in range(9)]
    head.read(states[:5], ids[:5], 0)
    head.read(states[5:], ids[5:], 5)
    check_plan(head.first(int(ids[-1])), truth, outs[8], 9)


# --- DFlash ---


@pytest.mark.parametrize("window", [None, 5])
def test_dflash_guesses_what_its_formulas_give(tmp_path: Path, window: int | None) -> None:
    slides = {
        "layer_types": ["full_attention", "sliding_attention"],
        "use_sliding_window": True,
        "sliding_window": window,
    }
    name, weights = dflash_files(tmp_path / "head", **(slides if window else {}))
    hf = make_hf("llama")
    head = load_head(name, hf, CPU, torch.float32)
    assert (head.kind, head.layers, head.reads_all, head.by_path) == (
        "dflash",
        (1, -1),
        True,
        False,
    )
    assert head.depth == BLOCK - 1
    stored = load_file(tmp_path / "head" / "model.safetensors")
    whole = stored | {
        "lm_head.weight": torch.ones(VOCABULARY, H),
        "verifier_norm.weight": stored["norm.weight"].clone(),
    }
    save_file(
        whole | {"embed_tokens.weight": torch.ones(VOCABULARY, H)},
        tmp_path / "head" / "model.safetensors",
    )
    head = load_head(name, hf, CPU, torch.float32)  # what is the target's is not used
    states, ids = text(30, 2 * H)
    for start, end in ((0, 7), (7, 9), (9, 10), (10, 16)):
        head.read(states[start:end], ids[start:end], start)
        if end != 7:
            root = int(ids[end - 1])
            check(head.first(root), dflash(weights, hf, states[:end].numpy(), root, window))


def test_dflash_in_training_guesses_what_it_drafts(tmp_path: Path) -> None:
    name, _ = dflash_files(tmp_path / "head")
    hf = make_hf("llama")
    head: Any = load_head(name, hf, CPU, torch.float32)
    states, ids = text(20, 2 * H)
    anchors = torch.tensor([12, 6])  # the tokens there follow rows 11 and 5
    made = hf.lm_head(dflash_states(head.network, states[None], ids[anchors - 1], anchors))
    for made_of, anchor in zip(made, anchors.tolist(), strict=True):
        head.reset()
        head.read(states[:anchor], ids[:anchor], 0)
        check(head.first(int(ids[anchor - 1])), made_of.softmax(-1).detach().double().numpy())


# --- MTP ---


def mtp_layer(model: Any, states: Tensor, tokens: Sequence[int]) -> Tensor:
    """What leaves the first layer, (rows, H), for a whole text and no cache."""
    rows = len(tokens)
    places = torch.arange(rows)[None]
    mask = torch.full((rows, rows), -1e9).triu(1)[None, None]
    embedded = model.embed_tokens(torch.tensor(tokens))[None]
    rotation = model.rotary_emb(embedded, position_ids=places)
    found: Tensor = model.layers[0](embedded, states[None], rotation, mask, places, None)
    return found[0]


@torch.no_grad()
def mtp_truth(model: Any, states: Tensor, ids: Sequence[int], path: Sequence[int]) -> Any:
    """Probabilities after a text of `ids`, whose last is the root, and a path below it."""
    rows, tokens = len(states), [*ids[1:], *path]
    for more in range(len(path) + 1):
        out = mtp_layer(model, states, tokens[: rows + more])
        states = torch.cat([states, out[-1:]])
    return model.shared_head(out[-1]).softmax(-1).double().numpy()


@pytest.mark.search
@pytest.mark.parametrize(("family", "layers"), [("deepseek", 3), ("glm", 1)])
def test_mtp_layers_guess_what_they_give_over_whole_texts(
    tmp_path: Path, family: str, layers: int
) -> None:
    folder = mtp_folder(tmp_path / "model", family, layers)
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    if family == "glm":
        blocks = prepack_floats(hf.lm_head.weight.detach())  # as ngt may have it
        hf.lm_head = hf.lm_head if blocks is None else PackedLinear(blocks, None)
    patterns = hf._keys_to_ignore_on_load_unexpected
    head: Any = load_head("mtp", hf, CPU, torch.float32)
    same: Any = load_head(str(folder), hf, CPU, torch.float32)
    assert hf._keys_to_ignore_on_load_unexpected == patterns
    assert (
        (head.kind, head.layers, head.by_path) == (same.kind, (-1,), True) == ("mtp", (-1,), True)
    )
    assert head.depth == 4
    states, ids = text(12, H)
    model, tokens = head.network._model, ids.tolist()
    for start, end in ((0, 1), (1, 6), (6, 8), (8, 12)):
        head.read(states[start:end], ids[start:end], start)
        guess = head.first(tokens[end - 1])
        before = (states[:end], [0, *tokens[:end]])
        check(guess, [mtp_truth(model, *before, path) for path in paths(guess)])


# --- what is refused ---


ODD = st.sampled_from([None, -1, 0, 1, 3, 64, 98, 10**9, 0.5, "wide", [], [0, 1], [0, 1, 2], {}])


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_a_head_with_any_config_is_loaded_or_refused_in_one_line(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("head")
    make, fields = (eagle3_files, EAGLE3) if kind == "eagle3" else (dflash_files, DFLASH)
    name, _ = make(folder)
    new = ["partial_rotary_factor", "selector_rank", "projector_type", "rope_theta"]
    changes = data.draw(
        st.dictionaries(st.sampled_from([*fields, *new]), ODD, min_size=1, max_size=2)
    )
    (folder / "config.json").write_text(json.dumps(fields | changes))
    try:
        load_head(name, make_hf("llama"), CPU, torch.float32)
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
def test_a_head_of_another_model_or_formula_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    make, fields = (eagle3_files, EAGLE3) if kind == "eagle3" else (dflash_files, DFLASH)
    name, _ = make(tmp_path / "head")
    (tmp_path / "head" / "config.json").write_text(json.dumps(fields | changes))
    with pytest.raises(ModelError):
        load_head(name, make_hf("llama"), CPU, torch.float32)


def test_a_model_without_mtp_layers_is_told_so() -> None:
    with pytest.raises(ModelError, match="a llama model has no MTP layers"):
        load_head("mtp", make_hf("llama"), CPU, torch.float32)


def test_layers_are_numbered_as_each_form_says() -> None:
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
    plain = {n: v for n, v in EAGLE3.items() if n != "eagle_aux_hidden_state_layer_ids"}
    assert eagle.layers_read(plain, 32) == (2, 16, 29)
    assert eagle.layers_read(plain | nested, 8) == (2, 4, 6)  # there they are outputs
    assert dflash_config.layers_read({"target_layer_ids": [0, 1]}, 2) == (1, -1)
    assert dflash_config.layers_read({"aux_hidden_state_layer_ids": [1, 2]}, 2) == (1, -1)
