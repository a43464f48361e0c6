"""Implement `anespec inspect`: describe a GGUF and what would be built from it, or describe an artifact."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from anespec.cli.console import json_option, out, print_json, result_as_json, watcher
from anespec.cli.inspect.plan import (
    describe_plan,
    head_bytes,
    head_sentence,
    show_forecast,
    show_plan,
    size_range_facts,
)
from anespec.cli.option_flags import flags_of, read_flags
from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import Manifest, Shapes
from anespec.manifests.store import damage_sentence
from anespec.manifests.usual_target import usual_target
from anespec.models.cache import cached_artifact
from anespec.models.conversion import Build
from anespec.models.inspection import ArtifactInspection, read_plan
from anespec.models.missing import missing_model
from anespec.models.model_path import ModelPath
from anespec.models.remote import fetched
from anespec.models.verdict_summary import unreadable_line, verdict_table, why_unjudged
from anespec.system.errors import ArtifactError
from anespec.system.formatting import bytes_text, counted, listed, printable

if TYPE_CHECKING:
    from anespec.manifests.store import Artifact


def describe_artifact(found: ArtifactInspection) -> dict[str, Any]:
    """Return an artifact's facts for --json: its manifest, the sizes of its parts, and its verdicts."""
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
    """Return the rows of a decoding pass, the tokens of the vocabulary, and the number of its slices."""
    slices = sum(len(shard.slices) for shard in manifest.head_shards)
    return manifest.block, manifest.hyperparameters.vocabulary, slices


def show_artifact(artifact: "Artifact", found: ArtifactInspection, facts: Mapping[str, Any]) -> None:
    """Print the facts of an artifact; damage comes first."""
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
        f"{counted(sizes.layers, 'layer')}, hidden size {sizes.d}, {sizes.heads}/{sizes.kv_heads} heads of "
        f"{sizes.head_dim}, intermediate size {sizes.ff}, vocabulary {sizes.vocabulary}",
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
    if manifest.chunk is not None:
        solve = "" if manifest.chunk_solve is None else f", solved by {manifest.chunk_solve}"
        table.add_row("chunks", f"of {counted(manifest.chunk, 'position')}{solve}")
    if manifest.hidden_scale != 1:
        table.add_row("hidden state", f"times {manifest.hidden_scale:g}")
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


@click.command(short_help="Describe a GGUF or an artifact, and what would be built.")
@click.argument("path", metavar="MODEL", type=ModelPath())
@click.option("--plan", "explained", is_flag=True, help="Explain the topology: every shard, and why.")
@flags_of(ConvertOptions)
@json_option
def inspect(path: Path, explained: bool, as_json: bool, **chosen: Any) -> None:
    """Describe the GGUF MODEL, and what `convert` would build from it. Nothing is written.

    If MODEL is an artifact's folder, or the name of a model in the cache, show its contents and verdicts; the
    options of a conversion have no meaning then. Its files are compared with the manifest's hashes; damage is
    reported first, with exit code 5.

    \b
    Example:
      anespec inspect model.gguf --target mac --plan
      anespec inspect model.anespec
    """
    path = fetched(path, watcher(shown=not as_json))
    artifact = path if path.exists() else cached_artifact(path)
    if artifact is None:
        raise missing_model(path)
    if artifact.is_dir():
        _inspect_artifact(artifact, as_json)
    else:
        _inspect_gguf(path, explained, as_json, chosen)


def _inspect_artifact(path: Path, as_json: bool) -> None:
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact, damage_sentence

    artifact = Artifact(path, KnownHashes())
    found = ArtifactInspection.of(artifact)
    facts = describe_artifact(found)
    with result_as_json(facts, shown=as_json):
        if not as_json:
            show_artifact(artifact, found, facts)
        if found.damage:
            raise ArtifactError(damage_sentence(artifact, found.damage))


