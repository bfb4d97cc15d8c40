"""Pictures of pages, which are read as the pages of a scanned PDF; a TIFF may have several."""

import io
from contextlib import suppress
from dataclasses import replace

from PIL import Image, ImageOps, ImageSequence

from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.formats import pdf
from ngtcli.documents.formats.ocr import LONGEST, check_sides


def parse(source: Source) -> Extracted:
    """The text of all pages. Raises Unreadable where there is none."""
    scan = io.BytesIO()
    with Image.open(io.BytesIO(source.data)) as image:
        # Of other kinds the first picture counts: the next is a preview, or a moment later.
        frames = ImageSequence.Iterator(image) if image.format == "TIFF" else [image]
        for number, frame in enumerate(frames):
            check_sides(*frame.size)
            _upright(frame).save(scan, "PDF", append=number > 0, quality=95)
    found = pdf.parse(replace(source, data=scan.getvalue(), ocr="force"))
    return replace(found, about=replace(found.about, format="picture"))


def _upright(frame: Image.Image) -> Image.Image:
    """A page as its camera noted it, on white, and not larger than it is read."""
    frame.draft("RGB", (LONGEST, LONGEST))  # a JPEG is made smaller as it is unpacked
    page = frame.convert({"1": "L", "P": "RGBA"}.get(frame.mode, frame.mode))  # to be made smaller
    if frame.mode.startswith("I;16"):
        page = frame.point(lambda value: value / 256, "L")
    page = ImageOps.contain(page, (LONGEST, LONGEST))
    white = Image.new("RGBA", page.size, "white")
    white.alpha_composite(page.convert("RGBA"))
    white.info = frame.info
    with suppress(Exception):  # what the camera noted may be damaged
        ImageOps.exif_transpose(white, in_place=True)
    return white.convert("RGB")
