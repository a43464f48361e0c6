"""Define what the exactness gate has proven, as the engine uses it."""

from dataclasses import dataclass

from anespec.manifests.verdicts import ExactnessVerdict, Invariance
from anespec.runtime.passes import VerifierShape


@dataclass(frozen=True)
class Proven:
    """The features that change no token for this artifact, backend and machine.

    - `speculate`: drafts may fill rows. The invariances lane, neighbours, stale, partition and wanted hold.
    - `widths`: the widths of passes that give a row the same bits as a block does, ascending, the block among
      them.
    - `region_independent`: the invariance region holds, so several regions may be used at a time. Otherwise
      only the first region is used, for one sequence after another: an answer would depend on the region.
    - `spans`: by pool and ascending, the numbers of slots that give a pass the same bits as all slots do; a
      pass attends to all slots of a pool for which there is none.
    - `reuse_prefixes`: a prompt may continue from the K/V of an earlier prompt, which was computed in other
      blocks beside other rows. Otherwise every prompt is prefilled from its first token.
    """

    speculate: bool
    widths: tuple[int, ...]
    region_independent: bool = False
    spans: tuple[tuple[int, ...], ...] = ()
    reuse_prefixes: bool = True

    @classmethod
    def nothing(cls, shape: VerifierShape, allow_inexact: bool = False) -> "Proven":
        """Return the features of a verifier that was never measured; `allow_inexact` is as in `of`."""
        return cls(speculate=allow_inexact, widths=(shape.block,), reuse_prefixes=allow_inexact)

    @classmethod
    def of(cls, verdict: ExactnessVerdict, shape: VerifierShape, allow_inexact: bool = False) -> "Proven":
        """Return the features that a verdict allows.

        `allow_inexact` allows speculation and the reuse of prefixes whatever the verdict says.
        """
        speculate = verdict.allows_speculation or allow_inexact
        return cls(
            speculate=speculate,
            widths=tuple(sorted({shape.block, *verdict.usable_widths(shape.block)} & {*shape.widths})),
            # Sequences that share a pass are one another's neighbours.
            region_independent=verdict.proves(Invariance.REGION) and speculate,
            spans=verdict.proven_spans,
            reuse_prefixes=speculate,
        )
