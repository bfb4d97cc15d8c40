"""Text that is recognized in the picture of a page by RapidOCR, whose models lie in its package."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pypdfium2 as pdfium
import rapidocr
from rapidocr.main import RapidOCR

from ngtcli.documents.formats.pdf_page import Line

LONGEST = 2000  # pixels of a page's longer side: A4 at 171 dpi; with 2600, no more was right
_DETECTED = 960  # pixels of the side on which lines are looked for; with 2000, no more was right
_LIKELY = 0.3  # least score of a box with a line; at 0.5 one line alone on a page was missed
_SURE = 0.85  # least mean confidence at which a page is taken for upright; guess
_TALL = 1.5  # height of a turned line's box against its width; the library's
_SAME = 0.35  # heights that differ by a smaller share are of one size, as boxes vary; guess
_ROW = 0.5  # lines that are nearer than this share of their height are of one row; guess
_GUTTER = 0.5  # least white space between columns, in line heights; guess
_COLUMN = 8.0  # least width of most lines of a column, in line heights: in tables it is less; guess
_FEWEST = 3  # lines of a column; guess


def recognized(page: pdfium.PdfPage) -> list[Line]:
    """The lines in the picture of a page, in reading order, in points; turned pages as upright."""
    scale = LONGEST / max(page.get_size())
    picture = page.render(scale=scale).to_numpy()[:, :, :3]
    lines, sure = _read(picture, scale)
    if not lines:
        return []
    if median(line.height / (line.right - line.left) for line in lines) > _TALL:
        quarters = 1 if sure > _SURE else 3  # the library has turned the lines of such a page by 1
        lines, sure = _read(np.ascontiguousarray(np.rot90(picture, quarters)), scale)
    elif sure < _SURE:
        upside_down = _read(np.ascontiguousarray(picture[::-1, ::-1]), scale)
        lines, _ = max((lines, sure), upside_down, key=lambda read: read[1])
    usual = median(line.height for line in lines)
    for i, line in enumerate(lines):
        if abs(line.height - usual) < _SAME * usual:
            top = _middle(line) - usual / 2
            lines[i] = replace(line, top=top, bottom=top + usual)
    return _ordered(lines, usual)


@cache
def _engine() -> RapidOCR:
    """RapidOCR, with one thread: each parser has a processor."""
    cv2.setNumThreads(1)
    models = Path(rapidocr.__file__).parent / "models"  # named: none is looked for on the network
    det, rec = (str(next(models.glob(f"*_{kind}_*.onnx"))) for kind in ("det", "rec"))
    own = {"Global.log_level": "critical", "Global.use_cls": False}  # it turns lines that are right
    own |= {"Det.model_path": det, "Det.limit_type": "max", "Det.limit_side_len": _DETECTED}
    own |= {"Det.box_thresh": _LIKELY}
    own |= {"Rec.model_path": rec, "Rec.rec_batch_num": 1}  # more take more memory, no less time
    own |= {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
    return RapidOCR(params=own)


def _read(picture: npt.NDArray[np.uint8], scale: float) -> tuple[list[Line], float]:
    """The lines of a page, and their mean confidence.

    `picture` [height, width, 3] has `scale` pixels a point, of blue, green and red.
    """
    read: Any = _engine()(picture)
    if read.txts is None:
        return [], 0.0
    boxes = (np.hstack([box.min(axis=0), box.max(axis=0)]) / scale for box in read.boxes)
    lines = (Line(text, *box.tolist()) for text, box in zip(read.txts, boxes, strict=True))
    return [line for line in lines if line.right > line.left], float(np.mean(read.scores))


def _middle(line: Line) -> float:
    return (line.top + line.bottom) / 2


def _ordered(lines: list[Line], height: float) -> list[Line]:
    """The lines in reading order; those of a row become one.

    They are divided, over and over, between two columns, or else where rows are farthest apart.
    """
    by_left, reach = sorted(lines, key=lambda line: line.left), 0.0
    for at, line in enumerate(by_left):
        sides = by_left[:at], by_left[at:]
        if line.left - reach > _GUTTER * height and all(_is_column(s, height) for s in sides):
            return [*_ordered(sides[0], height), *_ordered(sides[1], height)]
        reach = max(reach, line.right)
    rows = sorted(lines, key=_middle)
    gaps = [_middle(after) - _middle(before) for before, after in pairwise(rows)]
    if gaps and max(gaps) > _ROW * height:
        at = gaps.index(max(gaps)) + 1
        return [*_ordered(rows[:at], height), *_ordered(rows[at:], height)]
    text, right = " ".join(line.text for line in by_left), max(line.right for line in lines)
    return [replace(by_left[0], text=text, right=right)]


def _is_column(lines: list[Line], height: float) -> bool:
    """Whether these are a column of text, and not of a table."""
    widths = [line.right - line.left for line in lines]
    return len(lines) >= _FEWEST and median(widths) >= _COLUMN * height
