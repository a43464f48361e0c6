"""The tools of a trial, in its own process: make models when first needed, compile, load and time shards."""

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from gguf import GGMLQuantizationType

from anespec.gguf.container import GGUFFile
from anespec.manifests.residency import RuleFinding, ShardComputePlan
from anespec.manifests.schema import HeadShard, KVForm, Shard, Target
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessVerdict, RunEnvironment
from anespec.runtime.passes import Verifier
from anespec.system.errors import AnespecError, RequestError, UnsupportedModelError
from anespec.validate.exactness.gate import exactness_gate
from anespec.validate.selftest.devices.device import Device, LoadedModel, NotHereError, Tensor, Units
from anespec.validate.selftest.devices.portable import PortableModel
from anespec.validate.selftest.devices.session import ShardSession, compared
from anespec.validate.selftest.devices.worker_session import first_uses_in_worker, time_in_worker
from anespec.validate.selftest.inputs.random_gguf import write
from anespec.validate.selftest.inputs.real_sizes import FEW_TOKENS, ONE_OF_EACH, write_real
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import Pass, passes
from anespec.validate.selftest.inputs.trained import beginning_of, layers_of
from anespec.validate.selftest.records import (
    Build,
    Comparison,
    FirstUse,
    Measured,
    ModelSize,
    PassTime,
    failure_of,
)

Say = Callable[[str], None]
Keep = Callable[[Measured], None]
COMPARED_PASSES = 6
MIN_TIMED_PASSES = 4


@dataclass(frozen=True)
class OpenedSession:
    """A session with the seconds that compiling and loading took."""

    session: ShardSession
    compile_seconds: float
    load_seconds: float


