"""A headless Chromium, driven by the Chrome DevTools protocol over a pair of pipes."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), "")
in_browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")
_PATIENCE_S = 30
# Chromium reads commands from handle 3 and writes answers to 4.
_START = (
    "import fcntl, os, sys\n"
    "read, write = (fcntl.fcntl(int(h), fcntl.F_DUPFD, 10) for h in sys.argv[1:3])\n"
    "os.dup2(read, 3); os.dup2(write, 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--disable-background-networking",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text; fails where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.open, self.words = list[str](), dict[str, str]()  # text in links, drafts and marks
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in {"a", "u", "mark"} & set(self.open):
            if "sup" not in self.open and "span" not in self.open:
                self.words[tag] = self.words.get(tag, "") + data

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.found]

    def values(self, name: str) -> list[str]:
        """The values of the attributes of that name."""
        return [attributes[name] for _, attributes in self.found if name in attributes]


# The lightness of colours, one over the other, and the contrast of two, by WCAG 2.2.
COLOURS = """var colours = () => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (...colours) => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const contrast = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const paper = getComputedStyle(document.body).backgroundColor;
  return { light, contrast, paper };
};
"""


class Browser:
    """One page. `events` has what the page reported: each request, dialog, error.

    Raises RuntimeError where Chromium does not start, and later where it ends or hangs.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        words = [CHROMIUM, *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_read), str(to_write), *words],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it, with all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._number += 1
        body = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            body["sessionId"] = self._session
        message = json.dumps(body).encode() + b"\0"
        try:
            while message:
                message = message[os.write(self._out, message) :]
        except BrokenPipeError:
            raise RuntimeError("Chromium has ended") from None
        while "id" not in (answer := self._next()) or answer["id"] != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], _PATIENCE_S)[0]:
                raise RuntimeError("Chromium is silent")
            if not (more := os.read(self._in, 1 << 20)):
                raise RuntimeError("Chromium has ended")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    # --- what a person does and sees ---

    def open(self, page: Path | str, width: int = 1280, height: int = 900) -> None:
        """Load a file or an address."""
        self.size(width, height)
        self.events.clear()
        url = page if isinstance(page, str) else page.absolute().as_uri()
        self.call("Page.navigate", url=url)
        self.wait(lambda: self.js("document.readyState") == "complete")

    def size(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, kind: str = "", **features: str) -> None:
        """As if on paper ("print"), in the dark (`prefers_color_scheme="dark"`), …"""
        named = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.call("Emulation.setEmulatedMedia", media=kind, features=named)

    def js(self, expression: str) -> Any:
        """The value of an expression, in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, holds: Callable[[], Any]) -> None:
        """Return once something holds."""
        end = time.monotonic() + _PATIENCE_S
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.02)

    def key(self, name: str, shift: bool = False) -> None:
        """Press a key, with Shift held if `shift`."""
        code: dict[str, Any] = {"key": name, "code": name, "windowsVirtualKeyCode": _KEYS[name]}
        if shift:
            code["modifiers"] = 8
        text = {"text": {"Enter": "\r"}.get(name, name)} if name in ("Enter", " ") else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        """Enter a text where the keys go."""
        self.call("Input.insertText", text=text)

    def hover(self, selector: str) -> tuple[float, float]:
        """Move the mouse over the first box of an element."""
        box = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        x, y = box
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str) -> None:
        x, y = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def picture(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))
