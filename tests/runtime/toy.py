"""A toy verifier that models KV state faithfully, and the sequential computation it must agree with.

Every layer's state holds one tag per slot. A row's tag in the first layer is made of its token and
position; in every later layer, and in the logits, of the tags that the row sees one layer below, in
the order of their slots. So a wrong slot, a stale slot or a wrong view changes the logits, at once or
when a later row looks, just as in a transformer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from whole_passes import WholePasses

from anespec.manifests.graph_choices import range_widths
from anespec.manifests.schema import aligned
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowKind, RowSlots, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import Sampler, SamplingParameters
from anespec.runtime.sampling.row_logits import row_logits

STYLES = 512
GLOBAL = KVCacheGroupShape("global", 64, None)


def toy_shape(
    *,
    block: int = 4,
    t_max: int | None = None,
    context: int = 60,
    sequences: int = 1,
    vocabulary: int = 12,
    pools: Sequence[KVCacheGroupShape] = (GLOBAL,),
    partial_spans: bool = False,
) -> VerifierShape:
    """A shape small enough for property tests."""
    widths = range_widths(block, 1, t_max or 4 * block)
    return VerifierShape(
        block, widths, context, sequences, vocabulary, tuple(pools), partial_spans=partial_spans
    )


def side_by_side(shape: VerifierShape) -> VerifierShape:
    """The same where passes write rows side by side: spare slots behind those of tokens, and rings that hold
    what the pads of the widest pass write."""
    spare = aligned(shape.t_max - 1)

    def pool(one: KVCacheGroupShape) -> KVCacheGroupShape:
        if one.is_chunk:
            return one
        rows = 0 if one.window is None else aligned(one.window + shape.t_max)
        return replace(one, region_slots=max(one.region_slots, rows) + spare, spare_slots=spare)

    return replace(shape, pools=tuple(pool(one) for one in shape.pools), side_by_side=True)


def everything(shape: VerifierShape) -> Proven:
    """All that can be proven of a verifier."""
    return Proven(speculate=True, widths=shape.widths, region_independent=True, spans=shape.spans)


@dataclass(frozen=True)
class ToyModel:
    """From what a row sees to its logits.

    With `repetitive` the favoured token follows from the row's own token in all but one of
    `repetitive` cases, so that drafts come true, while every tag still tells in the smaller logits.
    """

    vocabulary: int
    repetitive: int = 0
    table: NDArray[np.float16] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        noise = np.random.default_rng(7).normal(size=(STYLES, self.vocabulary))
        object.__setattr__(self, "table", noise.astype(np.float16))

    def logits(self, token: int, tags: Sequence[int]) -> NDArray[np.float16]:
        """The row of logits of a row with this token that sees these tags in the last layer."""
        digest = hash(tuple(tags))
        row = self.table[digest % STYLES].copy()
        if self.repetitive and digest % self.repetitive:
            row[(token * 3 + 1) % self.vocabulary] += np.float16(6)
        return row


def tag_of(token: int, position: int, tags: Sequence[int]) -> int:
    return hash((token, position, *tags))


class ToyVerifier(WholePasses):
    """Implements anespec.runtime.passes.Verifier over tags; one layer per pool and one more."""

    def __init__(self, shape: VerifierShape, repetitive: int = 0) -> None:
        self._shape = shape
        self.model = ToyModel(shape.vocabulary, repetitive)
        self.layers = [i % len(shape.pools) for i in range(len(shape.pools) + 1)]
        self.state = [[0] * (shape.pools[pool].region_slots * shape.sequences) for pool in self.layers]
        self.carried = {
            layer: [0] * shape.sequences
            for layer, pool in enumerate(self.layers)
            if shape.pools[pool].is_chunk
        }
        self.standing = {0: 0}
        self.folds = 0
        self.origins: dict[int, tuple[int, int]] = {}
        self.rubbish = 0
        self.passes_run: list[PassPlan] = []

    @property
    def shape(self) -> VerifierShape:
        return self._shape

    def seen(self, layer: int, lane: int, plan: PassPlan) -> list[int]:
        """The tags in `layer` that the row of `lane` sees, in the order of their slots."""
        place = plan.rows[lane].slots[self.layers[layer]]
        carried = self.carried.get(layer)
        if carried is not None and place.home is not None:
            size = self._shape.chunk or 0
            region, position = place.home // size, plan.rows[lane].position
            stands = self.standing[carried[region]]
            assert stands == position - position % size, "the carried state stands elsewhere"
            return [carried[region], *(self.state[layer][slot] for slot in place.visible[0])]
        return [self.state[layer][slot] for slot in sorted(slot for span in place.visible for slot in span)]

    def held(self, pool: int, slot: int) -> tuple[int, int] | None:
        """Position and token of the row whose K/V a slot holds."""
        return self.origins.get(self.state[self.layers.index(pool)][slot])

    def salt(self, lane: int, plan: PassPlan) -> int:
        """What a row's bits wrongly depend on besides what it sees: nothing, unless overridden."""
        return 0

    def forward(self, plan: PassPlan) -> NDArray[np.float16] | None:
        self.check(plan)
        self.passes_run.append(plan)
        for layer, pool in enumerate(self.layers):
            tags = [
                tag_of(row.token, row.position, self.seen(layer - 1, lane, plan) if layer else ())
                for lane, row in enumerate(plan.rows)
            ]
            for lane, (row, tag) in enumerate(zip(plan.rows, tags, strict=True)):
                if (slot := row.slots[pool].home) is not None:
                    self.state[layer][slot] = tag + self.salt(lane, plan)
                    self.origins[self.state[layer][slot]] = (row.position, row.token)
                elif self._shape.side_by_side and not self._shape.pools[pool].is_chunk:
                    self.rubbish -= 1
                    self.state[layer][(plan.rows[0].slots[pool].home or 0) + lane] = self.rubbish
        if not plan.wanted:
            return None
        last = len(self.layers) - 1
        return np.stack(
            [self.model.logits(row.token, self.seen(last, lane, plan)) for lane, row in enumerate(plan.rows)]
        )

    def check(self, plan: PassPlan) -> None:
        """The promises of passes.py and DESIGN.md section 6."""
        shape = self._shape
        assert 1 <= len(plan.rows) == plan.width <= shape.t_max
        assert plan.width in shape.widths
        assert all(0 <= row.position < shape.context for row in plan.rows)
        for pool, pool_shape in enumerate(shape.pools):
            places = [row.slots[pool] for row in plan.rows]
            written = [place.home for place in places if place.home is not None]
            assert plan.spans[pool] in shape.span_steps(pool)
            assert all(span.stop <= plan.spans[pool] for place in places for span in place.visible)
            assert len(set(written)) == len(written), "two rows write the same slot"
            if shape.side_by_side:
                assert [place.home for place in places[: len(written)]] == written
                assert written == [*range(written[0], written[0] + len(written))]
                last = written[0] + (len(written) if pool_shape.is_chunk else plan.width) - 1
                assert last < plan.spans[pool]
                assert self.region_of(pool_shape, last) == self.region_of(pool_shape, written[0])
            for row, place in zip(plan.rows, places, strict=True):
                self.check_place(row.kind, place, pool_shape)

    def check_place(self, kind: RowKind, place: RowSlots, pool: KVCacheGroupShape) -> None:
        visible = [slot for span in place.visible for slot in span]
        assert visible, "a row must attend to something"
        assert len(set(visible)) == len(visible)
        if kind is RowKind.PAD:
            assert place.home is None
            assert len(visible) == 1
        else:
            assert place.home is not None
            assert place.home in visible
            region = self.region_of(pool, place.home)
            assert all(self.region_of(pool, slot) == region for slot in visible), "another sequence's slot"
            assert pool.window is None or len(visible) <= pool.window

    def region_of(self, pool: KVCacheGroupShape, slot: int) -> int:
        """Whose a slot is: regions take turns by pages of 256 where passes look at the first slots only."""
        paged = not self._shape.side_by_side and (
            self._shape.partial_spans and self._shape.sequences in (2, 4, 8) and not pool.region_slots % 256
        )
        return slot // 256 % self._shape.sequences if paged else slot // pool.region_slots

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        for layer, its_pool in enumerate(self.layers):
            if its_pool == pool:
                self.state[layer][target : target + count] = self.state[layer][source : source + count]

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.object_]]:
        """Tags are no fp16 numbers, so they travel as objects of the same shape."""
        layers = [self.state[layer] for layer, its_pool in enumerate(self.layers) if its_pool == pool]
        return [
            np.array(tags[first : first + count], dtype=object).reshape(1, 1, count, 1) for tags in layers
        ]

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.object_]]) -> None:
        layers = [self.state[layer] for layer, its_pool in enumerate(self.layers) if its_pool == pool]
        for tags, new in zip(layers, values, strict=True):
            tags[first : first + new.shape[2]] = new.ravel().tolist()

    def fold(self, region: int) -> None:
        """A carried tag becomes one of itself and of the chunk's tags."""
        self.folds += 1
        size = self._shape.chunk or 0
        for layer, carried in self.carried.items():
            tags = self.state[layer][region * size : (region + 1) * size]
            stands = self.standing[carried[region]]
            positions = [self.origins[tag][0] for tag in tags]
            assert positions == [*range(stands, stands + size)], "a chunk is folded that is not whole"
            carried[region] = folded_tag(carried[region], tags)
            self.standing[carried[region]] = stands + size

    def stands(self, region: int) -> set[int]:
        """The positions at which the region's carried tags stand."""
        return {self.standing[carried[region]] for carried in self.carried.values()}

    def clear_carried(self, region: int) -> None:
        for carried in self.carried.values():
            carried[region] = 0

    def copy_carried(self, source: int, target: int) -> None:
        self.import_carried(target, self.export_carried(source))

    def export_carried(self, region: int) -> Sequence[NDArray[np.object_]]:
        return [
            np.array([carried[region]], dtype=object).reshape(1, 1, 1, 1) for carried in self.carried.values()
        ]

    def import_carried(self, region: int, values: Sequence[NDArray[np.object_]]) -> None:
        for carried, new in zip(self.carried.values(), values, strict=True):
            carried[region] = new.item()

    def close(self) -> None:
        """Nothing to release."""


