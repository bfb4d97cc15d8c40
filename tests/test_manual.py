"""The manual: every command on a page is one that ngt takes, and the quick ones are run."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ngtcli.cli.app import COMMANDS, load
from ngtcli.cli.help import topics
from ngtcli.models.recommended import markdown_table
from tests.support.helpers import HARBOUR, ROOT_FOLDER, in_terminal, ngt, wait_until

PAGES = [ROOT_FOLDER / "README.md", ROOT_FOLDER / "ngtcli" / "README.md", *topics().values()]
# Whole measurements, and what does not end: only their flags are looked at.
SLOW = ("bench", "check", "tune", "serve")
# Of others.
ELSEWHERE = {
    "--engine",
    "--heads",
    "pull",
    "rm",
    "--think",
    "--quantize",
    "--dtype",
}


def commands() -> Iterator[tuple[str, list[str]]]:
    """The page, and the words of each command of ngt in its examples."""
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True, posix=True)
                while "ngt" in words:
                    words = words[words.index("ngt") + 1 :]
                    ends = [i for i, word in enumerate(words) if word in ("|", ">", "&&", ";")]
                    yield page.name, words[: ends[0] if ends else None]
    for name in COMMANDS:
        for line in re.findall(r"^ngt (.*)", load(name).help, re.MULTILINE):
            yield "-h", shlex.split(line)


EXAMPLES = [pytest.param(words, id=f"{page}: {' '.join(words)}") for page, words in commands()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples name."""
    folder = tmp_path_factory.mktemp("manual")
    text = Path(HARBOUR).read_text("utf-8")
    for name in (
        "article.txt",
        "report.txt",
        "notes.md",
        "reports/a.txt",
        "reports/b.md",
        "notes/a.md",
        "old-answers/a.txt",
        "old-summary.txt",
        "parser.py",
        "report.md",
        "prompt.txt",
        "ngtcli/examples/harbour.txt",
        "ngtcli/examples/letters/offer.txt",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    line = {"question": "When is high tide?", "context": text[:300]}
    (folder / "in.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_the_pages_have_examples() -> None:
    assert len(EXAMPLES) > 50
    assert set(SLOW) < {example.values[0][0] for example in EXAMPLES}


@pytest.mark.parametrize("words", EXAMPLES)
def test_an_example_is_a_command_that_ngt_takes(words: list[str]) -> None:
    """Names, flags and the types of their values; the command is not run."""
    load(words[0]).make_context(words[0], words[1:], resilient_parsing=False)


@pytest.mark.search
@pytest.mark.parametrize(
    "words",
    [
        e
        for e in EXAMPLES
        if e.values[0][0] not in SLOW and not ELSEWHERE & set(e.values[0])
        if not e.id.startswith("README.md: ") or "ngtcli/examples" not in e.id  # see test_front
    ],
)
def test_a_quick_example_succeeds(
    words: list[str], world: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With four tokens an answer and the built-in model in the place of every other."""
    known = {
        "mine": "summarize",
        "~/models/Qwen2.5-7B-Instruct": "builtin",
        "Qwen/Qwen3-8B": "builtin",
    }
    words = [known.get(word, word) for word in words]
    piped = words == ["summarize"] or words[:2] == ["batch", "-"]
    stdin = (world / "in.jsonl").read_bytes() if piped else b""
    own = {"NGT_HOME": str(world / "home"), "NGT_MAX_TOKENS": "4"}
    if {"--schema", "--quote"} & {*words}:  # of which a half is worth nothing
        del own["NGT_MAX_TOKENS"]
    if "rest" in words:
        ngt("trie", "build", "--rest", "notes/", cwd=world, **own)
    if "--continue" in words:
        ngt("chat", stdin=b"When is high tide?\n/save talk.json\n", cwd=world, **own)
    done = ngt(*words, stdin=stdin, cwd=world, **own)
    if "--keep-warm" in words:
        listed = ("serve", "status", "--json")
        wait_until(lambda: json.loads(ngt(*listed, cwd=world, **own).stdout))  # it is starting
        assert ngt("serve", "stop", cwd=world, **own).returncode == 0
    short = "--overflow" in words and "error" in words
    not_found = b"the documents do not have the answer" in done.stderr  # exit code 1
    fine = done.returncode == 0 or not_found or (short and done.returncode == 5)
    assert fine, done.stderr.decode()


@pytest.mark.parametrize("page", ["README.md", "ngtcli/manual/models.md"])
def test_pages_have_the_table_of_models_to_begin_with(page: str) -> None:
    assert markdown_table() in (ROOT_FOLDER / page).read_text("utf-8")


def test_every_page_is_listed_and_linked() -> None:
    readme = (ROOT_FOLDER / "README.md").read_text("utf-8")
    _, *listed = ngt("help").stdout.decode().splitlines()  # below the headings of the table
    assert [line.split("\t")[0] for line in listed] == list(topics())
    for name in topics():
        assert f"(ngtcli/manual/{name}.md)" in readme
        assert ngt("help", name).stdout == topics()[name].read_bytes()
    assert b"Usage: ngt trie list" in ngt("help", "trie", "list").stdout
    wrong = ngt("help", "nonesuch")
    assert wrong.returncode == 2
    assert b"documents" in wrong.stderr


@pytest.mark.parametrize("columns", [80, 60])
def test_a_page_fits_the_terminal(columns: int) -> None:
    shown, code = in_terminal("help", "documents", columns=columns, NO_COLOR="1")
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert code == 0
    assert max(map(len, lines)) <= columns
    assert "Formats" in " ".join(lines)
    assert "```" not in shown
    assert "|---" not in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


TESTS_README = ROOT_FOLDER / "tests" / "README.md"


def test_the_tests_named_in_the_readme_of_tests_exist() -> None:
    names = re.findall(r"`([a-z_/]+\.py)(?:::(test_\w+))?`", TESTS_README.read_text("utf-8"))

    assert len(names) >= 10
    for path, function in names:
        source = (TESTS_README.parent / path).read_text("utf-8")
        if function:
            assert f"def {function}(" in source, function


def test_the_tools_named_in_the_readme_of_tests_exist() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)", TESTS_README.read_text("utf-8"), re.MULTILINE)

    assert len(rows) >= 20
    for name in rows:
        path = TESTS_README.parent / "tools" / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name
