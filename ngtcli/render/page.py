"""The frame of an HTML page without external files; all that it is given is escaped.

A policy in it forbids every request and all scripts but the page's own, whatever got in. The page
follows the reader's light or dark setting and prints in black on white.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from ngtcli.render.tables import cell

_STYLE = Path(__file__).parent / "page.css"


def page(
    title: str,
    about: str,
    *,
    what: str,
    terms: Mapping[str, str],
    warnings: Sequence[str],
    body: Sequence[str],
    script: str = "",
) -> str:
    """A page under the heading `title`: what it shows, a list of terms, warnings, then `body`.

    `about` follows the title in the name of the window. `body` is HTML and stands as it is, and so
    does `script`.
    """
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}: {text(about)}</title>",
            f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head><body><main>",
            f"<header><h1>{text(title)}</h1><p>{text(what)}</p></header>",
            _terms(terms) + "".join(f'<p class="warning">{text(note)}</p>' for note in warnings),
            *body,
            f"</main>{f'<script>{script}</script>' * bool(script)}</body></html>\n",
        ]
    )


def _policy(script: str) -> str:
    """No requests, styles of the page itself, and this script alone, named by its SHA-256."""
    allowed = "'none'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed = f"'sha256-{digest}'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed};"
        " base-uri 'none'; form-action 'none'"
    )


def text(shown: str) -> str:
    """A text on one line as HTML, its control characters made visible."""
    return escape(cell(shown))


def _terms(terms: Mapping[str, str]) -> str:
    """The terms that have a value."""
    known = {name: value for name, value in terms.items() if value}
    listed = "".join(f"<dt>{text(name)}</dt><dd>{text(v)}</dd>" for name, v in known.items())
    return f"<dl>{listed}</dl>"
