"""Heads of every kind in decoding: the tokens are those of plain decoding."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decoding import kv_cache, memory_limits, prefixes
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.drafter import Draft, DraftSettings, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.heads.files import Target
from ngtcli.heads.head import Head
from ngtcli.heads.kinds import load_head
from ngtcli.heads.perceptrons import Hydra, Medusa, prefix_layer
from ngtcli.heads.reading import HeadRows
from ngtcli.models.tokenizer import Tokenizer
from tests.support.head_files import dflash_files, eagle3_files, mtp_folder, save_head
from tests.support.helpers import HARBOUR, FakeBackend, ngt
from tests.support.tiny_models import GREEDY, decode, make_drafter, make_target, plain, prompts

pytestmark = pytest.mark.search
SAMPLED = Settings.of(temperature=0.8, seed=5)
CPU = torch.device("cpu")
DEPTH = 3
PROMPT = [5, 9, 2, 7, 5, 9, 2, 8, 5, 9]


def knowing(kind: str, hf: Any, text: Sequence[int]) -> torch.nn.Module:
    """Heads that pass a row's state on, and whose last layers fit what follows in a text."""
    target = Target(hf, CPU, torch.float32)
    width, vocabulary = target.width, target.vocab_size
    torch.manual_seed(1)
    if kind == "medusa":
        network: Any = Medusa(target, DEPTH)
        blocks, last = [head[0] for head in network], [head[1] for head in network]
    else:
        prefix = prefix_layer(hf.config) if kind == "prefix" else None
        network = Hydra(target, DEPTH, prefix=prefix)
        blocks, last = [head[0] for head in network.hydra_mlp], list(network.hydra_lm_head)
    with torch.no_grad():
        hidden = hf(torch.tensor([list(text)]), output_hidden_states=True).hidden_states[-1]
        states = hidden[0]
        if kind == "prefix":
            states = network.prefix_embedding_layer(inputs_embeds=hidden).last_hidden_state[0]
        for h, (block, layer) in enumerate(zip(blocks, last, strict=True)):
            for parameter in (*block.parameters(), *layer.parameters()):
                parameter.zero_()
            if kind != "medusa":
                block.res_connection.weight[:, :width] = torch.eye(width)
            follows = torch.tensor(text[h + 2 :])
            layer.weight[:] = 9 * _fitted(states[: len(follows)], follows, vocabulary)
    return network