def folded_tag(carried: int, tags: Sequence[int]) -> int:
    """What a recurrent layer carries on from a chunk with these tags."""
    return hash((carried, "folded", *tags))


def drain(engine: Engine) -> dict[int, list[Event]]:
    """Step until nothing is left; the events by sequence."""
    events: dict[int, list[Event]] = {}
    while engine.busy:
        for event in engine.step():
            events.setdefault(event.sequence, []).append(event)
    return events


def ids(events: Sequence[Event]) -> list[int]:
    """The tokens of some events."""
    return [token.id for event in events for token in event.tokens]


def prompt_rows(verifier: ToyVerifier) -> int:
    """How many prompt rows were run."""
    return sum(row.kind is RowKind.PROMPT for plan in verifier.passes_run for row in plan.rows)


def sequential_text(
    shape: VerifierShape,
    repetitive: int,
    prompt: Sequence[int],
    max_tokens: int | None,
    sampling: SamplingParameters,
    end_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """The text by definition: token after token, no engine, no blocks, no slots but their order."""
    model = ToyModel(shape.vocabulary, repetitive)
    sampler = Sampler(sampling, prompt, shape.vocabulary)
    pools = [shape.pools[i % len(shape.pools)] for i in range(len(shape.pools) + 1)]
    layers: list[list[int]] = [[] for _ in pools]

    def seen(layer: int, position: int) -> list[int]:
        pool = pools[layer]
        if pool.is_chunk:
            carried, start = 0, position - position % pool.region_slots
            for chunk in range(0, start, pool.region_slots):
                carried = folded_tag(carried, layers[layer][chunk : chunk + pool.region_slots])
            return [carried, *layers[layer][start : position + 1]]
        first = 0 if pool.window is None else max(0, position - pool.window + 1)
        return [
            layers[layer][p] for p in sorted(range(first, position + 1), key=lambda p: p % pool.token_slots)
        ]

    tokens = list(prompt)
    limit = min(shape.context, len(prompt) + (max_tokens or shape.context))
    position = 0
    while len(tokens) < limit:
        while position < len(tokens):
            for layer in range(len(pools)):
                below = seen(layer - 1, position) if layer else ()
                layers[layer].append(tag_of(tokens[position], position, below))
            position += 1
        row = row_logits(model.logits(tokens[-1], seen(len(pools) - 1, position - 1)), sampler.need)
        forced = sampler.forced()
        token = forced[0] if forced else sampler.sample(row, len(tokens)).token
        if token in end_ids:
            break
        sampler.accept(token)
        tokens.append(token)
        if sampler.finished:
            break
    return tokens[len(prompt) :]
