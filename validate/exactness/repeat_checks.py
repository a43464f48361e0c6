"""Check that the same pass always gives the same bits: repeated, in a new process, and compiled again."""

import io
from collections.abc import Mapping, Sequence
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import ALL_LOGITS, RowLogits, Verifier, VerifierShape
from anespec.system.errors import AnespecError
from anespec.validate.exactness.bit_comparison import Difference, FoundRow, Recording, compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.invariance_cases import InvarianceCase, Probe, cut

Elsewhere = Mapping[str, Recording]
"""The recordings of the pass in other processes or compilations of the artifact, by their names."""

STATE, CHUNK_ROW, CARRIED = "state", "chunk row", "carried"
"""What is kept by position, in the names of packed arrays."""

PAST = 8
"""The tokens that the model computes before the repeated pass."""


def repeat_probe(shape: VerifierShape, prompts: Sequence[Sequence[int]]) -> Probe:
    """Return a block of tokens with the past that it sees, the same in every process.

    A chunk ends in the middle of the block, so that its fold is repeated too.
    """
    count = min(shape.block, shape.context)
    past = min(PAST, shape.context - count)
    ids = [*(prompts[0] if prompts else ()), *range(1, past + count + 1)][: past + count]
    tokens = tuple(token % shape.vocabulary for token in ids)
    start = past
    if shape.chunk is not None and past:
        start = min(max(past, shape.chunk - max(1, count // 2)), shape.context - count)
    return Probe(tokens[:past], start, tokens[past:])


def recorded_pass(verifier: Verifier, prompts: Sequence[Sequence[int]]) -> Recording:
    """Return the recording of the pass and its past on a state of zeros; the state is left as zeros."""
    runner = CaseRunner(verifier)
    probe = repeat_probe(verifier.shape, prompts)
    try:
        runner.prepare(probe)
        return runner.run(_the_pass(runner, probe), probe)
    finally:
        runner.clear()


def measure_repeats(
    runner: CaseRunner, prompts: Sequence[Sequence[int]], times: int, elsewhere: Elsewhere
) -> Difference:
    """Run the pass `times` times, and compare all runs and the recordings from elsewhere."""
    probe = repeat_probe(runner.shape, prompts)
    case = _the_pass(runner, probe)
    runner.prepare(probe)
    expected = runner.run(case, probe)
    total = Difference()
    for number in range(2, times + 1):
        runner.restore()
        total += compare(expected, runner.run(case, probe), f"repetition {number}")
    for name, recording in elsewhere.items():
        found = compare(expected, recording, name)
        total += found if found.cases else Difference(1, 1, 0.0, f"{name}: the pass left nothing")
    return total


def _the_pass(runner: CaseRunner, probe: Probe) -> InvarianceCase:
    block = runner.shape.block
    return cut(probe, [min(block, runner.map.longest_run)], block)


def packed(elsewhere: Elsewhere) -> bytes:
    """Return recordings with all logits as bytes for another process."""
    arrays: dict[str, Any] = {}
    for number, (name, recording) in enumerate(elsewhere.items()):
        arrays[f"name/{number}"] = np.array([name, *recording.problems])
        for position, row in recording.rows.items():
            if row.found.logits is not None:
                arrays[f"row/{number}/{position}"] = row.found.logits
        for kind, by_position in (
            (STATE, recording.states),
            (CHUNK_ROW, recording.chunk_rows),
            (CARRIED, recording.carried),
        ):
            for position, states in by_position.items():
                arrays |= {f"{kind}/{number}/{position}/{i}": state for i, state in enumerate(states)}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpacked(data: bytes) -> Elsewhere:
    """Return the recordings that `packed` wrote.

    Raises:
        AnespecError: the bytes are something else.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _unpacked({key: arrays[key] for key in arrays.files})
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise AnespecError(f"its output is not a recording ({error})") from error


def _unpacked(arrays: Mapping[str, NDArray[np.generic]]) -> Elsewhere:
    names: dict[str, list[str]] = {}
    rows: dict[str, dict[int, FoundRow]] = {}
    states: dict[tuple[str, str], dict[int, list[NDArray[np.float16]]]] = {}
    for key, array in arrays.items():
        kind, number, *place = key.split("/")
        if kind == "name":
            names[number] = [str(text) for text in array]
        elif kind == "row":
            found = FoundRow(ALL_LOGITS, RowLogits(logits=array.astype(np.float16, copy=False)))
            rows.setdefault(number, {})[int(place[0])] = found
        else:
            kept = states.setdefault((kind, number), {}).setdefault(int(place[0]), [])
            kept.append(array.astype(np.float16, copy=False))

    def of_kind(kind: str, number: str) -> dict[int, tuple[NDArray[np.float16], ...]]:
        return {position: tuple(kept) for position, kept in states.get((kind, number), {}).items()}

    return {
        name: Recording(
            rows.get(number, {}),
            of_kind(STATE, number),
            tuple(problems),
            of_kind(CHUNK_ROW, number),
            of_kind(CARRIED, number),
        )
        for number, (name, *problems) in names.items()
    }
