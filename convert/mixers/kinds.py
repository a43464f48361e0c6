"""The sizes of a layer's mixers: the parts that combine the rows of a sequence."""

from anespec.convert.mixers.attention.facts import AttentionFacts as AttentionFacts
from anespec.convert.mixers.delta_net.facts import DeltaFacts as DeltaFacts
from anespec.convert.mixers.latent.facts import LatentFacts as LatentFacts
from anespec.convert.mixers.mamba2.facts import SSDFacts as SSDFacts
from anespec.convert.mixers.short_conv.facts import ShortConvFacts as ShortConvFacts

AttendingFacts = AttentionFacts | LatentFacts
"""A mixer whose rows attend to the slots that a mask shows."""

RecurrentFacts = SSDFacts | DeltaFacts
"""A mixer that folds what it keeps at the end of each chunk."""

MixerFacts = AttentionFacts | LatentFacts | ShortConvFacts | SSDFacts | DeltaFacts
"""A part of a layer that combines the rows of a sequence."""
