"""`ngt summarize`, a summary of documents, `ngt ask`, the answer to a question from them, and
`ngt generate`, what a free prompt asks for."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ngtcli.cli.answer_request import AnswerFlags, check_request, documents_of
from ngtcli.cli.answering import reached, run
from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import DocsOption, card_words, resolve, with_settings
from ngtcli.cli.reading import standard_input
from ngtcli.documents.find import STDIN
from ngtcli.documents.text import utf8
from ngtcli.errors import UsageError
from ngtcli.prompt.preset import for_task
from ngtcli.session.settings import read_text, text_of

PassagesOption = Annotated[
    bool, typer.Option("--show-passages", help="Show on stderr the passages that are read.")
]


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
        from ngtcli.cli.per_file import check_folder, run_per_file  # here: they load more
        from ngtcli.session.checks import check_session

        idle = {f"--{name.replace('_', '-')}": name in flags for name in ("serve", "keep_warm")}
        refuse_with("a file for each summary", idle, "The model is loaded for them all.")
        refuse_with("a file for each summary", {"--predict": given.predict}, "Ask for each.")
        request = replace(request, out=None)
        check_request(request, flags)
        check_session(settings, Notes().warn)
        run_per_file(request, check_folder(request, folder), files or [], hint, restart)
    else:
        refuse_with("one summary", {"--restart": restart}, "Name a folder: -o FOLDER/")
        check_request(request, flags)
        connection = reached(request)
        run(replace(request, loaded=documents_of(files or [], request, hint)), connection)


@with_settings()
def ask(
    flags: dict[str, Any],
    words: Annotated[list[str], typer.Argument(help="The question.", metavar="QUESTION")],
    docs: DocsOption = None,
    show_passages: PassagesOption = False,
    *,
    given: AnswerFlags,
) -> None:
    """Answer a question from documents: ngt ask --docs ./notes "When is high tide?" """
    question = _one_of("question", "ask", words)
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
    connection = reached(request)
    loaded = documents_of(docs or [], request, "Give --docs FILE or FOLDER, or pipe a text in.")
    run(replace(request, loaded=loaded), connection)


@with_settings()
def generate(
    flags: dict[str, Any],
    words: Annotated[
        list[str] | None,
        typer.Argument(help="The prompt, @FILE, or - for standard input.", metavar="PROMPT"),
    ] = None,
    docs: DocsOption = None,
    show_passages: PassagesOption = False,
    *,
    given: AnswerFlags,
) -> None:
    """Follow a free prompt: ngt generate "Write a limerick about the tide." """
    resolved, chosen = resolve(flags, given.preset_name, "generate")
    settings = for_task("generate", resolved.settings, chosen)
    request = given.request(
        task="generate",
        question=_prompt(words or [], docs or [], settings.max_mb),
        settings=settings,
        preset=chosen,
        show_passages=show_passages,
    )
    if docs is None:
        about: dict[str, object] = {"--cite": given.cite, "--show-passages": show_passages}
        refuse_with("no documents", about, "Give --docs FILE or FOLDER, or leave it out.")
    check_request(request, flags)
    connection = reached(request)
    if docs is not None:
        request = replace(request, loaded=documents_of(docs, request, ""))
    run(request, connection)


def _prompt(words: Sequence[str], docs: Sequence[str], max_mb: int) -> str:
    """The prompt, from the command line, a file or a pipe. Raises UsageError, InputError."""
    given = _one_of("prompt", "generate", words or [STDIN])
    hint = 'Give one, as in ngt generate "Write …"'
    if given != STDIN:
        text = text_of(given, max_mb, "prompt")
    elif STDIN in docs:
        raise UsageError("prompt and document are both standard input", "Name one of them.")
    elif (stdin := standard_input(words)) is None:
        raise UsageError("no prompt is given", hint)
    else:
        text = read_text(stdin, max_mb, "prompt")
    if not text.strip():
        raise UsageError("the prompt is empty", hint)
    return text.strip()


def _one_of(what: str, command: str, words: Sequence[str]) -> str:
    """The question or prompt, which must be one word of the command line."""
    if len(words) == 1:
        return words[0]
    if file := next((w for w in words if os.path.exists(w)), None):
        raise UsageError(f"{file} stands where the {what} does", "Give -d before each document.")
    joined = shlex.quote(" ".join(words))
    shown = joined if len(joined) < 200 else "'…'"
    words_of = f"the {what} is {len(words)} words without quotes"
    raise UsageError(words_of, f"Put it in quotes: ngt {command} {shown}")
