"""Learned heads: what each kind computes, which files are read, and what is refused."""

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

H = 32  # hidden size of the tiny models
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def whole_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans with unlikely nodes, too."""
    monkeypatch.setattr("ngtcli.heads.head._UNLIKELY", 0.0)


def medusa_tensors(depth: int = 3, blocks: int = 1, own: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(7)
    found = {}
    for h in range(depth):
        for k in range(blocks):
            found[f"{h}.{k}.linear.weight"] = torch.randn(H, H)
            found[f"{h}.{k}.linear.bias"] = torch.randn(H)
        if own:
            found[f"{h}.{blocks}.weight"] = torch.randn(VOCABULARY, H)
    return found


def hydra_tensors(depth: int = 3, blocks: int = 2, own: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(8)
    found = {}
    for i in range(depth):
        for k in range(blocks):
            for layer in ("linear", "res_connection")[: 2 if k == 0 else 1]:
                name = f"hydra_mlp.{i}.{k}.{layer}"
                found[f"{name}.weight"] = torch.randn(H, (i + 2 if k == 0 else 1) * H) / 5
                found[f"{name}.bias"] = torch.randn(H)
        if own:
            found[f"hydra_lm_head.{i}.weight"] = torch.randn(VOCABULARY, H)
            found[f"hydra_lm_head.{i}.bias"] = torch.randn(VOCABULARY)
    return found


def prefix_tensors(hf: Any) -> dict[str, Tensor]:
    """By the names of the published code, which counts layers that drop values in training."""
    torch.manual_seed(9)
    layer = prefix_layer(hf.config).state_dict()
    found = {f"prefix_embeding_layer.{name}": torch.randn_like(w) for name, w in layer.items()}
    for name, one in hydra_tensors(blocks=1).items():
        name = name.replace(".0.linear", ".1.linear").replace(".0.res_", ".1.res_")
        name = name.replace(".weight", ".1.weight") if "lm_head" in name else name
        found[name.replace(".bias", ".1.bias") if "lm_head" in name else name] = one
    embedding = hf.get_input_embeddings().weight
    return found | {
        "input_embed_fn.weight": embedding,
        "prefix_embeding_layer.embed_tokens.weight": embedding,
    }


def written(
    folder: Path, tensors: Mapping[str, Tensor], name: str = "model.safetensors", **config: Any
) -> str:
    folder.mkdir(exist_ok=True)
    tensors = {key: one.detach().clone() for key, one in tensors.items()}
    save = save_file if name.endswith("safetensors") else torch.save
    save(tensors, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def load(name: str, hf: Any) -> Head:
    return load_head(name, hf, CPU, torch.float32)


def agrees(guesses: Guessed, scores: np.ndarray) -> None:
    """The guesses are the likeliest of the softmax of scores (m, vocabulary)."""
    assert guesses.tokens.shape == guesses.probabilities.shape == (len(scores), WIDTH)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    order = np.argsort(-weights, axis=1)[:, :WIDTH]
    assert (guesses.tokens == order).all()
    np.testing.assert_allclose(
        guesses.probabilities, np.take_along_axis(weights, order, 1), rtol=1e-4, atol=1e-9
    )


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def read(head: Head, states: Tensor, start: int = 0) -> None:
    head.read(states, torch.full((len(states),), 5), start)


# --- what is computed ---


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("own", [True, False])
def test_medusa_is_its_formula(tmp_path: Path, blocks: int, own: bool) -> None:
    hf, tensors = make_hf("llama"), medusa_tensors(3, blocks, own)
    head = load(written(tmp_path, tensors, medusa_num_heads=2), hf)  # the file has 3
    assert (head.kind, head.depth, head.by_path, head.reads_all) == ("medusa", 3, False, False)
    states = torch.randn(4, H)
    read(head, states)
    w = {name: one.double().numpy() for name, one in tensors.items()}
    rows = []
    for h in range(3):
        x = states[-1].double().numpy()
        for k in range(blocks):
            x = x + silu(w[f"{h}.{k}.linear.weight"] @ x + w[f"{h}.{k}.linear.bias"])
        last = w[f"{h}.{blocks}.weight"] if own else hf.lm_head.weight.detach().double().numpy()
        rows.append(last @ x)
    agrees(head.first(5), np.stack(rows))


def hydra_scores(w: Mapping[str, np.ndarray], parts: list[np.ndarray], blocks: int) -> np.ndarray:
    """The scores after a hidden state and the embeddings of some tokens, from the formulas."""
    i, x = len(parts) - 2, np.concatenate(parts)
    for k in range(blocks):
        at = f"hydra_mlp.{i}.{k}"
        y = silu(w[f"{at}.linear.weight"] @ x + w[f"{at}.linear.bias"])
        x = y + (
            w[f"{at}.res_connection.weight"] @ x + w[f"{at}.res_connection.bias"] if k == 0 else x
        )
    return w[f"hydra_lm_head.{i}.weight"] @ x + w[f"hydra_lm_head.{i}.bias"]


def hydra_agrees(
    head: Head, w: Mapping[str, np.ndarray], state: np.ndarray, hf: Any, blocks: int
) -> None:
    """What a head that has read gives at the root and below, at nodes of several depths."""
    table, guess = hf.get_input_embeddings().weight.detach().double().numpy(), head.first(5)
    parts = [[state, *table[[5, *path]]] for path in paths(guess)]
    assert len(parts) == 17
    agrees(guess, np.stack([hydra_scores(w, part, blocks) for part in parts]))


@pytest.mark.parametrize("blocks", [1, 2])
def test_hydra_is_its_formula(tmp_path: Path, blocks: int) -> None:
    hf, tensors = make_hf("llama"), hydra_tensors(3, blocks)
    head = load(written(tmp_path, tensors, hydra_head_arch="mlp"), hf)
    assert (head.kind, head.depth, head.by_path, head.reads_all) == ("hydra", 3, True, False)
    states = torch.randn(4, H)
    read(head, states)
    w = {name: one.double().numpy() for name, one in tensors.items()}
    hydra_agrees(head, w, states[-1].double().numpy(), hf, blocks)


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "mistral-sliding", "gemma2-sliding", "gemma3-sliding"]
)
def test_a_prefix_layer_read_in_pieces_is_that_of_the_whole_text(
    family: str, tmp_path: Path
) -> None:
    """Of each family, under published names, against the layer of transformers over all rows."""
    hf = make_hf(family)
    name = written(tmp_path, prefix_tensors(hf), "hydra_lm_head.pt", hydra_head_arch="prefix-mlp")
    head: Any = load(name, hf)
    network = head.network
    states, tokens = torch.randn(1, 7, H), torch.randint(VOCABULARY, (7,))
    assert head.reads_all
    read(head, states[0, :3])
    head.read(states[0, 3:6], tokens[4:7], 3)
    guess = head.first(int(tokens[6]))
    with torch.inference_mode():
        whole = network.prefix_embedding_layer(inputs_embeds=states).last_hidden_state[0, 5]
        found = []
        for path in paths(guess):
            embedded = network.target.embed(torch.tensor([int(tokens[6]), *path]))
            found.append(network.logits(torch.cat([whole, *embedded])[None], len(path))[0])
    agrees(guess, torch.stack(found).double().numpy())


def test_a_head_that_has_read_nothing_guesses_nothing(tmp_path: Path) -> None:
    for tensors in (medusa_tensors(), hydra_tensors()):
        head = load(written(tmp_path, tensors), make_hf("llama"))
        read(head, torch.randn(2, H))
        assert head.first(1).tokens.shape[1] == WIDTH
        head.reset()
        assert head.first(1).tokens.shape[1] == 0


# --- files ---


@pytest.mark.parametrize(
    "name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "pytorch_model.bin"]
)
def test_all_forms_of_files_are_one_head(tmp_path: Path, name: str) -> None:
    hf, tensors = make_hf("llama"), medusa_tensors()
    heads = [
        load(written(tmp_path / end, tensors, one), hf)
        for end, one in (("a", name), ("b", "model.safetensors"))
    ]
    other = {f"medusa_head.{key}": one for key, one in tensors.items()}
    heads.append(
        load(written(tmp_path / "whole", other | {"model.norm.weight": torch.ones(H)}), hf)
    )
    for head in heads:
        read(head, torch.ones(1, H))
    found = [head.first(1).tokens[:, 0].tolist() for head in heads]
    assert found[0] == found[1] == found[2]


def test_a_pickle_of_the_old_form_and_a_published_name_go_first(tmp_path: Path) -> None:
    written(tmp_path, {"model.norm.weight": torch.ones(H)})  # of a whole model beside the head
    torch.save(
        medusa_tensors(4), tmp_path / "medusa_lm_head.pt", _use_new_zipfile_serialization=False
    )
    assert load(str(tmp_path), make_hf("llama")).depth == 4


def test_a_saved_head_is_read_again(tmp_path: Path) -> None:
    hf = make_hf("llama")
    network = Hydra(Target(hf, CPU, torch.float32), 2, own_scores=False)
    save_head(tmp_path, network.state_dict(), {"hydra_head_arch": "mlp", "hydra_num_heads": 2})
    head = load(str(tmp_path), hf)
    assert isinstance(head.network, Hydra)
    for name, one in head.network.state_dict().items():
        assert torch.equal(one, network.state_dict()[name])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_the_layer_that_hidden_states_are_from_is_counted_from_the_end(tmp_path: Path) -> None:
    hf, tensors = make_hf("llama"), hydra_tensors()
    for offset, layer in ((0, -1), (1, 1), (2, 0)):
        head = load(written(tmp_path, tensors, hidden_state_offset=offset), hf)
        assert head.layers == (layer,)


_OPEN = """
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
    hub.ask = hub.download = None  # not even asked for again
