"""The output of --json as a JSON Schema (draft 2020-12).

Schemas are derived from the dataclasses that are printed, where there are any; tests validate real
output against the others. No object may have a key that is not described here.
"""

from ngtcli.config import SETTINGS, Settings
from ngtcli.decode.steps import PassesReport, Statistics
from ngtcli.draft.origins import PolicyReport
from ngtcli.errors import INTERRUPTED, NgtError, UsageError, nearest
from ngtcli.grounding.sources import Sources
from ngtcli.prompt.build import Cut, Selection
from ngtcli.prompt.splitting import PartReport
from ngtcli.render.schema_kept import kept
from ngtcli.render.schema_measured import SKIPPED, bench, tune
from ngtcli.render.schema_types import (
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    maybe,
    of_dataclass,
    rows,
    shape,
)
from ngtcli.system.json_form import schema_of
from ngtcli.trie.store import TrieReport

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FINISH_REASONS = {
    "stop": "the model ended its answer, or a stop string came",
    "repetition": "the same tokens came max_repeats times in a row, 128 or more in all",
    "length": "max_tokens were made",
    "context": "the model's context is full",
    "interrupted": "Ctrl-C ended it",
}


def build(command: str = "") -> Schema:
    """The schema of a command's output, or with "" of all. Raises UsageError for an unknown one."""
    outputs = _outputs()
    if command and command not in outputs:
        raise UsageError(f"no schema of {command[:100]!r}", nearest(command, outputs))
    chosen = {command: outputs[command]} if command else outputs
    shapes = {name: shape for part in chosen.values() for name, shape in part.items()}
    return {
        "$schema": DIALECT,
        "title": f"ngt {command or 'COMMAND'} --json",
        "description": "What stands on standard output. After an error nothing does, but for what"
        " --dry-run says of a prompt that does not fit; the exit code says what it was.",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in shapes],
        "$defs": {**shapes, "exit_code": exit_codes()},
    }


def exit_codes() -> Schema:
    """The exit codes with the first line of each error class's docstring."""
    errors: list[type[NgtError]] = [NgtError, *NgtError.__subclasses__()]
    known = {e.exit_code: (e.__doc__ or "").split("\n")[0] for e in errors if e.exit_code}
    known |= {0: "Done.", INTERRUPTED: "Interrupted; what came is kept."}
    return {"oneOf": [{"const": code, "description": known[code]} for code in sorted(known)]}


def _settings() -> dict[str, Schema]:
    """The schemas of the settings by name, with range or choices."""
    found = of_dataclass(Settings)
    for name, about in SETTINGS.items():
        if about.choices:
            found[name] = {"enum": list(about.choices)}
        elif about.kind in (int, float):
            found[name] |= dict(zip(("minimum", "maximum"), about.within, strict=True))
    return found


_DOCUMENT = shape(
    {"name": TEXT, "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "characters": WHOLE}
)
_REQUEST: dict[str, Schema] = {
    "task": {"enum": ["summarize", "ask"]},
    "question": maybe(TEXT),
    "model": TEXT,
    "preset": TEXT,
    "documents": rows(_DOCUMENT),
    "skipped": {**SKIPPED, "description": "files that were left out, with the reason"},
    "truncated": rows(shape(of_dataclass(Cut))),
    "retrieval": {
        **maybe(schema_of(Selection)),
        "description": "the passages read, where not all fits",
    },
}


def _answer() -> Schema:
    """An answer; it has `tokens` with --json-tokens, `policy` for methods that set their budget."""
    reasons = [{"const": k, "description": text} for k, text in FINISH_REASONS.items()]
    keys: dict[str, Schema] = {
        "text": TEXT,
        **_REQUEST,
        "method": TEXT,
        "finish_reason": {"oneOf": reasons},
        "exact": {"type": "boolean", "description": "no token depends on drafts, in any dtype"},
        "settings": shape(_settings()),
        "parts": {
            **rows(shape(of_dataclass(PartReport))),
            "description": "the parts that were summarized first; none where everything fits",
        },
        "trie": schema_of(TrieReport),
        "passes": {
            **schema_of(PassesReport),
            "description": "shapes of passes that are captured, the time that took, and why not",
        },
        "statistics": schema_of(Statistics),
        "sources": schema_of(Sources),
        "policy": {
            **schema_of(PolicyReport),
            "description": "what auto decided, in seconds and steps",
        },
        "tokens": rows(shape({"id": WHOLE, "text": TEXT, "origin": TEXT})),
    }
    return shape(keys, ("policy", "tokens"))


def _batch() -> tuple[Schema, Schema]:
    """A line of `ngt batch`: an answer with its id, or the error in its place."""
    answer, own = _answer(), {"type": ["string", "integer"]}
    error = shape({"message": TEXT, "hint": TEXT, "exit_code": WHOLE})
    properties = {"id": own, **answer["properties"]}
    return shape(properties, ("policy", "tokens")), shape({"id": own, "error": error})


def _dry_run() -> Schema:
    """The output of --dry-run --json; the prompt's parts are null if it does not fit."""
    keys: dict[str, Schema] = {
        **_REQUEST,
        "fits": {"type": "boolean"},
        "context": WHOLE,
        "prompt_tokens": maybe(WHOLE),
        "prompt": maybe(TEXT),
        "ids": maybe(rows(WHOLE)),
    }
    return shape(keys)


def _check() -> Schema:
    one = {
        "name": TEXT, "num_draft": WHOLE, "identical": {"type": "boolean"}, "new_tokens": WHOLE,
        "mean_acceptance_length": NUMBER, "divergence": maybe(WHOLE), "margin": maybe(NUMBER),
    }  # fmt: skip
    generate = shape({"num_draft": WHOLE, "prompts": WHOLE, "identical": WHOLE})
    described = "how many plain answers are those of transformers' generate; information only"
    keys = {
        "model": TEXT, "method": TEXT, "dtype": _settings()["dtype"], "prompts": WHOLE,
        "num_draft": rows(WHOLE), "runs": WHOLE, "identical": WHOLE, "results": rows(shape(one)),
        "exact": {"type": "boolean"}, "generate": {**rows(generate), "description": described},
        "skipped": SKIPPED,
    }  # fmt: skip
    return shape(keys)


def _outputs() -> dict[str, dict[str, Schema]]:
    """For each command the names and schemas of its outputs."""
    answers = {"answer": _answer(), "dry_run": _dry_run()}
    line, failed = _batch()
    settings = _settings()
    values = {k: shape({"value": v, "origin": TEXT}) for k, v in settings.items()}
    return {
        "summarize": answers,
        "ask": answers,
        "batch": {"line": line, "failed": failed},
        "check": {"check": _check()},
        "bench": bench(),
        "tune": tune(),
        "config show": {"settings": shape(values)},
        **kept(settings),
    }
