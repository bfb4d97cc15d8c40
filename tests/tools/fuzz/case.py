"""What a case of the fuzzer is: commands to run in a folder, and what is expected of each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

ANSWERED, USAGE, INPUT, MODEL, CONTEXT, INTERRUPTED = 0, 2, 3, 4, 5, 130  # the README's table
# Guessed: an answer takes half a second in a fork on a quiet core, three on a crowded one.
SECONDS = 30.0
# Measured: an answer takes 50 to 70 MB above what a process with torch holds.
MEMORY = 300_000_000  # bytes
MOST_LINES = 40  # of stderr beside an answer: what was left out, line by line, then a count
PASSAGES = 1  # the line that says which passages were read
MOST_ERROR_LINES = 4  # what happened, what to do, and for a grammar the text and a caret


@dataclass(frozen=True, slots=True)
class Streams:
    """What standard input (0), output (1) and error (2) are; by default files.

    `terminal` is (rows, columns) of a pseudo-terminal for all three. `closed` are missing when the
    process starts, `full` have no space left, `gone` are pipes that nobody reads.
    """

    terminal: tuple[int, int] | None = None
    closed: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()


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


Check = Callable[[Result], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Command:
    """One run of ngt and what is expected: an exit code of `codes`, and `text` where it matters.

    `real` starts a new process; otherwise a process that has torch loaded is forked. `check` gives
    further complaints. `seconds` and `memory` (bytes above the process's own) are bounds.
    """

    arguments: tuple[str, ...]
    codes: frozenset[int]
    stdin: bytes = b""
    environ: Mapping[str, str] = field(default_factory=dict)
    streams: Streams = Streams()
    stops: tuple[Stop, ...] = ()
    text: str | None = None
    check: Check | None = None
    real: bool = False
    seconds: float = SECONDS
    memory: int = MEMORY
    most_lines: int = MOST_LINES


@dataclass(frozen=True, slots=True)
class Case:
    """Commands that run one after the other in one folder; `what` says what was made."""

    what: str
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class World:
    """What all cases share, made once: see `world.make_world`.

    `texts` are the undamaged answers to `ASKED` by name, `home` is an NGT_HOME with caches of each
    kind, `recording` one of our own, `spec_bench` one of that kind.
    """

    folder: Path
    home: Path
    recording: Path
    spec_bench: Path
    special: tuple[str, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one case: `work` is the current folder, `home` is NGT_HOME."""

    work: Path
    home: Path
    world: World


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case went; `command` to `memory` are of the command that failed first, or the last."""

    kind: str
    seed: int
    what: str
    complaints: tuple[str, ...]
    command: str = ""
    expected: str = ""
    code: int = 0
    err: str = ""
    memory: int = 0  # bytes, as in Result


Builder = Callable[[Random, Place], Case]


def case(what: str, arguments: Sequence[str], codes: Iterable[int], **more: object) -> Case:
    """A case of one command."""
    return Case(what, (command(arguments, codes, **more),))


def command(arguments: Sequence[str], codes: Iterable[int], **more: object) -> Command:
    """A command; `more` are fields of `Command`."""
    return Command(tuple(arguments), frozenset(codes), **more)  # type: ignore[arg-type]
