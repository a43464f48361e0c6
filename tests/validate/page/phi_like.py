"""An artifact folder of Phi-4-mini's shape, without weights, and verdicts on it."""

from pathlib import Path
from typing import Any, get_args

import numpy as np

from anespec.manifests.residency import (
    Device,
    DeviceTotals,
    KindTotals,
    LayerTotals,
    Placement,
    PlannedOperation,
    PlanSource,
    ResidencyVerdict,
    RuleFinding,
    Severity,
    ShardResidency,
)
from anespec.manifests.schema import Manifest, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessVerdict, Invariance, InvarianceVerdict, RunEnvironment
from anespec.runtime.backends.backend import Arithmetic
from anespec.validate.golden.figures import (
    SLACK,
    GoldenVerdict,
    HiddenFigures,
    ShardFigures,
    StackFigures,
    Stimulus,
    WeightFigures,
)
from anespec.validate.other_formats import FormatEstimate, FormatEstimates, formats_circumstances
from anespec.validate.quality.divergence import diverge
from anespec.validate.quality.verdict import (
    Opinion,
    QualityTask,
    QualityVerdict,
    ScoredText,
    WorstToken,
    quality_verdict,
)
from anespec.validate.sample.figures import Generation, OtherChoice, Passage, ReferenceReading, SampleRun

LAYER_EDGES = [(0, 20), (20, 24), (24, 30), (30, 32)]
HEAD_EDGES = [(start, min(start + 16384, 200064)) for start in range(0, 200064, 16384)]
LAYER_BYTES, TOKEN_BYTES = 100_800_000, 3072


def stored(
    tensor: str, weights: str = "int8-channel", error: float = 0.008, **changes: Any
) -> dict[str, Any]:
    """A tensor's entry with that relative error."""
    return {
        "projection": "projection", "tensor": tensor, "first_row": 0, "rows": 8, "columns": 8,
        "rope_permuted": False, "source_type": "Q8_0", "weights": weights, "fallback": None,
        "lossless": False, "bytes": 72, "squares": 64.0, "squared_error": 64.0 * error**2, "max_error": 0.02,
    } | changes  # fmt: skip


def phi_manifest(name: str = "Phi-4-mini-instruct.Q8_0.gguf", sequences: int = 1, **changes: Any) -> Manifest:
    """32 layers in four shards and 200064 tokens in 13."""
    slots = 2048 * sequences
    common = {"sha256": "00", "recipe": "11"}
    hidden = {"name": "x", "shape": [1, 3072, None, 1]}
    inputs = [
        hidden, {"name": "attn_mask", "shape": [1, 1, None, slots]},
        {"name": "kv_write_mask", "shape": [1, 1, slots, None]},
    ]  # fmt: skip
    layers = [
        {
            **common, "inputs": inputs, "outputs": [{**hidden, "name": "hidden"}],
            "tensors": [
                stored(f"blk.{n}.ffn_down.weight", projection=f"layer_{n}_down") for n in range(first, end)
            ],
            "path": f"shards/layers_{first:02d}_{end - 1:02d}.mlpackage",
            "bytes": (end - first) * LAYER_BYTES, "first_layer": first, "end_layer": end,
            "states": [
                {"name": f"{part}_{n}", "shape": [1, 8, slots, 128], "pool": "global", "layers": [n]}
                for n in range(first, end) for part in ("k", "v")
            ],
        }
        for first, end in LAYER_EDGES
    ]  # fmt: skip
    heads = [
        {
            **common, "inputs": [hidden],
            "outputs": [{"name": f"logits_{number}", "shape": [1, end - first, None, 1]}],
            "tensors": [stored("output.weight", "fp16", 0.0002)],
            "path": f"shards/head_{number:02d}.mlpackage",
            "bytes": (end - first) * TOKEN_BYTES, "first_token": first, "end_token": end,
        }
        for number, (first, end) in enumerate(HEAD_EDGES)
    ]  # fmt: skip
    pool = {"name": "global", "slots": slots, "region_slots": 2048}
    pool |= {"mask_input": "attn_mask", "write_input": "kv_write_mask"}
    return Manifest.model_validate(
        {
            "source": {
                "name": name, "read_from": "models/phi.gguf", "bytes": 4_084_000_000, "sha256": "aa" * 32,
                "architecture": "phi3", "quantisation": "Q8_0",
            },
            "hyperparameters": {
                "d": 3072, "layers": 32, "heads": 24, "kv_heads": 8, "head_dim": 128, "ff": 8192,
                "vocabulary": 200064, "norm_epsilon": 1e-5, "trained_context": 131072,
            },
            "target": "mac", "attention": "per_kv_head", "kv_form": "slice_update",
            "block": 4, "t_max": 4, "context": 2048,
            "sequences": sequences, "pools": [pool], "ropes": [], "layer_shards": layers,
            "head_shards": heads,
            "tokens": {
                "path": "tokens.gguf", "bytes": 653_000_000, "sha256": "bb",
                "embedding_tensor": "token_embd.weight",
            },
            "built_with": {"anespec": "0.1.0", "coremltools": "9.0"},
        }
        | changes
    )  # fmt: skip


