"""Learned heads: the formulas of Medusa and Hydra, the files that are read, and refusals."""

import io
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from ngtcli.drafting.guesses import WIDTH, Guessed
from ngtcli.errors import ModelError, UsageError
from ngtcli.heads.files import Target
from ngtcli.heads.head import Head
from ngtcli.heads.kinds import load_head
from ngtcli.heads.perceptrons import Hydra, prefix_layer
from tests.support import warm
from tests.support.head_files import paths, save_head
from tests.support.helpers import VOCABULARY, examples
from tests.support.hub_server import Hub, files_of
from tests.support.tiny_models import make_hf

HIDDEN_SIZE = 32  # of the tiny models
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def keep_unlikely_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans have unlikely nodes, too."""
    monkeypatch.setattr("ngtcli.heads.head._UNLIKELY", 0.0)


def medusa_tensors(depth: int = 3, blocks: int = 1, own_scores: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(7)
    tensors = {}
    for head in range(depth):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = torch.randn(HIDDEN_SIZE, HIDDEN_SIZE)
            tensors[f"{head}.{block}.linear.bias"] = torch.randn(HIDDEN_SIZE)
        if own_scores:
            tensors[f"{head}.{blocks}.weight"] = torch.randn(VOCABULARY, HIDDEN_SIZE)
    return tensors


def hydra_tensors(depth: int = 3, blocks: int = 2) -> dict[str, Tensor]:
    torch.manual_seed(8)
    tensors = {}
    for head in range(depth):
        for block in range(blocks):
            is_first = block == 0  # the first block reads the state and the tokens before
            inputs = (head + 2 if is_first else 1) * HIDDEN_SIZE
            for layer in ("linear", "res_connection") if is_first else ("linear",):
                name = f"hydra_mlp.{head}.{block}.{layer}"
                tensors[f"{name}.weight"] = torch.randn(HIDDEN_SIZE, inputs) / 5
                tensors[f"{name}.bias"] = torch.randn(HIDDEN_SIZE)
        tensors[f"hydra_lm_head.{head}.weight"] = torch.randn(VOCABULARY, HIDDEN_SIZE)
        tensors[f"hydra_lm_head.{head}.bias"] = torch.randn(VOCABULARY)
    return tensors


def prefix_tensors(hf: Any) -> dict[str, Tensor]:
    """A Hydra head with a prefix layer, by the names of the published code.

    That code spells "embeding", and counts dropout layers among the layers.
    """
    torch.manual_seed(9)
    tensors = {}
    for name, weight in prefix_layer(hf.config).state_dict().items():
        tensors[f"prefix_embeding_layer.{name}"] = torch.randn_like(weight)
    for name, tensor in hydra_tensors(blocks=1).items():
        if "lm_head" in name:
            name = name.replace(".weight", ".1.weight").replace(".bias", ".1.bias")
        else:
            name = name.replace(".0.linear", ".1.linear").replace(".0.res_", ".1.res_")
        tensors[name] = tensor
    embedding = hf.get_input_embeddings().weight
    tensors["input_embed_fn.weight"] = embedding
    tensors["prefix_embeding_layer.embed_tokens.weight"] = embedding
    return tensors


def write_head(
    folder: Path, tensors: Mapping[str, Tensor], name: str = "model.safetensors", **config: Any
) -> str:
    """Write a head's weights and config.json into a folder; return the folder's path."""
    folder.mkdir(exist_ok=True)
    copies = {key: tensor.detach().clone() for key, tensor in tensors.items()}
    if name.endswith("safetensors"):
        save_file(copies, folder / name)
    else:
        torch.save(copies, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def load(name: str, hf: Any) -> Head:
    return load_head(name, hf, CPU, torch.float32)


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def assert_most_likely(guesses: Guessed, logits: np.ndarray) -> None:
    """Compare guesses with the most likely tokens by the softmax of logits (nodes, vocabulary)."""
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    expected_tokens = np.argsort(-probabilities, axis=1)[:, :WIDTH]
    expected = np.take_along_axis(probabilities, expected_tokens, 1)

    assert guesses.tokens.shape == (len(logits), WIDTH)
    assert (guesses.tokens == expected_tokens).all()
    np.testing.assert_allclose(guesses.probabilities, expected, rtol=1e-4, atol=1e-9)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def read_states(head: Head, states: Tensor) -> None:
    """Let a head read a sequence's first hidden states; each is followed by token 5."""
    head.read(states, torch.full((len(states),), 5), 0)


