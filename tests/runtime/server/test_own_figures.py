"""What one key is told of another: nothing. An administrator's key is told all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Running, running, standing_still

import anespec
from anespec.model import Model
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.page.endpoints import ModelStats, StatsAnswer

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

ANN, BOB, BOSS = "ann-0123456789abcdef", "bob-0123456789abcdef", "boss-0123456789abcdef"
KEYS = f"ann:{ANN}\nbob:{BOB}\nboss:{BOSS} admin\n"
ASKED = {
    "prompt": "Once upon a time there was a little dog. Once upon a time",
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
}


def _ring(folder: Path, text: str) -> KeyRing:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return KeyRing.of_file(path)


@pytest.fixture
def shared(chatty: Path, tmp_path: Path) -> Iterator[tuple[Running, KeyRing, Model]]:
    """A daemon of three keys, one of them an administrator's, that was asked nothing yet."""
    ring = _ring(tmp_path, KEYS)
    with anespec.load(chatty, queue=64) as model:
        # As if passes of all widths cost the same, however busy the machine is.
        model._running.take_up(model._running.proven, None)
        with running({"chatty": model}, ring) as found:
            yield found, ring, model


def _ask(found: Running, key: str) -> dict[str, int]:
    answer = found.client.post("/v1/completions", json=ASKED, headers=_bears(key))
    timings: dict[str, int] = answer.json()["timings"]
    return timings


def _bears(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _stats(found: Running, key: str) -> ModelStats:
    answer = found.client.get("/stats", headers=_bears(key))
    return StatsAnswer.model_validate_json(answer.content).models["chatty"]


def _metrics(found: Running, key: str) -> dict[tuple[str, ...], float]:
    text = found.client.get("/metrics", headers=_bears(key)).text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.mark.slow
def test_what_one_key_asks_no_other_is_told(shared: tuple[Running, KeyRing, Model]) -> None:
    found, _, _ = shared

    def seen() -> tuple[ModelStats, dict[tuple[str, ...], float]]:
        """All that Bob is told, but for how often he asked."""
        told = _metrics(found, BOB)
        asked = {name for name in told if {"/metrics", "/stats"} & {*name}}
        return _stats(found, BOB), {name: told[name] for name in told.keys() - asked}

    before = seen()
    assert _ask(found, ANN)["draft_n_accepted"] > 0
    assert seen() == before


@pytest.mark.slow
def test_each_key_is_told_its_own_and_the_administrator_all(shared: tuple[Running, KeyRing, Model]) -> None:
    found, _, _ = shared
    warmed = _stats(found, BOSS)
    timings = {key: _ask(found, key) for key in (ANN, BOB, ANN)}
    for key, asked in ((ANN, 2), (BOB, 1)):
        own, metrics = _stats(found, key), _metrics(found, key)
        assert own.rows["draft"] >= own.accepted > 0
        assert metrics["anespec_output_tokens_total", "chatty"] == 40 * asked
        assert metrics["anespec_http_requests_total", "/v1/completions", "200"] == asked
        assert metrics["anespec_passes_total", "chatty"] == own.passes > 0
        assert not any(name[0] in ("anespec_slots", "anespec_pass_rows") for name in metrics)
    bob, boss = _stats(found, BOB), _stats(found, BOSS)
    assert bob.passes == timings[BOB]["prompt_passes"] + timings[BOB]["decode_passes"]
    assert (bob.rows["draft"], bob.accepted) == (timings[BOB]["draft_n"], timings[BOB]["draft_n_accepted"])
    own = [_stats(found, key) for key in (ANN, BOB)]
    assert boss.passes - warmed.passes == sum(each.passes for each in own)
    assert boss.accepted - warmed.accepted == sum(each.accepted for each in own)
    for kind, count in boss.rows.items():
        assert count - warmed.rows[kind] == sum(each.rows[kind] for each in own)
    whole = _metrics(found, BOSS)
    assert whole["anespec_output_tokens_total", "chatty"] == 120
    assert ("anespec_slots", "chatty", "global", "free") in whole


@pytest.mark.slow
def test_nobody_sees_that_another_is_served_now(shared: tuple[Running, KeyRing, Model]) -> None:
    found, _, model = shared
    body = ASKED | {"max_tokens": 400, "speculate": False, "stream": True}
    with found.client.stream("POST", "/v1/completions", json=body, headers=_bears(ANN)) as answer:
        lines = answer.iter_lines()
        next(lines)
        with standing_still(model):
            seen = {key: _stats(found, key).active for key in (ANN, BOB, BOSS)}
    assert seen == {ANN: 1, BOB: 0, BOSS: 1}


@pytest.mark.slow
def test_what_was_counted_of_a_key_goes_with_it(
    shared: tuple[Running, KeyRing, Model], tmp_path: Path
) -> None:
    found, ring, _ = shared
    _ask(found, BOB)
    ring.take(_ring(tmp_path, f"ann:{ANN}\nbob:{BOB[::-1]}\nboss:{BOSS} admin\n"))
    _ask(found, BOB[::-1])
    assert _metrics(found, BOB[::-1])["anespec_output_tokens_total", "chatty"] == 40
    assert _metrics(found, BOSS)["anespec_output_tokens_total", "chatty"] == 80
    assert len([tenant for tenant in found.daemon.metrics._own if tenant.startswith("bob ")]) == 1


def test_who_is_an_administrator(tmp_path: Path) -> None:
    def admins(text: str) -> dict[str, bool]:
        ring = _ring(tmp_path, text)
        secrets = [line.partition(":")[2].partition(" ")[0] for line in text.splitlines()]
        callers = [ring.caller(f"Bearer {secret}") for secret in secrets]
        assert ring.has_admin is any(caller.is_admin for caller in callers)
        return {caller.name: caller.is_admin for caller in callers}

    assert KeyRing().caller(None).is_admin and KeyRing().has_admin
    assert admins(f"only:{ANN}") == {"only": True}
    assert admins(f"ann:{ANN}\nbob:{BOB}") == {"ann": False, "bob": False}
    assert admins(f"ann:{ANN} admin\nbob:{BOB}") == {"ann": True, "bob": False}
    # What older files hold means what it did.
    assert admins(f"ann:{ANN}:admin\nadmin:{BOB}") == {"ann": False, "admin": False}


@pytest.mark.slow
def test_a_key_pays_for_its_metrics(
    shared: tuple[Running, KeyRing, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, ring, _ = shared
    taken: list[str] = []
    monkeypatch.setattr(found.daemon.shares, "_take", lambda tenant, seconds: taken.append(tenant))
    assert _metrics(found, ANN)
    assert not taken, "a look costs nobody anything while nobody is served"
    monkeypatch.setattr(found.daemon.shares, "_serving", 1)
    assert _metrics(found, ANN)
    tenant = ring.caller(f"Bearer {ANN}").tenant
    assert taken
    assert all(name.startswith(tenant) and name != tenant for name in taken), "looks are counted apart"
