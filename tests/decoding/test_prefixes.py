"""Rows of earlier prompts: those that reading again would compute, from memory and from disk."""

import errno
import json
import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decoding import attention, kv_cache, memory_limits, runner
from ngtcli.decoding import prefixes as module
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.kv_cache import CachePolicy, KVCache
from ngtcli.decoding.model import Origin, TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.support import DraftSupport, ExecutionMode, NoTrees, Obstacle
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.engine import local
from ngtcli.engine.local import LocalSession
from ngtcli.models.hf import AttentionCall, SingleAttention
from ngtcli.models.quantized import fingerprint
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.load_quantized import load_quantized
from ngtcli.system import cache as cache_module
from ngtcli.system.cache import STORES, measure_stores
from ngtcli.system.files import home
from tests.support.batches import decode_batch, separate_drafts
from tests.support.helpers import HARBOUR, FakeBackend, ngt, without_note
from tests.support.int8_layers import INT8
from tests.support.tiny_models import decode, make_drafter, make_hf, pack_layers

CHUNK = 64  # tokens, fewer than in truth except for one test: it takes long
CONTEXT = 2048
IDS = random.Random(0).choices(range(4, 90), k=2 * CHUNK + 40)
OTHER = [*IDS[: CHUNK + 7], *reversed(IDS[CHUNK + 7 :])]  # the first chunk is the same
MINE = CachePolicy()
DISK = CachePolicy(reads_disk=True, min_disk_s=0.0, max_disk_bytes=10**9)
Make = Callable[..., TargetModel]


@pytest.fixture(autouse=True)
def chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (kv_cache, module):
        monkeypatch.setattr(place, "CHUNK", CHUNK)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", CHUNK)


def as_target(hf: Any) -> TargetModel:
    model = target_model(hf, Tokenizer(FakeBackend()), "tiny")
    model.context = CONTEXT  # the tokenizer's is less
    return model


def tiny(family: str = "llama") -> Any:
    return make_hf(family, max_position_embeddings=CONTEXT)


def packed(hf: Any) -> Any:
    pack_layers(hf)
    return hf


def in_int8(dtype: torch.dtype, folder: Path) -> Any:
    tiny().save_pretrained(folder)
    return load_quantized(str(folder), replace(INT8, dtype=dtype))[0]


KINDS: dict[str, Callable[[Path], Any]] = {
    "float32": lambda _: tiny(),
    "bfloat16": lambda _: tiny().to(torch.bfloat16),
    "packed": lambda _: packed(tiny()),
    "packed bfloat16": lambda _: packed(tiny().to(torch.bfloat16)),
    "int8": lambda folder: in_int8(torch.float32, folder),
    "int8 bfloat16": lambda folder: in_int8(torch.bfloat16, folder),
    "window": lambda _: tiny("mistral-sliding"),
    "two kinds of layers": lambda _: tiny("gemma3-sliding"),
}


@cache
def shared() -> TargetModel:
    return as_target(tiny())


@pytest.fixture
def model() -> TargetModel:
    """A model that keeps nothing yet, as when it has just been loaded."""
    return anew(shared())


def anew(model: TargetModel, memory: bool = True) -> TargetModel:
    model.drop_cache()
    model.keep_prefixes(memory)
    return model


def read(
    model: TargetModel,
    token_ids: list[int],
    cache_policy: CachePolicy | None = MINE,
    rows: int | None = None,
) -> list[int]:
    """Prefill the tokens that are not cached; return the positions at which chunks began."""
    starts: list[int] = []
    model.start(3 * CHUNK, Numerics(rows and PassRows.fixed(rows)), token_ids, cache_policy)
    cached = model.length
    assert model.reused.tokens == cached
    model.prefill(token_ids[cached:], CHUNK, lambda position: starts.append(cached + position))
    return starts


def rows_of(model: TargetModel) -> list[Tensor]:
    return [tensor.clone() for tensor in model.cache.rows()]