# --- formulas ---


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("own_scores", [True, False])
def test_medusa_is_its_formula(tmp_path: Path, blocks: int, own_scores: bool) -> None:
    hf = make_hf("llama")
    tensors = medusa_tensors(3, blocks, own_scores)
    # config.json names fewer heads than the file has: the file counts.
    head = load(write_head(tmp_path, tensors, medusa_num_heads=2), hf)
    states = torch.randn(4, HIDDEN_SIZE)
    read_states(head, states)

    weights = as_arrays(tensors)
    output_weight = hf.lm_head.weight.detach().double().numpy()
    logits = []
    for number in range(3):
        x = states[-1].double().numpy()
        for block in range(blocks):
            layer = f"{number}.{block}.linear"
            x = x + silu(weights[f"{layer}.weight"] @ x + weights[f"{layer}.bias"])
        if own_scores:
            output_weight = weights[f"{number}.{blocks}.weight"]
        logits.append(output_weight @ x)

    assert head.kind == "medusa"
    assert head.depth == 3
    assert not head.by_path
    assert not head.reads_all
    assert_most_likely(head.first(5), np.stack(logits))


def hydra_logits(
    weights: Mapping[str, np.ndarray], inputs: list[np.ndarray], blocks: int
) -> np.ndarray:
    """The logits by the formulas, after a hidden state and the embeddings of some tokens."""
    head = len(inputs) - 2
    x = np.concatenate(inputs)
    for block in range(blocks):
        name = f"hydra_mlp.{head}.{block}"
        residual = x
        if block == 0:
            layer = f"{name}.res_connection"
            residual = weights[f"{layer}.weight"] @ x + weights[f"{layer}.bias"]
        layer = f"{name}.linear"
        x = residual + silu(weights[f"{layer}.weight"] @ x + weights[f"{layer}.bias"])
    layer = f"hydra_lm_head.{head}"
    return weights[f"{layer}.weight"] @ x + weights[f"{layer}.bias"]


@pytest.mark.parametrize("blocks", [1, 2])
def test_hydra_is_its_formula_at_nodes_of_all_depths(tmp_path: Path, blocks: int) -> None:
    hf = make_hf("llama")
    tensors = hydra_tensors(3, blocks)
    head = load(write_head(tmp_path, tensors, hydra_head_arch="mlp"), hf)
    states = torch.randn(4, HIDDEN_SIZE)
    read_states(head, states)
    guesses = head.first(5)

    weights = as_arrays(tensors)
    embeddings = hf.get_input_embeddings().weight.detach().double().numpy()
    state = states[-1].double().numpy()
    logits = []
    for path in paths(guesses):
        inputs = [state, *embeddings[[5, *path]]]
        logits.append(hydra_logits(weights, inputs, blocks))

    assert head.kind == "hydra"
    assert head.depth == 3
    assert head.by_path
    assert not head.reads_all
    assert len(logits) == 17
    assert_most_likely(guesses, np.stack(logits))


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "mistral-sliding", "gemma2-sliding", "gemma3-sliding"]
)
def test_a_prefix_layer_that_reads_in_pieces_is_the_layer_of_transformers(
    family: str, tmp_path: Path
) -> None:
    hf = make_hf(family)
    name = write_head(
        tmp_path, prefix_tensors(hf), "hydra_lm_head.pt", hydra_head_arch="prefix-mlp"
    )
    head: Any = load(name, hf)
    assert head.reads_all

    states = torch.randn(1, 7, HIDDEN_SIZE)
    tokens = torch.randint(VOCABULARY, (7,))
    read_states(head, states[0, :3])
    head.read(states[0, 3:6], tokens[4:7], 3)
    last_token = int(tokens[6])
    guesses = head.first(last_token)

    network = head.network
    logits = []
    with torch.inference_mode():
        outputs = network.prefix_embedding_layer(inputs_embeds=states).last_hidden_state
        for path in paths(guesses):
            embedded = network.target.embed(torch.tensor([last_token, *path]))
            inputs = torch.cat([outputs[0, 5], *embedded])
            logits.append(network.logits(inputs[None], len(path))[0])
    assert_most_likely(guesses, torch.stack(logits).double().numpy())


def test_a_head_guesses_nothing_after_a_reset(tmp_path: Path) -> None:
    for tensors in (medusa_tensors(), hydra_tensors()):
        head = load(write_head(tmp_path, tensors), make_hf("llama"))
        read_states(head, torch.randn(2, HIDDEN_SIZE))
        assert head.first(1).tokens.shape[1] == WIDTH

        head.reset()
        assert head.first(1).tokens.shape[1] == 0


# --- files ---


