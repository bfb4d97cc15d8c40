"""Summaries of what does not fit: parts that fit and lose nothing, kept when interrupted."""

import json
import re
import tracemalloc
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
from ngtcli.prompts.splitting import Part, _groups, _Piece, fits, split
from tests.support.helpers import FakeBackend, copy_builtin_model, in_terminal, ngt

TEXTS = st.text(st.sampled_from(list("abc \n潮.|")), max_size=900)


def task(documents: list[Document], context: int = 400, answer: int = 40) -> Task:
    backend = Tokenizer(FakeBackend())  # a token a letter
    preset = load_preset("summarize")
    return Task(preset, documents, "", backend, context, answer)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3), st.integers(260, 700))
def test_parts_fit_and_cover_the_text(texts: list[str], context: int) -> None:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    own = task(documents, context)
    try:
        parts = split(own)
    except ContextOverflowError:
        assert context < 400
        return
    assert all(len(part.build().ids) <= own.room for part in parts)
    check_nothing_is_lost(parts, texts)


def check_nothing_is_lost(parts: list[Part], texts: list[str]) -> None:
    """The parts have the texts in order, with nothing left out but white space."""
    places = [e for part in parts for e in part.excerpts]
    assert [(e.document, e.start) for e in places] == sorted((e.document, e.start) for e in places)
    for i, text in enumerate(texts):
        covered = {at for e in places if e.document == i for at in range(e.start, e.end)}
        assert all(text[at].isspace() for at in range(len(text)) if at not in covered)


def test_parts_end_at_headings_and_are_named_after_them() -> None:
    chapters = [f"Chapter {i}\n\n" + f"Ship {i} left the quay at noon. " * 7 for i in range(6)]
    text, sections = "", []
    for i, chapter in enumerate(chapters):
        sections.append(Section(len(text), i + 1, f"Chapter {i}"))
        text += chapter + "\n\n"
    document = Document("log.pdf", text, About(sections=tuple(sections)))
    parts = split(task([document], context=700))
    starts = {section.start for section in sections}
    assert 1 < len(parts) <= 6
    assert all(part.excerpts[0].start in starts for part in parts)
    assert parts[0].name == "log.pdf, page 1"
    assert parts[1].name != parts[0].name


def test_parts_take_little_more_memory_than_their_text() -> None:
    text = "The tide came in. " * 3000
    tracemalloc.start()
    parts = split(task([Document("log.txt", text)], context=2000))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parts) > 27
    assert taken < 3 * len(text)


