"""Decide who may send requests over HTTP, by address, API key, and the headers of browsers.

A page of another origin must not read local documents. Browsers send its origin with requests that
could change something. If a site makes its own name resolve to this machine (DNS rebinding), they
send that name as Host. Both headers are checked, and no reply allows other origins.

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
_MIN_KEY_LENGTH = 16  # characters of an API key (guess: 16 random ones are not found by trying)
_MAX_PORT = 65_535
_MAX_KEY_FILE_BYTES = 1_000_000  # (guess)
_KEY = re.compile(rb"[!-~]{%d,}" % _MIN_KEY_LENGTH)
_PATHS_WITHOUT_KEY = ("/health", "/")
USER = ""  # the owner of requests by the user of the server
ANYONE = "http"  # the owner of requests without a key
_CONNECTION = "connection"  # the key of the `Connection` in the state of a request


@dataclass(slots=True)
class Connection:
    """A connection, in the state of each of its requests.

    Attributes:
        is_of_user: Whether it came to the socket of the server's user.
        user: Of a TCP connection, the user id of the process at the other end; None if the
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
    """Where to listen.

    Attributes:
        host: The name or address of this machine.
        port: The port; 0 for any free one.
        keys: SHA-256 of the API keys. Without keys the host must be a loopback address.
    """

    host: str
    port: int
    keys: tuple[bytes, ...] = ()

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the address."""
        return _is_loopback(self.host)

    def shown(self, port: int) -> str:
        """Return host and port as a URL has them."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def address_of(address: str, host: str | None, key_file: Path | None) -> Address:
    """Return the address to listen on.

    Args:
        address: The value of `--http`: [HOST:]PORT, with 0 for any free port.
        host: The value of `--host`, if any.
        key_file: The value of `--api-key-file`, if any.

    Raises:
        UsageError: The address is invalid, other machines can reach it without keys, or the file
            of keys is bad.
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
            f"--http {address}: {name} is not a loopback address",
            hint="Use --host and --api-key-file to let other machines in.",
        )
    keys = read_keys(key_file) if key_file else ()
    if host is not None and not keys and not _is_loopback(host):
        raise UsageError(
            f"--host {host} lets other machines in",
            hint="Give --api-key-file FILE: whoever has a key in it may ask.",
        )
    return Address(name if host is None else host.strip("[]"), int(digits), keys)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Return SHA-256 of the keys in a file, one on each line. Raises UsageError.

    A file that other users may read or write is refused.
    """
    try:
        mode = os.stat(path).st_mode
        data = read_bounded(path, _MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: {reason_of(error)}", hint="Name a file of keys.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"{path}: other users may read the keys or write them",
            hint=f"Keep it to yourself: chmod 600 {path}",
        )
    keys = [line.strip() for line in data.splitlines() if line.strip()]
    if not keys or any(not _KEY.fullmatch(key) for key in keys):
        raise UsageError(
            f"{path}: a key has {_MIN_KEY_LENGTH} ASCII characters or more, without spaces",
            hint="openssl rand -hex 32 makes one; put one on each line.",
        )
    return tuple(hashlib.sha256(key).digest() for key in keys)


def user_of(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the user of a process by the ends of its connection within this machine.

    Args:
        local: Host and port of the process's end.
        remote: Host and port of the other end.

    Returns:
        The user id. None if the system does not say, as without /proc, or where the process has
        closed its end: Linux then lists the connection as root's, without an inode.
    """
    for ipv4_prefix, path in (("", "/proc/net/tcp"), ("::ffff:", "/proc/net/tcp6")):
        ends = [_listed_end(ipv4_prefix, *local), _listed_end(ipv4_prefix, *remote)]
        with suppress(OSError), open(path, "rb") as lines:
            for line in lines:
                fields = line.split()
                if fields[1:3] == ends:
                    user = fields[7]
                    inode = fields[9]
                    return int(user) if inode != b"0" else None
    return None


def _listed_end(ipv4_prefix: str, host: str, port: int) -> bytes:
    """Return an end of a connection as Linux lists it: 32-bit words in the native byte order.

    Args:
        ipv4_prefix: Written before an IPv4 address; "::ffff:" maps it to IPv6.
        host: The address.
        port: The port.
    """
    address = host if ":" in host else ipv4_prefix + host
    data = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words = struct.unpack(f"={len(data) // 4}I", data)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}".encode()


def knows_users(listening: socket.socket) -> bool:
    """Return whether the system says which user opened a connection to this socket."""
    host, port, *_ = listening.getsockname()
    return user_of((host, port), ("::" if ":" in host else "0.0.0.0", 0)) == os.geteuid()


async def _user_of_request(scope: Scope) -> int | None:
    """Return the user of the process that sent a request, which its whole connection shares.

    It is looked up in a thread, since tens of thousands of connections take long to list.
    """
    connection = connection_of(scope)
    if not connection.is_user_known:
        connection.user = await to_thread.run_sync(user_of, scope["client"], scope["server"])
        connection.is_user_known = True
    return connection.user


class Guard:
    """Finds the owner of a request over TCP.

    Args:
        address: Where the server listens, with its keys.
        of_user: Whether only processes of the server's user may send requests.
    """

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

        host = headers.get(b"host", b"")
        host_name = ""
        with suppress(ValueError):
            host_name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        if self._address.is_local and not _is_loopback(host_name):
            raise _refusal(403, "wrong_host", "the Host header is not this machine's name")

        origin = headers.get(b"origin")
        is_other_origin = origin not in (None, b"http://" + host, b"https://" + host)
        is_other_site = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
        # The page that has a link cannot read the page that the link opens.
        follows_link = headers.get(b"sec-fetch-mode") == b"navigate"
        if is_other_origin or (is_other_site and not follows_link):
            raise _refusal(403, "wrong_origin", "the page is of another origin")

        if self._of_user and await _user_of_request(scope) != os.geteuid():
            raise _refusal(
                403,
                "wrong_user",
                "without an API key only the user who runs this server may ask it",
            )
        if not self._address.keys or scope["path"] in _PATHS_WITHOUT_KEY:
            return ANYONE
        owner = self._owner(headers.get(b"authorization", b""))
        if owner is None:
            raise _refusal(401, "invalid_api_key", "no such API key")
        return owner

    def _owner(self, authorization: bytes) -> str | None:
        """Return the owner of a key, or None; compare all keys, each in constant time."""
        scheme, _, token = authorization.partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        matches = [key for key in self._address.keys if hmac.compare_digest(key, digest)]
        if scheme.lower() != b"bearer" or not matches:
            return None
        return f"{ANYONE}:{matches[0].hex()[:16]}"


def _refusal(status: int, code: str, message: str) -> RequestError:
    return RequestError(message, code=code, status=status)


class PortInUseError(NgtError):
    """Another program listens on the port."""


def listen(address: Address) -> socket.socket:
    """Return a socket that listens on an address, where connections wait to be accepted.

    Raises:
        PortInUseError: Another program listens there.
        UsageError: The machine does not have the address, or the port needs privileges.
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