"""


def test_only_the_heads_own_files_of_a_hub_are_downloaded_and_once(tmp_path: Path) -> None:
    big = {"0.0.linear.weight": torch.ones(600, 1000)}  # large enough for the hub's other store
    written(tmp_path, big, "medusa_lm_head.pt", medusa_num_heads=2)
    own = {**files_of(tmp_path), "pytorch_model.bin": b"x" * 2000, "optimizer.pt": b"x"}
    with Hub({"maker/Heads-5": {"main": own}}) as hub:
        said = warm.run(code=_OPEN, **hub.environ(tmp_path / "hf")).stdout.decode()
        assert sorted(hub.got()) == ["config.json", "medusa_lm_head.pt"]
    first, *others = said.splitlines()
    assert first.startswith("Downloading")
    assert others[-2:] == 2 * ["0.0.linear.weight {'medusa_num_heads': 2} True"]


# --- refusals ---


def one_line(error: ModelError, name: str) -> None:
    """What a head's error must be."""
    assert str(error).startswith(f"{name}: ")
    assert "\n" not in str(error)
    assert error.hint
    assert error.exit_code == 4


WRONG_TENSORS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda one: None,
    "of another width": lambda one: torch.ones([*one.shape[:-1], one.shape[-1] + 1]),
    "a number": lambda one: torch.ones(()),
    "integers": lambda one: torch.ones(one.shape, dtype=torch.int8),
    "not finite": lambda one: torch.full(one.shape, torch.nan),
}


