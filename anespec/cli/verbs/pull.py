"""Implement `anespec pull`: download a model and convert it."""

from pathlib import Path
from typing import Any

import click

from anespec.cli.console import json_option, out, print_json, watcher
from anespec.cli.option_flags import flags_of, read_flags
from anespec.gguf.other_weights import refuse_other_weights
from anespec.manifests.store import model_bytes
from anespec.models.fetched import Fetched
from anespec.models.missing import missing_model
from anespec.models.model_path import ModelPath
from anespec.models.remote import fetch
from anespec.models.url.name import is_url, shown_url
from anespec.runtime.options import LoadOptions
from anespec.system.errors import ArtifactError, Interrupted
from anespec.system.formatting import bytes_text
from anespec.system.interrupts import ends_as_interrupts

RUN_OPTIONS = tuple(set(LoadOptions.model_fields) - {"context", "sequences", "weights"})
"""Load options that do not affect the conversion."""


@click.command(short_help="Download a model and make it ready.")
@click.argument("model", type=ModelPath())
@click.option("--no-convert", is_flag=True, help="Only download it.")
@click.option(
    "--allow-http",
    is_flag=True,
    help="Accept a URL with http, where the download could be altered on its way.",
)
@flags_of(LoadOptions, without=RUN_OPTIONS)
@json_option
def pull(model: Path, no_convert: bool, allow_http: bool, as_json: bool, **chosen: Any) -> None:
    """Download MODEL and convert it, so that `run`, `chat`, `generate` and `serve` start at once.

    MODEL is hf:OWNER/REPO/FILE.gguf of the Hugging Face hub, hf:OWNER/REPO:Q8_0 for its file of that
    quantisation, hf:OWNER/REPO for the best that fits memory, a URL of a GGUF, with #sha256=HASH if you know
    it, or a local GGUF. An interrupted download is resumed.

    \b
    Example:
      anespec pull hf:Qwen/Qwen3-0.6B-GGUF
      anespec pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0 --no-convert
      anespec pull https://example.org/model.gguf
    """
    wanted, watch = read_flags(LoadOptions, chosen), watcher(shown=not as_json)
    from anespec.models.cache import is_gguf, resolve_artifact

    try:
        with ends_as_interrupts():
            found = fetch(model, watch, allow_http=allow_http)
        if found.origin is None and not is_gguf(found.path):
            if not found.path.exists():
                raise missing_model(model)
            refuse_other_weights(found.path)
            raise ArtifactError(
                f"{model}: is not a GGUF, a file of the hub or a URL, so there is nothing to pull; models of "
                "the hub are hf:OWNER/REPO"
            )
        if not as_json:
            out().print(_fetched_text(found))
        artifact = None
        if not no_convert:
            artifact = resolve_artifact(
                found.path,
                context=wanted.context,
                sequences=wanted.sequences,
                weights=wanted.weights,
                watch=watch,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted; finished parts are kept for the next run") from None
    if as_json:
        print_json(_facts(model, found, artifact))
        return
    if artifact is not None:
        # Show the artifact's path instead of a URL, which may contain secrets.
        name = artifact if "?" in str(model) else found.origin if is_url(model) else model
        out().print(f"{artifact}: converted and ready. Next: anespec run {name}")


def _fetched_text(found: Fetched) -> str:
    if found.origin is None:
        return f"{found.path}: is a local file."
    origin = shown_url(found.origin)
    if not found.bytes:
        return f"{found.path}: was downloaded before, and {origin} has no newer version."
    return f"{found.path}: {bytes_text(found.bytes)} downloaded from {origin}."


def _facts(model: Path, found: Fetched, artifact: Path | None) -> dict[str, Any]:
    return {
        "model": str(model),
        "file": str(found.path),
        "origin": found.origin,
        "reason": found.reason,
        "bytes": model_bytes(found.path),
        "downloaded_bytes": found.bytes,
        "artifact": None if artifact is None else str(artifact),
    }
