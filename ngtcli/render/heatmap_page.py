"""The report of a sweep as one HTML page, without scripts and external files."""

from collections.abc import Sequence
from html import escape

from ngtcli.render.heatmap import (
    MARKS,
    METRICS,
    Metric,
    Report,
    conclusion,
    flat_rows,
    grid_cells,
    heat,
    legend,
    shown,
)
from ngtcli.render.terminal import visible

_STYLE = """
:root { color-scheme: light dark; --hot: light-dark(#3fae6a, #2f8f57); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; }
th, td { padding: .2rem .7rem; text-align: right; }
thead th { border-bottom: 1px solid; }
td[style] { background: color-mix(in srgb, var(--hot) calc(var(--heat) * 1%), transparent); }
.chosen, .ahead { outline: 2px solid; }
dt { float: left; clear: left; width: 9rem; opacity: .7; } dd { margin-left: 9rem; }
.scroll { overflow-x: auto; }
"""


def to_html(report: Report) -> str:
    """The HTML page: grids if two names are swept, then the list of all cells."""
    facts = ("command", "model", "device", "data", "data_sha256", "prompts", "rounds")
    about = "".join(
        f"<dt>{_text(name)}</dt><dd>{_text(str(report[name]))}</dd>"
        for name in facts
        if name in report
    )
    parts = [f"<p>{_text(sentence)}</p>" for sentence in conclusion(report)]
    if len(report["sweep"]) == 2 and report["cells"]:
        parts += [_grid(report, metric) for metric in METRICS]
        parts.append(f"<p>{_text(legend(report))}</p>")
    parts.append(_list(flat_rows(report)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>ngt tune</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>ngt tune</h1>\n<dl>{about}</dl>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _text(text: str) -> str:
    return escape(visible(text))


def _grid(report: Report, metric: Metric) -> str:
    down, across = report["sweep"]
    heads = "".join(f"<th>{_text(shown(v))}</th>" for v in report["sweep"][across])
    rows = []
    for heading, line in grid_cells(report):
        cells = []
        for cell in line:
            if isinstance(cell, str):
                cells.append(f"<td>{cell}</td>")
                continue
            warmth = round(100 * heat(cell, report["cells"], metric))
            text = _text(metric.text(cell) + MARKS[cell["standing"]])
            cells.append(
                f'<td class="{cell["standing"]}" style="--heat:{warmth}"'
                f' title="{_text(cell["cell"])}">{text}</td>'
            )
        rows.append(f"<tr><th>{_text(heading)}</th>{''.join(cells)}</tr>")
    return (
        f"<table><caption>{_text(metric.title)}</caption><thead><tr>"
        f"<th>{_text(down)} \\ {_text(across)}</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _list(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'
