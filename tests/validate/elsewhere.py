"""What another opening of the same verifier leaves, for tests of the exactness gate that have but one."""

from collections.abc import Sequence
from copy import deepcopy

from anespec.runtime.passes import Verifier
from anespec.validate.exactness.repeat_checks import Elsewhere, recorded_pass


def copied(verifier: Verifier, prompts: Sequence[Sequence[int]] = ()) -> Elsewhere:
    """Of a test double, which can be copied."""
    return {"in a copy": recorded_pass(deepcopy(verifier), prompts)}


def same(verifier: Verifier, prompts: Sequence[Sequence[int]] = ()) -> Elsewhere:
    """Of a backend's, which stands for another opening itself."""
    return {"in another opening": recorded_pass(verifier, prompts)}
