"""`ngt cache`: all that ngt has stored on this machine, and deleting it."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import Place, Removed, print_either, print_facts, print_rows
from ngtcli.errors import NgtError, UsageError, nearest, reason_of
from ngtcli.system import cache
from ngtcli.system.cache import STORES, Held, held
from ngtcli.system.files import home

cache_app = typer.Typer(help="All that is stored to be used again.", no_args_is_help=True)
_KNOWN = {store.name: store for store in STORES}
Name = Annotated[str, typer.Argument(help="One of the names that ngt cache list shows.")]
_OPTIONAL = typer.Argument(
    help="Names that ngt cache list shows; without any, all but those cleared by name."
)


@cache_app.command("list")
def cache_list(json: JsonOption = False) -> None:
    """List what the cache holds, its pieces, files and size."""
    print_rows(held(STORES), json, ["name", "pieces", "files", "size", "cleared", "holds"], _cells)


def _cells(row: Held) -> list[object]:
    cleared, size = "by name" if row.store.cleared_by_name else "yes", f"{row.bytes / 1e6:.1f} MB"
    return [row.store.name, row.pieces, row.files, size, cleared, row.store.holds]


@cache_app.command("show")
def cache_show(name: Name, json: JsonOption = False) -> None:
    """Show what one of them holds, what makes it, and where it is."""
    _check_names([name])
    print_facts(held([_KNOWN[name]])[0], json)


@cache_app.command("clear")
def cache_clear(
    names: Annotated[list[str] | None, _OPTIONAL] = None, json: JsonOption = False
) -> None:
    """Delete what the cache holds; what was learned or built by a command only by name."""
    _check_names(names or [])
    print_removed(names or [store.name for store in STORES if not store.cleared_by_name], json)


@cache_app.command("path")
def cache_path(
    name: Annotated[str | None, typer.Argument(help="Print where this one is.")] = None,
    json: JsonOption = False,
) -> None:
    """Print the folder of the cache, or where one of them is."""
    _check_names([name] if name else [])
    print_folder(name, json)


def cleared(names: Sequence[str]) -> cache.Removed:
    """Delete what the stores of these names hold. Raises NgtError."""
    try:
        return cache.clear([_KNOWN[name] for name in names])
    except OSError as error:
        where = error.filename or home("cache")
        raise NgtError(f"{where}: {reason_of(error)}", "Delete it by hand.") from None


def print_removed(names: Sequence[str], json: bool) -> None:
    """Delete what the stores of these names hold, and say how much that was. Raises NgtError."""
    removed = cleared(names)
    told = Removed(removed.files, removed.bytes, removed.pieces)
    print_either(told, json, f"{removed.words} removed")


def print_folder(name: str | None, json: bool) -> None:
    """Print the folder of a store, or of the cache."""
    folder = str(_KNOWN[name].path if name else home("cache"))
    print_either(Place(folder), json, folder)


def _check_names(names: Sequence[str]) -> None:
    """Raise UsageError for a name that no store has."""
    for name in names:
        if name not in _KNOWN:
            hint = f"{nearest(name, _KNOWN)} See ngt cache list.".strip()
            raise UsageError(f"the cache has no {name!r}", hint)
