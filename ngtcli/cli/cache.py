"""`ngt cache`: all that ngt has stored on this machine, and deleting it."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import Place, Removed, print_json, print_line, print_table
from ngtcli.errors import NgtError, UsageError, counted, nearest
from ngtcli.system.cache import STORES, Store, clear, held
from ngtcli.system.json_form import to_json
from ngtcli.system.storage import home

cache_app = typer.Typer(help="All that is stored to be used again.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="One of the names that ngt cache list shows.")]
_OPTIONAL = typer.Argument(
    help="Names that ngt cache list shows; without any, all but those cleared by name."
)


@cache_app.command("list")
def cache_list(json: JsonOption = False) -> None:
    """List what the cache holds, its files and its size."""
    rows = [held(home("cache"), store) for store in STORES]
    if json:
        print_json(rows)
        return
    cells = []
    for row in rows:
        cleared = "by name" if row.store.lasting else "yes"
        size = f"{row.bytes / 1e6:.1f} MB"
        cells.append([row.store.name, row.files, size, cleared, row.store.holds])
    print_table(["name", "files", "size", "cleared", "holds"], cells)


@cache_app.command("show")
def cache_show(name: Name, json: JsonOption = False) -> None:
    """Show what one of them holds, what makes it, and where it is."""
    row = held(home("cache"), _named([name])[0])
    if json:
        print_json(row)
    else:
        print_table(["what", "value"], list(to_json(row).items()))


@cache_app.command("clear")
def cache_clear(
    names: Annotated[list[str] | None, _OPTIONAL] = None, json: JsonOption = False
) -> None:
    """Delete what the cache holds; what was learned or built by a command only by name."""
    stores = _named(names) if names else [store for store in STORES if not store.lasting]
    print_removed(*_cleared(stores), json)


@cache_app.command("path")
def cache_path(
    name: Annotated[str | None, typer.Argument(help="Print the folder of this one.")] = None,
    json: JsonOption = False,
) -> None:
    """Print the folder of the cache."""
    print_folder(name, json)


def clear_named(*names: str) -> tuple[int, int]:
    """Delete what the stores of these names hold: (files, bytes). Raises NgtError."""
    return _cleared(_named(names))


def print_removed(files: int, size: int, json: bool) -> None:
    """Say how much was deleted."""
    if json:
        print_json(Removed(files, size))
    else:
        print_line(f"{counted(files, 'file')}, {size / 1e6:.1f} MB removed")


def print_folder(name: str | None, json: bool) -> None:
    """Print the folder of a store, or of the cache."""
    folder = str(home("cache") / _named([name])[0].folder if name else home("cache"))
    if json:
        print_json(Place(folder))
    else:
        print_line(folder)


def _named(names: Sequence[str]) -> list[Store]:
    known = {store.name: store for store in STORES}
    for name in names:
        if name not in known:
            hint = f"{nearest(name, known)} See ngt cache list.".strip()
            raise UsageError(f"the cache has no {name!r}", hint)
    return [known[name] for name in names]


def _cleared(stores: Sequence[Store]) -> tuple[int, int]:
    try:
        return clear(home("cache"), stores)
    except OSError as error:
        where = error.filename or home("cache")
        raise NgtError(f"{where}: {error.strerror or error}", "Delete it by hand.") from None
