"""Excel workbooks: the sheets with their names, a line a row, values as they were last computed."""

import datetime
import io
import warnings
from collections.abc import Sequence
from typing import Any

import defusedxml  # noqa: F401 - which openpyxl takes where it is there
import openpyxl

from ngtcli.documents.content import Extracted, Source, Writer

_ROWS = 1_048_576  # most rows that Excel's sheets have


def parse(source: Source) -> Extracted:
    """The text of all sheets that Excel shows."""
    warnings.simplefilter("ignore")  # of styles and extensions that are not read
    book = openpyxl.load_workbook(
        io.BytesIO(source.data), read_only=True, data_only=True, keep_links=False
    )
    writer = Writer()
    shown = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
    for sheet in shown:
        sheet.reset_dimensions()  # which files tell wrong
        rows = sheet.iter_rows(max_row=_ROWS, values_only=True)
        writer.table(map(_filled, rows), sheet.title)
    hidden = len(book.worksheets) - len(shown)
    told = (f"hidden sheets left out: {hidden}",) * bool(hidden)
    return writer.extracted("xlsx", told)


def _filled(row: Sequence[Any]) -> list[str]:
    """The cells up to the last one with text."""
    cells = [_shown(value) for value in row]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _shown(value: Any) -> str:
    """A value as Excel shows it in a cell without a format of its own.

    >>> [_shown(v) for v in (None, True, 0.1 + 0.2, 3.0, datetime.datetime(2024, 5, 1))]
    ['', 'TRUE', '0.3', '3', '2024-05-01']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return " ".join(str(value).split())
