"""Every test has settings and caches of its own, needs no network, and compiles nothing twice."""

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ngtcli.documents.parsers import Parsers
from ngtcli.drafting.auto.compiling import is_ready
from ngtcli.system import process
from ngtcli.system.files import home
from ngtcli.system.machine import return_memory
from tests.support import cpus, warm
from tests.support.browser import Browser
from tests.support.helpers import (
    EXAMPLES,
    in_memory,
    lending_tokenizer,
    parse_yaml_once,
    sample_cases,
)

cpus.pretend(os.environ)  # nothing above imports torch, which reads the variables
os.environ["HF_HUB_OFFLINE"] = "1"
# Where none is written, each worker rewrites all asserts, and each new process compiles ngt anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# On a busy machine an example may take long: no test fails by the clock.
settings.register_profile("ngt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ngt")
# A shell that runs the tests in the background has Ctrl-C ignored, in their children as well.
with suppress(ValueError):  # outside the main thread
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: threads would only wait

# With NGT_BUFFERS_STAY=1 the buffers of a model's cache stay where they are on a CPU, as on a GPU.
# Some models are made as test modules are imported, so that this comes before.
if os.environ.get("NGT_BUFFERS_STAY"):
    from ngtcli.decoding import model as _model

    _model.STAYING_DEVICES = frozenset({"cuda", "cpu"})

# What libraries read when they are imported, and tests would see instead of what they set.
for _name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR", "COLUMNS", "LINES"):
    os.environ.pop(_name, None)


def _compiled() -> str:
    """Where compiled functions are kept over all tests: the user's folder, or one of this run."""
    try:
        folder = home("cache") / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="ngt-tests-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


# Compiling takes ten seconds. Workers take the folder over from the process that starts them.
if "NUMBA_CACHE_DIR" not in os.environ:
    os.environ["NUMBA_CACHE_DIR"] = _compiled()

COMPILE = """
from ngtcli.drafting.drafter import Context, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.registry import parse_method

drafter = parse_method("auto", DraftSettings()).build()
ids = [1, 2, 3, 1, 2, 4, 1, 2, 3] * 9
drafter.begin(Context(ids, None, (tuple(ids[:20]),)))
log = TokenLog(ids)
for _ in range(3):
    drafter.propose(log, Room(16))
    log.emit([1, 2, 3])
    drafter.learn(log, Outcome())
"""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile what tests need before they begin; what forks for all workers loads it then.

    Else answers would be drafted by the stand-in of `auto` until it is compiled.
    """
    if hasattr(session.config, "workerinput"):
        return
    several = getattr(session.config.option, "numprocesses", None)
    if several:
        warm.start_server()
    if several or not is_ready():
        subprocess.run([sys.executable, "-c", COMPILE], check=True)


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ships and is the same for all tests is read once in a process."""
    monkeypatch.setattr("ngtcli.system.yaml_file.parse_yaml", parse_yaml_once)
    with lending_tokenizer():
        yield


@pytest.fixture(autouse=True)
def own_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Settings and caches of a test are its own; the built-in model is lent to it, see `kept`."""
    for name in list(os.environ):
        if name.startswith("NGT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "ngt-home"))
    monkeypatch.setattr("ngtcli.cli.suggestions.SLOW_S", float("inf"))  # however slow the machine
    # What is measured is kept, however busy the machine.
    monkeypatch.setattr("ngtcli.system.trials.busy", lambda threads: False)
    if "torch" in sys.modules:  # files of tests without it are not to wait for it
        from tests.support import loaded_once

        monkeypatch.setattr(
            "ngtcli.drafting.background.loaded.make_shipped", loaded_once.shipped_background
        )
        monkeypatch.setattr("ngtcli.engine.memory.calibrate", loaded_once.measured_costs)
        monkeypatch.setattr("ngtcli.decoding.grammar.matcher._words", loaded_once.words_of)
        monkeypatch.setattr("ngtcli.prompts.chat._try", loaded_once.try_template_once)
        if not request.node.get_closest_marker("loads"):
            monkeypatch.setattr("ngtcli.decoding.load.read", loaded_once.lend_model)
        with loaded_once.lending():
            yield tmp_path / "ngt-home"
    else:
        yield tmp_path / "ngt-home"
    # Else a test that shows a status line leaves it to forks of later ones.
    process.wipe_at_end(b"")


@pytest.fixture
def buffers_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tests that are about buffers of a cache that are made anew when they are too small."""
    monkeypatch.setattr("ngtcli.decoding.model.STAYING_DEVICES", frozenset({"cuda"}))


