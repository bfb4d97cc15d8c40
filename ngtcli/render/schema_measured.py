"""The JSON Schemas of what `ngt bench` and `ngt tune` measure."""

from dataclasses import fields

from ngtcli.documents.find import Skipped
from ngtcli.render.results import (
    Invocation,
    LiveResult,
    Machine,
    RecordResult,
    ReplayResult,
    ShapeResult,
)
from ngtcli.render.rows import Drafting, LiveRow, ReplayRow, Scores, Speedup, Times
from ngtcli.render.schema_types import (
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    by_number,
    of_dataclass,
    rows,
    shape,
)
from ngtcli.render.shape_rows import ShapeRow, StepTimes
from ngtcli.render.sweep_rows import SweepReport

SKIPPED = rows(shape(of_dataclass(Skipped, ("kind", "needs"))))


def bench() -> dict[str, Schema]:
    """The schemas by name: a live run, a replay, one with real passes, and a recording."""
    return {
        "live": _result("live", LiveResult, {"rows": rows(_live_row())}),
        "replay": _result(
            "replay", ReplayResult, {"rows": rows(_replay_row()), "notes": rows(TEXT)}
        ),
        "shape": _result("shape", ShapeResult, {"rows": rows(_shape_row()), "label": TEXT}),
        "record": _result("record", RecordResult, {}),
    }


def tune() -> dict[str, Schema]:
    """The schema by name; `costs` is there for sweeps over a recording."""
    about: dict[str, Schema] = {
        "source": {"enum": ["live", "replay"]}, "model": TEXT, "device": TEXT, "data": TEXT,
        "data_sha256": TEXT, "prompts": WHOLE, "costs": by_number(NUMBER),
    }  # fmt: skip
    own = of_dataclass(SweepReport, ("about", "skipped"))
    return {
        "tune": shape({"kind": {"const": "tune"}, **about, **own, "skipped": SKIPPED}, ("costs",))
    }


def _result(kind: str, of: type, more: dict[str, Schema]) -> Schema:
    """A result's own fields; those of machine and invocation stand beside them."""
    flat = {"machine", "invocation", "skipped", *more}
    names = {f.name for f in fields(of)}
    keys = {"kind": {"const": kind}, **of_dataclass(of, sorted(flat & names)), **more}
    if "machine" in names:
        keys |= of_dataclass(Machine)
    if "skipped" in names:
        keys["skipped"] = SKIPPED
    return shape({**keys, **of_dataclass(Invocation)})


def _live_row() -> Schema:
    """Speed-ups over `transformers`, and scores, are left out where there are none."""
    over_hf, scores = _speedup("speedup_over_hf"), of_dataclass(Scores)
    keys = {
        **of_dataclass(LiveRow, _PARTS), **of_dataclass(Drafting), **of_dataclass(Times),
        **_speedup("speedup"), **over_hf, **scores,
    }  # fmt: skip
    return shape(keys, (*over_hf, *scores))


def _replay_row() -> Schema:
    left_out = ("drafted_tokens", "accepted_tokens")
    drafting = {name: part for name, part in of_dataclass(Drafting).items() if name not in left_out}
    return shape({**of_dataclass(ReplayRow, _PARTS), **drafting})


def _shape_row() -> Schema:
    own = of_dataclass(ShapeRow, _PARTS)
    return shape(
        {**own, **of_dataclass(Drafting), **of_dataclass(StepTimes), **_speedup("speedup")}
    )


# Fields whose own fields stand beside the others in JSON.
_PARTS = ("drafting", "times", "speedup", "speedup_over_hf", "scores")


def _speedup(name: str) -> dict[str, Schema]:
    """The three keys of a Speedup, as it names them."""
    keys = Speedup(median=1.0, quartiles=(1.0, 1.0), least_and_most=(1.0, 1.0)).as_json(name)
    return {key: NUMBER if key == name else rows(NUMBER) for key in keys}
