"""Open the daemon's listening socket, and decide which host names clients may use."""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from anespec.runtime.server.options import ServeOptions
from anespec.system.errors import StorageError, UsageError
from anespec.system.formatting import printable
from anespec.system.safe_files import Folder

# The host names that a daemon accepts, and whether other machines can reach its address. A page of another
# site can reach this machine under its own name (DNS rebinding), so the accepted names are fixed. A name
# cannot look like an address, so any address is accepted if a key is needed.

LOCALHOST = "localhost"
LOOPBACK = frozenset({LOCALHOST, "127.0.0.1", "::1"})

_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")


@dataclass(frozen=True)
class Hosts:
    """The host names that clients may use. `addresses`: any address, too. `all`: any name."""

    names: frozenset[str] = LOOPBACK
    addresses: bool = False
    all: bool = False

    @classmethod
    def of(cls, options: ServeOptions) -> Self:
        """Return the hosts for the options. No browser can reach a Unix socket, so it accepts any name."""
        if options.unix is not None:
            return cls(all=True)
        if options.host.lower() in LOOPBACK:
            return cls(LOOPBACK | set(options.allow_host))
        own = {options.host.lower(), socket.gethostname().lower()}
        return cls(LOOPBACK | set(options.allow_host) | own, addresses=True)

    def __contains__(self, host: str) -> bool:
        """Return whether a Host header, with or without a port, is accepted."""
        name = host_name(host)
        return self.all or name in self.names or (self.addresses and address_of(name) is not None)


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port; empty if the header is malformed."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["address"] or found["name"]).lower()


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a name is; None if it is not an address."""
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(name: str) -> bool:
    """Return whether only this machine can reach an address."""
    found = address_of(name)
    return found is not None and found.is_loopback


BACKLOG = 128
"""How many connections may wait to be accepted. All that wait are accepted together, before any can be
refused."""


class AddressTakenError(UsageError):
    """Another program listens at `address`, which has the format of `address_text`."""

    def __init__(self, where: str, address: str, option: str) -> None:
        """`option` is the option to change, for the message."""
        super().__init__(f"{where}: another program listens there; choose another {option}")
        self.address = address
        self.option = option


def listen_on(options: ServeOptions) -> tuple[socket.socket, ...]:
    """Return the listening sockets for the options; clients are told the address of the first one.

    The name localhost stands for 127.0.0.1 and, where the system has it, ::1, which clients may try first.

    Raises:
        AddressTakenError: another program listens there.
        UsageError: other machines can reach the address, and no key is needed.
        StorageError: a socket cannot be opened.
    """
    if options.unix is not None:
        try:
            return (_unix(options.unix),)
        except OSError as error:
            raise _unusable(str(options.unix), error) from error
    if options.host.lower() != LOCALHOST:
        return (_bound_to(options.host, options),)
    first = _bound_to("127.0.0.1", options)
    try:
        # With port 0 the system has chosen one for the first address.
        same = options.with_changes(port=first.getsockname()[1])
        return (first, _bound_to("::1", same)) if _has_ipv6() else (first,)
    except BaseException:
        first.close()
        raise


def _has_ipv6() -> bool:
    """Return whether this machine has the address ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _bound_to(host: str, options: ServeOptions) -> socket.socket:
    where = f"{options.host} port {options.port}"
    try:
        found, address = _resolved(host, options.port)
    except (OSError, UnicodeError) as error:
        raise _unusable(where, error) from error
    try:
        if not is_loopback(address[0]) and options.api_key_file is None:
            raise UsageError(
                f"{options.host} can be reached from other machines, so a key is required; give "
                "--api-key-file FILE, or leave --host at 127.0.0.1"
            )
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressTakenError(where, _url(*address[:2]), "--port") from error
        raise _unusable(where, error) from error
    except BaseException:
        found.close()
        raise
    return found


def address_text(found: socket.socket) -> str:
    """Return the address for clients."""
    if found.family == socket.AF_UNIX:
        return _unix_address(found.getsockname())
    return _url(*found.getsockname()[:2])


def _unix_address(path: str) -> str:
    return f"unix:{path}"


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolved(host: str, port: int) -> tuple[socket.socket, tuple[Any, ...]]:
    """Return a socket, and the address that the host name resolves to; later only this address is used."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    return socket.socket(family, kind, protocol), address


def _unusable(where: str, error: Exception) -> StorageError:
    reason = error.strerror if isinstance(error, OSError) else None
    return StorageError(f"{printable(where)}: cannot listen there ({reason or error})")


def _unix(path: Path) -> socket.socket:
    """Open a Unix socket that only this user can access; it replaces only a stale socket of an ended daemon.

    If two daemons start at the same time, one finds the other's socket, which is not stale.
    """
    with Folder.open(path.parent) as folder, folder.held():
        _make_way(path)
        return _bound(path)


def _make_way(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path}: exists and is not a socket; choose another path")
        with socket.socket(socket.AF_UNIX) as probe:
            # A socket that accepts no more connections still has its file.
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
            except BlockingIOError:
                pass
        raise AddressTakenError(str(path), _unix_address(str(path)), "--unix path")


def _bound(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        found.bind(str(path))
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    finally:
        os.umask(before)
    return found
