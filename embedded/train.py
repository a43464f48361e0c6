"""Train the demo model, or a hybrid that learns from it: `python -m anespec.embedded.train --help`."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import click
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from anespec.embedded import model_path
from anespec.embedded.corpus import (
    consecutive_windows,
    end_of_text,
    random_windows,
    split,
    standard_library,
    token_stream,
    train_tokenizer,
)
from anespec.embedded.gguf_export import read_network, read_tokenizer, write_gguf
from anespec.embedded.network import Network, is_matrix
from anespec.embedded.shape import STYLES, Shape

# A run can be stopped and resumed: a batch depends only on the seed and the step, and everything else is in
# the checkpoint.

CHECKPOINT = "checkpoint.pt"
QUICK_VALIDATION_WINDOWS = 16
FIRST_EXPORT_MINUTES = 5.0


@dataclass(frozen=True)
class Recipe:
    """The training's hyperparameters. Times are in minutes; the schedule follows the clock."""

    minutes: float = 80.0
    seed: int = 0
    tokens_per_step: int = 4096
    short_length: int = 512
    long_length: int = 1024
    # The fraction of the time for short windows; long ones follow, which train the later positions.
    short_share: float = 0.6
    peak_rate: float = 3e-3
    warmup_share: float = 0.02
    decay_share: float = 0.5
    weight_decay: float = 0.1
    clip: float = 1.0
    export_minutes: float = 20.0
    validate_minutes: float = 10.0
    checkpoint_minutes: float = 5.0

    def rate(self, done: float) -> float:
        """Return the learning rate after the fraction `done` of the time: it rises, holds, decays to zero."""
        rise = done / self.warmup_share
        fall = (1 - done) / self.decay_share
        return self.peak_rate * max(0.0, min(1.0, rise + 0.01, fall))

    def length(self, done: float) -> int:
        """Return the window length in tokens after the fraction `done` of the time."""
        return self.short_length if done < self.short_share else self.long_length