def _fitted(states: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """The weights (vocabulary, width) that give the tokens after the last states 1, others 0."""
    states, tokens = states[-states.shape[1] :], tokens[-states.shape[1] :]
    wanted = torch.nn.functional.one_hot(tokens, vocabulary).double()
    return (torch.linalg.pinv(states.double()) @ wanted).T


def loaded(folder: Path, kind: str, model: TargetModel, text: Sequence[int]) -> HeadRows:
    folder.mkdir()
    arch = {"hydra_head_arch": "prefix-mlp"} if kind == "prefix" else {}
    save_head(folder, knowing(kind, model.hf, text).state_dict(), arch)
    return HeadRows([load_head(str(folder), model.hf, CPU, torch.float32)])


@pytest.mark.parametrize("family", ["llama", "gemma3-sliding"])
@pytest.mark.parametrize("kind", ["medusa", "hydra", "prefix"])
def test_drafts_of_heads_give_the_tokens_of_plain_decoding(
    tmp_path: Path, kind: str, family: str
) -> None:
    model = make_target(family)
    for sampling in (GREEDY, SAMPLED):
        truth = plain(model, PROMPT, sampling, max_tokens=20)
        heads = loaded(tmp_path / str(sampling.answer.temperature), kind, model, [*PROMPT, *truth])
        for method in ("medusa" if kind == "medusa" else "hydra", "auto"):
            drafter = make_drafter(method, DraftSettings(heads=heads))
            # The second begins a new text; elsewhere than on a CPU passes have few shapes.
            for pads in (False, True):
                heads.guessers[0].pads = pads
                run = decode(model, drafter, PROMPT, sampling, max_tokens=20)
                assert run.output == truth
                if method != "auto":
                    assert 2 * run.statistics.accepted_tokens > len(truth)


def test_heads_of_the_built_in_model_draft_in_every_way(tmp_path: Path) -> None:
    """In the program: alone and with `auto`, counted in its report, with answers as without."""
    model = load_model(ModelSpec("builtin", "cpu"))
    prompt = model.tokenizer.encode(Path(HARBOUR).read_text())[:60]
    truth = plain(model, prompt, max_tokens=12)
    for kind in ("medusa", "prefix"):
        head = loaded(tmp_path / kind, kind, model, [*prompt, *truth])
        drafter = make_drafter("medusa" if kind == "medusa" else "hydra", DraftSettings(heads=head))
        run = decode(model, drafter, prompt, max_tokens=12)
        assert run.output == truth
        assert run.statistics.accepted_tokens > 6
    ask = f"ask -d {HARBOUR} Who? --max-tokens 5 --set calibrate=no --json".split()
    several = ("--heads", str(tmp_path / "prefix"), "--heads", str(tmp_path / "medusa"))
    ways = [("--method", "none"), (*several, "--method", "medusa"), several]
    answers = [json.loads(ngt(*ask, *way).stdout) for way in ways]
    assert answers[0]["text"] == answers[1]["text"] == answers[2]["text"]
    assert answers[1]["statistics"]["drafted_tokens"] > 0


def test_heads_draft_for_one_text_at_a_time(tmp_path: Path) -> None:
    model = load_model(ModelSpec("builtin", "cpu"))
    loaded(tmp_path / "medusa", "medusa", model, model.tokenizer.encode("One text. " * 9))
    lines = [json.dumps({"documents": [HARBOUR], "question": one}) for one in ("Who?", "When?")]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines))
    words = ("batch", str(tmp_path / "asked.jsonl"), "--max-tokens", "2", "--set", "calibrate=no")
    for method, says in (
        (
            "medusa",
            "prompts are answered one at a time: a head drafts for one sequence at a time",
        ),
        ("auto", "heads are not used in a batch (--batch-size 1 uses them)"),
    ):
        own = ("--heads", str(tmp_path / "medusa"), "--method", method)
        done = ngt(*words, *own, "-o", str(tmp_path / f"{method}.jsonl"))
        assert done.returncode == 0
        assert f"ngt: {says}\n" in done.stderr.decode()


def test_a_line_whose_method_lacks_its_heads_says_nothing_of_the_others(tmp_path: Path) -> None:
    line = {"documents": ["The sea is blue."], "question": "What is blue?"}
    lines = [{**line, "settings": {"method": "medusa"}}, line]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    done = ngt("batch", str(asked), "--max-tokens", "2", "--set", "calibrate=no")
    failed, answered = (json.loads(row) for row in done.stdout.splitlines())
    assert "medusa" in failed["error"]["message"]
    assert answered["text"]
    assert b"one after another" not in done.stderr


# --- heads that attend to rows read before ---


class Watched(HeadRows):
    """Heads, and what they were given to read in the last text."""

    def __init__(self, heads: Sequence[Head]) -> None:
        super().__init__(heads)
        self.given: list[tuple[int, Tensor]] = []

    def of_kind(self, kind: str) -> "Watched":
        return Watched([head for head in self.guessers if head.kind == kind])

    def reset(self, start: int = 0) -> None:
        super().reset(start)
        self.given = []

    def add(self, ids: list[int], states: Tensor) -> None:
        super().add(ids, states)
        self.given += zip(ids, states.clone(), strict=True)


def heads_of(model: TargetModel, names: Sequence[str]) -> Watched:
    return Watched([load_head(name, model.hf, model.device, model.dtype) for name in names])


def check(model: TargetModel, heads: Watched, methods: Sequence[str]) -> None:
    """A greedy text and a sampled one by each method; what heads were given is the model's."""
    first, second = prompts(2, seed=4)
    for prompt, sampling in ((first, Settings()), (second, SAMPLED)):
        truth = plain(model, prompt, sampling, max_tokens=14)
        for method in methods:
            drafter: Any = make_drafter(method, DraftSettings(num_draft=12, heads=heads))
            run = decode(model, drafter, prompt, sampling, max_tokens=14)
            assert run.output == truth, method
            assert run.statistics.drafted_tokens > 0
            check_rows(model, drafter.heads, [*prompt, *truth])


def check_rows(model: TargetModel, heads: Watched, text: list[int]) -> None:
    ids = [token for token, _ in heads.given]
    assert ids == text[: len(ids)]
    with torch.no_grad():
        found = model.hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
    truth = torch.stack([found[layer][0] for layer in heads.layers], 1)
    torch.testing.assert_close(
        torch.stack([s for _, s in heads.given]), truth, atol=2e-4, rtol=2e-3
    )


