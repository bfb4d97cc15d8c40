"""Who may ask over HTTP: addresses, keys, and the headers that tell a browser's pages apart.

A page of another origin must not read local documents. Browsers send its origin with requests that
could change something. Where a site's own name stands for this machine (DNS rebinding), they send
that name as Host. Both headers are checked, and no reply allows other origins.

Nor may another user of this machine read the documents: without keys, the process at the other end
must be this user's, where the system says whose it is.
"""

import errno
import hashlib
import hmac
import ipaddress
import os
import re
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyio import to_thread
from starlette.types import Scope

from ngtcli.errors import NgtError, UsageError
from ngtcli.server.public import RequestError
from ngtcli.system.files import read_bounded
from ngtcli.words import reason_of

DEFAULT_ADDRESS = "127.0.0.1:8421"  # of `ngt serve` without --http
_MIN_KEY_LENGTH = 16  # characters of an API key; guess: 16 random ones are not found by trying
_MAX_PORT = 65_535
_MAX_KEY_FILE_BYTES = 1_000_000  # guess
_KEY = re.compile(rb"[!-~]{%d,}" % _MIN_KEY_LENGTH)
_OPEN = ("/health", "/")  # paths that need no key
USER = ""  # the owner of what the user of the server asks
ANYONE = "http"  # the owner of what is asked without a key
_CONNECTION = "connection"  # the key in the state of a request that has its `Connection`


@dataclass(slots=True)
class Connection:
    """What is known of a connection, which all of its requests have.

    Attributes:
        is_of_user: Whether it is one to the socket of the server's user.
        user: Of a TCP connection, the user id of the process at the other end; None where the
            system does not say.
        is_user_known: Whether `user` was looked up.
    """

    is_of_user: bool
    user: int | None = None
    is_user_known: bool = False

    def state(self) -> dict[str, Any]:
        """Return the state of its requests, for `connection_of`."""
        return {_CONNECTION: self}


