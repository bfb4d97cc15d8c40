"""Images of pages, which are read like the pages of a scanned PDF; a TIFF may have several."""

import io
from contextlib import suppress
from dataclasses import replace

from PIL import Image, ImageOps, ImageSequence

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats import pdf
from ngtcli.documents.formats.ocr import MAX_SIDE, check_sides


def parse(source: ParserInput) -> Extracted:
    """Read the text of all pages by OCR. Raises Unreadable if there is none."""
    scan = io.BytesIO()
    with Image.open(io.BytesIO(source.data)) as image:
        # Other formats hold one page: further images are previews, or frames of an animation.
        frames = ImageSequence.Iterator(image) if image.format == "TIFF" else [image]
        for number, frame in enumerate(frames):
            check_sides(*frame.size)
            _upright(frame).save(scan, "PDF", append=number > 0, quality=95)
    extracted = pdf.parse(replace(source, data=scan.getvalue(), ocr="force"))
    return replace(extracted, about=replace(extracted.about, format="picture"))


def _upright(frame: Image.Image) -> Image.Image:
    """Turn a page as its camera noted it, put it on white, and shrink it to what OCR reads."""
    frame.draft("RGB", (MAX_SIDE, MAX_SIDE))  # cheap: a JPEG is made smaller while it is decoded
    page = frame.convert(
        {"1": "L", "P": "RGBA"}.get(frame.mode, frame.mode)
    )  # modes that can be resized
    if frame.mode.startswith("I;16"):
        page = frame.point(lambda value: value / 256, "L")
    page = ImageOps.contain(page, (MAX_SIDE, MAX_SIDE))
    white = Image.new("RGBA", page.size, "white")
    white.alpha_composite(page.convert("RGBA"))
    white.info = frame.info
    with suppress(Exception):  # the metadata may be damaged
        ImageOps.exif_transpose(white, in_place=True)
    return white.convert("RGB")
