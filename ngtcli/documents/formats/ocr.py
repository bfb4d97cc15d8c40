"""OCR: recognize the lines in the image of a page, by RapidOCR or by the library of Tesseract."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
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

MAX_SIDE = 2000  # pixels of a page's longer side: A4 at 171 dpi; 2600 recognized no more (measured)
_DETECTION_SIDE = (
    960  # pixels of the side on which lines are detected; 2000 found no more (measured)
)
_MIN_BOX_SCORE = 0.3  # of a box with a line; at 0.5 a single line on a page was missed (measured)
_MIN_UPRIGHT_CONFIDENCE = 0.85  # mean confidence of a page that is taken for upright (guess)
_MAX_ASPECT_RATIO = 100  # of a page's sides; for longer strips OpenCV takes gigabytes (guess)
_TURNED_ASPECT_RATIO = 1.5  # height of a turned line's box against its width, as in RapidOCR
_HEIGHT_TOLERANCE = 0.35  # lines whose heights differ by a smaller share are of one size (guess)
# In line heights, guesses:
_ROW_DISTANCE = 0.5  # lines that are nearer to one another are in one row
_MIN_GUTTER = 0.5  # white space between columns
_MIN_COLUMN_WIDTH = 8.0  # median width of lines in a column of text; in tables it is less
_MIN_COLUMN_LINES = 3  # lines of a column (guess)

Pixels = npt.NDArray[np.uint8]  # [height, width, 3]


@dataclass(frozen=True, slots=True)
class _Recognition:
    """The lines in an image, in points, and the mean confidence in them, from 0 to 1."""

    lines: list[Line]
    confidence: float


Recognizer = Callable[[Pixels, float], _Recognition]  # of an image and its pixels per point


def recognize_lines(page: pdfium.PdfPage, language: str = "") -> list[Line]:
    """Recognize the lines in the image of a page; a turned page is turned upright.

    Args:
        page: The page.
        language: Languages for Tesseract, such as "deu" or "deu+eng"; "" for RapidOCR.

    Returns:
        The lines in reading order, in points.

    Raises:
        ImportError: The package of the recognizer is not installed.
        Unreadable: Tesseract does not have the language, or the page is a long strip.
    """
    width, height = page.get_size()
    check_sides(width, height)
    recognize = _tesseract(language) if language else _rapidocr()
    scale = MAX_SIDE / max(width, height)
    image = np.ascontiguousarray(page.render(scale=scale).to_numpy()[:, :, :3])
    recognition = recognize(image, scale)
    if not recognition.lines:
        return []
    is_confident = recognition.confidence > _MIN_UPRIGHT_CONFIDENCE
    if not language and _is_turned(recognition.lines):
        # RapidOCR turns tall boxes by a quarter: if it is confident, that was right.
        quarters = 1 if is_confident else 3
        recognition = recognize(np.ascontiguousarray(np.rot90(image, quarters)), scale)
    elif recognition.confidence < _MIN_UPRIGHT_CONFIDENCE:
        upside_down = recognize(np.ascontiguousarray(image[::-1, ::-1]), scale)
        if upside_down.confidence > recognition.confidence:
            recognition = upside_down

    usual_height = median(line.height for line in recognition.lines)
    lines = [_with_usual_height(line, usual_height) for line in recognition.lines]
    if language:
        return lines  # Tesseract has its own reading order
    return _in_reading_order(lines, usual_height)


def _is_turned(lines: list[Line]) -> bool:
    """Return whether most lines are taller than wide."""
    ratio = median(line.height / (line.right - line.left) for line in lines)
    return ratio > _TURNED_ASPECT_RATIO


def _with_usual_height(line: Line, usual_height: float) -> Line:
    """Give a line the usual height if its own is near to it: the heights of boxes vary."""
    if abs(line.height - usual_height) >= _HEIGHT_TOLERANCE * usual_height:
        return line
    top = _middle(line) - usual_height / 2
    return replace(line, top=top, bottom=top + usual_height)


def check_sides(width: float, height: float) -> None:
    """Raise Unreadable for a long strip."""
    if max(width, height) > _MAX_ASPECT_RATIO * min(width, height):
        side = "wide" if width > height else "tall"
        raise Unreadable(
            f"too {side} to be recognized",
            "Cut it into pieces that are less narrow.",
        )


@cache
def _rapidocr() -> Recognizer:
    """Load RapidOCR, with one thread, because each parser has a processor."""
    import cv2
    import rapidocr
    from rapidocr.main import RapidOCR

    cv2.setNumThreads(1)
    # Models are named, so that none is fetched from the network.
    models = Path(rapidocr.__file__).parent / "models"
    engine: Any = RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.use_cls": False,  # it turns lines that are upright
            "Det.model_path": str(next(models.glob("*_det_*.onnx"))),
            "Det.limit_type": "max",
            "Det.limit_side_len": _DETECTION_SIDE,
            "Det.box_thresh": _MIN_BOX_SCORE,
            "Rec.model_path": str(next(models.glob("*_rec_*.onnx"))),
            "Rec.rec_batch_num": 1,  # larger batches take more memory and no less time
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )

    def recognize(image: Pixels, scale: float) -> _Recognition:
        result = engine(image)
        if result.txts is None:
            return _Recognition([], 0.0)
        lines = []
        for text, corners in zip(result.txts, result.boxes, strict=True):
            box = np.hstack([corners.min(axis=0), corners.max(axis=0)]) / scale
            line = Line(text, *box.tolist())
            if line.right > line.left:
                lines.append(line)
        return _Recognition(lines, float(np.mean(result.scores)))

    return recognize


@cache
def _tesseract(language: str) -> Recognizer:
    """Load Tesseract with its languages. Raises Unreadable if it does not have one."""
    import tesserocr
    from PIL import Image

    engine = tesserocr.PyTessBaseAPI(init=False)
    engine.SetVariable("debug_file", "")  # by default it writes to /dev/null
    missing = language.split("+")
    with suppress(RuntimeError):
        engine.Init(lang=language, psm=tesserocr.PSM.AUTO_OSD)  # detects turned pages, too
        loaded = engine.GetLoadedLanguages()
        missing = [name for name in missing if name not in loaded]
    if missing:
        raise Unreadable(
            f"no text is recognized: Tesseract cannot load the language {missing[0]!r}",
            "Install Tesseract with it; tesseract --list-langs lists those installed.",
            lasting=False,
        )

    def recognize(image: Pixels, scale: float) -> _Recognition:
        engine.SetImage(Image.fromarray(image))
        layout = engine.AnalyseLayout()
        quarters = layout.Orientation()[0] if layout else 0
        if quarters:
            engine.SetImage(Image.fromarray(np.rot90(image, quarters)))
        engine.Recognize()
        level = tesserocr.RIL.TEXTLINE
        lines = []
        for item in tesserocr.iterate_level(engine.GetIterator(), level):
            if item.Empty(level):
                continue
            text = item.GetUTF8Text(level).strip()
            if text:
                lines.append(Line(text, *(edge / scale for edge in item.BoundingBox(level))))
        return _Recognition(lines, engine.MeanTextConf() / 100)

    return recognize


def _middle(line: Line) -> float:
    return (line.top + line.bottom) / 2


def _in_reading_order(lines: list[Line], line_height: float) -> list[Line]:
    """Sort lines into reading order, and join those of a row.

    They are divided recursively: between two columns, or else where rows are farthest apart.
    """
    by_left = sorted(lines, key=lambda line: line.left)
    right_edge = 0.0  # of the lines so far
    for i, line in enumerate(by_left):
        left_side = by_left[:i]
        right_side = by_left[i:]
        has_gutter = line.left - right_edge > _MIN_GUTTER * line_height
        if (
            has_gutter
            and _is_column(left_side, line_height)
            and _is_column(right_side, line_height)
        ):
            return [
                *_in_reading_order(left_side, line_height),
                *_in_reading_order(right_side, line_height),
            ]
        right_edge = max(right_edge, line.right)

    by_row = sorted(lines, key=_middle)
    gaps = [_middle(below) - _middle(above) for above, below in pairwise(by_row)]
    if gaps and max(gaps) > _ROW_DISTANCE * line_height:
        next_row = gaps.index(max(gaps)) + 1
        return [
            *_in_reading_order(by_row[:next_row], line_height),
            *_in_reading_order(by_row[next_row:], line_height),
        ]
    row_text = " ".join(line.text for line in by_left)
    row_right = max(line.right for line in lines)
    return [replace(by_left[0], text=row_text, right=row_right)]


def _is_column(lines: list[Line], line_height: float) -> bool:
    """Return whether lines are a column of text, and not of a table."""
    widths = [line.right - line.left for line in lines]
    return len(lines) >= _MIN_COLUMN_LINES and median(widths) >= _MIN_COLUMN_WIDTH * line_height
