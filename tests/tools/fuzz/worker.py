"""Kinds of cases, and one case from its seed to its verdict, in a process of the pool."""

import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

from tests.tools.fuzz.case import Builder, Case, Place, Verdict, World
from tests.tools.fuzz.data import models, prompts, recordings
from tests.tools.fuzz.documents import documents, folders, names, questions
from tests.tools.fuzz.judge import judge, shown
from tests.tools.fuzz.run import run
from tests.tools.fuzz.settings import settings, sweeps
from tests.tools.fuzz.streams import (
    interrupts,
    kills,
    starts,
    streams,
    terminals,
)
from tests.tools.fuzz.world import caches, new_home

_SHOWN = 600  # characters of stderr that a verdict keeps
_WITH_CACHES = ("caches", "kills", "interrupts", "starts", "terminals")

# (builder, its share of the cases). Starts are new processes, of seconds each.
KINDS: Mapping[str, tuple[Builder, int]] = {
    "documents": (documents, 200),
    "folders": (folders, 80),
    "names": (names, 80),
    "questions": (questions, 80),
    "settings": (settings, 200),
    "sweeps": (sweeps, 110),
    "recordings": (recordings, 80),
    "prompts": (prompts, 80),
    "caches": (caches, 120),
    "models": (models, 60),
    "terminals": (terminals, 60),
    "interrupts": (interrupts, 30),
    "kills": (kills, 20),
    "streams": (streams, 25),
    "starts": (starts, 4),
}
_worlds: list[World] = []


def adopt(world: World) -> None:
    """Called once in each process of the pool: the world of its cases. Ctrl-C is the parent's."""
    _worlds[:] = [world]
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_case(kind: str, seed: int, keep: bool = False) -> Verdict:
    """Make the case, run its commands until one fails, and judge them. `keep` leaves its files."""
    clock = time.monotonic()
    world = _worlds[0]
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{seed}-", dir=world.folder))
    folder.chmod(0o777)
    place = Place(folder / "work", folder / "home", world)
    place.work.mkdir()
    try:
        try:
            new_home(place, kind in _WITH_CACHES)
            case = KINDS[kind][0](Random(seed), place)
        except Exception as error:
            wrong = (f"the case cannot be made: {type(error).__name__}: {error}",)
            return Verdict(kind, seed, "", 0, (), wrong, "", "", time.monotonic() - clock, 0)
        return _run(kind, seed, case, place, clock)
    finally:
        if not keep:
            _remove(folder)


def _run(kind: str, seed: int, case: Case, place: Place, clock: float) -> Verdict:
    for command in case.commands:
        result = run(command, place)
        complaints = judge(command, result)
        if complaints:
            break
    else:
        complaints = []
    said = result.err or (result.out if command.streams.terminal else "")
    return Verdict(
        kind, seed, case.what, result.code, tuple(sorted(command.codes)), tuple(complaints),
        shown(command), said[-_SHOWN:], time.monotonic() - clock,
        result.memory,
    )  # fmt: skip


def _remove(folder: Path) -> None:
    """Remove a folder that may be nested deeper than Python recurses."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)  # not while ngt runs, which would then recurse as deep
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        sys.setrecursionlimit(limit)
