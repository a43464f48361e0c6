"""`GET /stats`: the figures that the page asks for."""

import pytest
from serving import Running

from anespec.runtime.server.page.endpoints import ModelStats, StatsAnswer

PROMPT = "Once upon a time there was a little dog. Once upon a time there was a little"


@pytest.mark.slow
def test_passes_and_rows_are_told_as_they_were_run(served: Running) -> None:
    def now() -> ModelStats:
        return StatsAnswer.model_validate_json(served.client.get("/stats").content).models["chatty"]

    before = now()
    asked = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    timings = served.client.post("/v1/completions", json=asked).json()["timings"]
    after = now()
    risen = {kind: count - before.rows[kind] for kind, count in after.rows.items()}
    assert (after.waiting, after.sequences) == (0, 4)
    assert after.passes - before.passes == timings["prompt_passes"] + timings["decode_passes"]
    assert after.accepted - before.accepted == timings["draft_n_accepted"] > 0
    assert risen["draft"] == timings["draft_n"]
    assert risen["prompt"] >= timings["prompt_n"] - 1
    assert set(risen) == {"prompt", "carry", "forced", "draft"}