def artifact_in(folder: Path, manifest: Manifest) -> Artifact:
    """The folder with its manifest alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return Artifact(folder)


def circumstances_on(artifact: Artifact, backend: str = "openvino", machine: str = "any") -> RunEnvironment:
    return RunEnvironment(
        backend=backend, library_version="1.2", machine=machine, threads=2, artifact=artifact.fingerprint
    )


def residency_of(artifact: Artifact, source: PlanSource = PlanSource.PREDICTED) -> ResidencyVerdict:
    """All on the Neural Engine but the second layer shard, which is on the CPU, and one gather of a head."""
    shards = []
    for number, shard in enumerate(artifact.manifest.shards):
        layers = range(*LAYER_EDGES[number]) if number < len(LAYER_EDGES) else range(0)
        device, off = ("cpu", []) if number == 1 else ("ane", [])
        kinds = {"conv": 7, "mul": 20, "matmul": 4, "softmax": 1}
        count = len(layers) or 1
        totals = {kind: DeviceTotals(**{device: many * count}) for kind, many in kinds.items()}
        if number == len(artifact.manifest.shards) - 1:
            totals["gather"] = DeviceTotals(gpu=1)
            off = [PlannedOperation(kind="gather", name="rows<b>", shapes=((1, 2),), device=Device.GPU)]
        compute = DeviceTotals(
            ane=sum(t.ane for t in totals.values()),
            gpu=sum(t.gpu for t in totals.values()),
            cpu=sum(t.cpu for t in totals.values()),
        )
        per_layer = [
            LayerTotals(layer=layer, devices=DeviceTotals(**{device: sum(kinds.values())}))
            for layer in layers
        ]
        shards.append(
            ShardResidency(
                shard=shard.path,
                placement=compute.placement,
                compute=compute,
                conv=totals["conv"],
                kinds=tuple(KindTotals(kind=kind, devices=t) for kind, t in totals.items()),
                layers=tuple(per_layer) or (LayerTotals(layer=None, devices=compute),),
                off_ane=tuple(off),
            )
        )
    assert shards[1].placement is Placement.CPU
    finding = RuleFinding(
        rule="large-shard",
        severity=Severity.FAIL,
        shard=artifact.manifest.shards[1].path,
        subject="403 MB of weights",
        detail="more than was seen resident",
        mend="put fewer layers in a shard (--topology)",
    )
    return ResidencyVerdict(
        circumstances=circumstances_on(artifact, "rules"),
        source=source,
        block=4,
        shards=tuple(shards),
        findings=(finding, finding.model_copy(update={"rule": "narrow-axis", "severity": Severity.WARN})),
    )


def golden_of(artifact: Artifact, backend: str = "openvino", worst: float = 0.1) -> GoldenVerdict:
    """Every shard under every stimulus; the last layer shard errs by `worst` on random rows."""
    edges = [*LAYER_EDGES, *[(0, 0)] * len(HEAD_EDGES)]
    figures = [
        ShardFigures(
            shard=shard.path, weights=WeightFormat.INT8_CHANNEL, layers=end - first, stimulus=stimulus,
            tokens=20, cosine=0.9999, limit=0.085, max_error=0.1, worst_token=3, unsure=0, not_finite=0,
            stray_slots=0,
            error=worst if number == 3 and stimulus == "random" else 0.011 + 0.003 * number,
        )
        for number, (shard, (first, end)) in enumerate(zip(artifact.manifest.shards, edges, strict=True))
        for stimulus in get_args(Stimulus)
    ]  # fmt: skip
    stack = StackFigures(
        prompt_tokens=24, greedy_tokens=24, agreeing=23, leading=11, worst_margin=0.0, cosine=0.9995,
        error=0.03, limit=0.2, max_error=0.2, unsure=0, not_finite=0,
    )  # fmt: skip
    weights = WeightFigures(
        shard=figures[0].shard, projection="projection", tensor="blk.0.ffn_down.weight",
        weights=WeightFormat.INT8_CHANNEL, claimed=0.008, error=0.008,
    )  # fmt: skip
    return GoldenVerdict(
        circumstances=circumstances_on(artifact, backend), slack=SLACK[Arithmetic.FLOAT],
        hidden=HiddenFigures(largest=900.0, scale=1.0), shards=tuple(figures), stack=(stack, stack),
        weights=(weights,),
    )  # fmt: skip


def exactness_of(artifact: Artifact, backend: str = "openvino", unequal: int = 0) -> ExactnessVerdict:
    """All proven but region, of which there are no cases, and partition where `unequal`."""
    found = [
        InvarianceVerdict(
            invariance=invariance,
            cases=0 if invariance is Invariance.REGION else 1234,
            unequal=unequal if invariance is Invariance.PARTITION else 0,
            largest_difference=0.031 if unequal and invariance is Invariance.PARTITION else 0,
            detail="rows cut 3+1: position 9" if unequal and invariance is Invariance.PARTITION else "",
        )
        for invariance in Invariance
    ]
    here = circumstances_on(artifact, backend)
    return ExactnessVerdict(circumstances=here, form="full", invariances=tuple(found))


def quality_of(artifact: Artifact, name: str = "book.txt", **limits: float) -> QualityVerdict:
    """Figures of random logits that are close to each other."""
    rng = np.random.default_rng(len(name))
    reference = rng.standard_normal((400, 50)).astype(np.float32) * 3
    found = reference + rng.standard_normal(reference.shape).astype(np.float32) * rng.gamma(1, 0.02, (400, 1))
    tokens = diverge(reference, found, rng.integers(50, size=400))
    text = ScoredText(name=name, sha256=name.encode().hex(), scored=400, window=401)
    return quality_verdict(circumstances_on(artifact), text, tokens, QualityTask(Path(name), 512, **limits))


def generation(tokens: int = 47, passes: int = 47, **changes: Any) -> Generation:
    """What a continuation cost, at 20 ms a pass."""
    seconds = 0.02 * passes
    return Generation(
        prompt_seconds=0.1, passes=passes, tokens=tokens, seconds=seconds, pass_seconds=0.02, proposed=40,
        accepted=tokens - passes, **changes,
    )  # fmt: skip


def sample_of(artifact: Artifact, backend: str = "openvino", **changes: Any) -> SampleRun:
    """One passage that the reference parts from at its third token."""
    other = OtherChoice(index=2, text=" dog", probability=0.4, chosen_probability=0.35)
    later = OtherChoice(index=3, text="?", probability=0.9, chosen_probability=0.05)
    passage = Passage(
        prompt="Once upon a time", prompt_tokens=4, pieces=(" there", " was", " cat", "."),
        plain=generation(), drafted=generation(passes=25), same_text=True,
        reference=ReferenceReading(others=(other, later), own=(" there", " was", " dog", "!")),
    ).model_copy(update=changes)  # fmt: skip
    here = circumstances_on(artifact, backend)
    return SampleRun(circumstances=here, passages=(passage,), peak_bytes=2_345_000_000)


def formats_of(artifact: Artifact, sampled: int = 6_000_000) -> FormatEstimates:
    """Six formats, each smaller and worse than the one before it."""
    return FormatEstimates(
        circumstances=formats_circumstances(artifact),
        estimates=tuple(
            FormatEstimate(
                weights=weights, bytes=8 * 10**9 >> number, relative_error=0.001 * 4**number, fallbacks=0
            )
            for number, weights in enumerate(WeightFormat)
        ),
        sampled=sampled,
        total=4 * 10**9,
    )


def worst_token(token: str = " dog", **changes: Any) -> WorstToken:
    """A token that only the reference foresaw."""
    sure, unsure = (Opinion(top=top, top_probability=p, token_probability=q) for top, p, q in
                    ((token, 0.9, 0.9), (" cat", 0.6, 0.25)))  # fmt: skip
    return WorstToken(
        number=41, before="the quick", token=token, kl=1.25, reference=sure, artifact=unsure
    ).model_copy(update=changes)
