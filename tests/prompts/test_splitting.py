"""Summaries of texts that do not fit: the parts fit, cover the text and survive interruptions."""

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.config import Settings
from ngtcli.decoding.model import TargetModel
from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document
from ngtcli.documents.selection import Excerpt
from ngtcli.engine.batch.output import FileOutput
from ngtcli.engine.engine import Prepared
from ngtcli.engine.local_engine import LocalEngine
from ngtcli.engine.parts import PARTS, CachedParts
from ngtcli.errors import ContextOverflowError, ModelError, NgtError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Task
from ngtcli.prompts.preset import load_preset
from ngtcli.prompts.splitting import Part, _groups, _Piece, complete_prompt, split
from tests.support.helpers import FakeBackend, copy_builtin_model, in_terminal, ngt

TEXTS = st.text(st.sampled_from(list("abc \n潮.|")), max_size=900)


def make_task(documents: list[Document], context: int = 400) -> Task:
    tokenizer = Tokenizer(FakeBackend())  # one token per letter
    return Task(load_preset("summarize"), documents, "", tokenizer, context, 40)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3), st.integers(260, 700))
def test_parts_fit_and_cover_the_text(texts: list[str], context: int) -> None:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    task = make_task(documents, context)
    try:
        parts = split(task)
    except ContextOverflowError:
        assert context < 400
        return
    assert all(len(part.build().ids) <= task.room for part in parts)
    check_nothing_is_lost(parts, texts)


def check_nothing_is_lost(parts: list[Part], texts: list[str]) -> None:
    """Check that the parts follow the texts and leave out nothing but white space."""
    excerpts = [excerpt for part in parts for excerpt in part.excerpts]
    starts = [(excerpt.document, excerpt.start) for excerpt in excerpts]
    assert starts == sorted(starts)

    for i, text in enumerate(texts):
        left_out = list(text)
        for excerpt in excerpts:
            if excerpt.document == i:
                left_out[excerpt.start : excerpt.end] = " " * (excerpt.end - excerpt.start)
        assert not "".join(left_out).strip()


def test_parts_end_at_headings_and_are_named_after_them() -> None:
    text = ""
    sections = []
    for i in range(6):
        sections.append(Section(len(text), i + 1, f"Chapter {i}"))
        text += f"Chapter {i}\n\n" + f"Ship {i} left the quay at noon. " * 7 + "\n\n"
    document = Document("log.pdf", text, About(sections=tuple(sections)))

    parts = split(make_task([document], context=700))

    assert 1 < len(parts) <= 6
    section_starts = {section.start for section in sections}
    assert all(part.excerpts[0].start in section_starts for part in parts)
    assert parts[0].name == "log.pdf, page 1"
    assert parts[1].name != parts[0].name


def test_parts_take_little_more_memory_than_their_text() -> None:
    text = "The tide came in. " * 3000
    tracemalloc.start()
    parts = split(make_task([Document("log.txt", text)], context=2000))
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parts) > 27
    assert memory < 3 * len(text)


def test_documents_that_fit_are_not_split() -> None:
    short = Document("a", "The tide came in.")
    long = Document("a", "The tide came in. " * 90)
    prompt = complete_prompt(make_task([short]))
    assert prompt is not None
    assert list(prompt.documents) == [short]
    assert complete_prompt(make_task([long])) is None


# --- the command ---


