"""The flags that `ngt summarize`, `ask` and `generate` share, and the `Output` they describe."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli import checks, options, reading
from ngtcli.cli.checks import Situation
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_not_read, check_output_files
from ngtcli.documents.content import placed
from ngtcli.documents.find import STDIN
from ngtcli.documents.load import Loaded
from ngtcli.engine.request import Request, check_prediction
from ngtcli.errors import InputError, UsageError
from ngtcli.prompts.reports import Chosen, Selection

_OUTPUT = typer.Option("--output", "-o", metavar="<path>", help="Write the answer to this file.")
_TOKENS = typer.Option("--json-tokens", help="Like --json, with every token and its origin.")
_DRY = typer.Option("--dry-run", help="Print the prompt and its token count; do not run the model.")
_CITE = typer.Option("--cite", help="Footnote verbatim quotations, and list their sources.")
_HTML = options.file_option(
    "--html", help="Also write an HTML page that links the answer to its documents."
)
_PREDICT = typer.Option(
    "--predict",
    metavar="<path>",
    help="File with text that the answer probably repeats, such as last month's summary. Only makes"
    " it faster; the answer does not change.",
)


@dataclass(frozen=True, kw_only=True)
class AnswerFlags:
    """The flags of these commands, except documents, question and settings."""

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

    @property
    def prediction(self) -> str:
        """The text of the file that --predict names. Raises InputError if it cannot be read."""
        return "" if self.predict is None else reading.read_prediction(self.predict)

    @property
    def names_folder(self) -> bool:
        """True if -o names a folder: an existing one, or a name that ends with a slash."""
        out = self.out or ""
        return out.endswith(("/", os.sep)) or os.path.isdir(out)

    def output(self, *, shows_passages: bool = False) -> "Output":
        """Return how these flags show the answer."""
        output_format = OutputFormat.TEXT
        if self.json_tokens:
            output_format = OutputFormat.JSON_TOKENS
        elif self.json:
            output_format = OutputFormat.JSON
        return Output(
            path=None if self.out is None else options.named_file(self.out),
            is_folder=self.names_folder,
            format=output_format,
            cites=self.cite,
            html=self.html,
            force=self.force,
            shows_thinking=self.show_thinking,
            shows_passages=shows_passages,
            verbose=self.verbose,
        )


class OutputFormat(Enum):
    """The form in which an answer is printed: text, or the object of --json or --json-tokens."""

    TEXT = "text"
    JSON = "json"
    JSON_TOKENS = "json-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How an answer is shown, and where it goes. Only the command uses it, no engine.

    Attributes:
        path: The file, table or folder that it is written to; None for standard output.
        is_folder: Whether `path` is a folder, with a file for each document.
        format: Text or JSON.
        cites: Whether quotations are marked, and their sources listed.
        html: An HTML page that is written as well.
        force: Whether files that ngt did not write are overwritten.
        shows_thinking: Whether the reasoning before the answer is shown.
        shows_passages: Whether the passages that are read are shown on stderr.
        verbose: Whether stderr gets the remarks and details of -v.
    """

    path: Path | None = None
    is_folder: bool = False
    format: OutputFormat = OutputFormat.TEXT
    cites: bool = False
    html: Path | None = None
    force: bool = False
    shows_thinking: bool = False
    shows_passages: bool = False
    verbose: bool = False

    @property
    def is_json(self) -> bool:
        """True if a JSON object is printed."""
        return self.format is not OutputFormat.TEXT

    @property
    def is_table(self) -> bool:
        """True if `path` names a table: it has a suffix, and is not a folder."""
        return bool(self.path and self.path.suffix and not self.is_folder)

    def given_flags(self) -> dict[str, object]:
        """Return for each flag that sets a field whether it was given."""
        defaults = Output()
        return {
            flag: getattr(self, field) != getattr(defaults, field)
            for flag, field in _FIELD_OF_FLAG.items()
        }

    def waits_for_end(self, request: Request) -> bool:
        """Return whether the answer is shown when it is complete, and not as it is decoded.

        A program cannot use structured output before its end. Marking sources while the answer is
        decoded loads numpy, which is not worth it in a pipe.
        """
        if self.is_json or self.path is not None:
            return True
        has_marks_or_form = self.cites or request.settings.answer.has_form
        return has_marks_or_form and not sys.stdout.isatty()


# The field of `Output` that each flag sets. A flag whose field has its default was not given.
_FIELD_OF_FLAG = {
    "-o": "path",
    "--json": "format",
    "--cite": "cites",
    "--html": "html",
    "--force": "force",
    "--show-thinking": "shows_thinking",
    "--show-passages": "shows_passages",
}


def effective_output(output: Output, situations: Collection[Situation]) -> Output:
    """Return the output without what has no effect in these situations."""
    effective = checks.effective(output, _FIELD_OF_FLAG, situations)
    if Situation.DRY_RUN in situations and output.is_json:  # a dry run has no tokens
        return replace(effective, format=OutputFormat.JSON)
    return effective


