"""HTML pages without external files, by Jinja2: all that a template is given is escaped.

A policy in a page forbids every request and all scripts but the page's own, whatever got in. Pages
follow the reader's light or dark setting and print in black on white.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngtcli.render.terminal import cell, visible

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here: few runs need it

    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"cell": cell, "visible": visible}
    made.globals["file"] = lambda name: (FOLDER / name).read_text(encoding="utf-8")
    return made


def rendered(template: str, **values: Any) -> str:
    """The HTML that a template makes of these values."""
    return _environment().get_template(template).render(values)


def policy(script: str = "") -> str:
    """What a page with this script of its own may load and run: nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if script else "'none'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed};"
        " base-uri 'none'; form-action 'none'"
    )
