"""Documents in German and Chinese, each with an answer that copies and paraphrases."""

import json

from tests.support.helpers import ROOT_FOLDER


def _pairs(language: str) -> list[tuple[str, str]]:
    file = ROOT_FOLDER / "tests" / "files" / f"{language}.json"
    return [(document, answer) for document, answer in json.loads(file.read_text("utf-8"))]


GERMAN, CHINESE = _pairs("german"), _pairs("chinese")
