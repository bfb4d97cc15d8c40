"""Cells on a recording: it says what is accepted, and a cost curve how long a pass takes."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ngtcli.config import Settings, settings_where
from ngtcli.draft.costs import SHORT, CostCurve, Costs, read_points
from ngtcli.draft.drafter import DraftSettings, draft_settings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import parse_method
from ngtcli.errors import InputError, UsageError
from ngtcli.measure.grid import Axis, Cell
from ngtcli.measure.records import Answering, Contestant, Generation
from ngtcli.measure.replay_run import recorded_background, replayed, select
from ngtcli.measure.traces import Trace, read_traces
from ngtcli.system.storage import DamagedFileError, read_json
from ngtcli.trie.background import BackgroundCounts
from ngtcli.trie.ngram import NGramTrie, build_trie

DEFAULT_COSTS = Path(__file__).parent / "costs.json"
MOST_COSTS = 1 << 20  # bytes of such a file: 30,000 sizes of a pass


def read_costs(path: Path) -> tuple[CostCurve, str]:
    """A cost curve and what it was measured on. Raises InputError.

    The file maps rows (the root and its drafts) to seconds of a pass, as in `{"1": 0.01, "32":
    0.02}`; or it holds such a map as `seconds`, and as `of` what was measured.
    """
    try:
        stored = read_json(path.expanduser(), MOST_COSTS)
        curve = CostCurve(read_points(stored.get("seconds", stored)))
        return curve, str(stored.get("of", path.name))
    except FileNotFoundError as error:
        raise InputError(f"{path}: {(error.strerror or '').lower()}", "Check the path.") from None
    except (DamagedFileError, ValueError) as error:
        raise InputError(
            f"{path}: not a cost curve ({error})",
            'Write rows and seconds, as in {"1": 0.01, "32": 0.02}.',
        ) from None


def check_replayable(axes: Sequence[Axis], cells: Sequence[Cell]) -> None:
    """Raise UsageError for what a recording cannot tell."""
    for axis in axes:
        if axis.name not in settings_where(replayed=True):
            raise UsageError(
                f"a recording cannot tell what {axis.name} does",
                f"Sweep {', '.join(settings_where(replayed=True))}, or leave --replay out.",
            )
    for cell in cells:
        method = parse_method(cell.settings.method, DraftSettings())
        if method.entry.live:
            raise UsageError(
                f"a recording cannot measure {method.name}: it needs {method.entry.needs}",
                "Leave --replay out to measure it on a model.",
            )


class Recording:
    """A recorded run: acceptance is the recording's, time is the cost curve's and the drafter's."""

    def __init__(
        self,
        folder: Path,
        *,
        tasks: Sequence[str] = (),
        limit: int | None = None,
        ids: str = "all",
        costs: Path = DEFAULT_COSTS,
        max_mb: int | None = None,
    ) -> None:
        curve, of = read_costs(costs)
        self._seconds = {int(rows): s for rows, s in curve.by_rows().items()}
        self._set = read_traces(folder, max_mb=max_mb)
        self._backgrounds: dict[tuple[str, ...], BackgroundCounts | None] = {}
        self.prompts = select(self._set.traces, tasks, limit, ids)
        texts = [(t.id, t.prompt_ids, t.output_ids, t.room) for t in self.prompts]
        self.about: dict[str, Any] = {
            "source": "replay",
            "model": self._set.model,
            "device": f"none: passes cost what they cost {of}",
            "data": _chosen(folder, tasks, limit, ids),
            "data_sha256": digest(texts),
            "prompts": len(self.prompts),
            "costs": {str(rows): s for rows, s in self._seconds.items()},
        }

    def contestant(self, cell: Cell) -> Contestant[Trace]:
        """A new drafter, with a new pool, that is driven over the recorded answers."""
        return Contestant(cell.label, None, partial(self._begin, cell.settings))

    def _begin(self, settings: Settings) -> Answering[Trace]:
        curve = CostCurve(self._seconds)
        shared = replace(
            draft_settings(settings),
            costs=Costs({SHORT: CostCurve(self._seconds)}),
            pool=Pool(quotes=settings.pool_documents) if settings.pool else None,
            background=self._background_of(settings),
        )
        method = parse_method(settings.method, shared)
        own = method.settings
        answer = replayed(method, own.num_draft, self._set, lambda: own.pool).begin()

        def timed(trace: Trace) -> Generation:
            made = answer(trace)
            passes = sum(count * curve.at(1 + k) for k, count in (made.nodes or {}).items())
            made = replace(made, decode_s=passes + sum(made.draft_us or ()) / 1e6)
            if not method.entry.documents:
                return made
            return with_trie(made, *timed_trie([trace.prompt_ids], own.n, own.lp)[1:])

        return timed

    def _background_of(self, settings: Settings) -> BackgroundCounts | None:
        """What the cell's method has of the cell's backgrounds; made once for all cells."""
        names = settings.background
        if not parse_method(settings.method, DraftSettings()).entry.costs:
            return None
        if names not in self._backgrounds:
            self._backgrounds[names] = recorded_background(self._set, names, lambda _: None)
        return self._backgrounds[names]


def timed_trie(documents: Sequence[Sequence[int]], n: int, lp: int) -> tuple[NGramTrie, float, int]:
    """A trie, the seconds it took to build, and its bytes."""
    clock = time.perf_counter()
    trie = build_trie(documents, n, lp)
    return trie, time.perf_counter() - clock, trie.arrays.nbytes


def with_trie(made: Generation, seconds: float, size: int) -> Generation:
    """`made`, with what it took to build its trie."""
    return replace(made, trie_build_s=seconds, trie_bytes=size)


def _chosen(folder: Path, tasks: Sequence[str], limit: int | None, ids: str) -> str:
    parts = [folder.name, ", ".join(tasks) or "all tasks"]
    parts += [f"{ids} ids"] if ids != "all" else []
    parts += [f"the first {limit} of each task"] if limit is not None else []
    return ", ".join(parts)


def digest(value: Any) -> str:
    """Stands for the data that were measured on."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
