"""The service over HTTP: a model under a name, its tasks, and the documents of a folder."""

from collections.abc import Collection, Sequence
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
_MAX_DOCUMENTS = 10_000  # of a request, which take about a second to read (guess)


class RequestDocument(Struct, forbid_unknown_fields=True):
    """A text of a request, to answer from."""

    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """A model, its tasks and the documents that it answers from.

    Attributes:
        name: The name of the model in requests.
        tasks: The settings and the wording of "ask", "summarize", "chat" and "generate".
        folder: The server's documents, if any.
    """

    name: str
    tasks: Tasks
    folder: ServedFolder | None = None

    @property
    def models(self) -> dict[str, ServedFolder | None]:
        """The folder that each model answers from, by the models' names in requests."""
        models: dict[str, ServedFolder | None] = {self.name: None}
        if self.folder is not None:
            models[self.name + DOCS] = self.folder
        return models

    def checked(self, model: str) -> str:
        """Return the name of a model. Raises RequestError where no model has that name."""
        if model not in self.models:
            raise RequestError(
                f"no model {shown(model)}",
                f"Served: {', '.join(self.models)}.",
                "model",
                "model_not_found",
                404,
            )
        return model

    def documents_of(self, model: str, documents: Sequence[str | RequestDocument] | None) -> Loaded:
        """Return the documents of a request, or those of the folder that its model answers from.

        Raises:
            RequestError: No model has that name, or it answers from the folder and the request
                has documents, too.
            InputError: The folder's documents cannot be read.
        """
        folder = self.models[self.checked(model)]
        if folder is None:
            return Loaded(request_documents(documents or ()))
        if documents is not None:
            raise RequestError(
                "a request to this model cannot have documents of its own",
                f"Name the model {self.name} to ask only about them.",
                "documents",
            )
        return folder.documents()


def request_documents(documents: Sequence[str | RequestDocument]) -> tuple[Document, ...]:
    """Return the documents of a request. Raises RequestError."""
    if len(documents) > _MAX_DOCUMENTS:
        raise RequestError(
            f"{len(documents)} documents", f"Give at most {_MAX_DOCUMENTS}.", "documents"
        )
    try:
        return tuple(
            document_of(f"document {number}", "", document)
            if isinstance(document, str)
            else document_of(f"document {number}", document.name, document.text)
            for number, document in enumerate(documents, 1)
        )
    except NgtError as error:
        raise RequestError(str(error), error.hint, "documents") from None


def select_documents(loaded: Loaded, names: Collection[str], hint: str) -> Loaded:
    """Return the documents of these names, in their own order.

    Args:
        loaded: The documents to select from.
        names: The names of the documents to return.
        hint: The advice where no document has a similar name.

    Raises:
        RequestError: No document has one of the names.
    """
    all_names = {document.name for document in loaded.documents}
    for name in names:
        if name not in all_names:
            raise RequestError(
                f"{one_line(name)!r} is not one of the documents",
                nearest(name, all_names, hint),
                "names",
                status=404,
            )
    selected = tuple(document for document in loaded.documents if document.name in names)
    return replace(loaded, documents=selected)
