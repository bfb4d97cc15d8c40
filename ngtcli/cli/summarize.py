"""`ngt summarize`: a summary of documents."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from ngtcli.cli.answer_request import (
    AnswerRequest,
    CiteOption,
    DryOption,
    ExplainOption,
    HtmlOption,
    OutputOption,
    TokensOption,
    check_request,
    documents_of,
)
from ngtcli.cli.answering import run
from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption, resolve, with_settings
from ngtcli.cli.per_file import check_folder, run_per_file
from ngtcli.errors import UsageError


@with_settings
def summarize(
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs; - is standard input.")
    ] = None,
    preset: PresetOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
    json_tokens: TokensOption = False,
    dry_run: DryOption = False,
    explain: ExplainOption = False,
    cite: CiteOption = False,
    html: HtmlOption = None,
    per_file: Annotated[
        bool, typer.Option("--per-file", help="A summary of each file, in the folder -o FOLDER.")
    ] = False,
    verbose: VerboseOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Summarize documents: ngt summarize article.txt"""
    resolved, chosen = resolve(flags or {}, preset, "summarize")
    settings = resolved.settings
    if settings.overflow == "auto":
        settings = replace(settings, overflow="split")
    if settings.overflow == "retrieve":
        raise UsageError(
            "--overflow retrieve chooses passages by a question, and a summary has none",
            "Use --overflow truncate to cut the documents.",
        )
    request = AnswerRequest(
        task="summarize",
        settings=settings,
        preset=chosen,
        json=json,
        json_tokens=json_tokens,
        output=None if per_file else output,
        dry_run=dry_run,
        verbose=verbose,
        explain=explain,
        cite=cite,
        html=html,
    )
    check_request(request, flags or {})
    if per_file:
        check_folder(request, output)
    loaded = documents_of(files or [], request, "Name a file or a folder, or pipe a text in.")
    if per_file and output:
        run_per_file(replace(request, loaded=loaded), output)
    else:
        run(replace(request, loaded=loaded))
