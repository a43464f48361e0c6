"""Train the embedded demo model: `python -m anespec.embedded.train --help`."""

from pathlib import Path

import click
import torch
from tokenizers import Tokenizer

from anespec.embedded import model_path
from anespec.embedded.corpus import end_of_text, split, standard_library, token_stream, train_tokenizer
from anespec.embedded.network import Network, Shape
from anespec.embedded.training import CHECKPOINT, Recipe, Streams, Training, run, validation_loss

TOKENIZER = "tokenizer.json"


@click.command()
@click.option("--minutes", default=Recipe.minutes, show_default=True, help="Training time.")
@click.option("--threads", default=2, show_default=True, help="CPU threads.")
@click.option("--seed", default=Recipe.seed, show_default=True, help="Seed of weights and batches.")
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/embedded"),
    show_default=True,
    help="Folder of the checkpoint and the tokenizer.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="The GGUF to write; by default the embedded model itself.",
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in the work folder.")
@click.option(
    "--compile", "compiled", is_flag=True, help="Use torch.compile (needs a C++ compiler on a CPU)."
)
def main(
    minutes: float, threads: int, seed: int, work: Path, output: Path | None, resume: bool, compiled: bool
) -> None:
    """Train the demo model on the standard library of the running Python and write its GGUF file."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work.mkdir(parents=True, exist_ok=True)
    learn, held_out = split(standard_library())
    if resume:
        tokenizer = Tokenizer.from_file(str(work / TOKENIZER))
        training = Training.resume(work / CHECKPOINT, minutes, device, compiled)
    else:
        shape = Shape()
        tokenizer = train_tokenizer(learn, shape.vocabulary)
        tokenizer.save(str(work / TOKENIZER))
        training = Training(Network(shape), Recipe(minutes=minutes, seed=seed), device, compiled)
    streams = Streams(
        token_stream(learn, tokenizer),
        token_stream(held_out, tokenizer),
        end_of_text(tokenizer),
    )
    click.echo(
        f"{len(learn)} files, {len(streams.training)} tokens to learn from; {len(held_out)} files, "
        f"{len(streams.held_out)} tokens held out; "
        f"{training.network.parameter_count()} parameters on {device}"
    )
    run(training, streams, tokenizer, work, output or model_path())
    loss = validation_loss(training.network, streams)
    progress = training.progress
    click.echo(
        f"{progress.steps} steps, {progress.tokens} tokens, {progress.seconds / 60:.1f} minutes: "
        f"held-out loss {loss:.4f} nats per token"
    )


if __name__ == "__main__":
    main()
