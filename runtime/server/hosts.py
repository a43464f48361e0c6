"""The host names that a daemon accepts, and whether other machines can reach its address.

A page of another site can reach this machine under a name of its own (DNS rebinding), so names are known
beforehand. No name can be made to look like an address, so where a key is needed anyway, any address will do.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Self

from anespec.runtime.server.options import ServeOptions

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")


@dataclass(frozen=True)
class Hosts:
    """The names that clients may call a daemon by. `addresses`: any address, too; `all`: anything."""

    names: frozenset[str] = LOOPBACK
    addresses: bool = False
    all: bool = False

    @classmethod
    def of(cls, options: ServeOptions) -> Self:
        """Those of a daemon: no browser reaches a Unix socket, so anything is right there."""
        if options.unix is not None:
            return cls(all=True)
        if options.host.lower() in LOOPBACK:
            return cls(LOOPBACK | set(options.allow_host))
        own = {options.host.lower(), socket.gethostname().lower()}
        return cls(LOOPBACK | set(options.allow_host) | own, addresses=True)

    def __contains__(self, host: str) -> bool:
        """Whether a Host header, with its port or without, names this daemon."""
        name = host_name(host)
        return self.all or name in self.names or (self.addresses and address_of(name) is not None)


def host_name(host: str) -> str:
    """The name in a Host header, without its port; an empty one where it is malformed."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["address"] or found["name"]).lower()


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that is written out in a name; None where it is none."""
    try:
        found = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(name: str) -> bool:
    """Return whether only this machine can reach an address."""
    found = address_of(name)
    return found is not None and found.is_loopback