@pytest.mark.parametrize("harm", WRONG_TENSORS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_head_with_any_tensor_wrong_is_refused_in_one_line(
    harm: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tensors = data.draw(st.sampled_from([medusa_tensors(), hydra_tensors()]))
    key = data.draw(st.sampled_from(sorted(tensors)))
    wrong = WRONG_TENSORS[harm](tensors[key])
    tensors = {k: one for k, one in tensors.items() if k != key}
    name = written(
        tmp_path_factory.mktemp("head"), tensors if wrong is None else {**tensors, key: wrong}
    )
    with pytest.raises(ModelError) as caught:
        load(name, make_hf("llama"))
    one_line(caught.value, name)


ODD = st.sampled_from([None, -1, 0, 9, 10**9, 0.5, "x", [], [1], {}, True, [[0]]])


@settings(max_examples=examples(100), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "medusa_num_heads",
                "medusa_num_layers",
                "hydra_num_heads",
                "hydra_head_arch",
                "grounded_heads",
                "hidden_state_offset",
                "text_config",
                "rope_theta",
                "model_type",
            ]
        ),
        ODD,
        max_size=3,
    )
)
def test_a_head_with_any_config_is_loaded_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    name = written(tmp_path_factory.mktemp("head"), hydra_tensors(), **config)
    try:
        load(name, make_hf("llama"))
    except ModelError as error:
        one_line(error, name)


