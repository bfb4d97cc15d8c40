"""`ngt trie pool`: what earlier answers left behind for auto."""

from contextlib import suppress
from typing import Any

import typer

from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import print_line, print_table
from ngtcli.errors import counted
from ngtcli.render.sinks import dump_json

pool_app = typer.Typer(help="The pool of earlier answers, for auto.", no_args_is_help=True)


@pool_app.command("show")
def pool_show(json: JsonOption = False) -> None:
    """List the pools: one a model."""
    from ngtcli.draft.pool import describe, list_pools

    rows: list[dict[str, Any]] = [row for path in list_pools() if (row := describe(path))]
    if json:
        print_line(dump_json(rows))
        return
    header = ["model", "pieces", "tokens", "size"]
    cells = [[r["model"], r["answers"], r["tokens"], f"{r['bytes'] / 1e3:.0f} kB"] for r in rows]
    print_table(header, cells)


@pool_app.command("clear")
def pool_clear(json: JsonOption = False) -> None:
    """Forget all earlier answers, of every model."""
    from ngtcli.draft.pool import list_pools

    count = size = 0
    for path in list_pools():
        with suppress(OSError):  # no file at all, or another run is clearing as well
            bytes_ = path.lstat().st_size
            path.unlink()
            count, size = count + 1, size + bytes_
    body = {"files": count, "bytes": size}
    print_line(
        dump_json(body) if json else f"{counted(count, 'pool')}, {size / 1e3:.0f} kB removed"
    )
