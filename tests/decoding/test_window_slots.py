"""Slots of layers with a sliding window hold little more than the window, and lose nothing of it.

The truth is a forward pass of `transformers` over all tokens, without a cache, or its `generate`.
"""

import random
from collections.abc import Sequence

import pytest
import torch

from ngtcli.decoding import kv_cache, memory_limits, prefixes
from ngtcli.decoding import model as module
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.scheduler import Scheduler
from ngtcli.drafting.tree import DraftTree
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import VOCABULARY, FakeBackend
from tests.support.tiny_models import (
    Scripted,
    a_tree,
    decode,
    drafts_of,
    generate,
    make_drafter,
    make_hf,
)
from tests.support.together import each_by_itself, outputs, sequence_of, together

CHUNK = 64  # tokens; slots of sliding layers then hold 256 tokens where windows are below 193
CONTEXT = 2048
LONG = random.Random(1).choices(range(4, VOCABULARY), k=1200)
MINE = CachePolicy()
DISK = CachePolicy(reads_disk=True, min_disk_s=0.0, max_disk_bytes=10**9)
FAMILIES = ("mistral-sliding", "gemma2-sliding", "gemma3-sliding")


@pytest.fixture(autouse=True)
def chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (kv_cache, prefixes):
        monkeypatch.setattr(place, "CHUNK", CHUNK)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", CHUNK)


def sliding(family: str, window: int = 12) -> TargetModel:
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if "gemma3" in family else {}
    hf = make_hf(family, max_position_embeddings=CONTEXT, sliding_window=window, **kinds)
    hf.generation_config.eos_token_id = None
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    model.context, model.end_ids = CONTEXT, frozenset()
    return model