@pytest.fixture(scope="session")
def _workers() -> Iterator[dict[tuple[int, ...], Parsers]]:
    """Pools of parsers by their limits."""
    kept: dict[tuple[int, ...], Parsers] = {}
    yield kept
    for pool in kept.values():
        pool.close()


class _Lent:
    """A pool that its user does not end."""

    def __init__(self, pool: Parsers) -> None:
        self.extract, self.size = pool.extract, pool.size

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answers in the place of a model's."""
    from tests.support.fakes import FakeAnswers, answer_with  # here: few tests need them

    answers = FakeAnswers()
    answer_with(monkeypatch, answers)
    return answers


@pytest.fixture
def kept_workers(_workers: dict[tuple[int, ...], Parsers], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsers' processes live through all tests: starting one takes up to a second."""

    def lent(*limits: int) -> _Lent:
        return _Lent(_workers.setdefault(limits, Parsers(*limits)))

    monkeypatch.setattr("ngtcli.documents.read.Parsers", lent)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        found = Browser()
    except RuntimeError as error:  # as where "chromium" only says how to install it
        pytest.skip(str(error))
    yield found
    found.close()


# Files with a test of more than 2 s of one core (measured); with them first no long test is the
# last, for which one worker would wait while the others have nothing to do.
FIRST = [
    f"test_{name}.py"
    for name in (
        "second_run exactness schema process bench hub parsers cli ocr front thinking chat"
        " served extract exact grammar pretended repetition stored machine resident help"
    ).split()
]


@pytest.hookimpl(trylast=True)  # Hypothesis marks properties first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
    searches = defaultdict[Any, list[pytest.Item]](list)
    of = config.option
    named = of.keyword or of.lf or of.failedfirst or any("::" in one for one in config.args)
    for item in [] if named else items:
        if item.get_closest_marker("search") or item.get_closest_marker("numeric"):
            searches[item.path, item.originalname].append(item)  # type: ignore[attr-defined]
    left = {one for cases in searches.values() for one in {*cases} - {*sample_cases(cases)}}
    config.hook.pytest_deselected(items=[*left])
    items[:] = [item for item in items if item not in left]
    for test in {item.obj for item in items if item.get_closest_marker("hypothesis")}:  # type: ignore[attr-defined]
        _try_fewer(test)


def _try_fewer(test: Any) -> None:
    """Lower the number of a property's examples to the share that is tried, but not below five."""
    own = test._hypothesis_internal_use_settings
    most = max(round(own.max_examples * EXAMPLES), min(own.max_examples, 5))
    test._hypothesis_internal_use_settings = settings(own, max_examples=most)


GROWTH = 250_000_000  # bytes after which what tests leave is collected; guess
_after = {"collection": 0, "whole collection": 0}  # bytes in memory after the last one of each


def pytest_collection_finish() -> None:
    """What was imported stays for good: collections need not look through it."""
    _collect_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Models lie in circles of references, which Python leaves uncollected for long."""
    yield
    if in_memory() > _after["collection"] + GROWTH:
        gc.collect()
        return_memory()
        if in_memory() > _after["whole collection"] + 2 * GROWTH:
            _collect_all()
        _after["collection"] = in_memory()


def _collect_all() -> None:
    """Collect also what has been excluded since (`without_garbage_collection`)."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return_memory()
    _after["collection"] = _after["whole collection"] = in_memory()
