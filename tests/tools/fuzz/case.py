"""A case of the fuzzer: commands to run in a folder, and what is expected of each."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ngtcli.bench.prompts import EXAMPLES

# Exit codes, as the README lists them.
ANSWERED = 0
USAGE = 2
INPUT = 3
MODEL = 4
CONTEXT = 5
INTERRUPTED = 130

# Guess: an answer takes half a second in a fork on an idle core, three seconds on a busy one.
SECONDS = 30.0
# In bytes. Measured: an answer takes 50 to 70 MB more than a process that has loaded torch.
MEMORY = 300_000_000
# Lines of stderr beside an answer. Files that were left out are listed line by line up to a limit.
MAX_LINES = 40
PASSAGES = 1  # One line of stderr says which passages were read.

TOKENS = "24"  # An answer of this length has both accepted and rejected drafts.
HARBOUR = str(EXAMPLES / "harbour.txt")
# Command lines by name. After any damage they must give the answers of an undamaged run.
KNOWN_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "summary": ("summarize", HARBOUR, "--max-tokens", TOKENS),
    "question": ("ask", "Who noticed the oysters?", "-d", HARBOUR, "--max-tokens", TOKENS),
    "sampled": ("summarize", HARBOUR, "--max-tokens", TOKENS, "--temperature=1", "--seed=7"),
}


@dataclass(frozen=True, slots=True)
class Stop:
    """A signal to send after `after` seconds.

    With `partial` it is sent as soon as the cache has a half-written file after that time.
    """

    signal: int
    after: float
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a command.

    `code` is the exit code, negative if a signal ended the process. `memory` is the growth in
    bytes. `late` says that the process was killed at the time limit.
    """

    code: int
    out: str
    err: str
    seconds: float
    memory: int
    late: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One run of ngt and what is expected of it.

    Attributes:
        arguments: The command line after `ngt`.
        codes: The exit codes that are right.
        stdin: What is piped in, or typed on the terminal.
        environ: Environment variables beside those that every run has.
        streams: Which of stdin (0), stdout (1) and stderr (2) are missing ("closed"), have no
            space left ("full") or are pipes that nobody reads ("gone").
        terminal: (rows, columns) of a pseudo-terminal for all three streams.
        stops: Signals to send, in order of time.
        answer: The text that an answer must have. None: any.
        check: Finds further complaints about the result.
        new_process: Whether to start Python anew. Otherwise a process with torch is forked.
        seconds: The time limit.
        memory: The limit in bytes, above what the process takes before it runs the command.
        max_lines: The most lines of stderr beside an answer.
    """

    arguments: Sequence[str]
    codes: Collection[int]
    stdin: bytes = b""
    environ: Mapping[str, str] = field(default_factory=dict)
    streams: Mapping[int, str] = field(default_factory=dict)
    terminal: tuple[int, int] | None = None
    stops: Sequence[Stop] = ()
    answer: str | None = None
    check: Callable[[Result], Iterable[str]] | None = None
    new_process: bool = False
    seconds: float = SECONDS
    memory: int = MEMORY
    max_lines: int = MAX_LINES


@dataclass(frozen=True, slots=True)
class Case:
    """Commands to run in turn in one folder. `description` says what was made for them."""

    description: str
    commands: Sequence[Command]


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one case: `work` is the current folder, `home` is NGT_HOME.

    `shared` has what all cases share. `answers` are the undamaged answers of `KNOWN_COMMANDS` by
    name (see `world.make_world`).
    """

    work: Path
    home: Path
    shared: Path
    answers: Mapping[str, str]

    def known_command(self, rng: Random, *flags: str, **fields: object) -> Command:
        """Choose one of `KNOWN_COMMANDS`, which must give its undamaged answer.

        `fields` are fields of `Command`.
        """
        name = rng.choice(list(KNOWN_COMMANDS))
        fields = {"codes": [ANSWERED], "answer": self.answers[name], **fields}
        return Command([*KNOWN_COMMANDS[name], *flags], **fields)  # type: ignore[arg-type]


Builder = Callable[[Random, Place], Case]


def case(
    description: str, arguments: Sequence[str], codes: Collection[int], **fields: object
) -> Case:
    """Make a case of one command. `fields` are fields of `Command`."""
    return Case(description, [Command(arguments, codes, **fields)])  # type: ignore[arg-type]
