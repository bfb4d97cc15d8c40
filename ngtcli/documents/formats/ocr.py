"""Text that is recognized in the picture of a page, by RapidOCR or by the library of Tesseract."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pypdfium2 as pdfium

from ngtcli.documents.formats.pdf_page import Line
from ngtcli.documents.text import Unreadable

# By a picture [height, width, 3] and its pixels a point: the lines, and their mean confidence.
Read = Callable[[npt.NDArray[np.uint8], float], tuple[list[Line], float]]
LONGEST = 2000  # pixels of a page's longer side: A4 at 171 dpi; with 2600, no more was right
_DETECTED = 960  # pixels of the side on which lines are looked for; with 2000, no more was right
_LIKELY = 0.3  # least score of a box with a line; at 0.5 one line alone on a page was missed
_SURE = 0.85  # least mean confidence at which a page is taken for upright; guess
_MOST_ASPECT = 100  # sides against one another: of more, OpenCV wants gigabytes; guess
_TALL = 1.5  # height of a turned line's box against its width; the library's
_SAME = 0.35  # heights that differ by a smaller share are of one size, as boxes vary; guess
_ROW = 0.5  # lines that are nearer than this share of their height are of one row; guess
_GUTTER = 0.5  # least white space between columns, in line heights; guess
_COLUMN = 8.0  # least width of most lines of a column, in line heights: in tables it is less; guess
_FEWEST = 3  # lines of a column; guess


def recognized(page: pdfium.PdfPage, language: str = "") -> list[Line]:
    """The lines in the picture of a page, in reading order, in points; turned pages as upright.

    By RapidOCR, or by Tesseract in a language as "deu", or "deu+eng". Raises ImportError without
    its package, and Unreadable where Tesseract does not have the language, or for a strip.
    """
    check_sides(*page.get_size())
    read, scale = _tesseract(language) if language else _rapidocr(), LONGEST / max(page.get_size())
    picture = np.ascontiguousarray(page.render(scale=scale).to_numpy()[:, :, :3])
    lines, sure = read(picture, scale)
    if not lines:
        return []
    if not language and median(line.height / (line.right - line.left) for line in lines) > _TALL:
        quarters = 1 if sure > _SURE else 3  # the library has turned the lines of such a page by 1
        lines, sure = read(np.ascontiguousarray(np.rot90(picture, quarters)), scale)
    elif sure < _SURE:
        upside_down = read(np.ascontiguousarray(picture[::-1, ::-1]), scale)
        lines, _ = max((lines, sure), upside_down, key=lambda read: read[1])
    usual = median(line.height for line in lines)
    for i, line in enumerate(lines):
        if abs(line.height - usual) < _SAME * usual:
            top = _middle(line) - usual / 2
            lines[i] = replace(line, top=top, bottom=top + usual)
    return lines if language else _ordered(lines, usual)  # Tesseract has an order of its own


def check_sides(width: float, height: float) -> None:
    """Raise Unreadable for a strip."""
    if max(width, height) > _MOST_ASPECT * min(width, height):
        what = f"too {'wide' if width > height else 'tall'} to be recognized"
        raise Unreadable(what, "Cut it into pieces whose sides are more alike.")


@cache
def _rapidocr() -> Read:
    """RapidOCR, with one thread: each parser has a processor."""
    import cv2
    import rapidocr
    from rapidocr.main import RapidOCR

    cv2.setNumThreads(1)
    models = Path(rapidocr.__file__).parent / "models"  # named: none is looked for on the network
    det, rec = (str(next(models.glob(f"*_{kind}_*.onnx"))) for kind in ("det", "rec"))
    own = {"Global.log_level": "critical", "Global.use_cls": False}  # it turns lines that are right
    own |= {"Det.model_path": det, "Det.limit_type": "max", "Det.limit_side_len": _DETECTED}
    own |= {"Det.box_thresh": _LIKELY}
    own |= {"Rec.model_path": rec, "Rec.rec_batch_num": 1}  # more take more memory, no less time
    own |= {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
    engine: Any = RapidOCR(params=own)

    def read(picture: npt.NDArray[np.uint8], scale: float) -> tuple[list[Line], float]:
        found = engine(picture)
        if found.txts is None:
            return [], 0.0
        boxes = (np.hstack([box.min(axis=0), box.max(axis=0)]) / scale for box in found.boxes)
        lines = (Line(text, *box.tolist()) for text, box in zip(found.txts, boxes, strict=True))
        return [line for line in lines if line.right > line.left], float(np.mean(found.scores))

    return read


@cache
def _tesseract(language: str) -> Read:
    """Tesseract in that language. Raises Unreadable."""
    import tesserocr
    from PIL import Image

    engine = tesserocr.PyTessBaseAPI(init=False)
    engine.SetVariable("debug_file", "")  # it would write to /dev/null
    missing = language.split("+")
    with suppress(RuntimeError):
        engine.Init(lang=language, psm=tesserocr.PSM.AUTO_OSD)  # how a page is turned, is found too
        missing = [one for one in missing if one not in engine.GetLoadedLanguages()]
    if missing:
        what = f"no text is recognized: Tesseract cannot load the language {missing[0]!r}"
        advice = "Install Tesseract with it; tesseract --list-langs names those that it has."
        raise Unreadable(what, advice, lasting=False)
    level = tesserocr.RIL.TEXTLINE

    def read(picture: npt.NDArray[np.uint8], scale: float) -> tuple[list[Line], float]:
        engine.SetImage(Image.fromarray(picture))
        if (layout := engine.AnalyseLayout()) and (quarters := layout.Orientation()[0]):
            engine.SetImage(Image.fromarray(np.rot90(picture, quarters)))
        engine.Recognize()
        lines = [
            Line(line.GetUTF8Text(level).strip(), *(x / scale for x in line.BoundingBox(level)))
            for line in tesserocr.iterate_level(engine.GetIterator(), level)
            if not line.Empty(level)
        ]
        return [line for line in lines if line.text], engine.MeanTextConf() / 100

    return read


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
