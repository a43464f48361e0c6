"""Images outlive the code that made them: what their bytes mean has a version, and structures their types.

The numbers of LEARNT detect changes, on purpose: an image of an earlier build that is read with another
meaning gives worse guesses and no error, which no other test would see.
"""

import zlib

import numba
import numpy as np
import pytest

from anespec.runtime.drafters.compiled import direct
from anespec.runtime.drafters.mix.layout import IMAGE, INPUTS, TEXT, view_image
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.others import OTHERS, no_others
from anespec.runtime.drafters.mix.scratch import SCRATCH, fresh_scratch
from anespec.runtime.drafters.mix.source import TextTables
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.runtime.drafters.mix.walk import index_text

LEARNT = {1: (37, 200_448, 455_294_490)}
"""By version: inputs of a candidate, bytes before the nodes, and what a text leaves in the nodes."""


def test_what_an_image_means_has_a_version() -> None:
    """Whoever changes contexts, nodes or the layout gives the learner another version, and a line here."""
    learner = MixLearner(no_traits())
    image = learner.fresh(1 << 20)
    text = (np.arange(300, dtype=np.int32) * 7) % 61
    for _ in learner.fold(image, text, 100):
        pass
    parts = view_image(image)
    nodes = zlib.crc32(parts.octets.tobytes())
    assert LEARNT[learner.version] == (INPUTS, len(image) - parts.octets.nbytes, nodes)


def test_structures_have_the_types_that_compiled_functions_take() -> None:
    image = view_image(MixLearner(no_traits()).fresh(1 << 20))
    text = TextTables(no_traits(), [1, 2, 3], ()).arrays
    given = (image, text, no_others(), fresh_scratch())
    assert [numba.typeof(each) for each in given] == [IMAGE, TEXT, OTHERS, SCRATCH]


def test_a_structure_of_another_type_is_refused() -> None:
    tables = TextTables(no_traits(), [1, 2, 3], ())
    wrong = tables.arrays._replace(tokens=np.zeros(8, np.float64))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        direct(index_text)(wrong, 3, no_traits())