class Bench:
    """The device, the scale and the folder of a self-test.

    `say` is called with each next stage before it begins. `keep` is called with the results on the device
    before the CPU alone is tried; they count even if that ends the process.
    """

    def __init__(
        self, device: Device, scale: Scale, folder: Path, say: Say, keep: Keep = lambda _: None
    ) -> None:
        self.device = device
        self.scale = scale
        self.folder = folder
        self.say = self._announce
        self._say = say
        self._keep = keep
        self._stage = "starting"
        self.facts = device.facts()

    def _announce(self, stage: str) -> None:
        self._stage = stage
        self._say(stage)

    def artifact(self, build: Build) -> Artifact:
        """Return the artifact; convert it if it does not exist yet.

        Raises:
            NotHereError: such an artifact cannot be made for this device's target.
        """
        path = self.folder / "artifacts" / f"{build.name}.anespec"
        if path.is_dir():
            return Artifact(path)
        # Each trial is a process; only one that converts imports what coremltools needs for that.
        import anespec.convert.worker_imports  # noqa: F401
        from anespec.convert.options import ConvertOptions
        from anespec.convert.pipeline import convert
        from anespec.convert.planning.plan import ConversionPlan
        from anespec.convert.source.model import SourceModel

        gguf = self._gguf(build.size)
        self.say("converting")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with GGUFFile(gguf) as file:
                plan = ConversionPlan(SourceModel(file), ConvertOptions(**self._options(build)))
                convert(plan, path, replace=True, jobs=None if build.size == "full" else 1)
        except (RequestError, UnsupportedModelError) as error:
            raise NotHereError(str(error)) from None
        return Artifact(path)

    def _options(self, build: Build) -> dict[str, Any]:
        options: dict[str, Any] = {
            "target": self.facts.target,
            "weights": build.weights,
            "block": build.block,
            "context": build.context,
            "sequences": build.sequences,
            "preset": "none",
        }
        options["topology"] = build.topology or (self._layers(build.size),)
        return options | build.given

    def _layers(self, size: ModelSize) -> int:
        if size not in self.scale.files:
            return self.scale.layers_of(size)
        with GGUFFile(self._gguf(size)) as file:
            return layers_of(file)

    def _gguf(self, size: ModelSize) -> Path:
        if (trained := self.scale.files.get(size)) is not None:
            self.say("reading the trained model")
            layers = self.scale.sizes[size].layers
            return beginning_of(Path(trained), size, layers, self.folder / "models", self.facts.target)
        path = self.folder / "models" / f"{size}.gguf"
        if not path.is_file():
            self.say("writing a random model")
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            if (mixer := ONE_OF_EACH.get(size)) is not None:
                write_real(partial, mixer, vocabulary=FEW_TOKENS)
            else:
                write(partial, self.scale.sizes[size], GGMLQuantizationType.Q8_0)
            partial.replace(path)
        return path

    def compiled(self, build: Build, shard: Shard, *, fresh: bool = False) -> tuple[Path, float]:
        """Return the compiled shard and the seconds of compiling it; 0 if it was compiled before."""
        folder = self.folder / "compiled" / build.name
        if fresh and folder.exists():
            shutil.rmtree(folder)
        if found := sorted(folder.glob(f"{Path(shard.path).stem}*.mlmodelc")):
            return found[0], 0.0
        partial = folder.with_name(f"{folder.name}.partial")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        package = self.artifact(build).shard_path(shard)
        self.say(f"compiling {Path(shard.path).stem}")
        began = time.perf_counter()
        made = self.device.compile(package, partial)
        seconds = time.perf_counter() - began
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f"{Path(shard.path).stem}.mlmodelc"
        made.replace(place)
        shutil.rmtree(partial)
        return place, seconds

    def open(
        self, build: Build, units: Units, *, shard: int = 0, rows: int | None = None, fresh: bool = False
    ) -> OpenedSession:
        """Load a layer shard on the device: its function for `rows` rows, or its only or default function."""
        artifact = self.artifact(build)
        manifest = artifact.manifest
        layers = manifest.layer_shards[shard]
        compiled, compile_seconds = self.compiled(build, layers, fresh=fresh)
        self.say(f"loading {Path(layers.path).stem} on {units}")
        began = time.perf_counter()
        model: LoadedModel = self.device.load(
            compiled, units, self._function(artifact, layers, rows), manifest.reshape_hint
        )
        load_seconds = time.perf_counter() - began
        return OpenedSession(ShardSession(manifest, layers, model), compile_seconds, load_seconds)

    def open_head(self, build: Build, head: HeadShard, units: Units) -> tuple[LoadedModel, float]:
        """Load a head shard on the device; return it with the seconds that loading took."""
        artifact = self.artifact(build)
        compiled, _ = self.compiled(build, head)
        self.say(f"loading {Path(head.path).stem} on {units}")
        began = time.perf_counter()
        model = self.device.load(
            compiled, units, self._function(artifact, head, None), artifact.manifest.reshape_hint
        )
        return model, time.perf_counter() - began

    def widths(self, build: Build) -> tuple[int, ...]:
        """Return the numbers of rows that passes of the artifact may have."""
        return self.artifact(build).manifest.widths

    def _function(self, artifact: Artifact, shard: Shard, rows: int | None) -> str | None:
        """Return the name of the function for that many rows; None if the package has only one."""
        manifest = artifact.manifest
        function = manifest.function_of(shard, rows or manifest.block)
        return None if function is None else manifest.loaded_name(shard, function)

    def truth(self, build: Build, steps: list[Pass], *, rows: int | None = None) -> list[Tensor]:
        """Return the torch table's outputs of passes through the first shard."""
        from anespec.runtime.backends.portable.package_server import PackagePredictor

        artifact = self.artifact(build)
        shard = artifact.manifest.layer_shards[0]
        self.say("running it with torch")
        predictor = PackagePredictor(
            artifact.shard_path(shard), self._function(artifact, shard, rows), "torch", self.facts.processors
        )
        with closing(ShardSession(artifact.manifest, shard, PortableModel(predictor))) as session:
            return session.outputs(steps)

    def against_torch(
        self, name: str, build: Build, session: ShardSession, *, rows: int | None = None
    ) -> Comparison:
        """Compare the session's outputs with the torch table's, starting from states of zeros."""
        width = rows or build.block
        steps = list(passes(session.manifest, width, COMPARED_PASSES, seed=1))
        session.reset()
        self.say("predicting")
        found = session.outputs(steps)
        return compared(name, "torch", steps, self.truth(build, steps, rows=rows), found)

    def exactness(self, verifier: Verifier, here: RunEnvironment) -> ExactnessVerdict:
        """Return the quick exactness gate's verdict on an open artifact."""

        def progress(note: str, share: float | None = None, /) -> None:
            self.say(f"measuring: {note}")

        return exactness_gate(verifier, here, form="quick", progress=progress)

    def device_time(self, build: Build, session: ShardSession, rows: int) -> PassTime:
        """Return the time of passes of `rows` rows on the device; measured in the worker if it is built."""
        return self._timed(build, session, Units.DEVICE, rows, self.scale.timed_passes)

    def first_uses(self, build: Build) -> tuple[FirstUse, ...]:
        """Return what this process waits for until the first pass of each width is done, narrow ones first.

        Nothing may have loaded the build before. A range is loaded once for all widths. The worker measures
        if it is built, since it will run the model.
        """
        found: list[FirstUse] = []
        artifact = self.artifact(build)
        manifest = artifact.manifest
        if (program := self.device.built_worker()) is not None:
            shard = manifest.layer_shards[0]
            compiled, _ = self.compiled(build, shard)
            self.say("the first passes in the worker")
            try:
                return first_uses_in_worker(program, manifest, shard, compiled, self.scale.longest)
            except AnespecError:
                # The worker has a step of its own, which reports its problems.
                pass
        opened: dict[str | None, OpenedSession] = {}
        try:
            for rows in manifest.widths:
                function = self._function(artifact, manifest.layer_shards[0], rows)
                known = function in opened
                if not known:
                    opened[function] = self.open(build, Units.DEVICE, rows=rows)
                session = opened[function].session
                (step,) = passes(manifest, rows, 1, seed=8)
                self.say(f"the first pass of {rows} rows")
                found.append(
                    FirstUse(
                        rows=rows,
                        load_seconds=0.0 if known else opened[function].load_seconds,
                        first_seconds=session.run(step)[1],
                    )
                )
        finally:
            for each in opened.values():
                each.session.close()
        return tuple(found)

    def with_cpu_times(self, build: Build, measured: Measured) -> Measured:
        """Return the results together with the times of the same passes on the CPU alone."""

        def tried(found: Measured) -> Measured:
            widths = dict.fromkeys(time.rows for time in found.times)
            times = [self.cpu_time(build, rows) for rows in widths]
            return found.model_copy(update={"times": (*found.times, *times)})

        return self.with_baseline(measured, tried)

    def with_baseline(self, measured: Measured, on_cpu: Callable[[Measured], Measured]) -> Measured:
        """Return the results with what `on_cpu` adds on the CPU alone, or with the reason why that failed."""
        self._keep(measured)
        try:
            return on_cpu(measured)
        except Exception as error:
            # Core ML raises RuntimeError, ValueError and plain Exception.
            return measured.model_copy(update={"baseline": failure_of(error, self._stage)})

    def cpu_time(self, build: Build, rows: int) -> PassTime:
        """Return the time of passes of `rows` rows on the CPU alone, in a K/V form that CPUs can run."""
        plain = on_cpu(build, self.facts.target)
        with closing(self.open(plain, Units.CPU, rows=rows).session) as session:
            return self._timed(
                plain, session, Units.CPU, rows, max(MIN_TIMED_PASSES, self.scale.timed_passes // 3)
            )

    def _timed(self, build: Build, session: ShardSession, units: Units, rows: int, count: int) -> PassTime:
        steps = list(passes(session.manifest, rows, count))
        program = self.device.built_worker()
        if program is not None:
            self.say(f"timing passes of {rows} rows on {units} in the worker")
            try:
                compiled, _ = self.compiled(build, session.shard)
                return time_in_worker(
                    program, session.manifest, session.shard, compiled, units, self.scale.longest, steps
                )
            except AnespecError:
                # The worker has a step of its own, which reports its problems.
                pass
        self.say(f"timing passes of {rows} rows on {units}")
        return session.time(steps, units)

    def predicted(self, build: Build) -> tuple[ShardComputePlan, tuple[RuleFinding, ...]]:
        """Return the rules' plan of the first shard and their findings in it."""
        from anespec.validate.residency.prediction import predict
        from anespec.validate.residency.shard_view import view_artifact

        artifact = self.artifact(build)
        made = predict(view_artifact(artifact), artifact.fingerprint, artifact.manifest.block)
        first = artifact.manifest.layer_shards[0].path
        plan = next(shard for shard in made.plan.shards if shard.shard == first)
        return plan, tuple(found for found in made.findings if found.shard == first)

    def planned(self, build: Build) -> ShardComputePlan:
        """Return the device's plan of the first shard; raises NotHereError."""
        artifact = self.artifact(build)
        shard = artifact.manifest.layer_shards[0]
        compiled, _ = self.compiled(build, shard)
        self.say("asking for the plan")
        return self.device.plan(artifact, shard, compiled)


def memory_now() -> int:
    """Return the bytes of memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


def form_on_cpu(target: Target) -> KVForm | None:
    """Return the form of K/V for the CPU alone on devices of this target; None for the device's own form.

    `slice_update` and several states were reported broken on CPUs of macOS 26 (Anemll#39, CoreML-LLM; B).
    Without Core ML torch stands for the CPU and runs every form.
    """
    return None if target is Target.CPU else KVForm.BLENDED


def on_cpu(build: Build, target: Target) -> Build:
    """Return the same build for the CPU alone."""
    return build.model_copy(update={"kv_form": form_on_cpu(target) or build.kv_form})
