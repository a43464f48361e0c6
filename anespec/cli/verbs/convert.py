"""Implement `anespec convert`: convert a GGUF to an artifact."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.cli.console import byte_progress, json_option, notes, out, print_json, watcher
from anespec.cli.option_flags import flags_of, read_flags
from anespec.convert.options import ConvertOptions
from anespec.models.conversion import conversion_notes, default_output, open_plan, stopped
from anespec.models.missing import require_there
from anespec.models.model_path import ModelPath
from anespec.models.remote import fetched
from anespec.system.formatting import bytes_text, counted

if TYPE_CHECKING:
    from anespec.convert.pipeline import Conversion
    from anespec.manifests.schema import Manifest


def weights_facts(manifest: "Manifest") -> dict[str, Any]:
    """Return figures of the stored weights for --json: overall, and for each tensor."""
    from anespec.manifests.schema import relative_error

    tensors = manifest.tensors
    return {
        "relative_error": relative_error(tensors),
        "lossless": all(tensor.lossless for tensor in tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
        "tensors": [
            tensor.model_dump(mode="json") | {"relative_error": tensor.relative_error} for tensor in tensors
        ],
    }


def weights_lines(manifest: "Manifest") -> list[str]:
    """Return lines about the stored weights: formats, added error, the tensor with the largest error, and
    fallbacks."""
    from anespec.manifests.schema import WeightFormat, relative_error

    tensors = manifest.tensors
    by_format = {name: [t for t in tensors if t.weights is name] for name in WeightFormat}
    used = ", ".join(
        f"{name} ({_tensors(len(stored))}, {bytes_text(sum(t.bytes for t in stored))})"
        for name, stored in by_format.items()
        if stored
    )
    worst = max(tensors, key=lambda tensor: tensor.relative_error)
    if all(tensor.lossless for tensor in tensors):
        added = "nothing lost"
    else:
        added = (
            f"{relative_error(tensors):.3%} added to the GGUF's own error "
            f"(most in {worst.tensor}: {worst.relative_error:.3%})"
        )
    lines = [f"Weights: {used}; {added}."]
    reasons = sorted({tensor.fallback for tensor in tensors if tensor.fallback})
    lines += [
        f"Not stored as asked: {_tensors(sum(t.fallback == reason for t in tensors))}, since {reason}."
        for reason in reasons
    ]
    return lines


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


@click.command(short_help="Turn a GGUF into an artifact: shards of layers and of the head.")
@click.argument("gguf", metavar="MODEL", type=ModelPath())
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The artifact folder.  [default: NAME.anespec here]",
)
@flags_of(ConvertOptions)
@click.option(
    "--jobs", type=click.IntRange(1), help="Processes that build shards.  [default: what saves time]"
)
@click.option("--force", is_flag=True, help="Replace a different artifact that exists there.")
@json_option
def convert(
    gguf: Path, output: Path | None, jobs: int | None, force: bool, as_json: bool, **chosen: Any
) -> None:
    """Convert MODEL, a GGUF, into an artifact: shards that keep their K/V and run several tokens a pass.

    MODEL is a local file, or a remote one that is downloaded first: hf:OWNER/REPO[/FILE.gguf] of the Hugging
    Face hub, or a URL. The defaults are for this machine: the Neural Engine of a Mac that has one, else its
    processor. An interrupted run resumes where it stopped when the same command is given again.

    \b
    Example:
      anespec convert model.gguf -o model.anespec --target mac --context 4096
      anespec convert model.gguf --tuned report.zip
    """
    from anespec.convert.worker_process import early_process

    options = read_flags(ConvertOptions, chosen)
    gguf = fetched(gguf, watcher(shown=not as_json))
    require_there(gguf)
    with early_process(gguf, jobs) as early, open_plan(gguf, options) as plan:
        from anespec.convert.output_lock import resolve_output
        from anespec.convert.planning.report import explain

        target = resolve_output(output if output is not None else default_output(gguf))
        for note in plan.tuning_notes:
            notes().print(f"note: {note}", style="yellow")
        if options.context not in (None, plan.context):
            notes().print(
                f"note: a context of {options.context} tokens is rounded up to {plan.context}", style="yellow"
            )
        for note in conversion_notes(plan, gguf, target):
            notes().print(f"note: {note}", style="yellow")
        if any(chosen[option] is not None for option in ("topology", "head_shards", "shard_bytes", "preset")):
            for warning in explain(plan.sharding).warnings:
                notes().print(f"note: {warning}", style="yellow")
        with byte_progress("converting", plan.weight_bytes(), shown=not as_json) as report:
            from anespec.convert.pipeline import convert as run
            from anespec.convert.pipeline import process_count

            try:
                if early is None and process_count(plan, jobs) == 1:
                    import anespec.convert.worker_imports  # noqa: F401
                done = run(
                    plan,
                    target,
                    replace=force,
                    jobs=jobs,
                    early=early,
                    on_progress=lambda shard: report(f"{shard.name} done", shard.done_bytes),
                    on_bytes=lambda done_bytes: report(None, done_bytes),
                )
            except KeyboardInterrupt as interruption:
                raise stopped(interruption) from None
    if as_json:
        print_json(_facts(done))
    else:
        _show(done, plan.model.sizes.trained_context)


def _facts(done: "Conversion") -> dict[str, Any]:
    from anespec.convert.planning.report import first_use

    manifest = done.manifest
    return {
        "artifact": str(done.path),
        "files": [shard.path for shard in manifest.shards] + [manifest.tokens.path, "manifest.json"],
        "bytes": _bytes_of(manifest),
        "seconds": round(done.seconds, 3),
        "peak_memory_bytes": done.peak_memory_bytes,
        "reused_shards": done.reused_shards,
        "up_to_date": done.up_to_date,
        "context": manifest.context,
        "topology": list(manifest.topology),
        "weights": weights_facts(manifest),
        "first_use": first_use(manifest.target, manifest.shapes, manifest.widths),
    }


def _show(done: "Conversion", trained_context: int) -> None:
    from anespec.convert.planning.report import first_use

    if done.up_to_date:
        out().print(f"{done.path} is up to date: it was built from this file with these options.")
        return
    manifest = done.manifest
    layers = "+".join(map(str, manifest.topology))
    kept = counted(done.reused_shards, "shard")
    reused = f", {kept} kept from an interrupted run" if done.reused_shards else ""
    out().print(
        f"{done.path}: {layers} layers and {counted(len(manifest.head_shards), 'head shard')}, "
        f"{bytes_text(_bytes_of(manifest))} in {done.seconds:.1f} s, "
        f"{bytes_text(done.peak_memory_bytes)} of memory at most{reused}."
    )
    for line in (*weights_lines(manifest), first_use(manifest.target, manifest.shapes, manifest.widths)):
        if line is not None:
            out().print(line)
    out().print(
        f"Context: {manifest.context:,} tokens for each of {counted(manifest.sequences, 'sequence')}; "
        f"--context N changes it (the model was trained for {trained_context:,})."
    )
    out().print(f"Next: anespec validate {done.path}")


def _bytes_of(manifest: "Manifest") -> int:
    return sum(shard.bytes for shard in manifest.shards) + manifest.tokens.bytes
