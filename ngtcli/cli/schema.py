"""`ngt schema`: what --json prints, described for programs that read it."""

from typing import Annotated

import typer

from ngtcli.cli.output import print_line
from ngtcli.render.sinks import dump_json


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, as in ngt schema trie list.")
    ] = None,
) -> None:
    """Print the JSON Schema of what --json prints, of one command or of all that have one."""
    from ngtcli.render.schema import build

    print_line(dump_json(build(" ".join(command or []))))
