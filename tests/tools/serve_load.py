"""Load `ngt serve` with many clients: `python -m tests.tools.serve_load [--clients 200]`.

First each question is answered alone; these are the expected answers. Then all clients ask again
and again at the same time: they read whole answers and streams, break off requests, and close
connections in the middle of an answer. Every complete answer must be the expected one.

The server's memory is read after a third of each half and at its end, while nobody asks; it may
grow by `--growth` at most. Between the halves the server is killed by SIGKILL and started again.
The exit code is 6 if an answer differs or is missing, or if memory grows more.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from ngtcli.errors import DifferenceError, NgtError

_EXAMPLES = Path(__file__).parents[2] / "ngtcli" / "examples"
_TEXTS = sorted(path.read_text(encoding="utf-8") for path in _EXAMPLES.glob("*.*"))
_QUESTIONS = (
    "When is high tide?",
    "Who repairs the nets?",
    "What does the bus cost?",
    "Which seeds are sown?",
    "Where is the harbour?",
    "What is planted in spring?",
    "How long?",
)
_CHAT_PATH = "/v1/chat/completions"
_READY_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 300.0
_REST_S = 2.0  # without requests, before memory is read
_MAX_ERRORS_SHOWN = 20


def chat_requests() -> list[dict[str, Any]]:
    """Requests of all kinds: short and longer, greedy and sampled, with and without documents."""
    requests: list[dict[str, Any]] = []
    for i, question in enumerate(_QUESTIONS):
        text = _TEXTS[i % len(_TEXTS)]
        messages = [{"role": "user", "content": question}]
        long_messages = [{"role": "user", "content": f"{question} {text[:300]}"}]
        requests += [
            {"model": "builtin", "messages": messages, "documents": [text], "max_tokens": 40},
            {
                "model": "builtin",
                "messages": messages,
                "temperature": 0.8,
                "seed": i,
                "top_p": 0.9,
                "max_tokens": 8 + 4 * i,
            },
            {"model": "builtin+docs", "messages": messages, "max_tokens": 40},
            {"model": "builtin", "messages": long_messages, "max_tokens": 12 + i},
        ]
    return requests


@contextmanager
def running_server(port: int, home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `ngt serve`, and wait until it is ready. Raises NgtError if it does not start or end."""
    environment = {**os.environ, "NGT_HOME": str(home), "NGT_BACKGROUND": "none"}
    command = [sys.executable, "-m", "ngtcli", "serve", "-d", str(_EXAMPLES), "--http", str(port)]
    process = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise NgtError("the server does not come up")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise NgtError("the server does not end") from None