HYBRID = Recipe(minutes=8.0, tokens_per_step=1024, short_length=256, long_length=512, peak_rate=1.5e-3)
"""A hybrid begins with weights of its teacher, the demo model, and needs only minutes."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Streams:
    """The tokenised corpus, int64 [tokens] each, and the token that begins a window."""

    training: NDArray[np.int64]
    held_out: NDArray[np.int64]
    begin: int


class Interval:
    """A timer for an action that is due every `minutes`."""

    def __init__(self, minutes: float, first_minutes: float | None = None) -> None:
        self.seconds = minutes * 60
        self.next = time.monotonic() + 60 * (minutes if first_minutes is None else first_minutes)

    def due(self) -> bool:
        """Return whether the action is due; True once per interval."""
        now = time.monotonic()
        if now < self.next:
            return False
        self.next = now + self.seconds
        return True


def optimisers(network: Network, weight_decay: float, *, muon: bool) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices if it is wanted, and AdamW for all other weights.

    Muon (Keller Jordan, 2024) learns more from each token, and the time allows only few tokens. Its steps
    are scaled to AdamW's size (Moonlight, arXiv:2502.16982), so that both use the same learning rate. It
    computes in bfloat16: without instructions for that, a step takes ten times the time of a batch.
    """
    matrices = [weight for weight in network.blk.parameters() if is_matrix(weight)]
    others = [weight for weight in network.parameters() if not is_matrix(weight)]
    table = [network.token_embd.weight]
    adam = torch.optim.AdamW(
        [
            {"params": table if muon else [*table, *matrices], "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    if not muon:
        return [adam]
    return [torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"), adam]


def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16, without which it takes longer than fp32."""
    return any("bf16" in name and bool(has) for name, has in torch.cpu.get_capabilities().items())


class Training:
    """A training run: the network, the network it learns from or None, its optimisers and the progress."""

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        device: torch.device,
        compiled: bool = False,
        teacher: Network | None = None,
    ) -> None:
        self.network = network.to(device)
        self.teacher = None if teacher is None else teacher.to(device)
        self.recipe = recipe
        self.device = device
        self.half = device.type != "cpu" or multiplies_bfloat16()
        self.progress = Progress()
        self.loss = torch.compile(network.loss, dynamic=False) if compiled else network.loss
        self.optimisers = optimisers(self.network, recipe.weight_decay, muon=self.half)

    @property
    def done(self) -> float:
        """The fraction of the time that is over, 0 to 1."""
        return self.progress.seconds / (60 * self.recipe.minutes)

    def step(self, streams: Streams) -> float:
        """Train on one batch; return its loss in nats per token."""
        began = time.monotonic()
        length = self.recipe.length(self.done)
        count = max(1, self.recipe.tokens_per_step // length)
        seed = (self.recipe.seed, self.progress.steps)
        batch = random_windows(streams.training, count, length, streams.begin, seed).to(self.device)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
            for group in optimiser.param_groups:
                group["lr"] = self.recipe.rate(self.done)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            loss = self.loss(batch, self.teacher)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        for optimiser in self.optimisers:
            optimiser.step()
        value = float(loss.detach())
        self.progress = Progress(
            self.progress.steps + 1,
            self.progress.tokens + count * length,
            self.progress.seconds + time.monotonic() - began,
        )
        return value

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        unfinished = path.with_name(path.name + ".part")
        torch.save(
            {
                "shape": asdict(self.network.shape),
                "recipe": asdict(self.recipe),
                "progress": asdict(self.progress),
                "network": self.network.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            },
            unfinished,
        )
        unfinished.replace(path)

    @classmethod
    def resume(
        cls,
        path: Path,
        minutes: float,
        device: torch.device,
        compiled: bool,
        teacher: Network | None = None,
    ) -> Self:
        """Continue from a checkpoint, with its shape and recipe but a time of `minutes`."""
        saved = torch.load(path, map_location=device, weights_only=True)
        recipe = replace(Recipe(**saved["recipe"]), minutes=minutes)
        training = cls(Network(Shape(**saved["shape"])), recipe, device, compiled, teacher)
        training.network.load_state_dict(saved["network"])
        for optimiser, state in zip(training.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        training.progress = Progress(**saved["progress"])
        return training


@torch.inference_mode()
def validation_loss(network: Network, streams: Streams, limit: int | None = None) -> float:
    """Return the mean loss in nats per token over windows of the full context, in float32.

    With `limit`, only that many windows are used, evenly spread over the held-out files.
    """
    windows = consecutive_windows(streams.held_out, network.shape.context, streams.begin)
    if limit is not None:
        windows = windows[:: max(1, len(windows) // limit)]
    device = network.token_embd.weight.device
    losses = [float(network.loss(window[None].to(device))) for window in windows]
    return sum(losses) / len(losses)


def run(training: Training, streams: Streams, tokenizer: Tokenizer, work: Path, output: Path) -> None:
    """Train until the time is over; write checkpoints to `work` and the GGUF to `output`."""
    recipe = training.recipe
    export = Interval(recipe.export_minutes, min(FIRST_EXPORT_MINUTES, recipe.export_minutes))
    validate = Interval(recipe.validate_minutes)
    checkpoint = Interval(recipe.checkpoint_minutes)
    while training.done < 1:
        loss = training.step(streams)
        progress = training.progress
        if progress.steps % 20 == 1:
            speed = progress.tokens / progress.seconds
            click.echo(
                f"step {progress.steps}  {progress.tokens / 1e6:.2f} M tokens  "
                f"{progress.seconds / 60:.1f} min  {speed:.0f} tokens/s  loss {loss:.3f}"
            )
        if validate.due():
            value = validation_loss(training.network, streams, QUICK_VALIDATION_WINDOWS)
            click.echo(f"step {progress.steps}  held-out loss {value:.3f} (a sample)")
        if checkpoint.due():
            training.save(work / CHECKPOINT)
        if export.due():
            write_gguf(training.network, tokenizer, output)
            click.echo(f"step {progress.steps}  wrote {output}")
    training.save(work / CHECKPOINT)
    write_gguf(training.network, tokenizer, output)


TOKENIZER = "tokenizer.json"


@click.command()
@click.option(
    "--architecture",
    type=click.Choice(list(STYLES)),
    default="llama",
    show_default=True,
    help="llama, or a hybrid, which learns from the embedded model's predictions.",
)
@click.option("--minutes", type=float, default=None, help="Training time.  [default: 80; a hybrid: 8]")
@click.option("--threads", default=2, show_default=True, help="CPU threads.")
@click.option("--seed", default=Recipe.seed, show_default=True, help="Seed of weights and batches.")
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/embedded"),
    show_default=True,
    help="Folder for the checkpoint and the tokenizer.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="The GGUF to write; by default the embedded model itself, or ARCHITECTURE.gguf in the work folder.",
)
@click.option("--resume", is_flag=True, help="Continue from the checkpoint in the work folder.")
@click.option(
    "--compile", "compiled", is_flag=True, help="Use torch.compile (needs a C++ compiler on a CPU)."
)
def main(
    architecture: str,
    minutes: float | None,
    threads: int,
    seed: int,
    work: Path,
    output: Path | None,
    resume: bool,
    compiled: bool,
) -> None:
    """Train the demo model on the standard library of the running Python and write its GGUF file.

    \b
    Example:
      python -m anespec.embedded.train --minutes 80 --compile
      python -m anespec.embedded.train --architecture qwen35 --threads 1
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = Shape(architecture=architecture)
    hybrid = shape.style.hybrid
    output = output or (work / f"{architecture}.gguf" if hybrid else model_path())
    work = work / architecture if hybrid else work
    work.mkdir(parents=True, exist_ok=True)
    learn, held_out = split(standard_library())
    recipe = HYBRID if hybrid else Recipe()
    recipe = replace(recipe, minutes=recipe.minutes if minutes is None else minutes, seed=seed)
    teacher = read_network(model_path()).eval() if hybrid else None
    if resume:
        tokenizer = Tokenizer.from_file(str(work / TOKENIZER))
        training = Training.resume(work / CHECKPOINT, recipe.minutes, device, compiled, teacher)
    else:
        tokenizer = (
            train_tokenizer(learn, shape.vocabulary) if teacher is None else read_tokenizer(model_path())
        )
        tokenizer.save(str(work / TOKENIZER))
        network = Network(shape)
        if teacher is not None:
            network.start_from(teacher)
        training = Training(network, recipe, device, compiled, teacher)
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
    run(training, streams, tokenizer, work, output)
    loss = validation_loss(training.network, streams)
    progress = training.progress
    click.echo(
        f"{progress.steps} steps, {progress.tokens} tokens, {progress.seconds / 60:.1f} minutes: "
        f"held-out loss {loss:.4f} nats per token"
    )


if __name__ == "__main__":
    main()
