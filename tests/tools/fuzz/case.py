"""What a case of the fuzzer is: commands to run in a folder, and what is expected of each."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ngtcli.bench.prompts import EXAMPLES

ANSWERED, USAGE, INPUT, MODEL, CONTEXT, INTERRUPTED = 0, 2, 3, 4, 5, 130  # the README's table
# Guessed: an answer takes half a second in a fork on a quiet core, three on a crowded one.
SECONDS = 30.0
# Measured: an answer takes 50 to 70 MB above what a process with torch holds.
MEMORY = 300_000_000  # bytes
MOST_LINES = 40  # of stderr beside an answer: what was left out, line by line, then a count
PASSAGES = 1  # the line that says which passages were read

TOKENS = "24"  # of an answer: enough for accepted drafts and refused ones
HARBOUR = str(EXAMPLES / "harbour.txt")
# Questions by name. The damaged runs must give the undamaged answers to them.
ASKED: Mapping[str, tuple[str, ...]] = {
    "summary": ("summarize", HARBOUR, "--max-tokens", TOKENS),
    "question": ("ask", "Who noticed the oysters?", "-d", HARBOUR, "--max-tokens", TOKENS),
    "sampled": ("summarize", HARBOUR, "--max-tokens", TOKENS, "--temperature=1", "--seed=7"),
}


@dataclass(frozen=True, slots=True)
class Stop:
    """A signal `after` seconds; with `partial` as soon as a file is half written after that."""

    signal: int
    after: float
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a command; `code` is negative where a signal ended it, `memory` is growth."""

    code: int
    out: str
    err: str
    seconds: float
    memory: int
    late: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One run of ngt and what is expected: an exit code of `codes`, and `text` where it matters.

    `streams` says which of standard input (0), output (1) and error (2) are missing ("closed"),
    have no space left ("full") or are pipes that nobody reads ("gone"); `terminal` is (rows,
    columns) of a pseudo-terminal for all three. `real` starts a new process; otherwise one that has
    torch loaded is forked. `check` gives further complaints. `seconds` and `memory` (bytes above
    the process's own) are bounds.
    """

    arguments: Sequence[str]
    codes: Collection[int]
    stdin: bytes = b""
    environ: Mapping[str, str] = field(default_factory=dict)
    streams: Mapping[int, str] = field(default_factory=dict)
    terminal: tuple[int, int] | None = None
    stops: Sequence[Stop] = ()
    text: str | None = None
    check: Callable[[Result], Iterable[str]] | None = None
    real: bool = False
    seconds: float = SECONDS
    memory: int = MEMORY
    most_lines: int = MOST_LINES


@dataclass(frozen=True, slots=True)
class Case:
    """Commands that run one after the other in one folder; `what` says what was made."""

    what: str
    commands: Sequence[Command]


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one case: `work` is the current folder, `home` is NGT_HOME.

    `shared` has what all cases share, and `texts` the undamaged answers to `ASKED` by name: see
    `world.make_world`.
    """

    work: Path
    home: Path
    shared: Path
    texts: Mapping[str, str]

    def asked(self, rng: Random, *more: str, **fields: object) -> Command:
        """One of the questions whose undamaged answer is known; it must give that answer."""
        name = rng.choice(list(ASKED))
        fields = {"codes": [ANSWERED], "text": self.texts[name], **fields}
        return Command([*ASKED[name], *more], **fields)  # type: ignore[arg-type]


Builder = Callable[[Random, Place], Case]


def case(what: str, arguments: Sequence[str], codes: Collection[int], **more: object) -> Case:
    """A case of one command; `more` are fields of `Command`."""
    return Case(what, [Command(arguments, codes, **more)])  # type: ignore[arg-type]
