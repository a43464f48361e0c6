"""The sizes of the self-test's models, and the numbers of repetitions: the real scale and a quick one."""

from pydantic import Field

from anespec.manifests.schema import Bytes, Count, KVForm, Record, Shapes
from anespec.runtime.backends.worker.sharing import BUDGET
from anespec.validate.selftest.inputs.random_gguf import Sizes, stored_bytes
from anespec.validate.selftest.records import Build, ModelSize

TINY = Sizes(layers=1, d=64, ff=256, heads=2, kv_heads=1, head_dim=32, vocabulary=512)
"""A probe of these sizes fell to the CPU (ane-book Exp. 27)."""

SMALL = Sizes(layers=2, d=1024, ff=4096, heads=8, kv_heads=4, vocabulary=512)
"""Two layers of 15 MB have four states, more than the three that failed on an iPhone (CoreML-LLM)."""

LAYER = Sizes(layers=1, d=3072, ff=8192, heads=24, kv_heads=8, vocabulary=512)
"""One layer of Phi-4-mini: 100 MB in int8."""

FULL = Sizes(layers=32, d=3072, ff=8192, heads=24, kv_heads=8, vocabulary=200_064)
"""All of Phi-4-mini: 3.8 GB in int8."""

PHI_TOPOLOGIES = ((20, 4, 6, 2), (8, 8, 8, 8), (4,) * 8)
"""The one that was measured resident (ane-book 053-055), and two of smaller shards for where it is not."""


class Scale(Record):
    """Sizes and counts. `main` is the model that speed and residency are judged by, `kv_form` how it keeps
    K/V where a step does not ask about that; None for the target's default.

    `judges_rows` is whether the main model is large enough to say what rows cost: a small one lies in caches.
    `silence` is how many seconds a process may say nothing while Core ML's compiler makes no progress either,
    and `longest` how many it may take for one thing, such as compiling one shard, in any case. A whole
    artifact of more weights than `worker_budget` is loaded in several processes.
    """

    sizes: dict[ModelSize, Sizes]
    files: dict[ModelSize, str] = Field(default={}, description="GGUFs of trained models")
    main: ModelSize
    kv_form: KVForm | None = None
    block: Count = 4
    prefill_block: Count = 64
    slots: tuple[Count, ...] = (512, 1024, 2048)
    rows: tuple[Count, ...] = (1, 2, 3, 4, 8, 16, 32, 64)
    topologies: tuple[tuple[Count, ...], ...] = PHI_TOPOLOGIES
    judges_rows: bool = True
    timed_passes: Count = 30
    repeats: Count = 100
    soak: Count = 500
    silence: float = Field(default=900.0, gt=0)
    longest: float = Field(default=4 * 3600.0, gt=0)
    worker_budget: Bytes = BUDGET

    def isolated(self, **changes: object) -> Build:
        """The artifact that steps of one question take, with what they ask about changed.

        It has one shape, the main model's size and the most slots: neither a range, which may take minutes or
        fail, nor a shard that is too small for a Neural Engine decides what the step finds.
        """
        plain = {
            "size": self.main,
            "shapes": Shapes.STATIC,
            "kv_form": self.kv_form,
            "block": self.block,
            "context": max(self.slots),
        }
        return Build.model_validate(plain | changes)

    def room_for(self, size: ModelSize) -> Bytes:
        """Bytes of disk that a model of this size takes: the GGUF, the artifact and what is compiled."""
        return 3 * stored_bytes(self.sizes[size])


FULL_SCALE = Scale(sizes={"tiny": TINY, "small": SMALL, "layer": LAYER, "full": FULL}, main="layer")

QUICK_SCALE = Scale(
    sizes={"tiny": TINY, "small": SMALL},
    main="small",
    slots=(512, 2048),
    rows=(1, 4, 16, 64),
    topologies=(),
    judges_rows=False,
    timed_passes=10,
    repeats=20,
    soak=50,
)
"""A few minutes instead of an hour: nothing of Phi-4-mini's size."""


def shortened(scale: Scale, layers: int) -> Scale:
    """The scale with fewer layers in its full model, in shards of which none is larger than before."""
    whole = scale.sizes["full"]
    sizes = dict(scale.sizes) | {"full": Sizes(**{**vars(whole), "layers": layers})}
    topologies = dict.fromkeys(_cut(topology, layers) for topology in scale.topologies)
    return scale.model_copy(update={"sizes": sizes, "topologies": tuple(topologies)})


def _cut(topology: tuple[int, ...], layers: int) -> tuple[int, ...]:
    counts: list[int] = []
    for count in topology:
        if (left := layers - sum(counts)) <= 0:
            break
        counts.append(min(count, left))
    left = layers - sum(counts)
    return (*counts, *([left] if left else []))
