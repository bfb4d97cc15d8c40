"""Make all pictures of README.md: `python -m tests.tools.readme_pictures [FOLDER]`.

`terminal_picture` draws the terminal as SVG; a headless Chromium takes screenshots of the answer
page, the extract page and the server's page. All show the example documents and the built-in model.
FOLDER is .github/assets by default; existing pictures are replaced.
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
_WIDTH = 1100  # of a picture, in CSS pixels
_HEIGHT = 620
_START_TIMEOUT_S = 120  # of the server


def main(folder: Path = ASSETS) -> None:
    """Make the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    terminal_picture.main(str(folder / "terminal.svg"), "ask", "-d", EXAMPLES, QUESTION, "--cite")
    with closing(Browser()) as browser, tempfile.TemporaryDirectory() as name:
        work_folder = Path(name)
        (work_folder / EXAMPLES).parent.mkdir()
        (work_folder / EXAMPLES).symlink_to(ROOT / EXAMPLES)

        _ngt(work_folder, "ask", "-d", EXAMPLES, QUESTION, "--html", "answer.html")
        _photograph(browser, work_folder / "answer.html", folder / "answer.png")

        letters = f"{EXAMPLES}/letters"
        _ngt(work_folder, "extract", letters, "--schema", FIELDS, "--html", "table.html")
        _photograph(browser, work_folder / "table.html", folder / "extract.png")

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
    """Write a picture of a page; None: of the page that is open."""
    if page is not None:
        browser.open(page, _WIDTH, _HEIGHT)
    screenshot = browser.call("Page.captureScreenshot", format="png")
    picture.write_bytes(base64.b64decode(screenshot["data"]))


@contextmanager
def _served() -> Iterator[str]:
    """Run a server with the example documents; yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
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
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            httpx.get(address)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(address)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