def connection_of(scope: Scope) -> Connection:
    """Return the connection of a request."""
    connection: Connection = scope["state"][_CONNECTION]
    return connection


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; `keys` are SHA-256 of the API keys, and with none it is this machine."""

    host: str
    port: int
    keys: tuple[bytes, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return _is_loopback(self.host)

    def shown(self, port: int) -> str:
        """Host and port as a URL has them."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def address_of(address: str, host: str | None, key_file: Path | None) -> Address:
    """Return the address of `--http [HOST:]PORT`, `--host` and `--api-key-file`.

    Port 0 stands for any free one.

    Raises:
        UsageError: It is no address, others reach it without keys, or the file of keys is bad.
    """
    name, _, digits = address.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", digits) or int(digits) > _MAX_PORT:
        raise UsageError(
            f"--http {address}: {digits or 'the end'} is not a port (1 to {_MAX_PORT})",
            hint="Give a port, or an address and a port: --http 9000, --http 127.0.0.1:9000",
        )
    name = name.strip("[]") or "127.0.0.1"
    if not _is_loopback(name):
        raise UsageError(
            f"--http {address}: {name} is not an address of this machine alone",
            hint="Use --host and --api-key-file to let other machines in.",
        )
    keys = read_keys(key_file) if key_file else ()
    if host is not None and not keys and not _is_loopback(host):
        hint = "Give --api-key-file FILE: whoever has a key in it may ask."
        raise UsageError(f"--host {host} lets other machines in", hint=hint)
    return Address(name if host is None else host.strip("[]"), int(digits), keys)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def read_keys(path: Path) -> tuple[bytes, ...]:
    """SHA-256 of the keys in a file, one a line. Raises UsageError.

    A file that others may read has no secret in it, and is refused.
    """
    try:
        mode = os.stat(path).st_mode
        data = read_bounded(path, _MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: {reason_of(error)}", hint="Name a file of keys.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        hint = f"Keep it to yourself: chmod 600 {path}"
        raise UsageError(f"{path}: other users may read the keys or write them", hint=hint)
    keys = [line.strip() for line in data.splitlines() if line.strip()]
    if not keys or any(not _KEY.fullmatch(key) for key in keys):
        what = f"{path}: a key has {_MIN_KEY_LENGTH} ASCII characters or more, without spaces"
        raise UsageError(what, hint="openssl rand -hex 32 makes one; put one on each line.")
    return tuple(hashlib.sha256(key).digest() for key in keys)


def user_of(own: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Return the user of a process by the ends of its connection within this machine.

    None where the system does not say, as without /proc, or where the process has closed its end:
    Linux then lists the connection as root's, without an inode.
    """
    for mapped, path in (("", "/proc/net/tcp"), ("::ffff:", "/proc/net/tcp6")):
        ends = [_end(mapped, *own), _end(mapped, *other)]
        with suppress(OSError), open(path, "rb") as rows:
            for row in rows:
                if (fields := row.split())[1:3] == ends:
                    return int(fields[7]) if fields[9] != b"0" else None
    return None


def _end(mapped: str, host: str, port: int) -> bytes:
    """An address and a port as Linux lists them: words in this machine's order of bytes."""
    address = host if ":" in host else mapped + host
    data = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words = struct.unpack(f"={len(data) // 4}I", data)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}".encode()


def knows_users(listening: socket.socket) -> bool:
    """Return whether the system says which user opened a connection to this socket."""
    host, port, *_ = listening.getsockname()
    return user_of((host, port), ("::" if ":" in host else "0.0.0.0", 0)) == os.geteuid()


async def _user_of_request(scope: Scope) -> int | None:
    """The user of the process that sent a request, who is that of its whole connection.

    Looked up in a thread: where a machine has tens of thousands of connections, that takes long.
    """
    connection = connection_of(scope)
    if not connection.is_user_known:
        connection.user = await to_thread.run_sync(user_of, scope["client"], scope["server"])
        connection.is_user_known = True
    return connection.user


class Guard:
    """Says whose a request over TCP is. With `of_user` it must be a process of this user's."""

    def __init__(self, address: Address, of_user: bool = False) -> None:
        self._address = address
        self._of_user = of_user

    async def owner_of(self, scope: Scope) -> str:
        """Return the owner of a request, one for each key. Raises RequestError for a stranger."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"host", b"origin", b"authorization") and name in headers:
                raise _refusal(400, "bad_request", f"two headers {name.decode()}")
            headers[name] = value
        host, name = headers.get(b"host", b""), ""
        with suppress(ValueError):
            name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        if self._address.is_local and not _is_loopback(name):
            raise _refusal(403, "wrong_host", "the Host header is not this machine's name")
        is_other = headers.get(b"origin") not in (None, b"http://" + host, b"https://" + host)
        # A link that is followed opens what the page that has the link cannot read.
        follows = headers.get(b"sec-fetch-mode") == b"navigate"
        is_site = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
        if is_other or (is_site and not follows):
            raise _refusal(403, "wrong_origin", "the page is of another origin")
        if self._of_user and await _user_of_request(scope) != os.geteuid():
            what = "without an API key only the user who runs this server may ask it"
            raise _refusal(403, "wrong_user", what)
        if not self._address.keys or scope["path"] in _OPEN:
            return ANYONE
        owner = self._owner(headers.get(b"authorization", b""))
        if owner is None:
            raise _refusal(401, "invalid_api_key", "no such API key")
        return owner

    def _owner(self, authorization: bytes) -> str | None:
        """The owner of a key; all keys are compared, and each in constant time."""
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [known for known in self._address.keys if hmac.compare_digest(known, digest)]
        if scheme.lower() != b"bearer" or not matches:
            return None
        return f"{ANYONE}:{matches[0].hex()[:16]}"


def _refusal(status: int, code: str, message: str) -> RequestError:
    return RequestError(message, code=code, status=status)


class PortInUseError(NgtError):
    """Another program listens on the port."""


def listen(address: Address) -> socket.socket:
    """Return a socket that listens there: connections wait.

    Raises:
        PortInUseError: Another program listens there.
        UsageError: The address is none of this machine, or the port needs rights.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        shown = address.shown(address.port)
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"{shown} is in use by another program",
                hint="Use --http PORT for another port, or --no-http to serve no HTTP.",
            ) from None
        raise UsageError(
            f"{shown}: {reason_of(error)}", hint="Choose another port or address."
        ) from None
