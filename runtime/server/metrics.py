"""Count requests for Prometheus.

Names follow its conventions: base units, `_total` for counters. A key sees its own requests, an
administrator's key sees all. Both use the same names.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anespec.runtime.engine.completion import Summary
from anespec.runtime.engine.requests import Principal
from anespec.runtime.engine.statistics import ServiceLoad
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.models import Models

SECONDS_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)


class Metrics:
    """The counters of a daemon and of each of its keys, and the loads of its models."""

    def __init__(self, models: Models, keys: KeyRing) -> None:
        self._models = models
        self._keys = keys
        self._all = _Counters()
        self._own: dict[str, _Counters] = {}

    def answered(self, endpoint: str, status: int, tenant: str) -> None:
        """Count a response to a tenant."""
        for counters in (self._all, *self._of(tenant)):
            counters.answered(endpoint, status)

    def finished(self, model: str, summary: Summary, tenant: str) -> None:
        """Count a finished answer to a tenant."""
        for counters in (self._all, *self._of(tenant)):
            counters.finished(model, summary)

    def text(self, caller: Principal) -> bytes:
        """Return the metrics that the caller may see, in Prometheus' format."""
        loads = CollectorRegistry()
        loads.register(_Loads(self._models, caller))
        counters = (self._all,) if caller.is_admin else self._of(caller.tenant)
        return b"".join(generate_latest(each) for each in (loads, *(each.registry for each in counters)))

    def _of(self, tenant: str) -> tuple["_Counters", ...]:
        """Return the counters to update for a tenant. Counters of removed keys are dropped, so their number
        is bounded."""
        tenants = self._keys.tenants
        if tenant not in tenants:
            return ()
        if tenant not in self._own:
            self._own = {known: self._own[known] for known in self._own.keys() & tenants}
            self._own[tenant] = _Counters()
        return (self._own[tenant],)


class _Counters:
    """The counters of requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of_model = ("model",)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"anespec_{name}", what, (*of_model, *labels), registry=self.registry)

        def histogram(name: str, what: str) -> Histogram:
            return Histogram(
                f"anespec_{name}", what, of_model, registry=self.registry, buckets=SECONDS_BUCKETS
            )

        self._requests = Counter(
            "anespec_http_requests",
            "Requests answered, by endpoint and status.",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._reused_tokens = counter("reused_tokens", "Tokens of prompts that needed no prefill.")
        self._output_tokens = counter("output_tokens", "Tokens of answers.")
        self._forced_tokens = counter("forced_tokens", "Tokens of answers that a grammar left no choice for.")
        self._passes = counter("sequence_passes", "Passes, counted once for every sequence in them.", "kind")
        self._proposed = counter("drafted_tokens", "Draft rows that were run.", "source")
        self._accepted = counter("accepted_tokens", "Draft rows that were accepted.", "source")
        self._finished = counter("finished", "Finished answers, by reason.", "reason")
        self._queue_seconds = histogram("queue_seconds", "From the request to the first pass.")
        self._first_seconds = histogram("first_token_seconds", "From the request to the first token.")
        self._token_seconds = histogram("token_seconds", "Between tokens, the mean of an answer.")

    def answered(self, endpoint: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(endpoint, str(status)).inc()

    def finished(self, model: str, summary: Summary) -> None:
        """Count a finished answer."""
        counts = summary.statistics
        self._prompt_tokens.labels(model).inc(counts.prompt_tokens)
        self._reused_tokens.labels(model).inc(counts.reused_tokens)
        self._output_tokens.labels(model).inc(counts.output_tokens)
        self._forced_tokens.labels(model).inc(counts.forced_tokens)
        self._passes.labels(model, "prompt").inc(counts.prompt_passes)
        self._passes.labels(model, "decode").inc(counts.decode_passes)
        for source in counts.by_source:
            self._proposed.labels(model, source.source).inc(source.proposed)
            self._accepted.labels(model, source.source).inc(source.accepted)
        self._finished.labels(model, summary.finish.value).inc()
        self._queue_seconds.labels(model).observe(counts.queue_seconds)
        if counts.output_tokens:
            self._first_seconds.labels(model).observe(counts.queue_seconds + counts.prefill_seconds)
        if counts.output_tokens > 1:
            self._token_seconds.labels(model).observe(counts.decode_seconds / (counts.output_tokens - 1))


class _Loads(Collector):
    """A collector of the current loads of models, and their counts. Values of all tenants are for
    administrators."""

    def __init__(self, models: Models, caller: Principal) -> None:
        self._models = models
        self._caller = caller

    def collect(self) -> Iterator[Metric]:
        loads = {name: model.load_of(self._caller) for name, model in self._models.loaded.items()}
        of_model = ("model",)

        def gauge(name: str, what: str, value: Callable[[ServiceLoad], float]) -> Metric:
            family = GaugeMetricFamily(f"anespec_{name}", what, labels=of_model)
            for model, load in loads.items():
                family.add_metric((model,), value(load))
            return family

        yield gauge("waiting_requests", "Requests that wait for others to end.", lambda load: load.waiting)
        yield gauge("active_sequences", "Sequences that run.", lambda load: load.active)
        yield gauge("sequences", "Sequences that can run.", lambda load: load.sequences)
        passes = CounterMetricFamily("anespec_passes", "Passes that were run.", labels=of_model)
        rows = CounterMetricFamily("anespec_rows", "Rows that were run, by kind.", labels=(*of_model, "kind"))
        for model, load in loads.items():
            passes.add_metric((model,), load.passes)
            for count in load.rows:
                rows.add_metric((model, count.kind.value), count.count)
        yield from (passes, rows)
        if not self._caller.is_admin:
            return
        yield gauge("pass_rows", "Rows of the last pass that were not pads.", lambda load: load.last_rows)
        yield gauge("pass_width", "Rows of the last pass, pads included.", lambda load: load.last_width)
        losses = CounterMetricFamily("anespec_states_lost", "How often all K/V were lost.", labels=of_model)
        slots = GaugeMetricFamily(
            "anespec_slots",
            "Slots of the state: used by running sequences, kept for later prompts, or free.",
            labels=(*of_model, "pool", "state"),
        )
        for model, load in loads.items():
            losses.add_metric((model,), load.states_lost)
            for pool in load.pools:
                slots.add_metric((model, pool.pool, "running"), pool.running)
                slots.add_metric((model, pool.pool, "kept"), pool.kept)
                slots.add_metric((model, pool.pool, "free"), pool.slots - pool.running - pool.kept)
        yield from (losses, slots)