@pytest.fixture
def book(tmp_path: Path) -> str:
    chapters = [
        f"# Chapter {i}\n\n" + " ".join(f"Barge {i}.{j} came in with the tide." for j in range(26))
        for i in range(3)
    ]
    (tmp_path / "book.md").write_text("\n\n".join(chapters))
    return str(tmp_path / "book.md")


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags for short answers of the built-in model with a context in which a chapter fits."""
    folder = copy_builtin_model(
        tmp_path_factory.mktemp("short") / "model", max_position_embeddings=560
    )
    # In bfloat16, which some CPUs multiply, parts are answered one by one.
    return ("-m", folder, "--max-tokens", "8", "--method", "none", "--dtype", "float32")


def test_a_long_text_is_summarized_in_parts(book: str, flags: tuple[str, ...]) -> None:
    done = ngt("summarize", book, *flags, "--json")
    body = json.loads(done.stdout)
    Draft202012Validator(build("summarize")).validate(body)
    parts = body["parts"]
    assert len(parts) > 2
    assert f"split into {len(parts)} parts".encode() in done.stderr
    assert not any(part["kept"] for part in parts)
    assert not PARTS.each()  # No part stays in the cache once the summary is complete.

    source = Path(book).read_text()
    for span in body["sources"]["spans"]:
        quote = source[span["source_start"] : span["source_end"]]
        summary = body["text"][span["start"] : span["end"]]
        assert quote.split() == summary.split()


def test_a_summary_continues_after_ctrl_c(
    book: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("summarize", book, *flags)
    uninterrupted = json.loads(ngt(*command, "--json").stdout)
    count = len(uninterrupted["parts"])

    with monkeypatch.context() as patch:
        patch.setattr(CachedParts, "put", interrupted_at_call(3, CachedParts.put))
        done = ngt(*command)
    assert done.returncode == 130
    assert done.stdout == b""
    assert f"kept 2 of {count} parts".encode() in done.stderr

    done = ngt(*command, "--json")
    assert f"reused 2 of {count} parts".encode() in done.stderr
    resumed = json.loads(done.stdout)
    assert sum(part["kept"] for part in resumed["parts"]) == 2
    assert resumed["text"] == uninterrupted["text"]
    assert part_texts(resumed) == part_texts(uninterrupted)


def interrupted_at_call(number: int, function: Callable[..., None]) -> Callable[..., None]:
    """Make a function that a keyboard interrupt stops at the call with this number."""
    calls = 0

    def wrapper(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        function(*arguments)

    return wrapper


def part_texts(body: dict[str, Any]) -> list[str]:
    return [part["text"] for part in body["parts"]]


def test_parts_are_batched_unless_exact(
    book: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_sizes: list[int] = []
    score = TargetModel.score

    def recording_score(model: TargetModel, layout: Any) -> Any:
        batch_sizes.append(len(layout.spans))
        return score(model, layout)

    monkeypatch.setattr(TargetModel, "score", recording_score)

    batched = ngt("summarize", book, *flags).stdout
    assert max(batch_sizes) > 2

    batch_sizes.clear()
    exact = ngt("summarize", book, *flags, "--exact").stdout
    assert max(batch_sizes) <= 2

    assert batched == exact
    assert batched.strip()


def test_a_part_that_fails_is_named(
    book: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_parts: list[Prepared] = []
    add = LocalEngine.add

    def add_or_fail(engine: LocalEngine, prepared: Prepared, **options: Any) -> Any:
        prepared_parts.append(prepared)
        if len(prepared_parts) == 2:
            raise ModelError("the model gives no numbers", hint="Name another one.")
        return add(engine, prepared, **options)

    monkeypatch.setattr(LocalEngine, "add", add_or_fail)
    done = ngt("summarize", book, *flags, "--exact")
    assert done.returncode == 4
    assert done.stdout == b""
    *_, failed_part, error, _hint = done.stderr.decode().splitlines()
    assert failed_part.startswith("ngt: failed at part 2 of ")
    assert "book.md, Chapter 1" in failed_part
    assert "kept 1 of " in failed_part
    assert error == "ngt: the model gives no numbers"


def test_every_status_names_its_part(book: str, flags: tuple[str, ...]) -> None:
    screen, code = in_terminal("summarize", book, *flags, columns=100)
    assert code == 0
    statuses = [line for line in screen.split("\r\x1b[K") if "Reading █" in line or " ░" in line]
    parts = {status.partition(":")[0] for status in statuses if status.startswith("Part ")}
    assert len(parts) > 2
    assert all(re.fullmatch(r"Part \d+ of \d+", part) for part in parts)
    assert not statuses[-1].startswith("Part ")  # the prompt of the summaries

    log = ngt("summarize", book, *flags, "-v").stderr.decode()
    for part in parts:
        assert f"{part}: book.md, Chapter" in log
        assert f"{part}: Reading the prompt" in log


@pytest.mark.search
@pytest.mark.parametrize(
    ("owner", "method", "exit_code"),
    [(LocalEngine, "prepare_answer", 7), (FileOutput, "put", 1)],
    ids=["the last answer", "its delivery"],
)
def test_parts_are_kept_if_the_last_answer_fails(
    tmp_path: Path,
    book: str,
    flags: tuple[str, ...],
    owner: type,
    method: str,
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = tmp_path / "in.jsonl"
    results = tmp_path / "out.jsonl"
    requests.write_text(json.dumps({"paths": [book]}) + "\n")
    command = ("batch", str(requests), "-o", str(results), *flags)

    def fail(*_: Any) -> Any:
        raise NgtError("no logits, or no space left", hint="Try again.")

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        assert ngt(*command).returncode == exit_code
    assert PARTS.each()

    done = ngt(*command, "--retry-failed")
    assert done.returncode == 0
    assert b"from an earlier run" in done.stderr
    (result,) = map(json.loads, results.read_text().splitlines())
    assert result["text"]
    assert all(part["kept"] for part in result["parts"])
    assert not PARTS.each()


def test_cached_parts_depend_on_engine_and_client() -> None:
    preset = load_preset("summarize")
    prompt: Any = SimpleNamespace(ids=(1, 2))

    def cached_parts(engine: str, client: str = "") -> CachedParts:
        model = SimpleNamespace(tokenizer=Tokenizer(FakeBackend()))
        settings = Settings.of(engine=engine)
        session: Any = SimpleNamespace(settings=settings, facts=model, owner=client)
        return CachedParts(session, preset)

    # Nothing is stored for a client with a name.
    cached_parts("vllm", "client").put(prompt, "summary")
    assert cached_parts("vllm").get(prompt) is None
    assert cached_parts("vllm", "client").get(prompt) is None

    cached_parts("vllm").put(prompt, "summary")
    assert cached_parts("ngt").get(prompt) is None
    assert cached_parts("vllm", "client").get(prompt) is None

    parts = cached_parts("vllm")
    assert parts.get(prompt) == "summary"
    parts.forget()
    assert cached_parts("vllm").get(prompt) is None


def test_overflow_error_refuses_a_long_text(book: str, flags: tuple[str, ...]) -> None:
    assert ngt("summarize", book, *flags, "--overflow", "error").returncode == 5


def test_a_dry_run_shows_the_prompt_of_the_first_part(book: str, flags: tuple[str, ...]) -> None:
    done = ngt("summarize", book, *flags, "--dry-run")
    assert done.returncode == 0
    assert b"this is the prompt of the first" in done.stderr
    assert b"Chapter 0" in done.stdout
    assert b"Chapter 2" not in done.stdout


def test_questions_are_not_split(book: str) -> None:
    done = ngt("ask", "-d", book, "Why?", "--overflow", "split")
    assert done.returncode == 2
    assert b"retrieve" in done.stderr


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "tide.txt").write_text("The tide came in at noon that day.")
    (folder / "a_tide.txt").write_text("A ship left port at dawn.")
    return folder


def test_per_file_writes_a_summary_of_each_file(
    tmp_path: Path, two_files: Path, flags: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    done = ngt("summarize", str(two_files), "--per-file", "-o", str(out), *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert b"(2 of 2)" in done.stderr
    assert len(list(out.glob("*tide.txt*"))) == 2

    single = ngt("summarize", str(two_files / "a_tide.txt"), *flags).stdout
    assert single in {path.read_bytes() for path in out.iterdir()}

    printed = ngt("summarize", str(two_files), "--per-file", *flags).stdout
    assert b"\n\n==> a_tide.txt <==\n" + single in printed
    assert printed.count(b"==> ") == 2


def test_per_file_refuses_to_write_to_a_file_and_dry_runs(tmp_path: Path, two_files: Path) -> None:
    existing_file = str(two_files / "a_tide.txt")
    for flags in (["-o", existing_file], ["-o", str(tmp_path / "out"), "--dry-run"]):
        assert ngt("summarize", str(two_files), "--per-file", *flags).returncode == 2


@given(st.lists(st.integers(1, 10), max_size=40), st.integers(20, 40))
def test_groups_of_pieces_are_as_large_as_the_limit_allows(sizes: list[int], limit: int) -> None:
    pieces = [_Piece(Excerpt(0, i, i + 1), size, False) for i, size in enumerate(sizes)]
    groups = list(_groups(pieces, limit, float("inf")))
    assert [piece for group in groups for piece in group] == pieces

    totals = [sum(piece.tokens for piece in group) for group in groups]
    assert all(total <= limit for total in totals)
    for total, next_group in zip(totals, groups[1:], strict=False):
        assert total + next_group[0].tokens > limit
