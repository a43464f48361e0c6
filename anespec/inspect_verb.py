"""`anespec inspect`: what a GGUF is and what would be built from it, or what an artifact holds."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from anespec.console import json_option, out, print_json
from anespec.conversion_options import conversion_options, read_options
from anespec.inspect_artifact import describe_artifact, show_artifact
from anespec.inspect_plan import describe_plan, show_plan
from anespec.manifests.formatting import bytes_text, counted, printable

if TYPE_CHECKING:
    from anespec.convert.plan import ConversionPlan
    from anespec.manifests.gguf_file import GGUFFile


@click.command(short_help="Show what a GGUF or an artifact is, and what would be built.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--plan", "explained", is_flag=True, help="Explain the topology: every shard, and why.")
@conversion_options
@json_option
def inspect(path: Path, explained: bool, as_json: bool, **chosen: Any) -> None:
    """Show what the GGUF at PATH is, and what `convert` would build from it. Nothing is written.

    Where PATH is an artifact's folder, show what it holds and what its gates found; the options that say
    what would be built have no meaning then.

    \b
    Example:
      anespec inspect model.gguf --target mac --plan
      anespec inspect model.anespec
    """
    if path.is_dir():
        _inspect_artifact(path, as_json)
    else:
        _inspect_gguf(path, explained, as_json, chosen)


def _inspect_artifact(path: Path, as_json: bool) -> None:
    from anespec.manifests.store import Artifact

    artifact = Artifact(path)
    if as_json:
        print_json(describe_artifact(artifact))
    else:
        show_artifact(artifact)


def _inspect_gguf(path: Path, explained: bool, as_json: bool, chosen: dict[str, Any]) -> None:
    from anespec.manifests.gguf_file import GGUFFile

    with GGUFFile(path) as file:
        plan, unsupported = _read_plan(file, chosen)
        facts = describe_file(file) | {"convertible": not unsupported, "unsupported": unsupported}
        if plan is not None:
            facts |= plan_facts(plan)
        if plan is not None and explained:
            facts["plan"] = describe_plan(plan)
    if as_json:
        print_json(facts)
        return
    _show(facts)
    if plan is not None and explained:
        show_plan(plan)


def describe_file(file: "GGUFFile") -> dict[str, Any]:
    """What the header says, whether or not the model can be converted."""
    kinds: Counter[str] = Counter()
    for info in file:
        kinds[info.kind.name] += info.nbytes
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return {
        "file": str(file.path),
        "bytes": file.nbytes,
        "architecture": _text(file, "general.architecture"),
        "name": _text(file, "general.name"),
        "tensors": len(file.tensors),
        "parameters": sum(info.elements for info in file),
        "quantisation": dict(kinds.most_common()),
        "tokenizer": _text(file, "tokenizer.ggml.model"),
        "pre_tokenizer": _text(file, "tokenizer.ggml.pre"),
        "vocabulary": len(tokens) if isinstance(tokens, list) else None,
        "chat_template": "tokenizer.chat_template" in file.metadata,
    }


def _text(file: "GGUFFile", key: str) -> str | None:
    value = file.metadata.get(key)
    return value if isinstance(value, str) else None


def _read_plan(file: "GGUFFile", chosen: dict[str, Any]) -> tuple["ConversionPlan | None", list[str]]:
    """What would be built, None where the model is unsupported; and everything that is in the way."""
    from anespec.convert.plan import ConversionPlan
    from anespec.convert.source.model import SourceModel
    from anespec.manifests.errors import GGUFError, UnsupportedModelError
    from anespec.runtime.text.tokenizer import Tokenizer

    unsupported: list[str] = []
    plan: ConversionPlan | None = None
    try:
        plan = ConversionPlan(SourceModel(file), read_options(chosen))
    except UnsupportedModelError as error:
        unsupported.append(str(error))
    try:
        Tokenizer.from_gguf(file)
    except (UnsupportedModelError, GGUFError) as error:
        unsupported.append(str(error))
    return plan, unsupported


def plan_facts(plan: "ConversionPlan") -> dict[str, Any]:
    """What would be built."""
    sizes = plan.model.sizes
    return {
        "family": plan.model.facts.family.title,
        "hyperparameters": sizes.model_dump(),
        "tied_head": plan.model.tied_head,
        "target": plan.options.target.value,
        "attention": plan.attention.value,
        "weights": str(plan.options.weights),
        "block": plan.options.block,
        "context": plan.context,
        "beyond_training": plan.beyond_training,
        "sequences": plan.options.sequences,
        "topology": list(plan.topology.layers),
        "topology_from": plan.sharding.origin.value,
        "preset": plan.sharding.preset.preset.name if plan.sharding.preset else None,
        "head_shards": [len(tokens) for tokens in plan.topology.heads],
        "layer_bytes": list(plan.sharding.stack.layer_bytes),
        "head_bytes": plan.head_bytes(),
        "artifact_bytes": plan.estimated_bytes(),
        "state_bytes": plan.state_bytes(),
    }


def _show(facts: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    quantisation = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in facts["quantisation"].items())
    table.add_row("file", f"{facts['file']} ({bytes_text(facts['bytes'])})")
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
            f"{counted(sizes['layers'], 'layer')}, d {sizes['d']}, {sizes['heads']}/{sizes['kv_heads']} "
            f"heads of {sizes['head_dim']}, ff {sizes['ff']}, trained for {sizes['trained_context']} tokens, "
            f"{'tied' if facts['tied_head'] else 'separate'} head",
        )
        table.add_row(
            "would build",
            f"for {facts['target']}: block {facts['block']}, "
            f"{facts['sequences']} x {facts['context']} slots, "
            f"{facts['weights']} weights, {facts['attention']} attention",
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
        if facts["beyond_training"]:
            table.add_row("note", "the context is longer than the model was trained for", style="yellow")
    for problem in facts["unsupported"]:
        table.add_row("unsupported", problem, style="red")
    out().print(table)


def _range_text(sizes: list[int]) -> str:
    low, high = bytes_text(min(sizes)), bytes_text(max(sizes))
    return low if low == high else f"{low} to {high}"