@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "gemma3-sliding"])
def test_drafts_of_eagle3_and_dflash_change_no_text(tmp_path: Path, family: str) -> None:
    model = make_target(family)
    names = [eagle3_files(tmp_path / "eagle3")[0], dflash_files(tmp_path / "dflash")[0]]
    heads = heads_of(model, names)
    for head in heads.guessers:  # as elsewhere than on a CPU
        head.pads = family == "llama"
    check(model, heads, ["eagle3", "dflash", "auto"])


@pytest.mark.parametrize(("family", "layers"), [("deepseek", 2), ("glm", 1)])
def test_drafts_of_mtp_layers_change_no_text(tmp_path: Path, family: str, layers: int) -> None:
    folder = mtp_folder(tmp_path / "model", family, layers)
    hf: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    check(model, heads_of(model, ["mtp"]), ["mtp", "auto"])


# --- with prompts of which rows are kept ---


def drafted(model: TargetModel, heads: Watched, method: str, prompt: list[int]) -> list[Any]:
    """All trees that an answer's steps draft, and its tokens and how many were read before."""
    drafter, trees = make_drafter(method, DraftSettings(heads=heads)), list[Any]()
    propose = drafter.propose

    def watched(log: TokenLog, room: Room) -> Draft:
        draft = propose(log, room)
        trees.append(draft.tree)
        return draft

    drafter.propose = watched  # type: ignore[method-assign]
    cache_policy = CachePolicy(reads_disk=True, min_disk_s=0.0, max_disk_bytes=10**9)
    run = decode(model, drafter, prompt, cache_policy=cache_policy, max_tokens=6, num_draft=8)
    if model.prefixes is not None:
        model.prefixes.store(model.cache)
        assert run.statistics.cached_tokens == model.reused.tokens
    return [run.output, *trees]


@pytest.mark.parametrize("method", ["eagle3", "dflash", "hydra", "medusa"])
def test_drafts_behind_kept_rows_are_those_behind_rows_just_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """From the cache, from memory, from disk, and where rows were kept without hidden states."""
    size = 32  # tokens of a chunk, fewer than in truth
    for place in (kv_cache, prefixes):
        monkeypatch.setattr(place, "CHUNK", size)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", size)
    model = make_target("llama", seed=3)
    common = random.Random(0).choices(range(10, 90), k=2 * size)
    questions = [[*common, 5], [*common, 7, 9, 11], [*common[:size], 8]]
    if method in ("hydra", "medusa"):
        kind = "prefix" if method == "hydra" else method
        known = loaded(tmp_path / "head", kind, model, questions[1])
        heads = Watched(known.guessers)
    else:
        make = eagle3_files if method == "eagle3" else dflash_files
        heads = heads_of(model, [make(tmp_path / "head")[0]])
    wanted = [drafted(model, heads, method, one) for one in questions]
    assert all(sum(map(len, trees)) for _, *trees in wanted)
    for memory, disk in ((True, False), (False, True)):
        model.drop_cache()
        model.keep_prefixes(memory)
        read = list[int]()
        for number in (0, 1, 2, 0):
            drafts = drafted(model, heads, method, questions[number])
            assert drafts == wanted[number]
            read.append(model.reused.tokens)
            if number == 2 and memory:  # other rows come between, without hidden states
                plain(model, [*reversed(common)])
        less = 0 if heads.reads_all else size  # who reads the last row alone is to be given it
        assert read[0] == (2 * size - less if disk else 0)
        assert read[1:] == [2 * size, size - less, 2 * size - less]
    model.drop_cache()
    model.keep_prefixes(memory=True)
    cache_policy = CachePolicy()
    decode(model, make_drafter("none"), questions[1], cache_policy=cache_policy, max_tokens=1)
    drafter = make_drafter(method, DraftSettings(heads=heads))
    for tokens in (0 if heads.reads_all else 2 * size, 2 * size):
        run = decode(
            model, drafter, questions[1], cache_policy=cache_policy, max_tokens=6, num_draft=8
        )
        assert run.output == wanted[1][0]
        assert run.statistics.cached_tokens == tokens
    decode(model, make_drafter("none"), questions[1], cache_policy=cache_policy, max_tokens=1)
    assert model.reused.tokens == 2 * size  # more than is wanted
