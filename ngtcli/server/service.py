"""What is served over HTTP: a model under a name, its tasks, and the documents of a folder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from ngtcli.documents.load import Document, Loaded
from ngtcli.engine.batch.lines import document_of
from ngtcli.engine.request import Tasks
from ngtcli.errors import NgtError
from ngtcli.render.terminal import one_line
from ngtcli.server.folder import ServedFolder
from ngtcli.server.public import RequestError
from ngtcli.system.yaml_file import shown
from ngtcli.words import nearest

DOCS = "+docs"  # after the model's name: answers from the server's folder
_MOST_DOCUMENTS = 10_000  # that a request gives: a second to read them; guess


class GivenDocument(Struct, forbid_unknown_fields=True):
    """A text to answer from."""

    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """What is asked: the model by the `name` that requests give it, and a folder, if any.

    `tasks` have the settings and the wording of "ask", "summarize", "chat" and "generate".
    """

    name: str
    tasks: Tasks
    folder: ServedFolder | None = None

    @property
    def models(self) -> dict[str, ServedFolder | None]:
        """The folder that each model answers from, by the names that requests may give."""
        models: dict[str, ServedFolder | None] = {self.name: None}
        if self.folder is not None:
            models[self.name + DOCS] = self.folder
        return models

    def checked(self, model: str) -> str:
        """Return the name of a model. Raises RequestError where there is none of that name."""
        if model not in self.models:
            what, hint = f"no model {shown(model)}", f"Served: {', '.join(self.models)}."
            raise RequestError(what, hint, "model", "model_not_found", 404)
        return model

    def documents_of(self, model: str, given: Sequence[str | GivenDocument] | None) -> Loaded:
        """The texts that a request gives, or those of the folder where its model names them."""
        folder = self.models[self.checked(model)]
        if folder is None:
            return Loaded(given_documents(given or ()))
        if given is not None:
            hint = f"Name the model {self.name} to have them alone."
            raise RequestError("documents beside those of the server", hint, "documents")
        return folder.documents()


def given_documents(documents: Sequence[str | GivenDocument]) -> tuple[Document, ...]:
    """The texts that a request gives. Raises RequestError."""
    if len(documents) > _MOST_DOCUMENTS:
        hint = f"Give at most {_MOST_DOCUMENTS}."
        raise RequestError(f"{len(documents)} documents", hint, "documents")
    given = [("", one) if isinstance(one, str) else (one.name, one.text) for one in documents]
    try:
        return tuple(document_of(f"document {i}", *one) for i, one in enumerate(given, 1))
    except NgtError as error:
        raise RequestError(str(error), error.hint, "documents") from None


def named(loaded: Loaded, names: Iterable[str], hint: str) -> Loaded:
    """Those documents that are named, in the order of all. Raises RequestError for an unknown."""
    known = {document.name for document in loaded.documents}
    for name in names:
        if name not in known:
            what = f"{one_line(name)!r} is not one of the documents"
            raise RequestError(what, nearest(name, known, hint), "names", status=404)
    return replace(loaded, documents=tuple(d for d in loaded.documents if d.name in names))