def test_documents_that_fit_are_not_split() -> None:
    short = [Document("a", "The tide came in.")]
    prompt = fits(task(short))
    assert prompt is not None
    assert list(prompt.documents) == short
    assert fits(task([Document("a", "The tide came in. " * 90)])) is None


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
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags for short answers of the built-in model with a context in which a chapter fits."""
    folder = copy_builtin_model(
        tmp_path_factory.mktemp("short") / "model", max_position_embeddings=560
    )
    # In bfloat16, which some CPUs multiply, parts are answered one by one.
    return ("-m", folder, "--max-tokens", "8", "--method", "none", "--dtype", "float32")


def failing(put: Any, at: int, error: BaseException) -> Any:
    """`CachedParts.put`, whose call number `at` raises `error`."""
    done: list[Any] = []

    def instead(*arguments: Any) -> None:
        done.append(arguments)
        if len(done) == at:
            raise error
        put(*arguments)

    return instead


def test_a_long_text_is_summarized_in_parts_and_resumed(
    book: str, short: tuple[str, ...], monkeypatch: Any
) -> None:
    whole = ngt("summarize", book, *short, "--json")
    body = json.loads(whole.stdout)
    Draft202012Validator(build("summarize")).validate(body)
    count = len(body["parts"])
    assert f"split into {count} parts".encode() in whole.stderr
    assert count > 2
    assert not any(part["kept"] for part in body["parts"])
    assert not PARTS.each()  # it is done
    for span in body["sources"]["spans"]:
        quote = Path(book).read_text()[span["source_start"] : span["source_end"]].split()
        assert quote == body["text"][span["start"] : span["end"]].split()
    check_going_on_after_ctrl_c(("summarize", book, *short), body, count, monkeypatch)


def check_going_on_after_ctrl_c(
    command: tuple[str, ...], body: dict[str, Any], count: int, monkeypatch: Any
) -> None:
    """What comes of `count` parts is `body`, after a run that ended with the third one as well."""
    with monkeypatch.context() as patch:
        patch.setattr(CachedParts, "put", failing(CachedParts.put, 3, KeyboardInterrupt()))
        stopped = ngt(*command)
    assert stopped.returncode == 130
    assert stopped.stdout == b""
    assert f"kept 2 of {count} parts".encode() in stopped.stderr
    again = ngt(*command, "--json")
    assert f"reused 2 of {count} parts".encode() in again.stderr
    rest = json.loads(again.stdout)
    assert sum(part["kept"] for part in rest["parts"]) == 2
    assert rest["text"] == body["text"]
    assert [p["text"] for p in rest["parts"]] == [p["text"] for p in body["parts"]]


def test_parts_are_batched_unless_exact(
    book: str, short: tuple[str, ...], monkeypatch: Any
) -> None:
    together, score = list[int](), TargetModel.score

    def counted(model: TargetModel, layout: Any) -> Any:
        together.append(len(layout.spans))
        return score(model, layout)

    monkeypatch.setattr(TargetModel, "score", counted)
    texts = []
    for more, is_shared in ((), True), (("--exact",), False):
        together.clear()
        texts.append(ngt("summarize", book, *short, *more).stdout)
        assert (max(together) > 2) == is_shared
    assert texts[0] == texts[1]
    assert texts[0].strip()


def test_a_part_that_fails_is_named(book: str, short: tuple[str, ...], monkeypatch: Any) -> None:
    wrong = ModelError("the model gives no numbers", hint="Name another one.")
    add, added = LocalEngine.add, list[Prepared]()

    def fails(engine: LocalEngine, prepared: Prepared, **more: Any) -> Any:
        added.append(prepared)
        if len(added) == 2:
            raise wrong
        return add(engine, prepared, **more)

    monkeypatch.setattr(LocalEngine, "add", fails)
    done = ngt("summarize", book, *short, "--exact")
    assert done.returncode == 4
    assert done.stdout == b""
    told = done.stderr.decode().splitlines()
    assert told[-3].startswith("ngt: failed at part 2 of ")
    assert "book.md, Chapter 1" in told[-3]
    assert "kept 1 of " in told[-3]
    assert told[-2] == "ngt: the model gives no numbers"


def test_every_status_names_its_part(book: str, short: tuple[str, ...]) -> None:
    shown, code = in_terminal("summarize", book, *short, columns=100)
    passing = [line for line in shown.split("\r\x1b[K") if "Reading █" in line or " ░" in line]
    parts = {line.partition(":")[0] for line in passing if line.startswith("Part ")}
    assert code == 0
    assert len(parts) > 2
    assert all(re.fullmatch(r"Part \d+ of \d+", p) for p in parts)
    assert not passing[-1].startswith("Part ")  # the prompt of the summaries
    told = ngt("summarize", book, *short, "-v").stderr.decode()
    for part in parts:
        assert f"{part}: book.md, Chapter" in told
        assert f"{part}: Reading the prompt" in told


@pytest.mark.search
@pytest.mark.parametrize("fails", ["the answer", "its delivery"])
def test_parts_are_kept_if_the_last_answer_fails(
    tmp_path: Path, book: str, short: tuple[str, ...], fails: str, monkeypatch: Any
) -> None:
    lines, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text(json.dumps({"paths": [book]}) + "\n")
    command = "batch", str(lines), "-o", str(out), *short

    owner, name = (LocalEngine, "prepare_answer") if fails == "the answer" else (FileOutput, "put")
    whole = getattr(owner, name)

    def fail(*_: Any) -> Any:
        raise NgtError("no scores, or no space left", hint="Try again.")

    monkeypatch.setattr(owner, name, fail)
    assert ngt(*command).returncode == (7 if fails == "the answer" else 1)
    assert PARTS.each()
    monkeypatch.setattr(owner, name, whole)
    again = ngt(*command, "--retry-failed")
    assert again.returncode == 0
    assert b"from an earlier run" in again.stderr
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["text"]
    assert all(part["kept"] for part in row["parts"])
    assert not PARTS.each()


def test_cached_parts_depend_on_engine_and_client() -> None:
    preset = load_preset("summarize")
    prompt: Any = SimpleNamespace(ids=(1, 2))

    def cached(engine: str, owner: str = "") -> CachedParts:
        model = SimpleNamespace(tokenizer=Tokenizer(FakeBackend()))
        settings = Settings.of(engine=engine)
        session: Any = SimpleNamespace(settings=settings, facts=model, owner=owner)
        return CachedParts(session, preset)

    for owner in ("another", ""):  # of whom nothing is stored
        assert cached("vllm").get(prompt) is None
        cached("vllm", owner).put(prompt, "theirs")
    assert cached("ngt").get(prompt) is None
    assert cached("vllm", "another").get(prompt) is None
    parts = cached("vllm")
    assert parts.get(prompt) == "theirs"
    parts.forget()
    assert cached("vllm").get(prompt) is None


def test_long_texts_with_overflow_error_and_dry_run(book: str, short: tuple[str, ...]) -> None:
    assert ngt("summarize", book, *short, "--overflow", "error").returncode == 5
    dry = ngt("summarize", book, *short, "--dry-run")
    assert dry.returncode == 0
    assert b"this is the prompt of the first" in dry.stderr
    assert b"Chapter 0" in dry.stdout
    assert b"Chapter 2" not in dry.stdout
    wrong = ngt("ask", "-d", book, "Why?", "--overflow", "split")
    assert wrong.returncode == 2
    assert b"retrieve" in wrong.stderr


def test_per_file_writes_a_summary_of_each_file(tmp_path: Path, short: tuple[str, ...]) -> None:
    docs = tmp_path / "docs"
    (docs / "a").mkdir(parents=True)
    (docs / "a" / "tide.txt").write_text("The tide came in at noon that day.")
    (docs / "a_tide.txt").write_text("A ship left port at dawn.")
    out = tmp_path / "out"
    done = ngt("summarize", str(docs), "--per-file", "-o", str(out), *short)
    assert done.returncode == 0 and done.stdout == b"", done.stderr
    assert len(list(out.glob("*tide.txt*"))) == 2
    assert b"(2 of 2)" in done.stderr
    alone = ngt("summarize", str(docs / "a_tide.txt"), *short)
    assert alone.stdout in {path.read_bytes() for path in out.iterdir()}
    for wrong in (["-o", str(docs / "a_tide.txt")], ["-o", str(out), "--dry-run"]):
        assert ngt("summarize", str(docs), "--per-file", *wrong).returncode == 2
    shown = ngt("summarize", str(docs), "--per-file", *short).stdout
    assert b"\n\n==> a_tide.txt <==\n" + alone.stdout in shown
    assert shown.count(b"==> ") == 2


@given(st.lists(st.integers(1, 10), max_size=40), st.integers(20, 40))
def test_groups_of_pieces_stay_within_the_room(sizes: list[int], room: int) -> None:
    pieces = [_Piece(Excerpt(0, i, i + 1), size, False) for i, size in enumerate(sizes)]
    groups = list(_groups(pieces, room, float("inf")))
    assert [piece for group in groups for piece in group] == pieces
    totals = [sum(piece.tokens for piece in group) for group in groups]
    assert all(total <= room for total in totals)
    for total, after in zip(totals, groups[1:], strict=False):
        assert total + after[0].tokens > room
