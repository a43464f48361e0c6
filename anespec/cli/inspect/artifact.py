"""The output of `inspect` for an artifact's folder: its contents, and the verdicts of its gates."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from anespec.cli.console import out
from anespec.cli.inspect.plan import head_bytes, head_sentence, size_range_facts
from anespec.manifests.schema import Manifest, Shapes
from anespec.manifests.store import damage_sentence
from anespec.models.inspection import ArtifactInspection
from anespec.models.verdict_summary import unreadable_line, verdict_table, why_unjudged
from anespec.system.formatting import bytes_text, counted, listed

if TYPE_CHECKING:
    from anespec.manifests.store import Artifact


def describe_artifact(found: ArtifactInspection) -> dict[str, Any]:
    """The artifact for a program: its manifest's facts, how large its parts are, and its verdicts."""
    from anespec.convert.planning.shard_limits import SHARD_LIMITS

    manifest = found.manifest
    limits = SHARD_LIMITS[manifest.target]
    return {
        "artifact": str(found.path),
        "bytes": found.bytes,
        "state_bytes": manifest.state_bytes,
        "topology": list(manifest.topology),
        "layer_shards": [
            {
                "path": shard.path,
                "layers": [shard.first_layer, shard.end_layer],
                "bytes": shard.bytes,
                "state_bytes": shard.state_bytes,
                "weights": [weight_format.value for weight_format in shard.formats],
                "size_range": size_range_facts(limits.range_of(shard.bytes)),
            }
            for shard in manifest.layer_shards
        ],
        "head_shards": [
            {
                "path": shard.path,
                "tokens": [shard.first_token, shard.end_token],
                "bytes": shard.bytes,
                "weights": [weight_format.value for weight_format in shard.formats],
                "size_range": size_range_facts(limits.range_of(shard.bytes)),
            }
            for shard in manifest.head_shards
        ],
        "head_outputs": manifest.head_outputs.value,
        "head_bytes": head_bytes(*_head_sizes(manifest)),
        "damage": [damage.path for damage in found.damage],
        "gates": [dataclasses.asdict(verdict) for verdict in found.verdicts],
    } | manifest.model_dump(
        mode="json", exclude={"layer_shards", "head_shards", "head_outputs", "ropes"}
    )  # fmt: skip


def _head_sizes(manifest: Manifest) -> tuple[int, int, int]:
    """Rows of a decoding pass, tokens, and slices of them."""
    slices = sum(len(shard.slices) for shard in manifest.head_shards)
    return manifest.block, manifest.hyperparameters.vocabulary, slices


def show_artifact(artifact: "Artifact", found: ArtifactInspection, facts: Mapping[str, Any]) -> None:
    """Print what the artifact holds, as `facts` describe it; damage comes first."""
    if found.damage:
        out().print(damage_sentence(artifact, found.damage), style="bold red")
    manifest, verdicts = found.manifest, found.verdicts
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
        f"{counted(sizes.layers, 'layer')}, d {sizes.d}, {sizes.heads}/{sizes.kv_heads} heads of "
        f"{sizes.head_dim}, ff {sizes.ff}, vocabulary {sizes.vocabulary}",
    )
    layouts = dict.fromkeys(function.layout.value for function in manifest.functions)
    widths = counted(manifest.t_max, "row")
    if manifest.shapes is Shapes.FUNCTIONS:
        widths = f"functions of {listed([str(width) for width in manifest.widths])} rows"
    elif manifest.t_min != manifest.t_max:
        widths = f"{manifest.t_min} to {widths}, default {manifest.default_rows}"
    written = f"{manifest.attention.value} attention, K/V {manifest.kv_form.value}, {listed([*layouts])}"
    table.add_row("head", head_sentence(*_head_sizes(manifest), manifest.head_outputs))
    table.add_row("passes", f"block {manifest.block}, {widths}, {written}")
    table.add_row(
        "context",
        f"{manifest.sequences} x {manifest.context} slots, {bytes_text(facts['state_bytes'])} of KV state; "
        + "; ".join(
            f"pool {pool.name}: {counted(pool.slots, 'slot')}"
            + (f", window {pool.window}" if pool.window is not None else "")
            for pool in manifest.pools
        ),
    )
    out().print(table)
    out().print()
    out().print(_shard_table(facts))
    out().print()
    if found.damage:
        out().print("No gate's verdict holds for damaged files.")
        return
    out().print(verdict_table(verdicts) if verdicts else why_unjudged(artifact))
    if (lost := unreadable_line(artifact)) is not None:
        out().print(lost, style="yellow")


def _shard_table(facts: Mapping[str, Any]) -> Table:
    table = Table(box=None)
    table.add_column("shard", no_wrap=True)
    for title in ("holds", "size", "weights", "what is known of this size"):
        table.add_column(title)
    for shard in facts["layer_shards"]:
        first, end = shard["layers"]
        _add_shard(table, shard, f"layers {first} to {end - 1}" if end > first + 1 else f"layer {first}")
    for shard in facts["head_shards"]:
        first, end = shard["tokens"]
        _add_shard(table, shard, counted(end - first, "token"))
    return table


def _add_shard(table: Table, shard: dict[str, Any], holds: str) -> None:
    size_range = shard["size_range"]
    known = f"{size_range['finding']} ({size_range['grade']}: {size_range['source']})"
    table.add_row(
        Path(shard["path"]).stem, holds, bytes_text(shard["bytes"]), ", ".join(shard["weights"]), known
    )
