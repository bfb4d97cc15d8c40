"""Whatever a run left behind, the next does as a first: a folder, a cache and commands, at random.

hypothesis draws what happens to the user's files, to the cache and to the commands; a command that
is not disturbed is then run twice, over the cache and over an empty one, and must do the same. With
SECOND_RUNS=300 in the environment, 300 longer stories are drawn instead of a few; -s shows how many
steps they had.
"""

import errno
import io
import json
import os
import random
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ngtcli.documents import catalog
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.retrieval import index
from ngtcli.system import store
from ngtcli.system.files import NewFile
from tests.encoder_models import make_meaning_embedder
from tests.support import stopped_parsers
from tests.support.fakes import FakeAnswers, answer_with
from tests.support.helpers import Done, examples, ngt

pytest.importorskip("reportlab")
pytest.importorskip("pypdfium2")
pytestmark = [
    pytest.mark.skipif(find_spec("faiss") is None, reason="no faiss"),
    pytest.mark.skipif(not hasattr(os, "waitid"), reason="no os.waitid"),
]
LONG = int(os.environ.get("SECOND_RUNS", "0"))  # stories of a long run
STORIES = settings(
    max_examples=LONG or examples(8),
    stateful_step_count=40 if LONG else 20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
WORDS = [f"{a}{b}" for a in ("ba", "do", "fi", "ga", "lo", "mi", "na", "po") for b in "aeiou"]
CONTEXT = 128  # tokens of the model; no document fits

# --- documents ---


def paragraphs(serial: int) -> list[str]:
    """Six paragraphs of random words, other ones for each serial number."""
    draws = [random.Random(f"{serial} {i}") for i in range(6)]
    return [f"Note {serial}: {' '.join(draw.sample(WORDS, 6))}." for draw in draws]


def _csv(texts: list[str]) -> bytes:
    return "".join(f"{i},{text}\n" for i, text in enumerate(texts)).encode()


def _html(texts: list[str]) -> bytes:
    elements = "".join(f"<p>{text}</p>" for text in texts)
    return f"<html><body>{elements}</body></html>".encode()


def _pdf(texts: list[str]) -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, invariant=1)
    for i, text in enumerate(texts):
        canvas.drawString(50, 700 - 40 * i, text)
    canvas.save()
    return out.getvalue()


FORMATS: dict[str, Callable[[list[str]], bytes]] = {
    "": lambda texts: "\n\n".join(texts).encode(),
    ".txt": lambda texts: "\n\n".join(texts).encode(),
    ".json": lambda texts: json.dumps({"notes": texts}).encode(),
    ".csv": _csv,
    ".html": _html,
    ".pdf": _pdf,
}
BROKEN = {
    "": b"",
    ".txt": b"\0\1\2",
    ".json": b'{"notes": [',
    ".csv": b"a\0b,c\n",
    ".html": b"<html></html>",
    ".pdf": b"%PDF-1.4 and nothing else",
}
NAMES = [f"{stem}{suffix}" for stem in ("a", "b", "sub/a") for suffix in FORMATS]
names = st.sampled_from(NAMES)
numbers = st.integers(0, 99)
targets = st.just(0) | numbers  # mostly the folder
PARSED = (".json", ".csv", ".html", ".pdf")
DISTURBANCES = ["kill", "interrupt", "interrupt_command", "fail_beside", "suspend"]


def only_read(
    self: store._Store, sql: str, rows: Any, real: Any = store._Store.execute
) -> list[tuple[Any, ...]] | None:
    """`_Store.execute` on a full disk."""
    return real(self, sql, rows) if sql.startswith("SELECT") else None


# --- the model ---


@dataclass
class Model:
    """What is known of the files and the cache, without looking at them."""

    users_files: dict[Path, bytes] = field(default_factory=dict)  # as the user left them
    healthy: set[Path] = field(default_factory=set)  # documents that can be read
    written: set[Path] = field(default_factory=set)  # summaries among the documents
    # Documents of which the cache has the passages ("cut"), or their vectors ("embedded").
    cached: defaultdict[str, set[tuple[str, bytes]]] = field(
        default_factory=lambda: defaultdict(set)
    )

    def below(self, path: Path) -> set[tuple[str, bytes]]:
        """The documents in a folder, or the one that `path` is."""
        paths = (p for p in self.healthy if p == path or path in p.parents)
        return {(p.suffix, p.read_bytes()) for p in paths}