@pytest.mark.parametrize(
    "tensors",
    [
        {"model.norm.weight": torch.ones(H)},  # no kind of head
        {"0.0.linear.weight": torch.ones(16, 16), "0.0.linear.bias": torch.ones(16)},  # narrow
        medusa_tensors() | {"900.0.linear.bias": torch.ones(H)},
        medusa_tensors() | {"1.2.weight": torch.ones(VOCABULARY, H)},
        hydra_tensors() | {"prefix_embedding_layer.norm.weight": torch.ones(H)},
    ],
)
def test_a_head_with_tensors_that_it_should_not_have_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    name = written(tmp_path, tensors)
    with pytest.raises(ModelError) as caught:
        load(name, make_hf("llama"))
    one_line(caught.value, name)


INDEX = "model.safetensors.index.json"


class Running:
    def __reduce__(self) -> Any:
        return (print, ("this ran",))


def hostile() -> dict[str, tuple[str, bytes]]:
    """Files that are not what their names say: by case, a file's name and its content."""
    buffer = io.BytesIO()
    torch.save(medusa_tensors(), buffer)
    whole = buffer.getvalue()
    return {
        "a pickle with code": ("medusa_lm_head.pt", pickle.dumps(Running())),
        "a cut archive": ("medusa_lm_head.pt", whole[: len(whole) // 2]),
        "an empty file": ("medusa_lm_head.pt", b""),
        "a list": ("pytorch_model.bin", pickle.dumps([1, 2])),
        "a long header": ("model.safetensors", (1 << 60).to_bytes(8, "little") + b"{}"),
        "no header": ("model.safetensors", b"\x08"),
        "no tensors": ("model.safetensors", (2).to_bytes(8, "little") + b"{}"),
        "an index of what is not there": (INDEX, b'{"weight_map": {"a": "../b.safetensors"}}'),
        "an index that is none": (INDEX, b"[" * 100_000),
    }


@pytest.mark.parametrize("case", hostile())
def test_hostile_files_are_refused(tmp_path: Path, case: str, capsys: Any) -> None:
    file, content = hostile()[case]
    (tmp_path / file).write_bytes(content)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError) as error:
        load(str(tmp_path), make_hf("llama"))
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert "\n" not in str(error.value)
    assert error.value.hint
    assert not capsys.readouterr().out


def test_a_name_that_is_none(tmp_path: Path) -> None:
    hf = make_hf("llama")
    with pytest.raises(UsageError, match="empty"):
        load("", hf)
    for name, says in (
        (f"{tmp_path}/none", "no such folder"),
        (str(tmp_path), "no weights of a head"),
    ):
        with pytest.raises(ModelError, match=says) as error:
            load(name, hf)
        assert error.value.hint.startswith("Give a folder or Hugging Face id with a head")
