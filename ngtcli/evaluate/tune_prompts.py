"""The prompts that a sweep is measured on when a model runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ngtcli.documents.load import Document, load
from ngtcli.prompts import Preset

EXAMPLES = Path(__file__).parent.parent / "examples"
COUNT = 10  # prompts of the examples
QUESTIONS = (
    "What is this about?",
    "Who is named here?",
    "When did it begin?",
    "Why was it done?",
    "How many are there?",
    "What happens today?",
)

Work = Sequence[tuple[str, tuple[Document, ...], str]]  # name, documents, question


def prompts(
    paths: Sequence[str], stdin: BinaryIO | None, preset: Preset, limit: int | None
) -> Work:
    """A prompt for each text, or each question of a text where the preset asks for one.

    Without `paths` these are the example texts and their halves. Raises InputError.
    """
    # Other kinds of prompts join here: each is a name, documents and a question.
    texts = load(list(paths), stdin) if paths else _with_halves(load([str(EXAMPLES)]))
    questions = QUESTIONS if "{question}" in preset.template else ("",)
    work: Work = [
        (f"{text.name}: {question}" if question else text.name, (text,), question)
        for question in questions
        for text in texts
    ]
    return work[: limit if limit is not None else len(work) if paths else COUNT]


def _with_halves(texts: Sequence[Document]) -> list[Document]:
    """The texts, then the halves of each by paragraphs; those under 60 words are left out."""
    out = list(texts)
    for text in texts:
        parts = text.text.split("\n\n")
        for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]):
            if sum(len(part.split()) for part in half) >= 60:
                out.append(Document(text.name, "\n\n".join(half)))
    return out
