"""Where the report of `ngt tune` goes: terminal, pipe, files."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ngtcli.cli.files import check_output_file
from ngtcli.cli.streams import print_line, terminal_width
from ngtcli.errors import NgtError, UsageError
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import wants_color
from ngtcli.storage import write_atomically


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
    form: str,
    html: Path | None,
    output: Path | None,
    color: str,
    verbose: bool,
) -> None:
    """Print the report, or write it to `output`; a page as well where one was asked for."""
    text = _text(report, form, output is None, color, verbose)
    if output is None:
        print_line(text)
    else:
        _write(output, text + "\n", text)
    if html is not None:
        from ngtcli.render.heatmap_page import to_html

        _write(html, to_html(report), "")


def _text(report: Mapping[str, Any], form: str, to_stdout: bool, color: str, verbose: bool) -> str:
    from ngtcli.render import heatmap

    if form == "json":
        return dump_json(report)
    if form == "markdown":
        return heatmap.to_markdown(report)
    if form == "csv":
        return heatmap.to_csv(report)
    if not (to_stdout and sys.stdout.isatty()):
        return heatmap.to_plain(report)
    return heatmap.to_terminal(
        report, terminal_width(sys.stdout), wants_color(sys.stdout, color), verbose
    )


def _write(path: Path, text: str, instead: str) -> None:
    """Write a file, whole; where that fails, `instead` goes to stdout rather than being lost."""
    try:
        write_atomically(path, text)
    except OSError as error:
        if instead:
            print_line(instead)
        raise NgtError(
            f"{path}: {(error.strerror or str(error)).lower()}", "Choose another file."
        ) from None