@pytest.mark.parametrize(
    ("kind", "rows"), [(kind, 8 * (at % 2) or None) for at, kind in enumerate(KINDS)]
)
def test_cached_rows_are_those_of_a_fresh_prefill(
    kind: str, rows: int | None, tmp_path: Path
) -> None:
    model = as_target(KINDS[kind](tmp_path / "model"))
    assert read(model, OTHER, DISK, rows) == [0, CHUNK, 2 * CHUNK]
    expected = rows_of(model)

    def rows_are_right() -> bool:
        """Sliding layers hold at least what the window needs."""
        return all(
            rows.shape[2] >= min(11, fresh.shape[2])
            and torch.equal(rows, fresh[:, :, fresh.shape[2] - rows.shape[2] :])
            for rows, fresh in zip(model.cache.rows(), expected, strict=True)
        )

    anew(model)
    assert read(model, IDS, DISK, None if rows else 8) == [0, CHUNK, 2 * CHUNK]
    assert read(model, OTHER, DISK, rows) == [CHUNK, 2 * CHUNK]
    assert rows_are_right()  # from the cache
    assert read(model, IDS[1:], rows=rows)[0] == 0
    assert read(model, OTHER, rows=rows) == [2 * CHUNK]
    assert rows_are_right()  # from memory
    assert model.reused.from_disk == 0
    assert model.reused.seconds > 0
    assert model.reused.read_s > 0
    anew(model)
    assert read(model, OTHER, DISK, rows) == [2 * CHUNK]
    assert rows_are_right()  # from disk
    assert model.reused.from_disk == 2 * CHUNK
    assert model.reused.tokens == 2 * CHUNK


def test_a_chunk_has_the_size_of_the_prefills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    size = kv_cache.CHUNK
    model = anew(shared())
    ids = random.Random(1).choices(range(4, 90), k=size + 30)
    assert size == 1024
    drafter = make_drafter("none", DraftSettings())
    for cached in (0, size):
        run = decode(model, drafter, ids, cache_policy=MINE, max_tokens=1)
        assert run.statistics.cached_tokens == cached


