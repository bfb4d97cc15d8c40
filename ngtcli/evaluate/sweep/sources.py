"""What a sweep is measured on: a recording, with a cost curve for its time, or a running model."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngtcli.config import DRAFTING, Settings
from ngtcli.documents.load import Document
from ngtcli.draft.auto.costs import SHORT, CostCurve, Costs, read_points
from ngtcli.draft.auto.pool import Pool
from ngtcli.draft.drafter import DraftSettings, draft_settings
from ngtcli.draft.registry import parse_method
from ngtcli.errors import InputError, UsageError
from ngtcli.evaluate.prompts import Item, builtin_items, file_items, read_jsonl
from ngtcli.evaluate.replay.run import context_of, replay, select
from ngtcli.evaluate.replay.traces import Trace, read_traces
from ngtcli.evaluate.runner.run import Answering, Contestant, Generation, Notify
from ngtcli.evaluate.sweep.grid import Axis, Cell
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.preset import Preset
from ngtcli.system.storage import DamagedFileError, read_json
from ngtcli.trie.ngram import NGramTrie, build_trie

if TYPE_CHECKING:
    from ngtcli.session import Session

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


def prompts(
    texts: Sequence[Document],
    preset: Preset,
    limit: int | None,
    lines: Path | None = None,
    settings: Settings | None = None,
) -> list[Item]:
    """Prompts for a preset: those with a question if it asks for one, else those without.

    They come from the JSON lines of `lines`, which are read up to the bound of `settings`, else
    from `texts` (of each a summary, or a few questions), else from the built-in examples. Raises
    InputError.
    """
    asks = "{question}" in preset.template
    if lines is not None:
        items = read_jsonl(lines, settings)
    elif texts:
        items = file_items([], texts) if asks else file_items(texts, [])
    else:
        items = builtin_items()
    chosen = [item for item in items if bool(item.question) == asks]
    if not chosen:
        kind = "with" if asks else "without"
        raise InputError(
            f"{lines}: no prompt {kind} a question", f"Preset {preset.name} wants one; see -p."
        )
    return chosen[:limit]


def check_replayable(axes: Sequence[Axis], cells: Sequence[Cell]) -> None:
    """Raise UsageError for what a recording cannot tell."""
    for axis in axes:
        if axis.name not in DRAFTING:
            raise UsageError(
                f"a recording cannot tell what {axis.name} does",
                f"Sweep {', '.join(DRAFTING)}, or leave --replay out.",
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
        self.prompts = select(self._set.traces, tasks, limit, ids)
        texts = [(t.id, t.prompt_ids, t.output_ids, t.room) for t in self.prompts]
        self.about: dict[str, Any] = {
            "source": "replay",
            "model": self._set.model,
            "device": f"none: passes cost what they cost {of}",
            "data": _chosen(folder, tasks, limit, ids),
            "data_sha256": _digest(texts),
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
        )
        method = parse_method(settings.method, shared)
        drafter, own = method.build(), method.settings

        def answer(trace: Trace) -> Generation:
            tally = replay(trace, drafter, context_of(trace, self._set), own.num_draft)
            passes = sum(count * curve.at(1 + k) for k, count in tally.nodes.items())
            seconds = passes + sum(tally.draft_us) / 1e6
            made = Generation(trace.output_ids, tally.statistics.steps, decode_s=seconds)
            if not method.entry.documents:
                return made
            return with_trie(made, *timed_trie([trace.prompt_ids], own.n, own.lp)[1:])

        return answer


class Running:
    """A model that answers; every prompt is one document, or one of the questions about it."""

    def __init__(
        self,
        settings: Settings,
        preset: Preset,
        items: Sequence[Item],
        progress: Notify,
        warn: Notify,
    ) -> None:
        self._preset, self.prompts = preset, items
        self._progress, self._warn = progress, warn
        self._warned: set[str] = set()
        self._sessions: dict[tuple[str, ...], Session] = {}
        self._loading = False
        model = self._session(settings).model
        prompts = [(i.id, [d.text for d in i.documents], i.question) for i in items]
        self.about: dict[str, Any] = {
            "source": "live",
            "model": settings.model,
            "device": f"{_device(model.device)}, {str(model.dtype).removeprefix('torch.')}",
            "data": f"{len(items)} prompts of preset {preset.name}",
            "data_sha256": _digest([preset.template, prompts]),
            "prompts": len(items),
        }

    def _session(self, settings: Settings) -> "Session":
        """A new session of a model, which is loaded and warmed up once."""
        from ngtcli.session import AnswerOptions, Session  # here: it loads torch

        key = (settings.model, settings.draft_model, settings.device, settings.dtype)
        if key not in self._sessions:
            self._loading = True
            session = Session(settings, self._say, self._warn_once, persist=False)
            self._sessions[key] = session
            short = session.with_settings(replace(settings, max_tokens=min(8, settings.max_tokens)))
            prompt = self._prompt(short, self.prompts[0])
            short.answer(prompt, AnswerOptions("none")).finish()
            self._loading = False
        return self._sessions[key].with_settings(settings)

    def _prompt(self, session: "Session", item: Item) -> Prompt:
        return session.prompt(self._preset, item.documents, item.question)

    def _say(self, message: str) -> None:
        """What a session is doing, but while cells are measured: how far that is says more."""
        if self._loading:
            self._progress(message)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warn(message)

    def contestant(self, cell: Cell) -> Contestant[Item]:
        """The model with the settings of `cell`, as it answers a user; its trie is built anew."""
        return Contestant(cell.label, None, partial(self._begin, cell.settings))

    def _begin(self, settings: Settings) -> Answering[Item]:
        from ngtcli.evaluate.runner.contestants import answered  # here: it loads torch
        from ngtcli.session import AnswerOptions

        session = self._session(settings)
        method, drafter = session.parse_method(), session.new_drafter(settings.method)
        own, options = method.settings, AnswerOptions(drafter=drafter)
        tries = method.entry.documents and not session.model.plain_reason

        def answer(item: Item) -> Generation:
            prompt = self._prompt(session, item)
            if not tries:
                return answered(session, prompt, options)
            ids = [session.model.tokenizer.encode(d.text.strip()) for d in prompt.documents]
            trie, seconds, size = timed_trie(ids, own.n, own.lp)
            made = answered(session, prompt, replace(options, trie=trie))
            return with_trie(made, seconds, size)

        return answer


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


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _device(device: Any) -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type} with {threads} thread{'s' if threads > 1 else ''}"
