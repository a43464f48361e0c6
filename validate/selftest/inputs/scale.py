"""The sizes of the self-test's models and the numbers of repetitions, at the real and the quick scale."""

from pydantic import Field

from anespec.manifests.schema import Bytes, Count, KVForm, Record, Shapes
from anespec.runtime.backends.worker.sharing import BUDGET
from anespec.validate.selftest.inputs.random_gguf import Sizes, stored_bytes
from anespec.validate.selftest.inputs.real_sizes import ONE_OF_EACH, real_bytes
from anespec.validate.selftest.records import Build, ModelSize

TINY = Sizes(layers=1, d=64, ff=256, heads=2, kv_heads=1, head_dim=32, vocabulary=512)
"""A probe of these sizes ran on the CPU (ane-book Exp. 27)."""

SMALL = Sizes(layers=2, d=1024, ff=4096, heads=8, kv_heads=4, vocabulary=512)
"""Two layers of 15 MB have four states, more than the three that failed on an iPhone (CoreML-LLM)."""

LAYER = Sizes(layers=1, d=3072, ff=8192, heads=24, kv_heads=8, vocabulary=512)
"""One layer of Phi-4-mini: 100 MB in int8."""

FULL = Sizes(layers=32, d=3072, ff=8192, heads=24, kv_heads=8, vocabulary=200_064)
"""All of Phi-4-mini: 3.8 GB in int8."""

PHI_TOPOLOGIES = ((20, 4, 6, 2), (8, 8, 8, 8), (4,) * 8)
"""The topology that was measured resident (ane-book 053-055), and two of smaller shards in case it is not."""


class Scale(Record):
    """The sizes of models and the counts of repetitions.

    `main` is the model that speed and residency are judged by. `kv_form` is the form of K/V in steps that do
    not vary it; None for the target's default. `judges_rows` is whether the main model is large enough to
    measure the cost of rows; a small one fits caches. `silence` is how many seconds a process may print
    nothing while Core ML's compiler makes no progress either. `longest` is how many it may take for one stage
    in any case, such as compiling one shard. An artifact with more weights than `worker_budget` is loaded in
    several processes.
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
        """Return the build of steps that vary one option, with their changes.

        It has one shape, the main model's size and the most slots. So the result does not depend on a range,
        which may take minutes or fail, or on a shard that is too small for a Neural Engine.
        """
        plain = {
            "size": self.main,
            "shapes": Shapes.STATIC,
            "kv_form": self.kv_form,
            "block": self.block,
            "context": max(self.slots),
        }
        return Build.model_validate(plain | changes)

    def bytes_of(self, size: ModelSize) -> Bytes:
        """Return about the bytes of a model's weights."""
        mixer = ONE_OF_EACH.get(size)
        return stored_bytes(self.sizes[size]) if mixer is None else real_bytes(mixer)

    def layers_of(self, size: ModelSize) -> int:
        """Return the number of a model's layers, or of a trained model's layers that are measured."""
        mixer = ONE_OF_EACH.get(size)
        return self.sizes[size].layers if mixer is None else mixer.layers

    def room_for(self, size: ModelSize) -> Bytes:
        """Return the bytes of disk that a model of this size takes as GGUF, as artifact and compiled."""
        return 3 * self.bytes_of(size)


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
"""A few minutes instead of an hour, without a model of Phi-4-mini's size."""


def shortened(scale: Scale, layers: int) -> Scale:
    """Return the scale with fewer layers in its full model, in shards that are not larger than before."""
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
