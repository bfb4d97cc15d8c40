"""Where the results of `ngt bench` go: a terminal, a pipe, JSON, Markdown, a file, a page."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_output_file, write_page, write_result
from ngtcli.cli.streams import terminal_width
from ngtcli.errors import UsageError
from ngtcli.render.report import page
from ngtcli.render.results import counted, facts, tables
from ngtcli.render.sinks import dump_json
from ngtcli.render.tables import to_markdown, to_plain, to_terminal
from ngtcli.render.terminal import visible, wants_color


class Delivery:
    """Checks where results are to go before they are measured, then brings them there."""

    def __init__(
        self,
        notes: Notes,
        *,
        json: bool,
        markdown: bool,
        output: Path | None,
        html: Path | None,
        color: str = "auto",
    ) -> None:
        if json and markdown:
            raise UsageError("--json and --markdown", "Give one of them.")
        for path in (output, html):
            check_output_file(path)
        self._notes, self._json, self._markdown = notes, json, markdown
        self._output, self._html, self._color = output, html, color

    def deliver(self, result: Mapping[str, Any]) -> None:
        """The result in its form, and the page where one is wanted. Raises NgtError."""
        on_terminal = self._output is None and sys.stdout.isatty()
        write_result(self._text(result, on_terminal), self._output)
        for note in result.get("notes", []):
            self._notes.warn(note)
        if self._html:
            write_page(page(result), self._html)

    def _text(self, result: Mapping[str, Any], on_terminal: bool) -> str:
        if self._json:
            return dump_json(result)
        if result["kind"] == "record":
            done = counted(result["questions"], "prompt"), counted(result["new_tokens"], "token")
            return visible(f"{', '.join(done)}: {result['path']}")
        shown, line = tables(result), " · ".join(facts(result))
        if self._markdown:
            return to_markdown(shown) + "\n\n" + visible(line)
        if on_terminal:
            width, colour = terminal_width(sys.stdout), wants_color(sys.stdout, self._color)
            return to_terminal(shown, [line], width, colour)
        return to_plain(shown) + f"\n\n# {visible(line)}"