@pytest.mark.parametrize(
    "name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "pytorch_model.bin"]
)
def test_all_forms_of_files_are_the_same_head(tmp_path: Path, name: str) -> None:
    hf = make_hf("llama")
    tensors = medusa_tensors()
    whole_model = {f"medusa_head.{key}": tensor for key, tensor in tensors.items()}
    whole_model["model.norm.weight"] = torch.ones(HIDDEN_SIZE)
    folders = [
        write_head(tmp_path / "a", tensors, name),
        write_head(tmp_path / "b", tensors, "model.safetensors"),
        write_head(tmp_path / "c", whole_model),
    ]

    first_tokens = []
    for folder in folders:
        head = load(folder, hf)
        read_states(head, torch.ones(1, HIDDEN_SIZE))
        first_tokens.append(head.first(1).tokens[:, 0].tolist())

    assert first_tokens[0] == first_tokens[1]
    assert first_tokens[0] == first_tokens[2]


def test_a_file_with_a_published_name_comes_before_a_whole_model(tmp_path: Path) -> None:
    write_head(tmp_path, {"model.norm.weight": torch.ones(HIDDEN_SIZE)})
    # The file is a pickle of the old form, too, which is not an archive.
    torch.save(
        medusa_tensors(4), tmp_path / "medusa_lm_head.pt", _use_new_zipfile_serialization=False
    )
    assert load(str(tmp_path), make_hf("llama")).depth == 4


def test_a_saved_head_loads_with_the_same_weights(tmp_path: Path) -> None:
    hf = make_hf("llama")
    network = Hydra(Target(hf, CPU, torch.float32), 2, own_scores=False)
    save_head(tmp_path, network.state_dict(), {"hydra_head_arch": "mlp", "hydra_num_heads": 2})

    head = load(str(tmp_path), hf)

    assert isinstance(head.network, Hydra)
    for name, tensor in head.network.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name])


@pytest.mark.parametrize(("offset", "layer"), [(0, -1), (1, 1), (2, 0)])
def test_hidden_state_offset_counts_layers_from_the_end(
    tmp_path: Path, offset: int, layer: int
) -> None:
    folder = write_head(tmp_path, hydra_tensors(), hidden_state_offset=offset)
    assert load(folder, make_hf("llama")).layers == (layer,)


# Opens a head of a hub twice. The second time nothing may be asked of the hub.
_OPEN_TWICE = """
import importlib
from huggingface_hub import constants, hf_api
importlib.reload(constants)  # it was imported before the fork
hf_api.api.endpoint = constants.ENDPOINT
from ngtcli.heads.files import hub, open_head
from ngtcli.system.reporting import Reporter, reporting_to
class Printer(Reporter):
    def status(self, text, /):
        print(text)
for _ in range(2):
    with reporting_to(Printer()):
        head = open_head("maker/Heads-5")
    print(*head.tensors, head.config, bool(head.read("0.0.linear.weight").sum() == 600_000))
    hub.ask = hub.download = None
"""


def test_only_a_heads_own_files_are_downloaded_from_a_hub_and_only_once(tmp_path: Path) -> None:
    # The tensor is large enough for the hub's other store.
    tensors = {"0.0.linear.weight": torch.ones(600, 1000)}
    write_head(tmp_path, tensors, "medusa_lm_head.pt", medusa_num_heads=2)
    files = {
        **files_of(tmp_path),
        "pytorch_model.bin": b"x" * 2000,
        "optimizer.pt": b"x",
    }
    with Hub({"maker/Heads-5": {"main": files}}) as hub:
        process = warm.run(code=_OPEN_TWICE, **hub.environ(tmp_path / "hf"))
        downloaded = sorted(hub.take_downloads())

    lines = process.stdout.decode().splitlines()
    opened = "0.0.linear.weight {'medusa_num_heads': 2} True"
    assert downloaded == ["config.json", "medusa_lm_head.pt"]
    assert lines[0].startswith("Downloading")
    assert lines[-2:] == [opened, opened]


# --- refusals ---


def assert_refuses_in_one_line(error: ModelError, name: str) -> None:
    """Check the error about a head: one line that begins with the head's name, and a hint."""
    assert str(error).startswith(f"{name}: ")
    assert "\n" not in str(error)
    assert error.hint
    assert error.exit_code == 4


# A wrong tensor in place of the right one; None: no tensor.
WRONG_TENSORS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda tensor: None,
    "another width": lambda tensor: torch.ones([*tensor.shape[:-1], tensor.shape[-1] + 1]),
    "a scalar": lambda tensor: torch.ones(()),
    "integers": lambda tensor: torch.ones(tensor.shape, dtype=torch.int8),
    "not finite": lambda tensor: torch.full(tensor.shape, torch.nan),
}


