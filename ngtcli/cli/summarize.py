"""`ngt summarize`: a summary of documents."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from ngtcli.cli.answer_request import AnswerFlags, check_request, documents_of
from ngtcli.cli.answering import run
from ngtcli.cli.options import resolve, with_flags, with_settings
from ngtcli.cli.per_file import check_folder, run_per_file
from ngtcli.errors import UsageError


@with_settings
@with_flags(AnswerFlags)
def summarize(
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    per_file: Annotated[
        bool, typer.Option("--per-file", help="A summary of each file, in the folder -o FOLDER.")
    ] = False,
    *,
    given: AnswerFlags,
    flags: dict[str, Any] | None = None,
) -> None:
    """Summarize documents: ngt summarize article.txt"""
    resolved, chosen = resolve(flags or {}, given.preset, "summarize")
    settings = resolved.settings
    if settings.overflow == "auto":
        settings = replace(settings, overflow="split")
    if settings.overflow == "retrieve":
        raise UsageError(
            "--overflow retrieve chooses passages by a question, and a summary has none",
            "Use --overflow truncate to cut the documents.",
        )
    if settings.overflow == "refine" and not chosen.refine:
        raise UsageError(
            f"preset {chosen.name} has no wording for --overflow refine",
            "Put `refine:` in it, a template with {documents} and {summary}.",
        )
    output = given.output
    request = given.request(task="summarize", settings=settings, preset=chosen)
    if per_file:
        request = replace(request, output=None)
    check_request(request, flags or {})
    if per_file:
        check_folder(request, output)
    loaded = documents_of(files or [], request, "Name a file or a folder, or pipe a text in.")
    if per_file and output:
        run_per_file(replace(request, loaded=loaded), output)
    else:
        run(replace(request, loaded=loaded))