def read_documents(
    paths: list[str], request: Request, output: Output, hint: str, written: Sequence[Path] = ()
) -> Loaded:
    """Read the documents that were named, or a text that is piped in.

    Args:
        paths: Files, folders and patterns.
        request: Its settings say how files are read.
        output: Its files are not read.
        hint: What to do if no document is named.
        written: Other files that the command writes, which are not read.

    Raises:
        InputError: A document cannot be read, or there is none.
        UsageError: The answer would overwrite a document.
    """
    stdin = reading.standard_input(paths)
    if not paths and stdin is None:
        raise InputError("no documents given", hint=hint)
    try:
        return reading.read_documents(
            paths or [STDIN],
            stdin,
            request.settings,
            Notes(output.verbose),
            (output.path, output.html, *written),
        )
    except InputError as error:
        if paths:
            raise
        raise InputError(str(error), hint=f"No document was named. {hint}") from None


def check_request(
    request: Request, output: Output, answer_flags: AnswerFlags, flags: Mapping[str, Any]
) -> tuple[Request, Output]:
    """Warn of flags without effect, and return the request and the output without them.

    Args:
        request: The request.
        output: How its answer is shown.
        answer_flags: The flags of the command.
        flags: The settings that were given as flags.

    Raises:
        UsageError: Flags are invalid, or contradict one another.
        ModelError: The embedder or the reranker is missing or cannot be used.
    """
    s = request.settings
    check_output_files({"-o": output.path, "--html": output.html})
    checks.check_settings(flags, s)
    check_prediction(request.prediction, s)
    check_not_read(
        (output.path, output.html), [answer_flags.predict] if answer_flags.predict else []
    )
    has_tokens = output.format is OutputFormat.JSON_TOKENS
    if has_tokens and s.engine.engine == "vllm":
        what = (
            "--json-tokens cannot be used with --engine vllm, which does not report drafted tokens"
        )
        raise UsageError(what, hint="Give --json.")
    values = {
        **checks.given_settings(flags),
        **output.given_flags(),
        "--predict": request.prediction,
    }
    situations = _situations_of(request, output, answer_flags)
    checks.warn_of_no_effect(situations, values)
    is_retrieving = s.retrieval.overflow == "retrieve"
    if is_retrieving and (s.retrieval.embedder or s.retrieval.reranker):
        from ngtcli.retrieval.encoders import check_encoders  # it loads numpy

        check_encoders(s.retrieval.embedder, s.retrieval.reranker)
    request = replace(request, settings=checks.without_unused_models(s))
    return request, effective_output(output, situations)


def _situations_of(request: Request, output: Output, answer_flags: AnswerFlags) -> set[Situation]:
    """Return the situations of one answer that its settings do not decide alone."""
    answer = request.settings.answer
    situations = set[Situation]()
    if answer_flags.dry_run:
        situations |= {Situation.DRY_RUN, Situation.NO_COLOR}
    elif output.is_json:
        situations |= {Situation.JSON, Situation.NO_COLOR}
    elif output.path is not None:
        situations.add(Situation.NO_COLOR)
    if answer.has_form and not answer.quote:
        situations.add(Situation.SCHEMA)
    if not (output.path or output.html):
        situations.add(Situation.NO_FILE)
    if request.settings.retrieval.overflow != "retrieve":
        situations.add(Situation.ALL_IS_READ)
    return situations


def report_passages(
    request: Request, output: Output, selection: Selection | None, notes: Notes
) -> None:
    """Report each passage that is read with -v, and its text with --show-passages.

    Args:
        request: The request, with its documents.
        output: How the answer is shown.
        selection: The passages; None if the documents are read in full.
        notes: Shows them.
    """
    if output.shows_passages and selection is None:
        notes.reply("Everything fits: the model reads the documents in full.")
    if selection is None or not (output.verbose or output.shows_passages):
        return
    report = notes.reply if output.shows_passages else notes.say
    for passage in selection.passages:
        document = request.documents[passage.document]
        named = placed(document.name, passage.page, passage.heading)
        report(f"{named}: characters {passage.start}–{passage.end}, {_scores(passage)}")
        if output.shows_passages:
            text = document.text[passage.start : passage.end]
            for line in text.splitlines():
                notes.reply(f"  {line}", dim=True)


def _scores(passage: Chosen) -> str:
    """Return the score of a passage by each ranker, and its rank if there are several.

    >>> from ngtcli.documents.selection import Scores
    >>> _scores(Chosen(Scores(0.03, 4.5, 0.71, 0.03), 0, 0, 9, None, None, rank=2))
    'rank 2 (BM25 4.50, dense 0.710, fused 0.0300)'
    """
    scores = passage.scores
    if scores.dense is None and scores.reranked is None:
        return f"score {scores.bm25:.2f}"
    words = []
    for name, digits in (("bm25", 2), ("dense", 3), ("fused", 4), ("reranked", 2)):
        score = getattr(scores, name)
        if score is not None:
            words.append(f"{name.replace('bm25', 'BM25')} {score:.{digits}f}")
    return f"rank {passage.rank} ({', '.join(words)})"
