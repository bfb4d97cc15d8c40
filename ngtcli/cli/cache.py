"""`ngt cache`: list and clear what ngt has stored on this machine."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ngtcli.cli.command import Group
from ngtcli.cli.notes import Notes
from ngtcli.cli.show import facts, table
from ngtcli.errors import NgtError, UsageError
from ngtcli.system.cache import STORES, Removed, Store, StoreUsage, clear, measure_stores
from ngtcli.system.compiled import COMPILING_S
from ngtcli.system.files import home
from ngtcli.words import nearest, reason_of

cache_app = Group("cache")
_MAX_MARKS = 1000  # bytes of the notes on compiled code, without the code
_KNOWN = {store.name: store for store in STORES}
Name = Annotated[str, typer.Argument(help="A name from ngt cache list.")]
_OPTIONAL = typer.Argument(
    help="Names from ngt cache list; default: all but those that are cleared only if named."
)
_PLACE = typer.Argument(help="Print the path of this part.")


@dataclass(frozen=True, slots=True)
class Place:
    """The path of the cache, or of a part of it."""

    path: str


def _cells(row: StoreUsage) -> list[object]:
    return [
        row.store.name,
        row.pieces,
        row.files,
        f"{row.bytes / 1e6:.1f} MB",
        "only if named" if row.store.cleared_by_name else "yes",
        row.store.holds,
    ]


@cache_app.command("list", view=table("name,entries,files,size,cleared,holds", _cells))
def cache_list() -> list[StoreUsage]:
    """List the parts of the cache with their entries, files and sizes."""
    return measure_stores(STORES)


@cache_app.command("show", view=facts)
def cache_show(name: Name) -> StoreUsage:
    """Show what a part of the cache holds, what creates it, and where it is."""
    return measure_stores([_known(name)])[0]


@cache_app.command("clear", view=lambda removed: f"{removed.words} removed")
def cache_clear(names: Annotated[list[str] | None, _OPTIONAL] = None) -> Removed:
    """Clear the cache and compiled code; pools, datastores and tuning only if named."""
    stores = [_known(name) for name in names or []]
    stores = stores or [store for store in STORES if not store.cleared_by_name]
    code = [store for store in stores if store.name == "compiled"]
    had_code = any(usage.bytes > _MAX_MARKS for usage in measure_stores(code))
    try:
        removed = clear(stores)
    except OSError as error:
        where = error.filename or home("cache")
        raise NgtError(f"{where}: {reason_of(error)}", hint="Delete it by hand.") from None
    if had_code:
        Notes().say(
            "Compiled drafting code was removed as well: the next answer compiles it again in the"
            f" background, in about {COMPILING_S} s."
        )
    return removed


@cache_app.command("path", view=lambda place: place.path)
def cache_path(name: Annotated[str | None, _PLACE] = None) -> Place:
    """Print the path of the cache, or of a part of it."""
    return Place(str(_known(name).path if name else home("cache")))


def _known(name: str) -> Store:
    """Return a part of the cache by its name. Raises UsageError for an unknown one."""
    if name not in _KNOWN:
        hint = f"{nearest(name, _KNOWN)} See ngt cache list.".strip()
        raise UsageError(f"the cache has no part {name!r}", hint=hint)
    return _KNOWN[name]
