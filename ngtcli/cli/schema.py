"""`ngt schema`: what --json prints, described for programs that read it.

The schemas are made from the dataclasses that are printed. No object may have a key that is not
described here.
"""

from typing import Annotated, Any

import typer

from ngtcli.cli.output import print_json
from ngtcli.errors import INTERRUPTED, NgtError, UsageError, nearest
from ngtcli.system.json_form import Schema, schema_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, as in ngt schema trie list.")
    ] = None,
) -> None:
    """Print the JSON Schema of what --json prints, of one command or of all of them."""
    print_json(build(" ".join(command or [])))


def build(command: str = "") -> Schema:
    """The schema of a command's output, or with "" of all. Raises UsageError for an unknown one."""
    outputs = _outputs()
    if command and command not in outputs:
        raise UsageError(f"no schema of {command[:100]!r}", nearest(command, outputs))
    chosen = {command: outputs[command]} if command else outputs
    printed = {name: of for part in chosen.values() for name, of in part.items()}
    schemas = {n: of if isinstance(of, dict) else schema_of(of) for n, of in printed.items()}
    return {
        "$schema": DIALECT,
        "title": f"ngt {command or 'COMMAND'} --json",
        "description": "What stands on standard output. After an error nothing does, but for what"
        " --dry-run says of a prompt that does not fit; the exit code says what it was.",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in schemas],
        "$defs": {**schemas, "exit_code": exit_codes()},
    }


def exit_codes() -> Schema:
    """The exit codes with the first line of each error class's docstring."""
    own = (e for e in NgtError.__subclasses__() if e.__module__ == NgtError.__module__)
    errors: list[type[NgtError]] = [NgtError, *own]
    known = {e.exit_code: (e.__doc__ or "").split("\n")[0] for e in errors if e.exit_code}
    known |= {0: "Done.", INTERRUPTED: "Interrupted; what came is kept."}
    return {"oneOf": [{"const": code, "description": known[code]} for code in sorted(known)]}


def _outputs() -> dict[str, dict[str, Any]]:
    """For each command its outputs by name: their types, or a schema that no type says."""
    from ngtcli.cli import about, docs, models, trie
    from ngtcli.cli.answer_object import AnswerObject, FailedLineObject, LineObject
    from ngtcli.cli.dry_run import DryRunObject
    from ngtcli.cli.output import Place, Removed
    from ngtcli.heads.training.folder import Trained
    from ngtcli.measure.results import (
        CheckReport,
        LiveResult,
        QualityResult,
        RecordResult,
        ReplayResult,
        SweepReport,
    )
    from ngtcli.prompt.preset import BrokenPreset
    from ngtcli.serve.wire import Served
    from ngtcli.session.run_records import ModelRuns, RunRecord
    from ngtcli.system.cache import Held
    from ngtcli.trie.files import KeptFile, PoolFile

    removed, place = {"removed": Removed}, {"path": Place}
    answers = {"answer": AnswerObject, "dry_run": DryRunObject}
    return {
        "summarize": answers,
        "ask": answers,
        "generate": answers,
        "batch": {"line": LineObject, "failed": FailedLineObject},
        "serve status": {"served": list[Served]},
        "check": {"check": CheckReport},
        "bench": {"live": LiveResult},
        "bench replay": {"replay": ReplayResult},
        "bench quality": {"quality": QualityResult},
        "bench record": {"record": RecordResult},
        "tune": {"tune": SweepReport},
        "heads train": {"trained": Trained},
        "config show": {"settings": about.config_schema()},
        "cache list": {"stores": list[Held]},
        "cache show": {"store": Held},
        "cache clear": removed,
        "cache path": place,
        "runs list": {"runs": list[RunRecord]},
        "runs show": {"run": RunRecord},
        "runs stats": {"models": list[ModelRuns]},
        "runs path": place,
        "trie build": {"built_trie": trie.BuiltTrie, "built_file": trie.BuiltFile},
        "trie list": {"tries": list[KeptFile]},
        "trie show": {"trie": trie.ShownTrie | KeptFile},
        "trie clear": removed,
        "trie path": place,
        "trie pool show": {"pools": list[PoolFile]},
        "trie pool clear": removed,
        "docs list": {"documents": docs.DocumentList},
        "docs show": {"documents_shown": docs.ShownDocuments},
        "docs clear": removed,
        "docs path": place,
        "presets list": {"presets": list[about.PresetRow | BrokenPreset]},
        "presets show": {"preset": about.preset_schema()},
        "presets path": {"paths": list[str]},
        "config path": {"paths": list[str]},
        "models list": {"models": list[models.Model]},
        "models path": {"model_paths": models.ModelFolders},
        "models pull": {"model": models.Model},
        "models rm": removed,
        "env": {"env": about.env_schema()},
    }
