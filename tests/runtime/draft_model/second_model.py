"""A second model that has read a text before its session is used, as a slow verifier lets it."""

from collections.abc import Sequence

from toy import ToyVerifier

from anespec.runtime.draft_model.continuing import Continuing
from anespec.runtime.draft_model.source import DraftModelSession, DraftModelSource
from anespec.runtime.draft_model.translation import SameIds


class ReadySource(DraftModelSource):
    """Opens sessions that are ready."""

    def __init__(self, verifier: ToyVerifier, *, has_own_device: bool = False) -> None:
        self.running = Continuing(verifier)
        vocabulary = verifier.shape.vocabulary
        super().__init__(self.running, lambda: SameIds(vocabulary), has_own_device=has_own_device)

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftModelSession:
        session = super().open(tenant, prompt, reference)
        self.running.wait(lambda: session.is_ready)
        return session