@pytest.mark.parametrize("fault", WRONG_TENSORS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_head_with_any_tensor_wrong_is_refused_in_one_line(
    fault: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tensors = dict(data.draw(st.sampled_from([medusa_tensors(), hydra_tensors()])))
    key = data.draw(st.sampled_from(sorted(tensors)))
    wrong_tensor = WRONG_TENSORS[fault](tensors.pop(key))
    if wrong_tensor is not None:
        tensors[key] = wrong_tensor
    folder = write_head(tmp_path_factory.mktemp("head"), tensors)

    with pytest.raises(ModelError) as caught:
        load(folder, make_hf("llama"))

    assert_refuses_in_one_line(caught.value, folder)


CONFIG_KEYS = (
    "medusa_num_heads",
    "medusa_num_layers",
    "hydra_num_heads",
    "hydra_head_arch",
    "grounded_heads",
    "hidden_state_offset",
    "text_config",
    "rope_theta",
    "model_type",
)
ODD_VALUES = (None, -1, 0, 9, 10**9, 0.5, "x", [], [1], {}, True, [[0]])


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.sampled_from(CONFIG_KEYS), st.sampled_from(ODD_VALUES), max_size=3))
def test_a_head_with_any_config_is_loaded_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    folder = write_head(tmp_path_factory.mktemp("head"), hydra_tensors(), **config)
    try:
        load(folder, make_hf("llama"))
    except ModelError as error:
        assert_refuses_in_one_line(error, folder)


UNEXPECTED_TENSORS = {
    "no kind of head": {"model.norm.weight": torch.ones(HIDDEN_SIZE)},
    "another hidden size": {
        "0.0.linear.weight": torch.ones(16, 16),
        "0.0.linear.bias": torch.ones(16),
    },
    "a head behind a gap": {
        **medusa_tensors(),
        "900.0.linear.bias": torch.ones(HIDDEN_SIZE),
    },
    "a layer behind the output layer": {
        **medusa_tensors(),
        "1.2.weight": torch.ones(VOCABULARY, HIDDEN_SIZE),
    },
    "a part of a prefix layer": {
        **hydra_tensors(),
        "prefix_embedding_layer.norm.weight": torch.ones(HIDDEN_SIZE),
    },
}


@pytest.mark.parametrize("tensors", UNEXPECTED_TENSORS.values(), ids=UNEXPECTED_TENSORS)
def test_a_head_with_unexpected_tensors_is_refused_in_one_line(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    folder = write_head(tmp_path, tensors)

    with pytest.raises(ModelError) as caught:
        load(folder, make_hf("llama"))

    assert_refuses_in_one_line(caught.value, folder)


INDEX = "model.safetensors.index.json"


class CodeInPickle:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self) -> Any:
        return (print, ("this ran",))


def hostile_files() -> dict[str, tuple[str, bytes]]:
    """Files whose contents are not what their names promise: name and bytes by case."""
    buffer = io.BytesIO()
    torch.save(medusa_tensors(), buffer)
    archive = buffer.getvalue()
    return {
        "a pickle with code": ("medusa_lm_head.pt", pickle.dumps(CodeInPickle())),
        "a cut archive": ("medusa_lm_head.pt", archive[: len(archive) // 2]),
        "an empty file": ("medusa_lm_head.pt", b""),
        "a list": ("pytorch_model.bin", pickle.dumps([1, 2])),
        "a long header": ("model.safetensors", (1 << 60).to_bytes(8, "little") + b"{}"),
        "no header": ("model.safetensors", b"\x08"),
        "no tensors": ("model.safetensors", (2).to_bytes(8, "little") + b"{}"),
        "an index of a missing file": (INDEX, b'{"weight_map": {"a": "../b.safetensors"}}'),
        "an index that is no JSON": (INDEX, b"[" * 100_000),
    }


@pytest.mark.parametrize("case", hostile_files())
def test_hostile_files_are_refused_in_one_line(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, contents = hostile_files()[case]
    (tmp_path / name).write_bytes(contents)
    (tmp_path / "config.json").write_text("[" * 100_000)

    with pytest.raises(ModelError) as caught:
        load(str(tmp_path), make_hf("llama"))

    assert_refuses_in_one_line(caught.value, str(tmp_path))
    assert not capsys.readouterr().out  # no code of a pickle ran


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        load("", make_hf("llama"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "no such folder"), (".", "no weights of a head")],
)
def test_a_folder_without_a_head_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(str(tmp_path / name), make_hf("llama"))
    assert caught.value.hint.startswith("Give a folder or Hugging Face id with a head")
