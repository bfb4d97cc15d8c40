"""Where the report of `ngt tune` goes: terminal, pipe, files."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ngtcli.cli.output import check_output_file, write_page, write_result
from ngtcli.cli.streams import terminal_width
from ngtcli.errors import UsageError
from ngtcli.render import heatmap
from ngtcli.render.heatmap_page import to_html
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import wants_color


def check_outputs(forms: Mapping[str, bool], html: Path | None, output: Path | None) -> str:
    """The one form asked for, "" for none. Raises UsageError before anything is measured."""
    asked = [form for form, given in forms.items() if given]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} are both given", "Choose one of them.")
    for path in (html, output):
        check_output_file(path)
    return asked[0] if asked else ""


def deliver(
    report: Mapping[str, Any],
    *,
    form: str,
    html: Path | None,
    output: Path | None,
    color: str,
    verbose: bool,
) -> None:
    """Print the report, or write it to `output`; a page as well where one was asked for."""
    on_terminal = output is None and sys.stdout.isatty()
    write_result(_text(report, form, on_terminal, color, verbose), output)
    if html is not None:
        write_page(to_html(report), html)


def _text(
    report: Mapping[str, Any], form: str, on_terminal: bool, color: str, verbose: bool
) -> str:
    if form == "json":
        return dump_json(report)
    if form == "markdown":
        return heatmap.to_markdown(report)
    if form == "csv":
        return heatmap.to_csv(report)
    if not on_terminal:
        return heatmap.to_plain(report)
    return heatmap.to_terminal(
        report, terminal_width(sys.stdout), wants_color(sys.stdout, color), verbose
    )
