"""Define the tables of a draft memory's database, and the values of their rows."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from anespec.manifests.schema import Record
from anespec.runtime.drafters.memory.learner import Learner

SCHEMA_VERSION = 1
SCHEMA = (
    "CREATE TABLE info(models TEXT)",
    "CREATE TABLE tenants(id INTEGER PRIMARY KEY, key TEXT UNIQUE, name TEXT, learner TEXT, "
    "version INTEGER, weights BLOB)",
    "CREATE TABLE requests(tenant INTEGER, number INTEGER, ended INTEGER, answer INTEGER, tokens BLOB, "
    "PRIMARY KEY(tenant, number)) WITHOUT ROWID",
    "CREATE TABLE images(id INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER, whole INTEGER, upto INTEGER, "
    "learner TEXT, version INTEGER, size INTEGER, crc INTEGER, nodes INTEGER, room INTEGER, "
    "requests INTEGER, tokens INTEGER)",
    "CREATE TABLE parts(id INTEGER PRIMARY KEY, content BLOB)",
)

TENANTS = """
SELECT key, name, ifnull(max(ended), 0),
       CAST(total(length(requests.tokens)) AS INTEGER) + ifnull(size, 0),
       CAST(total(number > ifnull(upto, 0)) AS INTEGER) + ifnull(images.requests, 0),
       ifnull(nodes, 0), ifnull(room, 0)
FROM tenants
LEFT JOIN requests ON requests.tenant = tenants.id
LEFT JOIN images ON images.tenant = tenants.id AND whole = 1
GROUP BY tenants.id LIMIT ?
"""

OLD_REQUESTS = """
DELETE FROM requests WHERE tenant = ?1 AND number <= min(?2, (
    SELECT max(number) FROM (
        SELECT number, sum(length(tokens)) OVER (ORDER BY number DESC) AS bytes
        FROM requests WHERE tenant = ?1
    ) WHERE bytes > ?3
))
"""

LARGEST_NUMBER = 1 << 53
LAST_SECOND = 253_402_000_000
"""The latest valid time in seconds since 1970: in the year 9999."""

PART_BITS = 20
"""The low bits of a part's id are its number in its image; the other bits are the image's id."""

NAME_LENGTH = 255

Number = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]


class StoredImage(Record):
    """The facts about an image in the file, into which this learner has learnt the requests up to `upto`."""

    id: Annotated[int, Field(ge=1, le=LARGEST_NUMBER >> PART_BITS)]
    upto: Number
    learner: str
    version: Number
    size: Number
    crc: Number
    nodes: Number
    room: Number
    requests: Number
    tokens: Number

    def is_of(self, learner: Learner, size: int) -> bool:
        """Return whether the image is of this learner and has `size` bytes."""
        return (self.learner, self.version, self.size) == (learner.name, learner.version, size)


class TenantFacts(Record):
    """The facts about a tenant's memory, of `bytes` bytes.

    `requests` were learnt; `nodes` of `room` nodes are used in its image. `written` is the time of its last
    request in seconds since 1970.
    """

    key: str
    name: str
    written: Annotated[int, Field(ge=0, le=LAST_SECOND)]
    bytes: Number
    requests: Number
    nodes: Number
    room: Number


@dataclass(frozen=True)
class Tenant:
    """A tenant in the database: a key made from its name, and the name in a form for display."""

    key: str
    name: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the tenant of a name, which may have any characters."""
        return cls(tenant_key(name), name.encode("utf-8", "backslashreplace").decode()[:NAME_LENGTH])


def tenant_key(name: str) -> str:
    """Return the key of a tenant: 32 hexadecimal digits."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Position:
    """A place in a tenant's requests: the place after `number`.

    A tenant gets another id `tenant` in a new file, and after it was removed.
    """

    tenant: int = 0
    number: int = 0

    def is_elsewhere(self, other: "Position") -> bool:
        """Return whether the same numbers mean other requests in `other`, since the tenant's id changed."""
        return self.number > 0 and self.tenant != other.tenant


@dataclass(frozen=True)
class Weights:
    """The weights of a learner, stored in addition to the requests after an image."""

    learner: str
    version: int
    content: bytes