def memory_mb(process: int) -> float:
    """Resident memory of a process, in megabytes (10^6 bytes)."""
    status = Path(f"/proc/{process}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(match[1]) * 1024 / 1e6 if match else 0.0


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer, or of a streamed part of one."""
    if not answer["choices"]:
        return ""
    choice = answer["choices"][0]
    message = choice.get("message") or choice.get("delta") or {}
    return str(message.get("content") or "")


class Load:
    """Clients that ask a server at the same time.

    Attributes:
        expected: The answers to the requests, each asked alone.
        counts: The number of requests by how they ended.
        errors: A line for each wrong or lost answer.
    """

    def __init__(self, port: int, clients: int, rng: random.Random) -> None:
        self._port = port
        self._clients = clients
        self._rng = rng
        self._requests = chat_requests()
        self._seconds: list[float] = []  # of each whole answer
        self.expected: list[str] = []
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    async def learn_expected(self) -> None:
        """Ask each question alone. Raises DifferenceError if answers differ from earlier ones."""
        answers = []
        async with self._client() as client:
            for request in self._requests:
                response = await client.post(_CHAT_PATH, json=request)
                answers.append(text_of(response.raise_for_status().json()))
        if self.expected and answers != self.expected:
            raise DifferenceError("the server answers otherwise after it was started again")
        self.expected = answers

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self._port}",
            timeout=_ANSWER_TIMEOUT_S,
            limits=httpx.Limits(max_connections=None),
        )

    async def run(self, seconds: float) -> None:
        """Let all clients ask for so long; return when every client is done."""
        deadline = time.monotonic() + seconds
        async with self._client() as client:
            await asyncio.gather(*(self._ask_until(client, deadline) for _ in range(self._clients)))

    async def _ask_until(self, client: httpx.AsyncClient, deadline: float) -> None:
        await asyncio.sleep(self._rng.random())
        actions = (self._read_whole, self._read_stream, self._leave_stream, self._reset_connection)
        while time.monotonic() < deadline:
            number = self._rng.randrange(len(self._requests))
            action = self._rng.choices(actions, (4, 4, 2, 1))[0]
            try:
                await action(client, number)
            except httpx.HTTPError as error:
                self.counts[f"lost: {type(error).__name__}"] += 1
                self.errors.append(f"{action.__name__}: {error!r}")

    async def _read_whole(self, client: httpx.AsyncClient, number: int) -> None:
        started = time.monotonic()
        response = await client.post(_CHAT_PATH, json=self._requests[number])
        if await self._wait_if_refused(response):
            return
        self._compare(number, text_of(response.raise_for_status().json()))
        self._seconds.append(time.monotonic() - started)

    async def _read_stream(self, client: httpx.AsyncClient, number: int) -> None:
        request = {**self._requests[number], "stream": True}
        text = ""
        is_complete = False
        async with client.stream("POST", _CHAT_PATH, json=request) as response:
            if await self._wait_if_refused(response):
                return
            async for line in response.raise_for_status().aiter_lines():
                if line == "data: [DONE]":
                    is_complete = True
                elif line.startswith("data: {"):
                    text += text_of(json.loads(line.removeprefix("data: ")))
        self._compare(number, text if is_complete else f"{text} (broken off)")

    async def _leave_stream(self, client: httpx.AsyncClient, number: int) -> None:
        """Close the connection after a moment or after some lines of the answer."""
        request = {**self._requests[number], "stream": True}
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0.01, 2.0)):
                async with client.stream("POST", _CHAT_PATH, json=request) as response:
                    lines_left = self._rng.randrange(6)
                    async for _ in response.aiter_lines():
                        lines_left -= 1
                        if lines_left < 0:
                            break
        self.counts["cancelled"] += 1

    async def _reset_connection(self, client: httpx.AsyncClient, number: int) -> None:
        """Send a part of a request, or all of it, and reset the connection."""
        body = json.dumps(self._requests[number]).encode()
        headers = (
            f"POST {_CHAT_PATH} HTTP/1.1\r\n"
            "Host: localhost\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        data = headers.encode() + body
        length = self._rng.choice((len(data), self._rng.randrange(len(data))))
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(data[:length])
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        writer.transport.abort()
        self.counts["broken"] += 1

    async def _wait_if_refused(self, response: httpx.Response) -> bool:
        """Return whether the server was too busy; if it was, wait first, as it asked."""
        if response.status_code not in (429, 503):
            return False
        self.counts["refused"] += 1
        await asyncio.sleep(float(response.headers["retry-after"]) * self._rng.random())
        return True

    def _compare(self, number: int, text: str) -> None:
        expected = self.expected[number]
        if text == expected:
            self.counts["whole"] += 1
        else:
            self.counts["different"] += 1
            self.errors.append(f"{self._requests[number]}: {text!r}, not {expected!r}")

    def report(self) -> str:
        """The counts and the median time of a whole answer, in one line."""
        median = sorted(self._seconds)[len(self._seconds) // 2] if self._seconds else 0.0
        return f"{json.dumps(self.counts)}, median {median:.2f} s for a whole answer"


def run(args: argparse.Namespace, home: Path) -> None:
    """Run both halves. Raises DifferenceError if an answer is wrong or memory grows too much."""
    load = Load(args.port, args.clients, random.Random(args.seed))
    seconds = args.minutes * 60 / 2  # of a half
    growths = []
    for half in (1, 2):
        with running_server(args.port, home) as process:
            asyncio.run(load.learn_expected())
            asyncio.run(load.run(seconds / 3))
            time.sleep(_REST_S)
            first_mb = memory_mb(process.pid)
            asyncio.run(load.run(seconds * 2 / 3))
            time.sleep(_REST_S)
            last_mb = memory_mb(process.pid)

            growth = last_mb / first_mb - 1
            growths.append(growth)
            memory = f"memory {first_mb:.1f} to {last_mb:.1f} MB, {growth:+.2%}"
            print(f"half {half}: {load.report()}; {memory}", flush=True)
            if half == 1:
                process.send_signal(signal.SIGKILL)

    for line in load.errors[:_MAX_ERRORS_SHOWN]:
        print(line)
    if load.errors or max(growths) > args.growth:
        raise DifferenceError(f"{len(load.errors)} wrong answers, memory {max(growths):+.2%}")


def main() -> None:
    """Run the program by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--port", type=int, default=8431)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth", type=float, default=0.02)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        try:
            run(args, Path(home))
        except NgtError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
