"""What `inspect` says of an artifact's folder: what it holds, and what its gates found where."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from anespec.console import out
from anespec.inspect_plan import band_facts
from anespec.manifests.wording import bytes_text

if TYPE_CHECKING:
    from anespec.manifests.schema import LayerShard
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import Verdict


def describe_artifact(artifact: "Artifact") -> dict[str, Any]:
    """The artifact for a program: its manifest's facts, how large its parts are, and its verdicts."""
    from anespec.convert.bands import SIZES

    manifest = artifact.manifest
    sizes = SIZES[manifest.target]
    return {
        "artifact": str(artifact.root),
        "bytes": sum(shard.bytes for shard in manifest.shards) + manifest.tokens.bytes,
        "state_bytes": sum(map(_state_bytes, manifest.layer_shards)),
        "topology": list(manifest.topology),
        "layer_shards": [
            {
                "path": shard.path,
                "layers": [shard.first_layer, shard.end_layer],
                "bytes": shard.bytes,
                "state_bytes": _state_bytes(shard),
                "weights": [weight_format.value for weight_format in shard.formats],
                "band": band_facts(sizes.band(shard.bytes)),
            }
            for shard in manifest.layer_shards
        ],
        "head_shards": [
            {
                "path": shard.path,
                "tokens": [shard.first_token, shard.end_token],
                "bytes": shard.bytes,
                "weights": [weight_format.value for weight_format in shard.formats],
                "band": band_facts(sizes.band(shard.bytes)),
            }
            for shard in manifest.head_shards
        ],
        "gates": _verdicts(artifact),
    } | manifest.model_dump(
        mode="json", exclude={"layer_shards", "head_shards", "ropes"}
    )  # fmt: skip


def _state_bytes(shard: "LayerShard") -> int:
    return sum(2 * math.prod(state.shape) for state in shard.states)


def _verdicts(artifact: "Artifact") -> list[dict[str, Any]]:
    """Every recorded verdict: whether it passed, whether it decides, what it found, where that holds."""
    from anespec.manifests.residency import ResidencyFile
    from anespec.manifests.verdicts import ExactnessFile
    from anespec.validate.figures import GoldenFile
    from anespec.validate.quality.verdict import QualityFile
    from anespec.validate.residency.verdict import decides

    found: list[dict[str, Any]] = []
    for residency in artifact.read_verdicts(ResidencyFile).verdicts:
        on_ane = len(residency.shards) - len(residency.off_ane)
        finding = f"{residency.source}: {on_ane} of {len(residency.shards)} shards on the Neural Engine"
        does_decide = decides(residency, prediction_decides=False)
        found.append(_entry("residency", residency, residency.passed, finding, does_decide))
    for golden in artifact.read_verdicts(GoldenFile).verdicts:
        finding = "; ".join(golden.failures) or "every shard computes what the GGUF means"
        found.append(_entry("golden", golden, golden.passed, finding))
    for exactness in artifact.read_verdicts(ExactnessFile).verdicts:
        proven = [v.invariance.value for v in exactness.invariances if v.proven]
        refuted = [v.invariance.value for v in exactness.invariances if not v.proven]
        finding = f"proven: {', '.join(proven) or 'nothing'}"
        finding += f"; not proven: {', '.join(refuted)}" if refuted else ""
        found.append(_entry("exactness", exactness, exactness.allows_speculation, finding))
    for quality in artifact.read_verdicts(QualityFile).verdicts:
        finding = "; ".join(quality.failures) or (
            f"mean KL divergence of {quality.figures.kl.mean:.3g} nats over {quality.text.scored} tokens of "
            f"{quality.text.name}"
        )
        found.append(_entry("quality", quality, quality.passed, finding))
    return found


def _entry(
    gate: str, verdict: "Verdict", passed: bool, finding: str, does_decide: bool = True
) -> dict[str, Any]:
    here = verdict.circumstances
    return {
        "gate": gate,
        "passed": passed,
        "decides": does_decide,
        "finding": finding,
        "backend": here.backend,
        "library_version": here.library_version,
        "machine": here.machine,
        "threads": here.threads,
        "measured_at": verdict.measured_at.isoformat(),
    }


def show_artifact(artifact: "Artifact") -> None:
    """Print what the artifact holds."""
    facts, manifest = describe_artifact(artifact), artifact.manifest
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    source, sizes = manifest.source, manifest.hyperparameters
    table.add_row("artifact", f"{artifact.root} ({bytes_text(facts['bytes'])}), for {manifest.target.value}")
    table.add_row(
        "made from",
        f"{source.name} ({bytes_text(source.bytes)}, {source.quantisation}), architecture "
        f"{source.architecture}, by anespec {manifest.built_with.get('anespec', '?')}",
    )
    table.add_row(
        "sizes",
        f"{sizes.layers} layers, d {sizes.d}, {sizes.heads}/{sizes.kv_heads} heads of {sizes.head_dim}, "
        f"ff {sizes.ff}, vocabulary {sizes.vocabulary}",
    )
    widths = f"{manifest.t_min} to {manifest.t_max}"
    table.add_row("passes", f"block {manifest.block}, {widths} rows, {manifest.attention.value} attention")
    table.add_row(
        "context",
        f"{manifest.sequences} x {manifest.context} slots, {bytes_text(facts['state_bytes'])} of KV state; "
        + "; ".join(
            f"pool {pool.name}: {pool.slots} slots"
            + (f", window {pool.window}" if pool.window is not None else "")
            for pool in manifest.pools
        ),
    )
    out().print(table)
    out().print()
    out().print(_shard_table(facts))
    out().print()
    out().print(
        _gate_table(facts["gates"]) if facts["gates"] else "No gate has judged it yet: anespec validate."
    )


def _shard_table(facts: dict[str, Any]) -> Table:
    table = Table(box=None)
    table.add_column("shard", no_wrap=True)
    for title in ("holds", "size", "weights", "what is known of this size"):
        table.add_column(title)
    for shard in facts["layer_shards"]:
        first, end = shard["layers"]
        _add_shard(table, shard, f"layers {first}-{end - 1}")
    for shard in facts["head_shards"]:
        first, end = shard["tokens"]
        _add_shard(table, shard, f"{end - first} tokens")
    return table


def _add_shard(table: Table, shard: dict[str, Any], holds: str) -> None:
    band = shard["band"]
    known = f"{band['finding']} ({band['grade']}: {band['source']})"
    table.add_row(
        Path(shard["path"]).stem, holds, bytes_text(shard["bytes"]), ", ".join(shard["weights"]), known
    )


def _gate_table(verdicts: list[dict[str, Any]]) -> Table:
    table = Table("gate", "verdict", "found", "where", box=None)
    for verdict in verdicts:
        where = (
            f"{verdict['backend']} {verdict['library_version']}, {verdict['threads']} thread(s), "
            f"{verdict['machine']}"
        )
        state, colour = ("passed", "green") if verdict["passed"] else ("red", "red")
        if not verdict["passed"] and not verdict["decides"]:
            state, colour = "noted", "yellow"
        table.add_row(verdict["gate"], state, verdict["finding"], where, style=colour)
    return table
