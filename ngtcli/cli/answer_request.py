"""What `ngt summarize` and `ngt ask` are asked for: shared flags, and what they come to."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli.checks import refuse_colour, refuse_ignored, refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import (
    ForceOption,
    JsonOption,
    PresetOption,
    ThinkingOption,
    VerboseOption,
    file_option,
    named_file,
)
from ngtcli.cli.output import check_not_read, check_output_files
from ngtcli.cli.reading import read_documents, read_prediction, standard_input
from ngtcli.config import SETTINGS
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Loaded
from ngtcli.errors import InputError
from ngtcli.session.question import Question, check_prediction

_OUTPUT = typer.Option(
    "--output", "-o", metavar="<path>", help="Write the answer to this file, whole."
)
_TOKENS = typer.Option("--json-tokens", help="Like --json, with every token and its origin.")
_DRY = typer.Option("--dry-run", help="Print the prompt and its token count; run no model.")
_CITE = typer.Option("--cite", help="Mark what stands in documents word for word; name the places.")
_HTML = file_option("--html", help="Also write a page: the answer next to its documents, linked.")
_PREDICT = typer.Option(
    "--predict", metavar="<path>",
    help="Draft also from this text, an old version of the answer or what is to be rewritten.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AnswerFlags:
    """The flags of both commands, but for documents, question and settings."""

    preset_name: PresetOption = None
    out: Annotated[str | None, _OUTPUT] = None  # a Path would lose a slash at its end
    json: JsonOption = False
    json_tokens: Annotated[bool, _TOKENS] = False
    dry_run: Annotated[bool, _DRY] = False
    cite: Annotated[bool, _CITE] = False
    show_thinking: ThinkingOption = False
    predict: Annotated[str | None, _PREDICT] = None
    html: Annotated[Path | None, _HTML] = None
    force: ForceOption = False
    verbose: VerboseOption = False

    def request(self, **more: Any) -> "AnswerRequest":
        """What is asked for by these flags; `more` are the other fields of the request.

        Raises InputError for a predicted answer that cannot be read.
        """
        prediction = "" if self.predict is None else read_prediction(self.predict)
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return AnswerRequest(**own, prediction=prediction, **more)

    @property
    def output(self) -> Path | None:
        """The file that -o names."""
        return None if self.out is None else named_file(self.out)

    @property
    def folder(self) -> Path | None:
        """What -o names if that is a folder: one that is there, or a name with a slash behind."""
        meant = self.out and (self.out.endswith(("/", os.sep)) or os.path.isdir(self.out))
        return Path(self.out) if self.out and meant else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest(AnswerFlags, Question):
    """What is asked, of what, and how the answer is to be shown."""

    show_passages: bool = False

    @property
    def whole(self) -> bool:
        """Whether the answer is shown once it is complete, and not as it comes."""
        return self.json or self.json_tokens or self.cite or self.out is not None


def documents_of(paths: list[str], request: AnswerRequest, hint: str) -> Loaded:
    """The documents named, or what is piped in.

    Raises InputError; UsageError where the answer would be written over a document.
    """
    stdin = standard_input(paths)
    if not paths and stdin is None:
        raise InputError("no documents given", hint)
    try:
        notes = Notes(request.verbose)
        outputs = request.output, request.html
        return read_documents(paths or [STDIN], stdin, request.settings, notes, outputs)
    except InputError as error:
        if paths:
            raise
        raise InputError(str(error), f"No document was named. {hint}") from None


def check_request(request: AnswerRequest, flags: dict[str, Any]) -> None:
    """Raise UsageError for what was asked for by a flag and would not happen.

    Raises ModelError for an embedder or a reranker that is not there or cannot be used.
    """
    r, s = request, request.settings
    check_output_files({"-o": r.output, "--html": r.html})
    refuse_ignored(flags, s)
    check_prediction(r.prediction, s)
    check_not_read((r.output, r.html), [r.predict] if r.predict else [])
    idle = r.force and not (r.out or r.html)
    refuse_with("no -o and no --html", {"--force": idle}, "Leave it out.")
    forms = {"--json": r.json, "--json-tokens": r.json_tokens, "-o": r.out, "--dry-run": r.dry_run}
    for form in [form for form, given in forms.items() if given]:
        refuse_colour(form, flags)
        if form.startswith("--json"):
            refuse_with(form, {"--cite": r.cite}, "Its sources are in the object anyway.")
            refuse_with(form, {"--show-thinking": r.show_thinking}, "The object has it anyway.")
    if s.engine == "vllm":
        steps = {"--json-tokens": r.json_tokens}
        refuse_with("--engine vllm", steps, "vLLM does not tell which tokens were drafted.")
    if s.overflow != "retrieve":
        unread = {f.flag: name in flags for name, f in SETTINGS.items() if f.overflow}
        unread |= {"--show-passages": r.show_passages}
        refuse_with(f"--overflow {s.overflow}", unread, "Nothing is left out.")
    elif s.embedder or s.reranker:
        from ngtcli.retrieve.encoders import check_encoders  # here: it loads numpy

        check_encoders(s.embedder, s.reranker)
    if r.dry_run:
        shown: dict[str, object] = {"--cite": r.cite, "--show-thinking": r.show_thinking}
        shown |= {"--html": r.html}
        refuse_with("--dry-run", shown, "There is no answer to show.")
        refuse_with("--dry-run", {"--predict": r.predict}, "It makes no step.")
        refuse_with("--dry-run", {"--json-tokens": r.json_tokens}, "Give --dry-run --json.")
        refuse_with("--dry-run", {"-o": r.out}, "Redirect it: ngt … --dry-run > FILE")
