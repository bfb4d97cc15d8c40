"""The report of `ngt tune` as an HTML page."""

from ngtcli.render.page import page, text
from ngtcli.render.sweep_rows import SweepReport
from ngtcli.render.sweep_tables import METRICS, conclusion, grids, legend, value_table
from ngtcli.render.tables import to_html

_FACTS = ("model", "device", "data", "data_sha256", "prompts")


def sweep_page(report: SweepReport) -> str:
    """The HTML: the conclusion, grids if two names are swept, then the list of all cells."""
    facts = {name: str(report.about[name]) for name in _FACTS if name in report.about}
    sentences = [f"<p>{text(sentence)}</p>" for sentence in conclusion(report)]
    shown = grids(report, METRICS) if report.cells else []
    return page(
        "ngt tune",
        str(report.about.get("model", "")),
        what="sweep of settings",
        terms={"command": report.command, **facts, "rounds": str(report.rounds)},
        warnings=[],
        body=[
            *sentences,
            *(f"<section>{to_html(grid)}</section>" for grid in shown),
            f'<p class="note">{text(legend(report))}</p>' if shown else "",
            f"<section>{to_html(value_table(report))}</section>",
        ],
    )
