"""The output of --json as a JSON Schema (draft 2020-12).

Schemas are derived from the dataclasses that are printed, where there are any; tests validate real
output against the others. No object may have a key that is not described here.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from ngtcli.config import CHOICES, RANGES, Settings
from ngtcli.decode.stats import Statistics
from ngtcli.errors import INTERRUPTED, NgtError, UsageError, nearest
from ngtcli.grounding.span import Span
from ngtcli.prompt.build import Chosen, Cut
from ngtcli.prompt.splitting import PartReport

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
FINISH_REASONS = {
    "stop": "the model ended its answer, or a stop string came",
    "length": "max_tokens were made",
    "context": "the model's context is full",
    "interrupted": "Ctrl-C ended it",
}
_TEXT, _WHOLE, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_TYPES: dict[Any, str] = {
    str: "string", Path: "string", bool: "boolean", int: "integer", float: "number",
    type(None): "null",
}  # fmt: skip


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


def shape(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """The schema of an object with these keys and no others; `optional` ones may be missing."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def rows(items: Schema) -> Schema:
    """The schema of an array of `items`."""
    return {"type": "array", "items": items}


def maybe(wanted: Schema) -> Schema:
    """The schema `wanted` or null."""
    return {"anyOf": [wanted, {"type": "null"}]}


def by_number(values: Schema) -> Schema:
    """The schema of an object from whole numbers, as strings, to `values`."""
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": values,
    }


def of_type(hint: Any) -> Schema:
    """The schema of a value with this annotation. Raises TypeError for annotations without one.

    >>> of_type(tuple[str, ...])
    {'type': 'array', 'items': {'type': 'string'}}
    """
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if get_origin(hint) in (Union, types.UnionType):
        return {"anyOf": [of_type(part) for part in get_args(hint)]}
    if get_origin(hint) in (tuple, list, Sequence):
        return rows(of_type(get_args(hint)[0]))
    raise TypeError(f"no schema for {hint}")


def of_dataclass(kind: type, leave_out: Sequence[str] = ()) -> dict[str, Schema]:
    """The schemas of a dataclass's fields by name, without those in `leave_out`."""
    hints = get_type_hints(kind)
    return {f.name: of_type(hints[f.name]) for f in fields(kind) if f.name not in leave_out}


def of_sample(value: Any) -> Schema:
    """The schema of values of the same form: an object with the same keys, or the same type."""
    if isinstance(value, dict):
        return shape({key: of_sample(part) for key, part in value.items()})
    return of_type(type(value))


def _settings() -> dict[str, Schema]:
    """The schemas of the settings by name, with range or choices."""
    found = of_dataclass(Settings)
    for name, (low, high) in RANGES.items():
        found[name] |= {"minimum": low, "maximum": high}
    for name, words in CHOICES.items():
        found[name] = {"enum": list(words)}
    return found


