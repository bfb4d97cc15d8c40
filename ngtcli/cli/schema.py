"""`ngt schema`: what --json prints, described for programs that read it.

The schemas are made from the dataclasses that are printed. No object may have a key that is not
described here.
"""

from collections.abc import Iterator
from inspect import isfunction
from typing import Annotated, Any

import typer

from ngtcli.cli.command import command
from ngtcli.cli.output import print_line
from ngtcli.errors import INTERRUPTED, NgtError, UsageError
from ngtcli.system.json_form import Schema, dump_json, schema_of
from ngtcli.words import nearest

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@command("schema")
def schema(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, as in ngt schema trie list.")
    ] = None,
) -> None:
    """Print the JSON Schema of what --json prints, of one command or of all of them."""
    print_line(dump_json(build(" ".join(command or []))))


def build(command: str = "") -> Schema:
    """The schema of a command's output, or with "" of all. Raises UsageError for an unknown one."""
    outputs = _outputs()
    if command and command not in outputs:
        raise UsageError(f"no schema of {command[:100]!r}", hint=nearest(command, outputs))
    chosen = {command: outputs[command]} if command else outputs
    schemas = {name: of for part in chosen.values() for name, of in part.items()}
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
    known = {int(e.exit_code): (e.__doc__ or "").split("\n")[0] for e in errors if e.exit_code}
    known |= {0: "Done.", INTERRUPTED: "Interrupted; what came is kept."}
    return {"oneOf": [{"const": code, "description": known[code]} for code in sorted(known)]}


def _outputs() -> dict[str, dict[str, Schema]]:
    """For each command that prints JSON the schemas of that, by name: those of its reports.

    What no report says stands here: `ngt batch` writes lines, and commands that answer stream.
    """
    from ngtcli.cli.answer_object import AnswerObject, DryRunObject, FailedLineObject, LineObject
    from ngtcli.cli.app import COMMANDS, load

    answers = {"answer": AnswerObject, "dry_run": DryRunObject}
    lines = {"line": LineObject, "failed": FailedLineObject}
    kinds: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("summarize", "ask"), {**answers, **lines}),
        "generate": answers,
        "batch": lines,
    }
    for name in COMMANDS:
        for words, listed in _below(load(name), name):
            if (printed := getattr(listed, "report", None)) is not None:
                kinds[words] = {words.replace(" ", "_"): printed}
    return {
        words: {name: schema_of(of) if not isfunction(of) else of() for name, of in named.items()}
        for words, named in kinds.items()
    }


def _below(listed: Any, words: str) -> Iterator[tuple[str, Any]]:
    """The commands of a group, or a command itself, by their words."""
    yield words, listed
    for name, one in getattr(listed, "commands", {}).items():
        yield from _below(one, f"{words} {name}")
