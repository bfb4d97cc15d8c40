"""A command gives a report: --json prints it, its type is the schema, a view shows it to people.

    @cache_app.command("show")
    @reports(facts)
    def cache_show(name: Name) -> Held:
        return held([_KNOWN[name]])[0]

A command that has more to say below what is shown, or an error to raise, is a generator: it yields
its report, is sent whether people were shown it, and goes on.
"""

import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, get_args

from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import print_line, print_table
from ngtcli.system.json_form import dump_json, to_json

Shown = str | tuple[Sequence[str], Iterable[Sequence[object]]]  # lines, or headings and rows
View = Callable[[Any], Shown | Iterable[Shown]]

_JSON = inspect.Parameter(
    "json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption
)


def table(columns: str, cells: Callable[[Any], Sequence[object]]) -> View:
    """A view of a list: under these headings, separated by commas, a row for each one."""
    return lambda rows: (columns.split(","), [cells(row) for row in rows])


def facts(value: object) -> Shown:
    """A view of a dataclass: its keys and their values, a list's in rows."""
    pairs = to_json(value).items()
    rows = [(k, one) for k, v in pairs for one in (v if isinstance(v, list) else [v])]
    return ["what", "value"], rows


def reports(view: View, *, schema: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """Give a command the flag --json, and print what it returns, or first yields.

    `schema` is a function that makes its schema where the type returned does not say all.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters, reads = list(signature.parameters.values()), "json" in signature.parameters
        if not reads:
            parameters.append(_JSON)

        @wraps(command)
        def wrapper(*, json: bool, **arguments: Any) -> None:
            given = command(**arguments, json=json) if reads else command(**arguments)
            if not isinstance(given, Generator):
                _show(given, json, view)
                return
            _show(next(given), json, view)
            with suppress(StopIteration):
                given.send(not json)

        kind = signature.return_annotation
        kind = get_args(kind)[0] if inspect.isgeneratorfunction(command) else kind
        wrapper.printed = schema or kind  # type: ignore[attr-defined]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _show(value: object, json: bool, view: View) -> None:
    if json:
        print_line(dump_json(value))
        return
    found = view(value)
    whole: Iterable[Any] = [found] if isinstance(found, str | tuple) else found
    for shown in whole:
        print_line(shown) if isinstance(shown, str) else print_table(shown[0], [*shown[1]])
