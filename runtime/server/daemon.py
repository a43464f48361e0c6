"""The state that all endpoints share."""

from dataclasses import dataclass, field

from anespec.runtime.server.keys import KeyRing
from anespec.runtime.server.lifecycle import Lifecycle
from anespec.runtime.server.loading_line import LoadingLine
from anespec.runtime.server.metrics import Metrics
from anespec.runtime.server.models import Models
from anespec.runtime.server.options import ServeOptions
from anespec.runtime.server.preparations import Preparations
from anespec.runtime.server.shares import Shares


@dataclass(frozen=True)
class Daemon:
    """A daemon's models, its keys, and its state."""

    version: str
    options: ServeOptions
    models: Models
    keys: KeyRing
    metrics: Metrics
    lifecycle: Lifecycle
    preparations: Preparations = field(default_factory=Preparations)
    loading: LoadingLine = field(default_factory=LoadingLine)
    shares: Shares = field(default_factory=Shares)
