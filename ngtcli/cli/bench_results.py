"""Where the results of `ngt bench` go: a terminal, a pipe, JSON, Markdown, a file, a page."""

import sys
from collections.abc import Mapping
from typing import Any

from ngtcli.cli.bench_options import BenchFlags
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_output_file, write_page, write_result
from ngtcli.cli.streams import terminal_width
from ngtcli.errors import UsageError
from ngtcli.render.report import page
from ngtcli.render.results import counted, facts, tables
from ngtcli.render.sinks import dump_json
from ngtcli.render.tables import to_markdown, to_plain, to_terminal
from ngtcli.render.terminal import visible, wants_color


def check_outputs(given: BenchFlags) -> None:
    """Raise UsageError for results that could not be delivered, before they are measured."""
    if given.json and given.markdown:
        raise UsageError("--json and --markdown", "Give one of them.")
    for path in (given.output, given.html):
        check_output_file(path)


def deliver(result: Mapping[str, Any], given: BenchFlags, color: str, notes: Notes) -> None:
    """The result in its form, and the page where one is wanted. Raises NgtError."""
    write_result(_text(result, given, color), given.output)
    for note in result.get("notes", []):
        notes.warn(note)
    if given.html:
        write_page(page(result), given.html)


def _text(result: Mapping[str, Any], given: BenchFlags, color: str) -> str:
    if given.json:
        return dump_json(result)
    if result["kind"] == "record":
        done = counted(result["questions"], "prompt"), counted(result["new_tokens"], "token")
        return visible(f"{', '.join(done)}: {result['path']}")
    shown, line = tables(result), " · ".join(facts(result))
    if given.markdown:
        return to_markdown(shown) + "\n\n" + visible(line)
    if given.output is None and sys.stdout.isatty():
        width, colour = terminal_width(sys.stdout), wants_color(sys.stdout, color)
        return to_terminal(shown, [line], width, colour)
    return to_plain(shown) + f"\n\n# {visible(line)}"
