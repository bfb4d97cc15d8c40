"""Where the report of `ngt tune` goes: terminal, pipe, files."""

import sys
from collections.abc import Mapping
from typing import Any

from ngtcli.cli.output import check_output_file, write_page, write_result
from ngtcli.cli.streams import terminal_width
from ngtcli.cli.tune_options import TuneFlags
from ngtcli.errors import UsageError
from ngtcli.render import heatmap
from ngtcli.render.heatmap_page import to_html
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import wants_color

_FORMS = ("json", "markdown", "csv")


def check_outputs(given: TuneFlags) -> None:
    """Raise UsageError for a report that could not be delivered, before anything is measured."""
    forms = [form for form in _FORMS if getattr(given, form)]
    if len(forms) > 1:
        raise UsageError(f"--{forms[0]} and --{forms[1]} are both given", "Choose one of them.")
    for path in (given.html, given.output):
        check_output_file(path)


def deliver(report: Mapping[str, Any], given: TuneFlags, color: str) -> None:
    """Print the report, or write it to its file; a page as well where one was asked for."""
    write_result(_text(report, given, color), given.output)
    if given.html is not None:
        write_page(to_html(report), given.html)


def _text(report: Mapping[str, Any], given: TuneFlags, color: str) -> str:
    if given.json:
        return dump_json(report)
    if given.markdown:
        return heatmap.to_markdown(report)
    if given.csv:
        return heatmap.to_csv(report)
    if given.output is not None or not sys.stdout.isatty():
        return heatmap.to_plain(report)
    width, colour = terminal_width(sys.stdout), wants_color(sys.stdout, color)
    return heatmap.to_terminal(report, width, colour, given.verbose)