def test_a_prefix_cache_changes_no_answer(model: TargetModel) -> None:
    """With drafts, captured or not, one by one and in a batch."""
    drafter = make_drafter("trie", DraftSettings())
    prompts = [[*IDS, 5], [*IDS[: CHUNK + 9], 7], [*IDS, 9], [*OTHER, 5]]
    model.passes.switch_on(model.device)
    expected = [decode(model, drafter, prompt).output for prompt in prompts]
    runs = [decode(model, drafter, prompt, cache_policy=MINE) for prompt in prompts]
    assert [run.output for run in runs] == expected
    assert [run.statistics.cached_tokens // CHUNK for run in runs] == [0, 1, 2, 1]
    sequences = decode_batch(model, prompts, separate_drafts(), 3, cache_policy=MINE)
    assert [sequence.token_ids[:20] for sequence in sequences] == [
        tokens[:20] for tokens in expected
    ]
    assert [sequence.statistics.cached_tokens // CHUNK for sequence in sequences] == [2, 1, 2, 2]


def test_a_prefill_continues_where_an_equal_prompt_was_left_half_read(model: TargetModel) -> None:
    """Slot 0 holds its first chunk; the rows of the later ones must not be zeros."""
    read(model, IDS)
    expected = rows_of(model)
    read(anew(model), OTHER)
    model.resize(2, 4 * CHUNK)
    for reused in (CHUNK, 2 * CHUNK):
        model.start(3 * CHUNK, token_ids=IDS, cache_policy=MINE, slot=1)
        assert model.reused.tokens == reused
        model.prefill(IDS[model.length :], CHUNK)
        slot = model.cache.slots[1]
        positions = slice(slot.start, slot.start + slot.length)
        layers = model.cache.layers
        tensors = [
            tensor[:, :, positions] for layer in layers for tensor in (layer.keys, layer.values)
        ]
        assert all(map(torch.equal, tensors, expected))


@pytest.mark.parametrize("fixed_buffers", [False, True])
def test_a_sequence_that_moves_to_the_first_slot_keeps_its_rows(
    fixed_buffers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence that goes on alone after a batch moves; its chunks lie in buffers that change."""
    monkeypatch.setattr(
        "ngtcli.decoding.model.STAYING_DEVICES", {"cpu"} if fixed_buffers else set()
    )
    model = anew(shared())
    read(model, IDS)
    expected = rows_of(model)
    own_tokens = random.Random(2).choices(range(4, 90), k=2 * CHUNK + 9)
    read(anew(model), own_tokens)
    model.resize(2, 4 * CHUNK)
    model.start(3 * CHUNK, token_ids=IDS, cache_policy=MINE, slot=1)
    model.prefill(IDS, CHUNK)
    assert read(model, IDS) == [2 * CHUNK]
    assert len(model.cache.slots) == 1
    assert all(map(torch.equal, model.cache.rows(), expected))


def test_exact_passes_get_no_rows_that_another_kernel_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU in half precision a prompt's chunks are read by a kernel that exact passes avoid."""

    class OtherKernel:
        def attend(self, call: AttentionCall, single: SingleAttention) -> Tensor:
            queries = call.query.shape[2]
            keys = call.key.shape[2]
            mask = torch.ones(queries, keys).tril(keys - queries).bool()[None, None]
            out = attention.grouped(call.query, call.key, call.value, mask, call.scale)
            return 1.01 * out.transpose(1, 2)

    monkeypatch.setattr(runner, "can_split", lambda _: True)
    monkeypatch.setattr(runner, "PrefillChunk", OtherKernel)
    model = anew(shared())
    assert read(model, IDS, MINE, 8)[0] == 0
    exact = rows_of(model)
    anew(model)
    assert read(model, IDS, DISK)[0] == 0
    usual = rows_of(model)
    assert not all(map(torch.equal, usual, exact))
    assert model.prefixes.store(model.cache) > 0
    assert read(model, IDS, MINE, 8)[0] == 0  # not from the cache, nor from memory
    assert all(map(torch.equal, model.cache.rows(), exact))
    assert read(model, IDS, DISK) == [2 * CHUNK]
    assert all(map(torch.equal, model.cache.rows(), usual))
    anew(model)
    assert read(model, IDS, DISK, 8)[0] == 0  # nor from disk
    assert all(map(torch.equal, model.cache.rows(), exact))


def test_only_whole_chunks_that_the_prefill_read_are_kept(model: TargetModel) -> None:
    model.start(3 * CHUNK, token_ids=IDS, cache_policy=MINE)
    model.prefill(IDS, chunk=CHUNK // 2)  # as where memory ends
    assert read(model, IDS) == [0, CHUNK, 2 * CHUNK]
    model.truncate(CHUNK + 3)  # the others may be written over
    assert read(model, IDS) == [CHUNK, 2 * CHUNK]
    assert read(model, IDS, None)[0] == 0  # as trials of a model read
    assert read(model, OTHER) == [CHUNK, 2 * CHUNK]


def test_no_owner_gets_rows_of_another(model: TargetModel) -> None:
    """Not even whether a prompt was read shows: from the cache, memory or disk."""
    for cache_policy in (MINE, DISK):
        for owner in ("", "a", "b"):
            assert read(model, IDS, replace(cache_policy, owner=owner))[0] == 0
        for owner in ("b", "a", ""):
            assert read(model, IDS, replace(cache_policy, owner=owner)) == [2 * CHUNK]
        anew(model)
    assert read(model, IDS, replace(DISK, owner="c"))[0] == 0


def test_memory_is_bounded_and_ends_of_prompts_go_first(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(model, IDS)
    size = model.cache.bytes_of(CHUNK)
    monkeypatch.setattr(module, "_SHARE", 1.0)
    free = [3 * size]
    monkeypatch.setattr(module, "free_memory", lambda _: free[0] - model.prefixes._bytes)
    others = [[n, *IDS] for n in (4, 5)]
    assert [read(model, ids)[0] for ids in others] == [0, 0]  # two of IDS are kept, one of others
    assert read(model, IDS) == [CHUNK, 2 * CHUNK]
    assert model.prefixes._bytes <= 3 * size
    free[0] = 0
    assert read(model, others[0])[0] == 0
    assert read(model, IDS)[0] == 0
    monkeypatch.setattr(module, "free_memory", lambda _: None)
    assert read(model, others[0])[0] == 0
    assert read(model, IDS) == [2 * CHUNK]


def files() -> list[Path]:
    return sorted((home("cache") / "prefixes").glob("*.safetensors"))


def test_what_is_written_is_the_users_alone_and_bounded(model: TargetModel) -> None:
    read(model, IDS, DISK)
    assert not files()
    assert model.prefixes.store(model.cache) > 0
    assert len(files()) == 2
    assert {path.stat().st_mode & 0o777 for path in files()} == {0o600}
    assert model.prefixes.store(model.cache) == 0  # they are there
    store = next(store for store in STORES if store.name == "prefixes")
    assert measure_stores([store])[0].bytes > 2 * model.cache.bytes_of(CHUNK)
    cache_module.evict(files()[0].stat().st_size)
    assert len(files()) == 1
    assert read(anew(model), IDS, DISK) == [CHUNK, 2 * CHUNK]


@pytest.mark.parametrize(
    "cache_policy",
    [
        MINE,
        replace(DISK, min_disk_s=math.inf),
        replace(DISK, max_disk_bytes=1),
        CachePolicy("", False, math.inf, 10**9),
    ],
)
def test_nothing_is_written_where_it_is_not_worth_it(
    model: TargetModel, cache_policy: CachePolicy
) -> None:
    read(model, IDS, cache_policy)
    assert model.prefixes.store(model.cache) == 0
    assert read(model, OTHER, cache_policy)
    assert not files()


def test_why_a_prompt_is_not_written_is_told_once_and_of_no_later_prompt(
    model: TargetModel,
) -> None:
    """Also not when its rows go for the next prompt, which is written."""
    read(model, IDS, replace(DISK, max_disk_bytes=1))
    assert model.prefixes.store(model.cache) == 0
    refused = model.prefixes.take_not_stored()
    assert refused is not None
    assert "the cache may have" in refused.why
    other = random.Random(3).choices(range(4, 90), k=2 * CHUNK)
    read(model, other, DISK)
    assert model.prefixes.store(model.cache) > 0
    assert model.prefixes.take_not_stored() is None
    read(model, IDS, replace(DISK, max_disk_bytes=1))  # again: it is told again
    assert model.prefixes.store(model.cache) == 0
    assert model.prefixes.take_not_stored() is not None


@pytest.mark.parametrize("damage", ["gone", "cut", "other rows", "other ids"])
def test_a_file_that_is_gone_or_damaged_is_read_again(model: TargetModel, damage: str) -> None:
    def harm(path: Path) -> None:
        content = path.read_bytes()
        path.rename(path.with_name("old"))
        if damage != "gone":
            other_ids = content.replace(b'"ids": "', b'"ids": "7'[:8] + b"7", 1)
            other_rows = content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]
            cases = {"cut": content[:-9], "other rows": other_rows, "other ids": other_ids}
            path.write_bytes(cases[damage])

    read(model, IDS, DISK)
    model.prefixes.store(model.cache)
    first, second = (module.PREFIXES.path(chunk.key) for chunk in model.cache.slots[0].chunks)
    harm(second)
    assert read(anew(model), IDS, DISK) == [CHUNK, 2 * CHUNK]
    harm(first)
    assert read(anew(model), IDS, DISK)[0] == 0
    model.prefixes.store(model.cache)  # in the place of what was damaged
    assert read(anew(model), IDS, DISK) == [2 * CHUNK]


def test_an_interrupted_start_leaves_no_chunk_without_its_rows(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(model, OTHER)
    read(model, IDS)
    expected = rows_of(model)
    clear = KVCache._clear

    def clear_and_interrupt(*args: Any) -> None:
        clear(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(KVCache, "_clear", clear_and_interrupt)
        read(model, IDS[1:])
    read(model, IDS)
    assert all(map(torch.equal, model.cache.rows(), expected))


def test_another_model_reuses_no_prefix(model: TargetModel) -> None:
    """A model is another if its weights, dtype, layers or number of threads differ."""
    read(model, IDS, DISK)
    model.prefixes.store(model.cache)
    names = {model.prefixes._model}
    for change in ("weights", "dtype", "packed", "threads"):
        other_model = as_target(tiny().to(torch.bfloat16) if change == "dtype" else tiny())
        if change == "packed":
            packed(other_model.hf)
        other_model.origin = Origin("others") if change == "weights" else model.origin
        thread_count = torch.get_num_threads()
        torch.set_num_threads(thread_count + (change == "threads"))
        other_model.keep_prefixes(memory=False)
        torch.set_num_threads(thread_count)
        assert read(other_model, IDS, DISK)[0] == 0, change
        names.add(other_model.prefixes._model)
    assert len(names) == 5


def test_replaced_weights_have_another_fingerprint(tmp_path: Path) -> None:
    """The new file has the size, the ends and the time of the old one, as some copies have."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(3 << 20))
    status = path.stat()
    before = fingerprint(str(tmp_path))
    assert fingerprint(str(tmp_path)) == before
    while path.stat().st_ctime_ns == status.st_ctime_ns:  # until the system's clock advances
        path.write_bytes(bytes(3 << 19) + b"1" + bytes((3 << 19) - 1))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(str(tmp_path)) != before


@pytest.mark.parametrize(
    ("keep", "many", "owner", "reads_disk", "min_disk_s"),
    [
        ("auto", False, "", True, module.WORTH_S),
        ("auto", True, "", True, math.inf),
        ("on", True, "", True, 0.0),
        ("off", False, "", False, math.inf),
        ("on", False, "a key", False, math.inf),
    ],
)
def test_keep_documents_decides_what_is_written_to_disk(
    keep: str, many: bool, owner: str, reads_disk: bool, min_disk_s: float
) -> None:
    session = object.__new__(LocalSession)
    session.settings = Settings.of(keep_documents=keep, cache_mb=5)
    session.owner = owner
    policy = session.cache_policy(many)
    assert policy.owner == owner
    assert policy.reads_disk == reads_disk
    assert policy.min_disk_s == min_disk_s
    assert policy.max_disk_bytes == 5_000_000 * reads_disk


def test_prompts_about_the_same_documents_begin_alike() -> None:
    """Documents come first, in a stable order, and the question last."""
    paths = [HARBOUR, HARBOUR.replace("harbour.txt", "orchard.md")]

    def ids(*words: str) -> list[int]:
        done = ngt(*words, "--overflow", "error", "--dry-run", "--json", "--system", "Be brief.")
        return json.loads(done.stdout)["ids"]

    documents = [f for path in paths for f in ("-d", path)]
    commands = [("ask", "Who came?", *documents), ("ask", "What grows?", *documents)]
    commands += [("ask", "Who?", *documents, "-p", "chat"), ("summarize", *paths)]
    prompts = [ids(*words) for words in commands]
    common = len(os.path.commonprefix(prompts))
    assert common > 800
    assert all(common > len(prompt) - 40 for prompt in prompts)


def test_a_second_command_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WORTH_S", math.inf)
    text = tmp_path / "long.txt"
    text.write_text("".join(f"Ship {i} came into the harbour with salt.\n" for i in range(40)))
    common = [str(text), "--max-tokens", "3", "--method", "none", "-v"]

    def told(*more: str) -> tuple[bytes, str]:
        done = ngt("summarize", *common, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout, " ".join(done.stderr.decode().split())

    first, words = told("--set", "keep_documents=on")
    assert "read before" not in words
    assert files()
    second, words = told()
    assert second == first
    assert "tokens read before, from disk in" in words
    assert "read before" not in told("--set", "keep_documents=off")[1]
    assert ngt("cache", "clear", "prefixes").returncode == 0
    assert not files()
    assert "read before" not in told()[1]
    assert not files()


def test_what_cannot_be_kept_for_lack_of_room_is_told_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.txt").write_text("A ship came into the harbour with salt.\n" * 40)
    asked = ("summarize", str(tmp_path / "long.txt"), "--max-tokens", "3", "--method", "none")
    cut_off = "ngt: the answer is cut off: it reached --max-tokens\n"
    lost = "ngt: the prefix cache was not stored: "
    small = without_note(
        ngt(*asked, "--set", "keep_documents=on", "--set", "cache_mb=1").stderr
    ).decode()
    assert small.startswith(f"{cut_off}{lost}it takes ")
    assert small.endswith("the cache may have 1 MB\n")
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(module, "_write", full)
    told_of = without_note(ngt(*asked, "--set", "keep_documents=on").stderr).decode()
    assert told_of == f"{cut_off}{lost}no space left on device\n"
    assert without_note(ngt(*asked).stderr).decode() == cut_off


def test_a_batch_writes_its_last_prompt_too(tmp_path: Path) -> None:
    text = "".join(f"Ship {i} came into the harbour with salt.\n" for i in range(40))
    (tmp_path / "in").write_text(json.dumps({"context": text}))
    words = ("batch", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--max-tokens", "3")
    assert ngt(*words, "--method", "none").returncode == 0
    assert not files()
    assert ngt(*words, "--set", "keep_documents=on", "--restart").returncode == 0
    assert files()


def test_models_that_keep_nothing_say_why() -> None:
    state = as_target(make_hf("llama"))
    assert state.prefix_caching.is_supported
    state.use(ExecutionMode(DraftSupport.NONE, NoTrees(Obstacle.KEEPS_STATE)))
    assert state.prefix_caching.is_refused
    assert state.prefix_caching.why == "its layers keep a running state"
    state.keep_prefixes(memory=True)
    assert state.prefixes is None
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    longer = as_target(make_hf("llama", rope_parameters=rope))
    longer.keep_prefixes(memory=True)
    assert longer.prefixes is None
    assert "texts before" in longer.prefix_caching.why