def _inspect_gguf(path: Path, explained: bool, as_json: bool, chosen: dict[str, Any]) -> None:
    from anespec.gguf.container import GGUFFile

    with GGUFFile(path) as file:
        options = read_flags(ConvertOptions, chosen)
        found, plan = read_plan(file, options)
        facts = found.facts()
        is_usual = options.target is usual_target() and "sequences" not in options.model_fields_set
        if plan is not None and is_usual:
            facts["cached_sequences"] = Build.here(plan.context).built_sequences
        if plan is not None and explained:
            facts["plan"] = describe_plan(plan)
    if as_json:
        print_json(facts)
        return
    _show(facts)
    for note in plan.tuning_notes if plan is not None else ():
        out().print(f"- {note}")
    if plan is not None and explained:
        show_plan(plan)
        if (predicted := facts["plan"]["predicted"]) is not None:
            show_forecast(predicted)


def _show(facts: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    quantisation = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in facts["quantisation"].items())
    parts = f" in {counted(facts['parts'], 'part')}" if facts["parts"] > 1 else ""
    table.add_row("file", f"{facts['file']} ({bytes_text(facts['bytes'])}{parts})")
    name, architecture = (printable(facts[key] or "unnamed") for key in ("name", "architecture"))
    family = f": {facts['family']}" if "family" in facts else ""
    table.add_row("model", f"{name}, architecture {architecture}{family}")
    counts = f"{facts['tensors']} with {facts['parameters']:,} parameters: {quantisation}"
    table.add_row("tensors", counts if facts["tensors"] else "none")
    table.add_row(
        "tokenizer",
        f"{printable(facts['tokenizer'] or 'none named')} "
        f"({printable(facts['pre_tokenizer'] or 'no pre-tokenizer named')}), "
        f"{facts['vocabulary']} tokens, {'with' if facts['chat_template'] else 'no'} chat template",
    )
    if "hyperparameters" in facts:
        sizes = facts["hyperparameters"]
        table.add_row(
            "sizes",
            f"{counted(sizes['layers'], 'layer')}, hidden size {sizes['d']}, "
            f"{sizes['heads']}/{sizes['kv_heads']} heads of {sizes['head_dim']}, "
            f"intermediate size {sizes['ff']}, trained for {sizes['trained_context']} tokens, "
            f"{'tied' if facts['tied_head'] else 'separate'} head",
        )
        table.add_row(
            "would build",
            f"for {facts['target']}: block {facts['block']}, {_passes_text(facts)}, "
            f"{facts['sequences']} x {facts['context']} slots{_cached_text(facts)}, "
            f"{facts['weights']} weights, {facts['attention']} attention, K/V {facts['kv_form']}",
        )
        layers = "+".join(map(str, facts["topology"]))
        table.add_row(
            "topology",
            f"{layers} layers ({_range_text(facts['layer_bytes'])} each), "
            f"{counted(len(facts['head_shards']), 'head shard')} of up to "
            f"{counted(max(facts['head_shards']), 'token')}"
            + (f", as measured for {facts['preset']}" if facts["topology_from"] == "preset" else ""),
        )
        table.add_row(
            "artifact",
            f"about {bytes_text(facts['artifact_bytes'])} on disk, "
            f"{bytes_text(facts['state_bytes'])} of KV state in memory",
        )
        if blocks := facts["left_out"]:
            table.add_row("left out", f"{counted(blocks, 'block')} of multi-token prediction (MTP)")
        if facts["beyond_training"]:
            table.add_row("note", "the context is longer than the model was trained for", style="yellow")
    for correction in facts["corrections"]:
        table.add_row("corrected", correction, style="yellow")
    for problem in facts["unsupported"]:
        table.add_row("unsupported", problem, style="red")
    out().print(table)


def _cached_text(facts: dict[str, Any]) -> str:
    """Return the number of sequences that verbs other than `convert` build, if it differs."""
    sequences = facts.get("cached_sequences", facts["sequences"])
    if sequences == facts["sequences"]:
        return ""
    return f" ({sequences} x {facts['context']} for chat, run, generate and serve)"


def _passes_text(facts: dict[str, Any]) -> str:
    """Return the widths of the passes that the shards accept."""
    narrowest, widest = facts["widths"][0], facts["widths"][-1]
    return {
        "static": "passes of that alone",
        "functions": f"a function for passes of {widest}",
    }.get(facts["shapes"], f"passes of {narrowest} to {widest}")


def _range_text(sizes: list[int]) -> str:
    low, high = bytes_text(min(sizes)), bytes_text(max(sizes))
    return low if low == high else f"{low} to {high}"