_DOCUMENT = shape(
    {"name": _TEXT, "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "characters": _WHOLE}
)
_SKIPPED = rows(shape({"name": _TEXT, "reason": _TEXT}))
_RETRIEVAL = shape(
    {
        "passages": rows(shape(of_dataclass(Chosen))),
        "of_passages": _WHOLE,
        "documents": _WHOLE,
        "of_documents": _WHOLE,
        "index": {"enum": ["cached", "built", "updated", "rebuilt"]},
        "seconds": _NUMBER,
    }
)
_REQUEST: dict[str, Schema] = {
    "task": {"enum": ["summarize", "ask"]},
    "question": maybe(_TEXT),
    "model": _TEXT,
    "preset": _TEXT,
    "documents": rows(_DOCUMENT),
    "skipped": {**_SKIPPED, "description": "files that were left out, with the reason"},
    "truncated": rows(shape(of_dataclass(Cut))),
    "retrieval": {**maybe(_RETRIEVAL), "description": "the passages read, where not all fits"},
}
_POLICY = shape(
    {
        "budgets": by_number(_WHOLE),
        "stand_downs": _WHOLE,
        "came_true": _NUMBER,
        "trust": rows(_NUMBER),
        "drafting_s": _NUMBER,
        "cost_s": by_number(_NUMBER),
    }
)


def _sources() -> Schema:
    """The stretches of an answer that stand in a document word for word."""
    place = {"name": _TEXT, "page": maybe(_WHOLE), "heading": maybe(_TEXT)}
    about = "document is an index of documents; ranges count characters of their texts"
    spans = {**rows(shape({**of_dataclass(Span), **place})), "description": about}
    return shape({"verbatim_share": _NUMBER, "spans": spans})


def _answer() -> Schema:
    """An answer; it has `tokens` with --json-tokens, `policy` for methods that set their budget."""
    reasons = [{"const": k, "description": text} for k, text in FINISH_REASONS.items()]
    statistics = of_sample(Statistics().as_json())
    statistics["properties"]["acceptance_histogram"] = by_number(_WHOLE)
    trie: dict[str, Schema] = {
        "status": {"enum": ["cached", "built", "rebuilt", "none"]}, "seconds": _NUMBER,
        "nodes": _WHOLE,
    }  # fmt: skip
    keys: dict[str, Schema] = {
        "text": _TEXT,
        **_REQUEST,
        "method": _TEXT,
        "finish_reason": {"oneOf": reasons},
        "exact": {"type": "boolean", "description": "no token depends on drafts, in any dtype"},
        "settings": shape(_settings()),
        "parts": {
            **rows(shape(of_dataclass(PartReport))),
            "description": "the parts that were summarized first; none where everything fits",
        },
        "trie": shape(trie),
        "passes": {
            **shape({"captured": _WHOLE, "seconds": _NUMBER, "reason": _TEXT}),
            "description": "shapes of passes that are captured, the time that took, and why not",
        },
        "statistics": statistics,
        "sources": _sources(),
        "policy": {**_POLICY, "description": "what auto decided, in seconds and steps"},
        "tokens": rows(shape({"id": _WHOLE, "text": _TEXT, "origin": _TEXT})),
    }
    return shape(keys, ("policy", "tokens"))


def _batch() -> tuple[Schema, Schema]:
    """A line of `ngt batch`: an answer with its id, or the error in its place."""
    answer, own = _answer(), {"type": ["string", "integer"]}
    error = shape({"message": _TEXT, "hint": _TEXT, "exit_code": _WHOLE})
    properties = {"id": own, **answer["properties"]}
    return shape(properties, ("policy", "tokens")), shape({"id": own, "error": error})


def _dry_run() -> Schema:
    """The output of --dry-run --json; the prompt's parts are null if it does not fit."""
    keys: dict[str, Schema] = {
        **_REQUEST,
        "fits": {"type": "boolean"},
        "context": _WHOLE,
        "prompt_tokens": maybe(_WHOLE),
        "prompt": maybe(_TEXT),
        "ids": maybe(rows(_WHOLE)),
    }
    return shape(keys)


def _check() -> Schema:
    one = {
        "name": _TEXT, "num_draft": _WHOLE, "identical": {"type": "boolean"}, "new_tokens": _WHOLE,
        "mean_acceptance_length": _NUMBER, "divergence": maybe(_WHOLE), "margin": maybe(_NUMBER),
    }  # fmt: skip
    generate = shape({"num_draft": _WHOLE, "prompts": _WHOLE, "identical": _WHOLE})
    described = "how many plain answers are those of transformers' generate; information only"
    keys = {
        "model": _TEXT, "method": _TEXT, "dtype": _settings()["dtype"], "prompts": _WHOLE,
        "num_draft": rows(_WHOLE), "runs": _WHOLE, "identical": _WHOLE, "results": rows(shape(one)),
        "exact": {"type": "boolean"}, "generate": {**rows(generate), "description": described},
        "skipped": _SKIPPED,
    }  # fmt: skip
    return shape(keys)


def _tries() -> tuple[Schema, Schema]:
    """The schemas of a row of `ngt trie list` and of the output of `ngt trie show`."""
    from ngtcli.trie.listing import DatastoreFile, TrieFile

    trie = {"kind": {"const": "trie"}, **of_dataclass(TrieFile, ("created",))}
    store = {"kind": {"const": "datastore"}, **of_dataclass(DatastoreFile, ("created",))}
    frequent = {
        "most_frequent": rows(shape({"text": _TEXT, "count": _WHOLE})), "skipped": _SKIPPED,
    }  # fmt: skip
    row = {"anyOf": [shape(trie), shape(store)]}
    return row, {"anyOf": [shape(trie | frequent), *row["anyOf"]]}


def _documents() -> tuple[Schema, Schema]:
    """The schemas of the output of `ngt docs list` and of `ngt docs show`."""
    from ngtcli.documents.content import About, Section
    from ngtcli.documents.survey import Row

    shown = {"name": _TEXT, "path": _TEXT, **of_dataclass(About, ("sections",))}
    shown |= {"characters": _WHOLE, "tokens": _WHOLE, "text": _TEXT}
    shown["sections"] = rows(shape(of_dataclass(Section)))
    listed, one = (rows(shape(keys)) for keys in (of_dataclass(Row), shown))
    return (
        shape({"documents": listed, "skipped": _SKIPPED}),
        shape({"documents": one, "skipped": _SKIPPED}),
    )


def _presets() -> tuple[Schema, Schema]:
    """The schemas of a row of `ngt presets list` and of the output of `ngt presets show`."""
    from ngtcli.prompt.preset import Preset

    good = shape({"name": _TEXT, "description": _TEXT, "path": _TEXT})
    bad = shape({"name": _TEXT, "error": _TEXT, "path": _TEXT})
    values = shape(_settings(), list(_settings()))
    own = of_dataclass(Preset, ("settings", "provenance"))
    return {"anyOf": [good, bad]}, shape(
        {**own, "settings": values, "provenance": {"type": "object"}}
    )


def _outputs() -> dict[str, dict[str, Schema]]:
    """For each command the names and schemas of its outputs."""
    answers = {"answer": _answer(), "dry_run": _dry_run()}
    line, failed = _batch()
    (trie, trie_shown), (preset, preset_shown) = _tries(), _presets()
    documents, documents_shown = _documents()
    values = {k: shape({"value": v, "origin": _TEXT}) for k, v in _settings().items()}
    return {
        "summarize": answers,
        "ask": answers,
        "batch": {"line": line, "failed": failed},
        "check": {"check": _check()},
        "config show": {"settings": shape(values)},
        "presets list": {"presets": rows(preset)},
        "presets show": {"preset": preset_shown},
        "docs list": {"documents": documents},
        "docs show": {"documents_shown": documents_shown},
        "trie list": {"tries": rows(trie)},
        "trie show": {"trie": trie_shown},
        "models list": {"models": rows(shape({"name": _TEXT, "bytes": _WHOLE, "path": _TEXT}))},
    }
