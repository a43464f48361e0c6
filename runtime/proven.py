"""The results of the exactness gate that the engine uses."""

from dataclasses import dataclass

from anespec.manifests.verdicts import ExactnessVerdict, Invariance
from anespec.runtime.passes import VerifierShape


@dataclass(frozen=True)
class Proven:
    """What may be used for this artifact, backend and machine without changing a token.

    - `speculate`: lane, neighbours, stale, partition and wanted hold, so drafts may fill rows.
    - `widths`: numbers of rows that give a row the bits it has in a block, ascending, the block among them.
    - `region_independent`: region holds. Otherwise only the first region is used, one sequence after
      another, since an answer would else depend on who else is being served.
    - `spans`: numbers of slots, by pool and ascending, that a pass may attend to with the bits that it has
      over all slots; where there is none for a pool, it attends to all.
    - `reuse_prefixes`: a prompt may go on from what an earlier one left, which was cut into other blocks
      beside other rows. Otherwise every prompt is prefilled from its first token.
    """

    speculate: bool
    widths: tuple[int, ...]
    region_independent: bool = False
    spans: tuple[tuple[int, ...], ...] = ()
    reuse_prefixes: bool = True

    @classmethod
    def nothing(cls, shape: VerifierShape, allow_inexact: bool = False) -> "Proven":
        """For a verifier that was never measured; `allow_inexact` is as in `of`."""
        return cls(speculate=allow_inexact, widths=(shape.block,), reuse_prefixes=allow_inexact)

    @classmethod
    def of(cls, verdict: ExactnessVerdict, shape: VerifierShape, allow_inexact: bool = False) -> "Proven":
        """Return the features that a verdict allows; `allow_inexact` always allows speculation and prefix
        reuse."""
        speculate = verdict.allows_speculation or allow_inexact
        return cls(
            speculate=speculate,
            widths=tuple(sorted({shape.block, *verdict.usable_widths(shape.block)} & {*shape.widths})),
            # Sequences that share a pass are one another's neighbours.
            region_independent=verdict.proves(Invariance.REGION) and speculate,
            spans=verdict.proven_spans,
            reuse_prefixes=speculate,
        )
