"""Slots of layers with a sliding window are little larger than the window, and lose none of it.

The expected values are those of `transformers`: a forward pass over all tokens without a cache, or
`generate`.
"""

import random

import pytest

from ngtcli.decoding import kv_cache, memory_limits, prefixes
from ngtcli.decoding import model as module
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.scheduler import Scheduler
from tests.support.batches import decode_batch, outputs, separate_drafters, sequence_of
from tests.support.helpers import VOCABULARY
from tests.support.sliding import SLIDING_FAMILIES, assert_logits_of_library, path_to, sliding_model
from tests.support.tiny_models import (
    Scripted,
    a_tree,
    decode,
    drafts_of,
    generate,
    make_drafter,
)

CHUNK = 64  # tokens; slots of sliding layers then hold 256 tokens where windows are below 193
CONTEXT = 2048
LONG = random.Random(1).choices(range(4, VOCABULARY), k=1200)
MINE = CachePolicy()
DISK = CachePolicy(reads_disk=True, min_disk_s=0.0, max_disk_bytes=10**9)


@pytest.fixture(autouse=True)
def chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (kv_cache, prefixes):
        monkeypatch.setattr(place, "CHUNK", CHUNK)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", CHUNK)


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_slots_of_sliding_layers_do_not_grow_with_the_sequence(family: str) -> None:
    model = sliding_model(family, CONTEXT)
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
@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_long_answers_equal_those_of_generate(
    family: str, stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in a batch, on both sides of the window, while the contents of slots move."""
    monkeypatch.setattr(module, "STAYING_DEVICES", {"cpu"} if stay else set())
    model = sliding_model(family, CONTEXT)
    texts = [LONG[:length] for length in (3, 700, 12, 40, 150, 260)]  # the window is 12
    truth = {tuple(text): generate(model.hf, text, 330) for text in texts}
    propose = drafts_of(truth, wrong=2)
    for text in texts[:2]:
        run = decode(model, Scripted(propose), text, max_tokens=330, num_draft=16)
        assert run.output == truth[tuple(text)]
        assert run.statistics.mean_acceptance_length > 4
    drafters = separate_drafters(lambda: Scripted(propose), 16)
    answers = decode_batch(model, texts, drafters, 3, limits=lambda _: Limits(330, 16))
    assert outputs(answers) == [truth[tuple(text)] for text in texts]


@pytest.mark.search
@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_logits_equal_the_librarys_in_random_histories(
    seed: int, stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that share beginnings, trees, rollbacks, and sequences that join and leave."""
    monkeypatch.setattr(module, "STAYING_DEVICES", {"cpu"} if stay else set())
    rng = random.Random(seed)
    model = sliding_model(
        rng.choice(SLIDING_FAMILIES), CONTEXT, window=rng.choice((2, 12, 40, 100))
    )
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
        for tree_logits, text, tree in zip(logits, texts, trees, strict=True):
            nodes = {-1, len(tree) - 1}  # the last node is seldom at the end of a short path
            assert_logits_of_library(model, tree_logits, [*text, root], tree, sorted(nodes))
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
    ("window", "shared", "restored"),
    [
        (12, 11, 11),
        (12, 5, 5),  # a window is saved after every chunk
        (100, 11, 11),  # at the last end of a chunk but one that both have
        (100, 5, 0),  # a window is saved at every seventh end
        (100, 8, 7),
    ],
)
def test_prefixes_are_restored_where_a_window_was_saved(
    window: int, shared: int, restored: int
) -> None:
    """The rest is prefilled again, from the last end of a chunk whose window is saved."""
    model = sliding_model("gemma3-sliding", CONTEXT, window)
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
        assert run.statistics.cached_tokens == restored * CHUNK, place


def test_prompts_are_decoded_after_closing_slots_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prefix cache in memory is used again; the contents of the slot are not."""
    model = sliding_model("gemma3-sliding", CONTEXT)
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
