"""The commands that answer once: `ngt summarize`, `ngt ask` and `ngt generate`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from ngtcli.cli import answering, checks, options, reading
from ngtcli.cli.answer_flags import (
    AnswerFlags,
    Output,
    check_request,
    effective_output,
    read_documents,
)
from ngtcli.cli.arguments import only_word, question_and_paths
from ngtcli.cli.checks import Situation
from ngtcli.cli.command import command
from ngtcli.cli.notes import Notes
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.config import SETTINGS
from ngtcli.documents.find import STDIN
from ngtcli.documents.text import utf8
from ngtcli.engine.request import Request
from ngtcli.engine.settings import read_text, text_of
from ngtcli.errors import UsageError
from ngtcli.system.reporting import reporting_to

PassagesOption = Annotated[
    bool, typer.Option("--show-passages", help="Show the passages that the model reads, on stderr.")
]
_PER_FILE = typer.Option("--per-file", help="Summarize each file; -o names a table or FOLDER/.")
_EACH = typer.Option("--each", help="Ask about each file separately; -o names a table or FOLDER/.")
_DOCUMENTS_HINT = "Name files or folders after the question, or pipe a text in."


@command("summarize", settings=options.OF_SUMMARIES)
def summarize(
    flags: SettingFlags,
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    per_file: Annotated[bool, _PER_FILE] = False,
    limit: options.PerFileLimitOption = 0,
    restart: options.RestartOption = False,
    *,
    answer_flags: AnswerFlags,
) -> None:
    """Summarize documents: ngt summarize article.txt

    ngt summarize reports/ --per-file -o summaries/
    ngt summarize report.md -m ~/models/Qwen2.5-7B-Instruct --quantize int8
    """
    request, output = _request(flags, answer_flags, "summarize"), answer_flags.output()
    hint = "Name a file or a folder, or pipe a text in."
    if per_file or output.is_folder:
        _answer_each(request, output, answer_flags, flags, files or [], hint, restart, limit)
    else:
        values = {"--restart": restart, "--limit": limit}
        checks.warn_of_no_effect([Situation.ONE_SUMMARY], values)
        _answer(request, output, answer_flags, flags, files or [], hint)


@command("ask", settings=tuple(SETTINGS))
def ask(
    flags: SettingFlags,
    text: Annotated[str, typer.Argument(help="The question.", metavar="QUESTION")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders, globs; - is standard input.", metavar="PATH"),
    ] = None,
    docs: options.DocsOption = None,
    show_passages: PassagesOption = False,
    each: Annotated[bool, _EACH] = False,
    limit: options.EachLimitOption = 0,
    restart: options.RestartOption = False,
    *,
    answer_flags: AnswerFlags,
) -> None:
    """Answer a question from documents: ngt ask "When is high tide?" notes/

    ngt ask "Who built the quay?" reports/ notes.md --cite
    ngt ask "When is high tide?" notes.md --json
    ngt ask "Who signed it?" reports/ --each -o signed.csv
    """
    question, paths = question_and_paths([text, *(paths or [])], bool(docs))
    question, docs = utf8(question.strip()), [*(docs or []), *paths]
    if not question:
        raise UsageError("the question is empty", hint='Give one, as in ngt ask "When?" notes/')
    request = _request(flags, answer_flags, "ask", question)
    output = answer_flags.output(shows_passages=show_passages)
    if each:
        _answer_each(request, output, answer_flags, flags, docs, _DOCUMENTS_HINT, restart, limit)
        return
    values = {"--restart": restart, "--limit": limit}
    checks.warn_of_no_effect([Situation.ONE_ANSWER], values)
    _answer(request, output, answer_flags, flags, docs, _DOCUMENTS_HINT)


@command("generate", settings=tuple(SETTINGS))
def generate(
    flags: SettingFlags,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="The prompt, @FILE, or - for standard input.", metavar="PROMPT"),
    ] = None,
    docs: options.DocsOption = None,
    show_passages: PassagesOption = False,
    *,
    answer_flags: AnswerFlags,
) -> None:
    """Generate text from a prompt: ngt generate "Write a limerick about the tide."

    ngt generate @prompt.txt -d notes.md
    ngt generate "List what is missing." -d report.md -o missing.txt
    """
    request = _request(flags, answer_flags, "generate")
    output = answer_flags.output(shows_passages=show_passages)
    if docs is None:
        situations = [Situation.NO_DOCUMENTS]
        checks.warn_of_no_effect(situations, output.given_flags())
        output = effective_output(output, situations)
    prompt = _prompt(words or [], docs or [], request.settings.reading.max_mb)
    _answer(replace(request, question=prompt), output, answer_flags, flags, docs, "")


def _request(flags: SettingFlags, answer_flags: AnswerFlags, task: str, text: str = "") -> Request:
    """Return the request of a command, without documents. Raises UsageError, InputError."""
    request = options.tasks_of(flags, answer_flags.preset_name, (task,)).request(task, text)
    return replace(request, prediction=answer_flags.prediction)


def _answer(
    request: Request,
    output: Output,
    answer_flags: AnswerFlags,
    flags: SettingFlags,
    paths: list[str] | None,
    hint: str,
) -> None:
    """Check the request, read the documents (`paths` None: it has none), and answer it."""
    request, output = check_request(request, output, answer_flags, flags)
    notes = Notes(output.verbose)
    with reporting_to(notes):
        answerer = answering.answerer_of(request, dry_run=answer_flags.dry_run)
        if paths is not None:
            request = replace(request, loaded=read_documents(paths, request, output, hint))
        if answer_flags.dry_run:
            from ngtcli.cli.dry_run import dry_run  # here, because it imports much

            dry_run(request, output, notes)
        else:
            answering.run(request, output, answerer, notes)


def _answer_each(
    request: Request,
    output: Output,
    answer_flags: AnswerFlags,
    flags: SettingFlags,
    paths: list[str],
    hint: str,
    restart: bool,
    limit: int,
) -> None:
    """Check the request, and answer it for each document separately."""
    from ngtcli.cli.per_file import run_per_file  # here, because they import much
    from ngtcli.engine.checks import check_session

    if answer_flags.dry_run:
        what = "--dry-run prints one prompt, and each file has its own"
        raise UsageError(what, hint="Leave it out, or name one file.")
    values = {
        **output.given_flags(),
        "--predict": answer_flags.predict,
        SETTINGS["keep_warm"].flag: "keep_warm" in flags,
        "--restart": restart,
    }
    situations = [Situation.EACH]
    if output.path is None:
        situations.append(Situation.EACH_ON_STDOUT)
    elif output.is_table:
        situations.append(Situation.TABLE)
    checks.warn_of_no_effect(situations, values)
    output = effective_output(output, situations)
    request = _reset_ineffective(request, flags, situations)
    # This checks a single answer, not the table or folder that all answers go to.
    single = replace(output, path=None, force=False)
    request, checked = check_request(request, single, answer_flags, flags)
    output = replace(checked, path=output.path, force=output.force)
    check_session(request.settings)
    run_per_file(request, output, paths, hint, restart, limit)


def _reset_ineffective(
    request: Request, flags: SettingFlags, situations: Sequence[Situation]
) -> Request:
    """Return a request in which settings without effect in these situations have no value."""
    unused = checks.without_effect(situations)
    keep_warm = SETTINGS["keep_warm"]
    if "--predict" in unused:
        request = replace(request, prediction="")
    if keep_warm.flag in unused and "keep_warm" in flags:
        settings = request.settings.replace(keep_warm=keep_warm.default)
        request = replace(request, settings=settings)
    return request


def _prompt(words: Sequence[str], docs: Sequence[str], max_mb: int) -> str:
    """Return the prompt of the command line, a file or a pipe. Raises UsageError, InputError."""
    word = only_word("prompt", "generate", words or [STDIN])
    hint = 'Give one, as in ngt generate "Write …"'
    if word != STDIN:
        text = text_of(word, max_mb, "prompt")
    elif STDIN in docs:
        raise UsageError(
            "standard input is both the prompt and a document", hint="Name one of them."
        )
    elif (stdin := reading.standard_input(words)) is None:
        raise UsageError("no prompt given", hint=hint)
    else:
        text = read_text(stdin, max_mb, "prompt")
    if not text.strip():
        raise UsageError("the prompt is empty", hint=hint)
    return text.strip()
