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
    verbose: VerboseOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Summarize documents: ngt summarize article.txt"""
    resolved, chosen = resolve(flags or {}, preset, "summarize")
    request = AnswerRequest(
        task="summarize",
        settings=resolved.settings,
        preset=chosen,
        json=json,
        json_tokens=json_tokens,
        output=output,
        dry_run=dry_run,
        verbose=verbose,
        explain=explain,
        cite=cite,
        html=html,
    )
    check_request(request, flags or {})
    loaded = documents_of(files or [], request, "Name a file or a folder, or pipe a text in.")
    run(replace(request, loaded=loaded))
