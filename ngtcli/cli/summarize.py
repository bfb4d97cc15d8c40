"""`ngt summarize`: a summary of documents."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from ngtcli.cli.answer_request import AnswerFlags, check_request, documents_of
from ngtcli.cli.answering import run
from ngtcli.cli.checks import refuse_beside
from ngtcli.cli.options import resolve, with_flags, with_settings
from ngtcli.cli.per_file import check_folder, run_per_file
from ngtcli.prompt.tasks import for_task


@with_settings
@with_flags(AnswerFlags)
def summarize(
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
    flags: dict[str, Any] | None = None,
) -> None:
    """Summarize documents: ngt summarize article.txt"""
    resolved, chosen = resolve(flags or {}, given.preset, "summarize")
    settings = for_task("summarize", resolved.settings, chosen)
    request = given.request(task="summarize", settings=settings, preset=chosen)
    folder = given.folder or (request.output if per_file else None)
    hint = "Name a file or a folder, or pipe a text in."
    if per_file or folder:
        request = replace(request, output=None)
        check_request(request, flags or {})
        run_per_file(request, check_folder(request, folder), files or [], hint, restart)
    else:
        refuse_beside("one summary", {"--restart": restart}, "Name a folder: -o FOLDER/")
        check_request(request, flags or {})
        run(replace(request, loaded=documents_of(files or [], request, hint)))
