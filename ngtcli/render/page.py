"""HTML pages without external files, by Jinja2, which escapes all values.

A policy in each page forbids every request and all scripts but the page's own. Pages follow the
reader's light or dark setting and print in black on white.
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
    """Return the environment of the templates in this folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here, as few runs need it

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell, "visible": visible}
    environment.globals["file"] = lambda name: (FOLDER / name).read_text(encoding="utf-8")
    return environment


def rendered(template: str, **values: Any) -> str:
    """Return the HTML of a template with these values."""
    return _environment().get_template(template).render(values)


def policy(script: str = "") -> str:
    """Return the content security policy of a page that may run this script and load nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if script else "'none'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed};"
        " base-uri 'none'; form-action 'none'"
    )