def path_to(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = tree.parents[node]
    return path


def assert_logits(
    model: TargetModel, logits: torch.Tensor, token_ids: Sequence[int], tree: DraftTree
) -> None:
    """Behind the root, and behind the last node, which is seldom a short path."""
    for node in {-1, len(tree) - 1}:
        path = [tree.tokens[at] for at in path_to(tree, node)]
        with torch.inference_mode():
            right = model.hf(torch.tensor([[*token_ids, *path]]), use_cache=False).logits[0, -1]
        assert torch.allclose(logits[node + 1], right, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_slot_of_a_sliding_layer_does_not_grow_with_the_text(family: str) -> None:
    model = sliding(family)
    model.start(1300)
    model.prefill(LONG, CHUNK)
    sizes = {
        layer.slides: layer.keys.shape[2] for layer in model.cache.layers if layer.is_initialized
    }
    assert sizes[True] == 256
    assert sizes.get(False, 1280) >= 1280
    assert model.cache.bytes_of(1200) == sum(
        buffer.nbytes * min(1200, buffer.shape[2]) // buffer.shape[2]
        for buffer in model.cache.buffers
    )


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_long_answers_are_those_of_the_library(
    family: str, stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself and in a batch, over several moves of what a slot holds."""
    monkeypatch.setattr(module, "STAYING_DEVICES", {"cpu"} if stay else set())
    model = sliding(family)
    texts = [LONG[:length] for length in (3, 700, 150, 260)]
    truth = {tuple(text): generate(model.hf, text, 330) for text in texts}
    propose = drafts_of(truth, wrong=2)
    for text in texts[:2]:
        run = decode(model, Scripted(propose), text, max_tokens=330, num_draft=16)
        assert run.output == truth[tuple(text)]
        assert run.statistics.mean_acceptance_length > 4
    drafters = each_by_itself(lambda: Scripted(propose), 16)
    found = together(model, texts, drafters, 3, limits=lambda _: Limits(330, 16))
    assert outputs(found) == [truth[tuple(text)] for text in texts]


@pytest.mark.search
@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_and_goes_the_logits_are_those_of_the_library(
    seed: int, stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that share beginnings, trees, rollbacks, and sequences that join and leave."""
    monkeypatch.setattr(module, "STAYING_DEVICES", {"cpu"} if stay else set())
    rng = random.Random(seed)
    model = sliding(rng.choice(FAMILIES), rng.choice((2, 12, 40, 100)))
    model.keep_prefixes(memory=True)
    prompts = [LONG[:900], [*LONG[:500], *LONG[:300]], [*LONG[:130], *LONG[600:1100]], LONG[3:70]]
    texts: list[list[int]] = []  # of the slots, without the last token, which is the next root

    def prompt() -> list[int]:
        chosen = rng.choice(prompts)
        return chosen[: rng.randint(len(chosen) // 2, len(chosen))]

    def begin(slot: int) -> None:
        ids = prompt()
        model.start(len(ids) + rng.choice((20, 400)), token_ids=ids, cache_policy=MINE, slot=slot)
        assert model.length <= len(ids)
        model.prefill(ids[model.length :], rng.choice((CHUNK, CHUNK, CHUNK // 2)))
        texts.append(ids)

    def score() -> None:
        trees = [a_tree(rng.choice((0, 1, 7, 30)), rng.random()) for _ in texts]
        root = rng.randrange(4, VOCABULARY)
        longest = max(map(len, texts)) + 140
        if len(texts) > 1 and longest > model.cache.slot_capacity:
            model.resize(len(model.cache.slots), longest + 300)
        layout = model.lay_out([(root, tree) for tree in trees])
        logits = [rows.clone() for rows in model.score(layout)]
        paths = [path_to(tree, rng.randint(-1, len(tree) - 1)) for tree in trees]
        for of_one, text, tree in zip(logits, texts, trees, strict=True):
            assert_logits(model, of_one, [*text, root], tree)
        model.keep(*paths)
        for text, tree, path in zip(texts, trees, paths, strict=True):
            text += [root, *(tree.tokens[at] for at in path)]

    def take_back() -> None:
        kept = max(1, len(texts[0]) - rng.choice((1, 7, 60, 300, 900)))
        model.truncate(kept)
        assert model.length <= kept
        model.prefill(texts[0][model.length : kept], CHUNK)
        del texts[0][kept:]

    begin(0)
    for _ in range(30):
        action = rng.choice(("score", "score", "take back", "begin", "join", "leave"))
        if action == "take back" and len(texts) == 1 and model.slots.last.number == 0:
            take_back()
        elif action == "begin" and len(texts) == 1:
            texts.clear()
            begin(0)
        elif action == "join" and len(texts) < 3:
            model.resize(len(texts) + 1, 1400)
            begin(len(texts))
        elif action == "leave" and len(texts) > 1:
            slot = rng.randrange(len(texts))
            if rng.random() < 0.5:
                model.prefixes.keep(model.cache, model.cache.slots[slot])
            model.close(slot, len(texts) - 1)
            texts[slot] = texts[-1]
            texts.pop()
        score()


@pytest.mark.parametrize(
    ("window", "shared", "found"),
    [
        (12, 11, 11),
        (12, 5, 5),  # behind every chunk
        (100, 11, 11),  # at the last end but one that both have
        (100, 5, 0),  # a window is saved at every seventh end
        (100, 8, 7),
    ],
)
def test_a_prompt_goes_on_where_a_window_was_saved(window: int, shared: int, found: int) -> None:
    """Else it is prefilled again, from the last end of a chunk whose window is there."""
    model = sliding("gemma3-sliding", window)
    first = LONG[: 12 * CHUNK + 9]
    second = [*first[: shared * CHUNK + 5], *LONG[:90]]
    truth = generate(model.hf, second, 30)

    def begin_anew(memory: bool) -> None:
        model.drop_cache()
        model.keep_prefixes(memory)

    for place in ("slot", "memory", "disk"):
        begin_anew(place != "disk")
        decode(model, make_drafter("none"), first, max_tokens=3, cache_policy=MINE)
        if place == "memory":
            other = decode(model, make_drafter("none"), LONG[5:300], cache_policy=MINE)
            assert other.statistics.cached_tokens == 0
        elif place == "disk":
            model.cache.slots[0].cache_policy = DISK
            model.prefixes.store(model.cache)
            begin_anew(memory=False)
        run = decode(model, make_drafter("none"), second, max_tokens=30, cache_policy=DISK)
        assert run.output == truth
        assert run.statistics.cached_tokens == found * CHUNK, place


def test_a_prompt_is_decoded_after_a_device_failed_while_slots_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was cached of it in memory is found again; nothing is relied on of its slot."""
    model = sliding("gemma3-sliding")
    model.keep_prefixes(memory=True)
    prompt = LONG[: 4 * CHUNK + 9]
    for token_ids in (prompt, LONG[5:300], prompt):
        decode(model, make_drafter("none"), token_ids, max_tokens=3, cache_policy=MINE)
    scheduler = Scheduler(model, 1, lambda read, total: None)
    scheduler.running = [sequence_of(model, prompt, Limits(9))]

    def fail(*_: object) -> None:
        raise RuntimeError("the device has failed")

    with monkeypatch.context() as failing:
        failing.setattr(model, "close", fail)
        scheduler.preempt_all()
    run = decode(model, make_drafter("none"), prompt, max_tokens=30, cache_policy=MINE)
    assert run.output == generate(model.hf, prompt, 30)
