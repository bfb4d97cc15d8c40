"""What `ngt summarize`, `ask` and `generate` are asked for: shared flags, and what they come to."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli import checks, options, reading
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_not_read, check_output_files
from ngtcli.config import SETTINGS
from ngtcli.documents.content import placed
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Loaded
from ngtcli.engine.question import Question, check_prediction
from ngtcli.errors import InputError
from ngtcli.prompts.reports import Chosen, Selection

_OUTPUT = typer.Option(
    "--output", "-o", metavar="<path>", help="Write the answer to this file, whole."
)
_TOKENS = typer.Option("--json-tokens", help="Like --json, with every token and its origin.")
_DRY = typer.Option("--dry-run", help="Print the prompt and its token count; do not run the model.")
_CITE = typer.Option("--cite", help="Footnote what is quoted word for word, and list its sources.")
_HTML = options.file_option(
    "--html", help="Also write a page: the answer beside its documents, linked."
)
_PREDICT = typer.Option(
    "--predict", metavar="<path>",
    help="File that the answer will resemble, as its old version: faster, with the same answer.",
)  # fmt: skip
# What does nothing with what, and what to do.
_IDLE = (
    ("--json", "--cite", "Its sources are in the object anyway."),
    ("--json", "--show-thinking", "The object has it anyway."),
    ("--json-tokens", "--cite", "Its sources are in the object anyway."),
    ("--json-tokens", "--show-thinking", "The object has it anyway."),
    ("--engine vllm", "--json-tokens", "vLLM does not tell which tokens were drafted."),
    ("a schema", "--cite", "The object of --json has its sources."),
    ("--dry-run", "--cite", "There is no answer to show."),
    ("--dry-run", "--show-thinking", "There is no answer to show."),
    ("--dry-run", "--html", "There is no answer to show."),
    ("--dry-run", "--predict", "It makes no step."),
    ("--dry-run", "--json-tokens", "Give --dry-run --json."),
    ("--dry-run", "-o", "Redirect it: ngt … --dry-run > FILE"),
    ("no -o and no --html", "--force", "Leave it out."),
    *(
        (form, "--color always", "Nothing is coloured there.")
        for form in ("--json", "--json-tokens", "-o", "--dry-run")
    ),
)


@dataclass(frozen=True, kw_only=True)
class AnswerFlags:
    """The flags of these commands, but for documents, question and settings."""

    preset_name: options.PresetOption = None
    out: Annotated[str | None, _OUTPUT] = None  # a Path would lose a slash at its end
    json: options.JsonOption = False
    json_tokens: Annotated[bool, _TOKENS] = False
    dry_run: Annotated[bool, _DRY] = False
    cite: Annotated[bool, _CITE] = False
    show_thinking: options.ThinkingOption = False
    predict: Annotated[str | None, _PREDICT] = None
    html: Annotated[Path | None, _HTML] = None
    force: options.ForceOption = False
    verbose: options.VerboseOption = False

    def request(self, question: Question, show_passages: bool = False) -> "AnswerRequest":
        """A question and how its answer is to be shown, by these flags.

        Raises InputError for a predicted answer that cannot be read.
        """
        asked = {f.name: getattr(question, f.name) for f in fields(question)}
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        asked["prediction"] = "" if self.predict is None else reading.read_prediction(self.predict)
        return AnswerRequest(**own, **asked, show_passages=show_passages)

    @property
    def output(self) -> Path | None:
        """The file that -o names."""
        return None if self.out is None else options.named_file(self.out)

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
        """Whether the answer is shown once it is complete, and not as it comes.

        One that has a form is no use half to a program.
        """
        whole = self.json or self.json_tokens or self.cite or self.out is not None
        return whole or (self.settings.answer.has_form and not sys.stdout.isatty())


def documents_of(
    paths: list[str], request: AnswerRequest, hint: str, written: Sequence[Path] = ()
) -> Loaded:
    """The documents named, or what is piped in, without what is `written`.

    Raises InputError; UsageError where the answer would be written over a document.
    """
    stdin = reading.standard_input(paths)
    if not paths and stdin is None:
        raise InputError("no documents given", hint=hint)
    try:
        notes, outputs = Notes(request.verbose), (request.output, request.html, *written)
        return reading.read_documents(paths or [STDIN], stdin, request.settings, notes, outputs)
    except InputError as error:
        if paths:
            raise
        raise InputError(str(error), hint=f"No document was named. {hint}") from None


def check_request(request: AnswerRequest, flags: Mapping[str, Any]) -> None:
    """Raise UsageError for what was asked for by a flag and would not happen.

    Raises ModelError for an embedder or a reranker that is not there or cannot be used.
    """
    r, s = request, request.settings
    check_output_files({"-o": r.output, "--html": r.html})
    checks.refuse_ignored(flags, s)
    check_prediction(r.prediction, s)
    check_not_read((r.output, r.html), [r.predict] if r.predict else [])
    given: dict[str, object] = {
        "--json": r.json, "--json-tokens": r.json_tokens, "-o": r.out, "--dry-run": r.dry_run,
        "--cite": r.cite, "--show-thinking": r.show_thinking, "--html": r.html,
        "--predict": r.predict, "--force": r.force, "--engine vllm": s.engine.engine == "vllm",
        "no -o and no --html": not (r.out or r.html),
        "a schema": s.answer.has_form and not s.answer.quote,
        "--color always": flags.get("color") == "always",
    }  # fmt: skip
    for form, other, hint in _IDLE:
        if given[form]:
            checks.refuse_with(form, {other: given[other]}, hint)
    if s.retrieval.overflow != "retrieve":
        unread: dict[str, object] = {f.flag: n in flags for n, f in SETTINGS.items() if f.overflow}
        unread |= {"--show-passages": r.show_passages}
        checks.refuse_with(f"--overflow {s.retrieval.overflow}", unread, "Nothing is left out.")
    elif s.retrieval.embedder or s.retrieval.reranker:
        from ngtcli.retrieval.encoders import check_encoders  # here: it loads numpy

        check_encoders(s.retrieval.embedder, s.retrieval.reranker)


def tell_passages(request: AnswerRequest, selection: Selection | None, notes: Notes) -> None:
    """With -v a line for each passage, and with --show-passages its text below it."""
    if request.show_passages and selection is None:
        notes.reply("Everything fits: the documents are read whole.")
    if selection is None or not (request.verbose or request.show_passages):
        return
    for passage in selection.passages:
        document = request.documents[passage.document]
        named = placed(document.name, passage.page, passage.heading)
        notes.reply(f"{named}: characters {passage.start}–{passage.end}, {_scores(passage)}")
        if request.show_passages:
            text = document.text[passage.start : passage.end]
            for line in text.splitlines():
                notes.reply(f"  {line}", dim=True)


def _scores(passage: Chosen) -> str:
    """Its score by each ranker; with more than one also its rank by all of them.

    >>> from ngtcli.documents.selection import Scores
    >>> _scores(Chosen(Scores(0.03, 4.5, 0.71, 0.03), 0, 0, 9, 0, "", rank=2))
    'rank 2 (BM25 4.50, dense 0.710, fused 0.0300)'
    """
    by = passage.scores
    if by.dense is None and by.reranked is None:
        return f"score {by.bm25:.2f}"
    digits = {"bm25": 2, "dense": 3, "fused": 4, "reranked": 2}
    known = {name: score for name in digits if (score := getattr(by, name)) is not None}
    words = [f"{n.replace('bm25', 'BM25')} {score:.{digits[n]}f}" for n, score in known.items()]
    return f"rank {passage.rank} ({', '.join(words)})"
