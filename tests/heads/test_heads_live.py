"""Heads of every kind in decoding: the tokens are those of plain decoding."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
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


def fitted_network(kind: str, hf: Any, sequence: Sequence[int]) -> torch.nn.Module:
    """A network whose output layers are fitted to the tokens of a sequence.

    Its blocks pass the hidden state on unchanged, so the output layers alone predict.
    """
    target = Target(hf, CPU, torch.float32)
    width = target.width
    torch.manual_seed(1)
    network: Any
    if kind == "medusa":
        network = Medusa(target, DEPTH)
        blocks = [head[0] for head in network]
        output_layers = [head[1] for head in network]
    else:
        prefix = prefix_layer(hf.config) if kind == "prefix" else None
        network = Hydra(target, DEPTH, prefix=prefix)
        blocks = [head[0] for head in network.hydra_mlp]
        output_layers = list(network.hydra_lm_head)

    with torch.no_grad():
        hidden = hf(torch.tensor([list(sequence)]), output_hidden_states=True).hidden_states[-1]
        if kind == "prefix":
            hidden = network.prefix_embedding_layer(inputs_embeds=hidden).last_hidden_state
        states = hidden[0]
        layers = zip(blocks, output_layers, strict=True)
        for depth, (block, output_layer) in enumerate(layers):
            for parameter in (*block.parameters(), *output_layer.parameters()):
                parameter.zero_()
            if kind != "medusa":
                block.res_connection.weight[:, :width] = torch.eye(width)
            targets = torch.tensor(sequence[depth + 2 :])
            weight = fit_output_layer(states[: len(targets)], targets, target.vocab_size)
            output_layer.weight[:] = 9 * weight
    return network


def fit_output_layer(states: Tensor, targets: Tensor, vocabulary: int) -> Tensor:
    """Weights (vocabulary, width) that give the target after each of the last states a logit of 1.

    Only `width` states can be fitted exactly, so those before are left out.
    """
    width = states.shape[1]
    logits = torch.nn.functional.one_hot(targets[-width:], vocabulary).double()
    return (torch.linalg.pinv(states[-width:].double()) @ logits).T


def load_fitted_head(
    folder: Path, kind: str, model: TargetModel, sequence: Sequence[int]
) -> HeadRows:
    """Write a head that is fitted to a sequence into a folder, and load it."""
    folder.mkdir()
    config = {"hydra_head_arch": "prefix-mlp"} if kind == "prefix" else {}
    save_head(folder, fitted_network(kind, model.hf, sequence).state_dict(), config)
    return HeadRows([load_head(str(folder), model.hf, CPU, torch.float32)])


def method_of(kind: str) -> str:
    return "medusa" if kind == "medusa" else "hydra"


@pytest.mark.parametrize("family", ["llama", "gemma3-sliding"])
@pytest.mark.parametrize("kind", ["medusa", "hydra", "prefix"])
def test_drafts_of_heads_give_the_tokens_of_plain_decoding(
    tmp_path: Path, kind: str, family: str
) -> None:
    model = make_target(family)
    for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        expected = plain(model, PROMPT, sampling, max_tokens=20)
        heads = load_fitted_head(tmp_path / name, kind, model, [*PROMPT, *expected])
        for method in (method_of(kind), "auto"):
            drafter = make_drafter(method, DraftSettings(heads=heads))
            for pads in (False, True):  # True: as on devices other than the CPU
                heads.guessers[0].pads = pads
                run = decode(model, drafter, PROMPT, sampling, max_tokens=20)
                assert run.output == expected
                if method != "auto":
                    assert 2 * run.statistics.accepted_tokens > len(expected)


@pytest.mark.parametrize("kind", ["medusa", "prefix"])
def test_a_head_drafts_for_the_built_in_model(tmp_path: Path, kind: str) -> None:
    model = load_model(ModelSpec("builtin", "cpu"))
    prompt = model.tokenizer.encode(Path(HARBOUR).read_text())[:60]
    expected = plain(model, prompt, max_tokens=12)
    heads = load_fitted_head(tmp_path / kind, kind, model, [*prompt, *expected])
    drafter = make_drafter(method_of(kind), DraftSettings(heads=heads))

    run = decode(model, drafter, prompt, max_tokens=12)

    assert run.output == expected
    assert run.statistics.accepted_tokens > 6


def test_the_command_answers_with_heads_as_without(tmp_path: Path) -> None:
    model = load_model(ModelSpec("builtin", "cpu"))
    sequence = model.tokenizer.encode(Path(HARBOUR).read_text())[:72]
    for kind in ("medusa", "prefix"):
        load_fitted_head(tmp_path / kind, kind, model, sequence)
    question = f"ask -d {HARBOUR} Who? --max-tokens 5 --set calibrate=no --json".split()
    heads = ("--heads", str(tmp_path / "prefix"), "--heads", str(tmp_path / "medusa"))

    plain_answer = json.loads(ngt(*question, "--method", "none").stdout)
    medusa_answer = json.loads(ngt(*question, *heads, "--method", "medusa").stdout)
    auto_answer = json.loads(ngt(*question, *heads).stdout)

    assert medusa_answer["text"] == plain_answer["text"]
    assert auto_answer["text"] == plain_answer["text"]
    assert medusa_answer["statistics"]["drafted_tokens"] > 0


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "medusa",
            "prompts are answered one at a time: a head drafts for one sequence at a time",
        ),
        ("auto", "heads are not used in a batch (--batch-size 1 uses them)"),
    ],
)
def test_a_batch_says_what_heads_cannot_do(tmp_path: Path, method: str, message: str) -> None:
    model = load_model(ModelSpec("builtin", "cpu"))
    head = tmp_path / "medusa"
    load_fitted_head(head, "medusa", model, model.tokenizer.encode("One text. " * 9))
    lines = [
        json.dumps({"documents": [HARBOUR], "question": question}) for question in ("Who?", "When?")
    ]
    prompts_file = tmp_path / "prompts.jsonl"
    prompts_file.write_text("\n".join(lines))

    flags = ("--max-tokens", "2", "--set", "calibrate=no", "--heads", str(head))
    output = tmp_path / "answers.jsonl"
    process = ngt("batch", str(prompts_file), *flags, "--method", method, "-o", str(output))

    assert process.returncode == 0
    assert f"ngt: {message}\n" in process.stderr.decode()


def test_a_line_without_the_heads_of_its_method_fails_alone(tmp_path: Path) -> None:
    line = {"documents": ["The sea is blue."], "question": "What is blue?"}
    lines = [{**line, "settings": {"method": "medusa"}}, line]
    prompts_file = tmp_path / "prompts.jsonl"
    prompts_file.write_text("".join(f"{json.dumps(each)}\n" for each in lines))

    process = ngt("batch", str(prompts_file), "--max-tokens", "2", "--set", "calibrate=no")

    failed, answered = (json.loads(output) for output in process.stdout.splitlines())
    assert "medusa" in failed["error"]["message"]
    assert answered["text"]
    assert b"one at a time" not in process.stderr
    assert b"one after another" not in process.stderr


# --- heads that attend to positions read before ---


class RecordingHeads(HeadRows):
    """Heads that record the tokens and hidden states that they were given in the last sequence."""

    def __init__(self, heads: Sequence[Head]) -> None:
        super().__init__(heads)
        self.tokens: list[int] = []
        self.states: list[Tensor] = []

    def of_kind(self, kind: str) -> "RecordingHeads":
        return RecordingHeads([head for head in self.guessers if head.kind == kind])

    def reset(self, start: int = 0) -> None:
        super().reset(start)
        self.tokens = []
        self.states = []

    def add(self, ids: list[int], states: Tensor) -> None:
        super().add(ids, states)
        self.tokens += ids
        self.states += states.clone()


def load_heads(model: TargetModel, names: Sequence[str]) -> RecordingHeads:
    return RecordingHeads([load_head(name, model.hf, model.device, model.dtype) for name in names])


def assert_lossless(model: TargetModel, heads: RecordingHeads, methods: Sequence[str]) -> None:
    """Decode a greedy and a sampled sequence by each method, and compare with plain decoding.

    The heads must have been given the model's own hidden states.
    """
    greedy_prompt, sampled_prompt = prompts(2, seed=4)
    for prompt, sampling in ((greedy_prompt, Settings()), (sampled_prompt, SAMPLED)):
        expected = plain(model, prompt, sampling, max_tokens=14)
        for method in methods:
            drafter: Any = make_drafter(method, DraftSettings(num_draft=12, heads=heads))
            run = decode(model, drafter, prompt, sampling, max_tokens=14)
            assert run.output == expected, method
            assert run.statistics.drafted_tokens > 0
            assert_reads_states_of(model, drafter.heads, [*prompt, *expected])


def assert_reads_states_of(model: TargetModel, heads: RecordingHeads, sequence: list[int]) -> None:
    """Compare what heads were given with the hidden states of `transformers`."""
    ids = heads.tokens
    assert ids == sequence[: len(ids)]

    with torch.no_grad():
        hidden = model.hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = torch.stack([hidden[layer][0] for layer in heads.layers], 1)
    torch.testing.assert_close(torch.stack(heads.states), expected, atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "gemma3-sliding"])
def test_drafts_of_eagle3_and_dflash_give_the_tokens_of_plain_decoding(
    tmp_path: Path, family: str
) -> None:
    model = make_target(family)
    names = [eagle3_files(tmp_path / "eagle3")[0], dflash_files(tmp_path / "dflash")[0]]
    heads = load_heads(model, names)
    for head in heads.guessers:
        head.pads = family == "llama"  # True: as on devices other than the CPU
    assert_lossless(model, heads, ["eagle3", "dflash", "auto"])


@pytest.mark.parametrize(("family", "layers"), [("deepseek", 2), ("glm", 1)])
def test_drafts_of_mtp_layers_give_the_tokens_of_plain_decoding(
    tmp_path: Path, family: str, layers: int
) -> None:
    folder = mtp_folder(tmp_path / "model", family, layers)
    hf: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    assert_lossless(model, load_heads(model, ["mtp"]), ["mtp", "auto"])


# --- prompts with a cached prefix ---

CHUNK = 32  # tokens of a chunk of the prefix cache in these tests


@dataclass
class Answer:
    """The tokens of an answer, and the tree that each step drafted."""

    tokens: list[int]
    trees: list[Any]


def answer_with_heads(
    model: TargetModel, heads: RecordingHeads, method: str, prompt: list[int]
) -> Answer:
    drafter = make_drafter(method, DraftSettings(heads=heads))
    propose = drafter.propose
    trees: list[Any] = []

    def record_tree(log: TokenLog, room: Room) -> Draft:
        draft = propose(log, room)
        trees.append(draft.tree)
        return draft

    drafter.propose = record_tree  # type: ignore[method-assign]
    cache_policy = CachePolicy(reads_disk=True, min_disk_s=0.0, max_disk_bytes=10**9)
    run = decode(model, drafter, prompt, cache_policy=cache_policy, max_tokens=6, num_draft=8)
    if model.prefixes is not None:
        model.prefixes.store(model.cache)
        assert run.statistics.cached_tokens == model.reused.tokens
    return Answer(run.output, trees)


def heads_for(method: str, model: TargetModel, folder: Path, prompt: list[int]) -> RecordingHeads:
    """Heads of a method; Medusa and Hydra are fitted to a prompt."""
    if method == "eagle3":
        return load_heads(model, [eagle3_files(folder)[0]])
    if method == "dflash":
        return load_heads(model, [dflash_files(folder)[0]])
    kind = "prefix" if method == "hydra" else method
    return RecordingHeads(load_fitted_head(folder, kind, model, prompt).guessers)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of CHUNK tokens, in which prompts are prefilled and prefixes cached."""
    for module in (kv_cache, prefixes):
        monkeypatch.setattr(module, "CHUNK", CHUNK)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", CHUNK)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("method", ["eagle3", "dflash", "hydra", "medusa"])
