"""Makes all pictures of README.md: `python -m tests.tools.readme_pictures [FOLDER]`.

The terminal is drawn as SVG by `terminal_picture`; the answer page, the extract page and the
server's page are photographed by a headless Chromium. All show the example documents and the
built-in model. FOLDER is .github/assets unless another is given; a file that is there is replaced.
"""

import base64
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

from tests.support.browser import Browser
from tests.tools import terminal_picture

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / ".github" / "assets"
EXAMPLES = "ngtcli/examples"
QUESTION = "How do growers keep frost off the blossom?"
FIELDS = "customer, total float, due date, goods quote: what was ordered or lent or asked for"
NAMES = ("terminal.svg", "answer.png", "extract.png", "server.png")
_WIDTH, _HEIGHT = 1100, 620  # CSS pixels of a picture
_PATIENCE_S = 120


def main(folder: Path = ASSETS) -> None:
    """Make the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    terminal_picture.main(str(folder / "terminal.svg"), "ask", "-d", EXAMPLES, QUESTION, "--cite")
    with closing(Browser()) as browser, tempfile.TemporaryDirectory() as name:
        made = Path(name)
        (made / EXAMPLES).parent.mkdir()
        (made / EXAMPLES).symlink_to(ROOT / EXAMPLES)
        _ngt(made, "ask", "-d", EXAMPLES, QUESTION, "--html", "answer.html")
        _photograph(browser, made / "answer.html", folder / "answer.png")
        letters = f"{EXAMPLES}/letters"
        _ngt(made, "extract", letters, "--schema", FIELDS, "--html", "table.html")
        _photograph(browser, made / "table.html", folder / "extract.png")
        with _served() as address:
            browser.open(address, _WIDTH, _HEIGHT)
            browser.wait(lambda: browser.js("document.querySelector('#names li') !== null"))
            browser.js(f"document.getElementById('question').value = {QUESTION!r}")
            browser.js("document.getElementById('ask').click()")
            browser.wait(lambda: browser.js("document.getElementById('facts').textContent"))
            _photograph(browser, None, folder / "server.png")


def _ngt(folder: Path, *arguments: str) -> None:
    """Run `ngt` in a folder."""
    command = [sys.executable, "-m", "ngtcli", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environ)


def _photograph(browser: Browser, page: Path | None, picture: Path) -> None:
    """Write a picture of a page, or with None of the one that is open."""
    if page is not None:
        browser.open(page, _WIDTH, _HEIGHT)
    shot = browser.call("Page.captureScreenshot", format="png")
    picture.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def _served() -> Iterator[str]:
    """The address of a server over the example documents."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = ["serve", "--http", str(port), "-d", EXAMPLES]
    process = subprocess.Popen(
        [sys.executable, "-m", "ngtcli", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}/"
        _wait_for(address)
        yield address
    finally:
        process.terminate()
        process.wait()


def _wait_for(address: str) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        try:
            httpx.get(address)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(address)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
