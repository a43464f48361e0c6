"""The fingerprint that binds a verdict to an artifact: its whole manifest, and by their hashes all files it
names."""

import hashlib
import json
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from types import MappingProxyType
from typing import Any

from anespec.manifests.schema import Manifest

UNBOUND: Mapping[str, str] = MappingProxyType(
    {
        "source.name": "only helps to find the GGUF again, which is known by its hash",
        "source.read_from": "only helps to find the GGUF again, which is known by its hash",
        "built_with": "says what wrote the files, and nothing that runs them reads it; the files are hashed",
    }
)
"""The fields from which no bit follows, each with the reason. Any other is bound, also one added tomorrow."""


def manifest_fingerprint(manifest: Manifest) -> str:
    """SHA-256 over the manifest in canonical JSON without what is UNBOUND."""
    facts: dict[str, Any] = manifest.model_dump(mode="json")
    for path in UNBOUND:
        *parents, field = path.split(".")
        del reduce(getitem, parents, facts)[field]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