def test_drafts_after_a_cached_prefix_are_those_without_a_cache(
    tmp_path: Path, method: str
) -> None:
    """The prefix is in the KV cache, in memory, on disk, or cached without hidden states."""
    model = make_target("llama", seed=3)
    common = random.Random(0).choices(range(10, 90), k=2 * CHUNK)
    questions = [
        [*common, 5],
        [*common, 7, 9, 11],
        [*common[:CHUNK], 8],
    ]
    heads = heads_for(method, model, tmp_path / "head", questions[1])
    expected = [answer_with_heads(model, heads, method, question) for question in questions]
    for answer in expected:
        assert sum(len(tree) for tree in answer.trees) > 0

    # A head that reads only the last hidden state has it computed again: one chunk is not reused.
    recomputed = 0 if heads.reads_all else CHUNK
    for in_memory in (True, False):  # then on disk
        model.drop_cache()
        model.keep_prefixes(in_memory)
        reused = []
        for number in (0, 1, 2, 0):
            answer = answer_with_heads(model, heads, method, questions[number])
            assert answer == expected[number]
            reused.append(model.reused.tokens)
            if number == 2 and in_memory:
                # Another sequence, without hidden states, takes the KV cache.
                plain(model, [*reversed(common)])
        first = 0 if in_memory else 2 * CHUNK - recomputed  # the disk still has the first round
        assert reused == [first, 2 * CHUNK, CHUNK - recomputed, 2 * CHUNK - recomputed]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("method", ["eagle3", "dflash", "hydra", "medusa"])
def test_a_prefix_cached_without_hidden_states_is_read_again_by_heads_that_need_them(
    tmp_path: Path, method: str
) -> None:
    model = make_target("llama", seed=3)
    prompt = [*random.Random(0).choices(range(10, 90), k=2 * CHUNK), 7, 9, 11]
    heads = heads_for(method, model, tmp_path / "head", prompt)
    expected = plain(model, prompt, max_tokens=6)
    model.keep_prefixes(memory=True)
    cache_policy = CachePolicy()

    decode(model, make_drafter("none"), prompt, cache_policy=cache_policy, max_tokens=1)
    drafter = make_drafter(method, DraftSettings(heads=heads))
    cached_tokens = []
    for _ in range(2):
        run = decode(model, drafter, prompt, cache_policy=cache_policy, max_tokens=6, num_draft=8)
        assert run.output == expected
        cached_tokens.append(run.statistics.cached_tokens)
    assert cached_tokens == [0 if heads.reads_all else 2 * CHUNK, 2 * CHUNK]

    # Plain decoding can use chunks with hidden states, too.
    decode(model, make_drafter("none"), prompt, cache_policy=cache_policy, max_tokens=1)
    assert model.reused.tokens == 2 * CHUNK
