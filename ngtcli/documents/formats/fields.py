"""What was filled into the form of a PDF's page."""

import ctypes
from collections.abc import Callable
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

_TYPED = (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
_TICKED = (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)


def field_lines(document: pdfium.PdfDocument, page: pdfium.PdfPage) -> list[str]:
    """ "Name: value" for each field that is filled or ticked, in the order of the file."""
    if not document.formenv:
        return []
    lines = []
    for i in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, i)
        if annotation:
            lines.append(_line(document.formenv.raw, annotation))
            raw.FPDFPage_CloseAnnot(annotation)
    return list(dict.fromkeys(line for line in lines if line))


def _line(form: Any, annotation: Any) -> str:
    kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in _TYPED:
        value = _string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
    elif kind in _TICKED and raw.FPDFAnnot_IsChecked(form, annotation):
        value = _string(raw.FPDFAnnot_GetFormFieldExportValue, form, annotation)
    else:
        return ""
    name = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
    name = name or _string(raw.FPDFAnnot_GetFormFieldName, form, annotation)
    return f"{name}: {value}" if value else ""


def _string(get: Callable[..., int], form: Any, annotation: Any) -> str:
    """What a function of PDFium's gives as UTF-16, its white space squeezed."""
    size = get(form, annotation, None, 0)
    buffer = ctypes.create_string_buffer(size)
    get(form, annotation, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
    return " ".join(buffer.raw.decode("utf-16-le", "replace").replace("\0", "").split())