class DigestAnswers(FakeAnswers):
    """Answers with a hash of the prompt; after `max_answers` of them the run is interrupted."""

    def __init__(self) -> None:
        super().__init__(before=self.count)
        self.say = lambda prompt: sha256(prompt.encode()).hexdigest()[:16]
        self.max_answers = 10**9

    def count(self, _: str) -> None:
        self.max_answers -= 1
        if self.max_answers < 0:
            raise KeyboardInterrupt


def stem(summary: Path) -> str:
    """What the name of a summary has of its document's, whatever other documents there are."""
    return summary.name.split(".")[0]


class SecondRuns(RuleBasedStateMachine):
    """A folder of documents, a folder of summaries, a batch, and the cache of all commands."""

    model: Path  # of CONTEXT tokens
    embedder: Path
    answers: DigestAnswers
    cut: list[object]  # documents that were cut into passages
    done: Counter[str] = Counter()  # steps and commands, over all stories

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=self.model.parent))
        self.docs = self.place / "docs"
        self.out = self.place / "out"
        self.home = self.place / "home"
        self.lines = self.place / "lines.jsonl"
        self.answered = self.place / "answered.jsonl"
        for folder in (self.docs / "sub", self.out):
            folder.mkdir(parents=True)
        self.known = Model()
        self.serial = 0
        self.is_disk_full = False
        self.is_cache_outgrown = False

    # --- what the user does ---

    def write_file(self, path: Path, data: bytes, healthy: bool) -> None:
        """The user writes a file, at a time of its own."""
        self.serial += 1
        path.write_bytes(data)
        os.utime(path, ns=(self.serial * 10**9, self.serial * 10**9))
        self.known.users_files[path] = data
        self.known.healthy.discard(path)
        if healthy and self.docs in path.parents:
            self.known.healthy.add(path)

    def documents(self) -> list[Path]:
        """The files in the folder."""
        paths = self.docs.rglob("*")
        return sorted(p for p in paths if p.is_file() and not p.name.startswith("."))

    @initialize(
        documents=st.lists(names, min_size=2, max_size=4, unique=True),
        lines=st.lists(targets, min_size=1, max_size=4),
    )
    def begin(self, documents: list[str], lines: list[int]) -> None:
        """Write documents, and a batch of questions about them."""
        for name in documents:
            self.write_document(name, True)
        batch = [
            {"id": f"line {i}", "paths": [str(self.target(n))], "question": f"Which {WORDS[i]}?"}
            for i, n in enumerate(lines, 1)
        ]
        self.lines.write_text("".join(f"{json.dumps(line)}\n" for line in batch))

    @rule(name=names, healthy=st.booleans())
    def write(self, name: str, healthy: bool) -> None:
        self.write_document(name, healthy)

    def write_document(self, name: str, healthy: bool) -> Path:
        """Write a document that was not there before, or one that cannot be read."""
        path = self.docs / name
        make = FORMATS[path.suffix]
        data = make(paragraphs(self.serial)) if healthy else BROKEN[path.suffix]
        self.write_file(path, data, healthy)
        return path

    @precondition(lambda self: self.documents())
    @rule(which=numbers, name=names)
    def rename_document(self, which: int, name: str) -> None:
        old = pick(self.documents(), which)
        new = (self.docs / name).with_suffix(old.suffix)
        data = old.read_bytes()
        healthy = old in self.known.healthy
        self.delete(old)
        self.write_file(new, data, healthy)

    def delete(self, path: Path) -> None:
        path.unlink()
        self.known.users_files.pop(path, None)
        self.known.healthy.discard(path)

    @precondition(lambda self: self.documents())
    @rule(which=numbers)
    def delete_document(self, which: int) -> None:
        self.delete(pick(self.documents(), which))

    @precondition(lambda self: self.documents())
    @rule(which=numbers)
    def write_own_file_where_a_summary_would_be(self, which: int) -> None:
        name = pick(self.documents(), which).relative_to(self.docs).as_posix().replace("/", "_")
        self.write_file(self.out / f"{name}.txt", b"The user's own.", healthy=True)

    @precondition(lambda self: any(self.out.glob("*.txt")))
    @rule(which=numbers, delete=st.booleans())
    def edit_or_delete_summary(self, which: int, delete: bool) -> None:
        path = pick(sorted(self.out.glob("*.txt")), which)
        if delete:
            self.delete(path)
        else:
            self.write_file(path, path.read_bytes() + b"Edited.\n", healthy=True)

    # --- what happens to the cache ---

    def cache_files(self) -> list[Path]:
        return sorted(p for p in self.home.rglob("*") if p.is_file())

    @precondition(lambda self: self.cache_files())
    @rule(
        how=st.sampled_from(["flip", "cut", "delete", "move", "clear", "outgrow", "fill_disk"]),
        which=numbers,
        at=st.integers(0, 9999),
    )
    def change_cache(self, how: str, which: int, at: int) -> None:
        if how in ("flip", "cut", "delete"):
            damage(pick(self.cache_files(), which), how, at)
        else:
            getattr(self, how)()
        if how != "move":
            self.known.cached.clear()

    def move(self) -> None:
        self.serial += 1
        self.home = self.home.rename(self.place / f"home-{self.serial}")

    def clear(self) -> None:
        self.ngt("cache", "clear")
        self.is_cache_outgrown = False

    def outgrow(self) -> None:
        """From now on the cache is over its limit, whatever is stored."""
        filler = self.home / "cache" / "passages" / "other.safetensors"
        filler.parent.mkdir(parents=True, exist_ok=True)
        filler.write_bytes(bytes(999_999))
        os.utime(filler, (2**33, 2**33))  # used last
        self.is_cache_outgrown = True

    def fill_disk(self) -> None:
        """From now on nothing can be written; the second time, it can again."""
        self.is_disk_full = not self.is_disk_full

    # --- commands ---

    def ngt(self, *words: object, home: Path | None = None) -> Done:
        """The command, over the cache or the one in `home`; it ends with no unexpected error."""
        is_own_cache = home is None
        with ExitStack() as stack:
            if is_own_cache and self.is_disk_full:
                stack.enter_context(patch.object(NewFile, "__init__", no_space))
                stack.enter_context(patch("ngtcli.system.journal.write_all", no_space))
                stack.enter_context(patch.object(store._Store, "execute", only_read))
            done = ngt(
                *map(str, words),
                NGT_HOME=str(home or self.home),
                NGT_CACHE_MB="1",
                NGT_MODEL=str(self.model),
                NGT_BACKGROUND="none",
            )
        if is_own_cache:
            name = words[:2] if words[0] == "docs" else words[:1]
            self.done[" ".join(map(str, name))] += 1
        assert b"--debug" not in done.stderr, done.stderr.decode()
        return done

    def empty(self) -> Path:
        """A new folder."""
        return Path(tempfile.mkdtemp(dir=self.place, prefix="empty-"))

    def twice(self, *words: object) -> tuple[Done, Done]:
        """The command over the cache and over an empty one, which must end the same."""
        done = self.ngt(*words)
        expected = self.ngt(*words, home=self.empty())
        assert_same_end(done, expected)
        return done, expected

    @rule()
    def list_documents(self) -> None:
        done, expected = self.twice("docs", "list", self.docs, "--json")
        assert done.stdout == expected.stdout
        rows = json.loads(done.stdout)["documents"] if done.stdout else []
        # What a command wrote among the documents is none of them.
        assert {Path(row["path"]) for row in rows} >= self.known.healthy - self.known.written

    @precondition(lambda self: self.documents())
    @rule(which=numbers, how=st.sampled_from([["--text"], ["--passages", "--json"], []]))
    def show_document(self, which: int, how: list[str]) -> None:
        path = pick(self.documents(), which)
        done, expected = self.twice("docs", "show", path, *how)
        assert done.stdout == expected.stdout

    def target(self, which: int) -> Path:
        return pick([self.docs, self.docs / "sub", *self.documents()], which)

    @rule(which=st.lists(targets, min_size=2, max_size=4), dense=st.booleans(), seed=numbers)
    def ask(self, which: list[int], dense: bool, seed: int) -> None:
        """The same passages are chosen, and none that were cut or embedded before are again."""
        question = " ".join(random.Random(seed).sample(WORDS, 4))
        for number in which:
            self.ask_of(self.target(number), question, dense)

    def ask_of(self, target: Path, question: str, dense: bool) -> None:
        words = [
            "ask",
            "-d",
            target,
            f"{question}?",
            "--passages",
            1,
            *CUTTING,
            "--dry-run",
            "--json",
            *(["--set", f"embedder={self.embedder}"] if dense else []),
        ]
        self.cut.clear()
        done = self.ngt(*words)
        cut = len(self.cut)
        expected = self.ngt(*words, home=self.empty())
        assert_same_end(done, expected)
        if done.returncode:
            return
        plan = json.loads(done.stdout)
        assert plan["prompt"] == json.loads(expected.stdout)["prompt"]
        if plan["retrieval"] is not None:
            self.check_work(target, dense, cut, plan["retrieval"]["embedded"])

    def check_work(self, target: Path, dense: bool, cut: int, embedded: int) -> None:
        """Only documents that were never cut or embedded before were now."""
        documents = self.known.below(target)
        for kind, count in (("cut", cut), ("embedded", embedded)):
            if kind == "cut" or dense:
                new_documents = documents - self.known.cached[kind]
                assert new_documents or not count, f"{count} {kind} again"
                if not (self.is_disk_full or self.is_cache_outgrown):
                    self.known.cached[kind] |= documents

    @rule(which=targets, seed=numbers)
    def answer(self, which: int, seed: int) -> None:
        """A real answer, which a trie drafts."""
        question = " ".join(random.Random(seed).sample(WORDS, 2))
        done, expected = self.twice(
            "ask",
            "-d",
            self.target(which),
            question,
            "--method",
            "trie",
            "--max-tokens",
            3,
            "--passages",
            1,
            *CUTTING,
        )
        assert done.stdout == expected.stdout

    @rule(which=targets, beside=st.booleans())
    def summarize_each(self, which: int, beside: bool) -> None:
        """Each summary is that of the text as it is, unless the user's file is in its place."""
        target = self.target(which)
        out = self.docs if beside else self.out
        fresh = self.empty()
        documents = set(self.documents())
        done = self.ngt("summarize", target, "-o", f"{out}/")
        expected = self.ngt("summarize", target, "-o", f"{fresh}/", home=self.empty())
        if beside:
            self.known.written |= set(self.documents()) - documents
        else:
            self.check_summaries(done, expected, fresh)
            if done.returncode == 0 and not self.is_disk_full:
                self.check_nothing_is_asked_again(target)

    def check_nothing_is_asked_again(self, target: Path) -> None:
        """A second run in a row leaves the summaries as they are, and asks the model nothing."""
        summaries = {path: path.read_bytes() for path in self.out.iterdir()}
        self.answers.asked.clear()
        again = self.ngt("summarize", target, "-o", f"{self.out}/")
        assert again.returncode == 0, again.stderr.decode()
        assert self.answers.asked == []
        assert {path: path.read_bytes() for path in self.out.iterdir()} == summaries

    def check_summaries(self, done: Done, expected: Done, fresh: Path) -> None:
        """They are those in `fresh`; a run fails as that one, or names a file of the user's.

        The names of files may differ: one is given once, and stays when other documents go.
        """
        users_files = [path for path in self.known.users_files if path.parent == self.out]
        if done.returncode == 0:
            assert expected.returncode == 0
            summaries = {p.read_bytes() for p in self.out.glob("*.txt") if p not in users_files}
            missing = [p for p in fresh.glob("*.txt") if p.read_bytes() not in summaries]
            # In the place of each that is missing stands a file of the user's.
            assert not Counter(map(stem, missing)) - Counter(map(stem, users_files))
        elif not self.is_disk_full and done.returncode != expected.returncode:
            is_named = any(path.name.encode() in done.stderr for path in users_files)
            assert is_named, done.stderr.decode()

    @precondition(lambda self: self.documents())
    @rule(which=numbers)
    def answer_over_what_is_read(self, which: int) -> None:
        path = pick(self.documents(), which)
        assert self.ngt("ask", "-d", path, "Which?", "-o", path).returncode == 2

    @rule(
        limit=st.integers(0, 4),
        max_answers=st.sampled_from([99, 99, 0, 1, 2]),
        retry=st.booleans(),
    )
    def run_batch(self, limit: int, max_answers: int, retry: bool) -> None:
        """New answers are of the documents as they are; others stay, named if these changed."""
        before = rows(self.answered)
        flags = ["--limit", limit, *(["--retry-failed"] if retry else [])]
        self.answers.max_answers = max_answers
        done = self.ngt("batch", self.lines, "-o", self.answered, *flags)
        self.answers.max_answers = 10**9
        fresh = self.empty() / "answers"
        self.ngt("batch", self.lines, "-o", fresh, "--limit", limit, home=self.empty())
        after = rows(self.answered)
        expected = rows(fresh)
        assert list(after) == [f"line {i}" for i in range(1, len(after) + 1)]
        for name, row in after.items():
            if name not in before or "error" in before[name]:
                assert row == expected.get(name, row) or row == before.get(name)
            else:
                assert row == before[name]
                if name in expected and "text" in expected[name] and row != expected[name]:
                    assert name in done.stderr.decode()

    # --- commands that are disturbed ---

    @rule(
        name=names.filter(lambda name: name.endswith(PARSED)),
        how=st.sampled_from(DISTURBANCES),
    )
    def disturb(self, name: str, how: str) -> None:
        """What happens to a parser or beside it says nothing of the document."""
        document = self.write_document(name, True)
        pipe = self.empty() / "pipe"
        os.mkfifo(pipe)
        lines = pipe.with_name("lines.jsonl")
        lines.write_text(json.dumps({"paths": [str(document)]}) + "\n")
        command: list[object] = ["docs", "list", self.docs]
        act = getattr(stopped_parsers, how)
        if how == "fail_beside":
            act = act(pipe)
            command = ["docs", "list", pipe, self.docs]
        elif how.startswith("interrupt"):
            command = ["batch", lines, "-o", pipe.with_name("answers")]
        with stopped_parsers.stopping_at(document.read_bytes(), act) as stopped:
            self.ngt(*command)
        assert stopped, "nothing was disturbed"
        assert not any(Path(f"/proc/{parser}").exists() for parser in stopped), "one lives on"
        self.done[f"{how}, in the middle of a document"] += 1
        self.list_documents()

    # --- what holds after each step ---

    @invariant()
    def the_users_files_are_as_the_user_left_them(self) -> None:
        self.done["steps"] += 1
        for path, data in self.known.users_files.items():
            assert path.read_bytes() == data, f"{path.relative_to(self.place)} was written over"

    def teardown(self) -> None:
        shutil.rmtree(self.place)


