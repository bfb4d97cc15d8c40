"""`ngt summarize`, a summary of documents, and `ngt ask`, the answer to a question from them."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ngtcli.cli.answer_request import AnswerFlags, check_request, documents_of
from ngtcli.cli.answering import run
from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import card_words, resolve, with_settings
from ngtcli.documents.text import utf8
from ngtcli.errors import UsageError
from ngtcli.prompt.preset import for_task


@with_settings()
def summarize(
    flags: dict[str, Any],
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    per_file: Annotated[
        bool, typer.Option("--per-file", help="A summary of each file, in the folder -o FOLDER/.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin again, over what is in the folder -o FOLDER/.")
    ] = False,
    *,
    given: AnswerFlags,
) -> None:
    """Summarize documents: ngt summarize article.txt"""
    resolved, chosen = resolve(flags, given.preset_name, "summarize")
    settings = for_task("summarize", resolved.settings, chosen)
    request = given.request(task="summarize", settings=settings, preset=chosen)
    folder = given.folder or (given.output if per_file else None)
    hint = "Name a file or a folder, or pipe a text in."
    if per_file or folder:
        from ngtcli.cli.per_file import check_folder, run_per_file  # here: it loads what batches do

        idle = {f"--{name.replace('_', '-')}": name in flags for name in ("serve", "keep_warm")}
        refuse_with("a file for each summary", idle, "The model is loaded for them all.")
        request = replace(request, out=None)
        check_request(request, flags)
        run_per_file(request, check_folder(request, folder), files or [], hint, restart)
    else:
        refuse_with("one summary", {"--restart": restart}, "Name a folder: -o FOLDER/")
        check_request(request, flags)
        run(replace(request, loaded=documents_of(files or [], request, hint)))


@with_settings()
def ask(
    flags: dict[str, Any],
    words: Annotated[list[str], typer.Argument(help="The question.", metavar="QUESTION")],
    docs: Annotated[
        list[str] | None,
        typer.Option("--docs", "-d", help="File, folder, glob or -; give -d before each."),
    ] = None,
    show_passages: Annotated[
        bool, typer.Option("--show-passages", help="Show on stderr the passages that are read.")
    ] = False,
    *,
    given: AnswerFlags,
) -> None:
    """Answer a question from documents: ngt ask --docs ./notes "When is high tide?" """
    question = _question(words)
    if not question.strip():
        raise UsageError("the question is empty", 'Give one, as in ngt ask -d notes "When?"')
    resolved, chosen = resolve(flags, given.preset_name, "ask")
    settings = for_task("ask", resolved.settings, chosen)
    if given.verbose:
        Notes(True).remark(card_words(resolved))
    request = given.request(
        task="ask",
        question=utf8(question.strip()),
        settings=settings,
        preset=chosen,
        show_passages=show_passages,
    )
    check_request(request, flags)
    loaded = documents_of(docs or [], request, "Give --docs FILE or FOLDER, or pipe a text in.")
    run(replace(request, loaded=loaded))


def _question(words: Sequence[str]) -> str:
    """The question, which must be one word of the command line."""
    if len(words) == 1:
        return words[0]
    if file := next((w for w in words if os.path.exists(w)), None):
        raise UsageError(f"{file} stands where the question does", "Give -d before each document.")
    joined = shlex.quote(" ".join(words))
    shown = joined if len(joined) < 200 else "'…'"
    what = f"the question is {len(words)} words without quotes"
    raise UsageError(what, f"Put it in quotes: ngt ask {shown}")
