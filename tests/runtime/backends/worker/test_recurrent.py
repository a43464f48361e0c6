"""Recurrent layers in workers: folds and carried states have the portable backend's bits."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from converting import build_once
from family_files import FAMILIES
from once import Once
from workers import EACH_ALONE, open_workers

from anespec.manifests.schema import KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind, StateOverflowError, Verifier, begin_rows, run_rows
from anespec.runtime.rows import chain_rows

PROMPT = [int(token) for token in np.random.default_rng(2).integers(3, 500, 70)]


def logits_of(verifier: Verifier, region: int) -> bytes:
    """The prompt's last rows, behind the end of a chunk."""
    home = SlotMapping.of(verifier.shape)
    for run in home.runs(range(len(PROMPT)), 64):
        begin_rows(verifier, region, run.start)
        rows = chain_rows(home, region, run.start, RowKind.PROMPT, PROMPT[run.start : run.stop])
        found = run_rows(verifier, rows, 64)
    return found.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "form"),
    [
        (EACH_ALONE, KVForm.SLICE_UPDATE),
        (1 << 30, KVForm.SLICE_UPDATE),
        (EACH_ALONE, KVForm.OUTSIDE),
        (1 << 30, KVForm.AT_POSITION),
    ],
)
def test_chunks_are_folded_as_on_the_portable_backend(
    budget: int, form: KVForm, once: Once, tmp_path: Path, swift_worker: WorkerProgram
) -> None:
    options = {
        "target": Target.CPU,
        "kv_form": form,
        "context": 128,
        "sequences": 2,
        "topology": (3, 3),
        "weights": WeightChoice(WeightFormat.FP16),
    }
    path = build_once(once, FAMILIES / "granitehybrid.gguf", tmp_path / "m.anespec", **options)
    artifact = Artifact(path)
    with (
        closing(open_verifier(artifact, "torch", 1)) as other,
        closing(open_workers(artifact, WorkerLimits(budget=budget), swift_worker)) as verifier,
    ):

        def carried(region: int) -> list[bytes]:
            mine, its = (
                [value.tobytes() for value in each.export_carried(region)] for each in (verifier, other)
            )
            assert mine == its
            return mine

        for region in (0, 1):
            assert logits_of(verifier, region) == logits_of(other, region)
            assert len({*carried(region)}) == 4
        for each in (verifier, other):
            each.clear_carried(1)
        assert not any(any(state) for state in carried(1))
        for each in (verifier, other):
            each.copy_carried(0, 1)
        assert carried(1) == carried(0)
        changed = [value * np.float16(0.5) for value in verifier.export_carried(0)]
        for each in (verifier, other):
            each.import_carried(0, changed)
            each.fold(0)
        assert all(new != old.tobytes() for new, old in zip(carried(0), changed, strict=True))
        size = verifier.shape.chunk or 0
        loud = [np.full_like(value, 60000) for value in verifier.export_slots(2, 0, size)]
        verifier.import_slots(2, 0, loud)
        before = carried(0)
        with pytest.raises(StateOverflowError):
            verifier.fold(0)
        assert carried(0) == before