CUTTING = ["--set", "passage_tokens=20", "--set", "passage_overlap=0"]


def damage(path: Path, how: str, at: int) -> None:
    """Flip a bit of a file, cut it off at a byte, or delete it."""
    data = bytearray(path.read_bytes())
    at %= max(len(data), 1)
    if how == "delete" or not data:
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:at])
    else:
        data[at] ^= 1 << at % 8
        path.write_bytes(data)


def pick(paths: list[Path], which: int) -> Path:
    return paths[which % len(paths)]


def rows(path: Path) -> dict[str, Any]:
    """The text or error of each line in a batch's output, by its id; no line is there twice."""
    lines = path.read_text().splitlines() if path.exists() else []
    objects = [json.loads(line) for line in lines]
    by_id = {}
    for row in objects:
        by_id[row["id"]] = {key: row[key] for key in ("text", "error") if key in row}
    assert len(by_id) == len(objects)
    return by_id


def assert_same_end(done: Done, expected: Done) -> None:
    """Both commands have one exit code, and if they fail the same last two lines."""
    assert done.returncode == expected.returncode, (done.stderr, expected.stderr)
    if done.returncode:
        assert done.stderr.splitlines()[-2:] == expected.stderr.splitlines()[-2:]


def no_space(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The built-in model with a shorter context, and an embedding model that knows WORDS."""
    folder = tmp_path_factory.mktemp("models")
    small = shutil.copytree(BUILTIN_PATH, folder / "small")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return small, make_meaning_embedder(folder / "embedder", [(word,) for word in WORDS])


@pytest.fixture
def machine(
    models: tuple[Path, Path], kept_workers: None, monkeypatch: pytest.MonkeyPatch
) -> type[SecondRuns]:
    """The machine with its models, and answers that take no time."""
    answers = DigestAnswers()
    cut = list[object]()

    def cutting(document: Any, how: Any, real: Any = index.passages) -> Any:
        cut.append(document)
        return real(document, how)

    answer_with(monkeypatch, answers)
    monkeypatch.setattr(index, "passages", cutting)
    monkeypatch.setattr(catalog, "_RACE_NS", 0)  # files are as old as they say
    attributes = {"model": models[0], "embedder": models[1], "answers": answers, "cut": cut}
    for name, value in attributes.items():
        monkeypatch.setattr(SecondRuns, name, value, raising=False)
    return SecondRuns


def test_a_second_run_does_what_a_first_would(machine: type[SecondRuns]) -> None:
    machine.done.clear()
    run_state_machine_as_test(machine, settings=STORIES)
    print("\n".join(f"{count} {what}" for what, count in machine.done.most_common()))


@pytest.mark.parametrize("how", DISTURBANCES)
def test_what_befalls_a_parser_is_not_recorded_of_the_document(
    machine: type[SecondRuns], how: str
) -> None:
    machine().disturb(name="a.json", how=how)


def test_a_question_about_one_file_costs_its_folder_nothing(machine: type[SecondRuns]) -> None:
    story = machine()
    story.begin(documents=["a", "b"], lines=[0])
    for dense in (False, True):
        story.ask(which=[0, 2, 0], dense=dense, seed=0)


def test_a_full_disk_costs_no_answer(machine: type[SecondRuns]) -> None:
    story = machine()
    story.begin(documents=["a", "b"], lines=[0])
    story.fill_disk()
    story.ask(which=[0, 2, 0], dense=True, seed=0)
    story.answer_over_what_is_read(which=0)
    story.the_users_files_are_as_the_user_left_them()


def test_no_file_of_the_users_is_written_over_by_a_summary(machine: type[SecondRuns]) -> None:
    story = machine()
    story.begin(documents=["a", "b"], lines=[0])
    story.write_own_file_where_a_summary_would_be(which=0)
    story.summarize_each(which=0, beside=False)
    story.the_users_files_are_as_the_user_left_them()


def test_a_cleared_cache_does_not_make_summaries_those_of_a_stranger(
    machine: type[SecondRuns],
) -> None:
    story = machine()
    story.begin(documents=["a", "b"], lines=[0])
    story.summarize_each(which=0, beside=False)
    story.clear()
    story.summarize_each(which=0, beside=False)


def test_a_document_of_a_name_that_is_there_already_is_the_only_one_asked_about(
    machine: type[SecondRuns],
) -> None:
    story = machine()
    story.begin(documents=["a.txt", "b.txt"], lines=[0])
    story.summarize_each(which=0, beside=False)
    story.write(name="sub/a.txt", healthy=True)
    story.answers.asked.clear()
    story.ngt("summarize", story.docs, "-o", f"{story.out}/")
    (prompt,) = story.answers.asked
    assert "Note 2: " in prompt


def test_a_batch_that_was_interrupted_goes_on(machine: type[SecondRuns]) -> None:
    story = machine()
    story.begin(documents=["a", "b"], lines=[2, 3, 0])
    story.run_batch(limit=0, max_answers=1, retry=False)
    assert len(rows(story.answered)) == 1
    story.run_batch(limit=0, max_answers=99, retry=False)
    assert len(rows(story.answered)) == 3


def test_lines_of_changed_documents_are_named(machine: type[SecondRuns]) -> None:
    story = machine()
    story.begin(documents=["a", "b"], lines=[2, 3])
    story.run_batch(limit=1, max_answers=99, retry=False)
    story.write(name="a", healthy=True)
    story.run_batch(limit=0, max_answers=99, retry=False)
