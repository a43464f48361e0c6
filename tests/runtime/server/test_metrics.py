"""What `/metrics` says of a model's passes, rows and slots."""

from prometheus_client.parser import text_string_to_metric_families
from serving import Running

from anespec.model import Model


def samples(served: Running) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(served.client.get("/metrics").text)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_passes_rows_and_slots_are_told(served: Running, model: Model) -> None:
    before = samples(served)
    served.client.post("/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 40})
    after = samples(served)
    passes = ("anespec_passes_total", "chatty")
    assert after[passes] > before[passes]
    assert all(after["anespec_rows_total", kind, "chatty"] for kind in ("prompt", "carry", "draft"))
    states = ("running", "kept", "free")
    slots = {state: after["anespec_slots", "chatty", "global", state] for state in states}
    assert sum(slots.values()) == model.context * model.sequences
    assert slots["kept"] > 0
    assert after["anespec_waiting_requests", "chatty"] == 0
    assert after["anespec_pass_width", "chatty"] >= after["anespec_pass_rows", "chatty"] > 0
