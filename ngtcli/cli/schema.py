"""`ngt schema`: print the JSON Schema of the output of --json.

The schemas are made from the dataclasses that are printed. No object may have a key that its
schema does not describe.
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
    """Print the JSON Schema of the --json output of one command, or of all."""
    print_line(dump_json(build(" ".join(command or []))))


def build(command: str = "") -> Schema:
    """Return the schema of a command's output, or that of all commands.

    Raises:
        UsageError: No such command prints JSON.
    """
    by_command = _schemas_by_command()
    if command and command not in by_command:
        raise UsageError(
            f"no command {command[:100]!r} with --json", hint=nearest(command, by_command)
        )
    schemas: dict[str, Schema] = {}
    for command_name, named in by_command.items():
        if command in ("", command_name):
            schemas |= named
    return {
        "$schema": DIALECT,
        "title": f"ngt {command or 'COMMAND'} --json",
        "description": "The object on standard output. After an error there is none, except that"
        " --dry-run still describes a prompt that does not fit; the exit code says which error.",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in schemas],
        "$defs": {**schemas, "exit_code": exit_codes()},
    }


def exit_codes() -> Schema:
    """Return a schema of the exit codes, each with the first line of its error's docstring."""
    descriptions = {0: "Done.", int(INTERRUPTED): "Interrupted; finished work is kept."}
    errors: list[type[NgtError]] = [NgtError, *NgtError.__subclasses__()]
    for error in errors:
        if error.exit_code and error.__module__ == NgtError.__module__:
            # Errors without a code of their own have that of NgtError, whose docstring counts.
            descriptions.setdefault(int(error.exit_code), (error.__doc__ or "").split("\n")[0])
    return {
        "oneOf": [
            {"const": code, "description": descriptions[code]} for code in sorted(descriptions)
        ]
    }


def _schemas_by_command() -> dict[str, dict[str, Schema]]:
    """Return the named schemas of each command that prints JSON.

    A command that returns a report declares its type. The others are listed here: `ngt batch`
    writes lines, and commands that answer print while they run.
    """
    from ngtcli.cli.answer_object import AnswerObject, DryRunObject, FailedLineObject, LineObject
    from ngtcli.cli.app import COMMANDS, load

    answers = {"answer": AnswerObject, "dry_run": DryRunObject}
    lines = {"line": LineObject, "failed": FailedLineObject}
    types: dict[str, dict[str, Any]] = {
        "summarize": {**answers, **lines},
        "ask": {**answers, **lines},
        "generate": answers,
        "batch": lines,
    }
    for name in COMMANDS:
        for full_name, listed in _with_subcommands(load(name), name):
            report = getattr(listed, "report", None)
            if report is not None:
                types[full_name] = {full_name.replace(" ", "_"): report}
    return {
        full_name: {name: _schema_of_report(report) for name, report in named.items()}
        for full_name, named in types.items()
    }


def _schema_of_report(report: Any) -> Schema:
    """Return the schema of a type, or what a function that makes a schema returns."""
    schema: Schema = report() if isfunction(report) else schema_of(report)
    return schema


def _with_subcommands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and all its subcommands with their full names."""
    yield name, command
    for subname, subcommand in getattr(command, "commands", {}).items():
        yield from _with_subcommands(subcommand, f"{name} {subname}")
