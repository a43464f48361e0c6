"""Compare anespec on MLX with mlx-lm: passes of 1, 4 and 8 rows, prompts, memory, and tokens per second of
greedy text, with and without drafts.

    python benchmarks/mlx_peer.py model.gguf [--tokens 128] [--rounds 3] [--widest 8] [--json]

Both programs run the same weights of a Llama on MLX's default device, in turn: the GPU of a Mac, elsewhere
the processor. On a GPU mlx-lm computes in fp16, as with most models. For processors MLX's fp16 products are
many times slower than those in fp32, so there it computes in fp32, as anespec does on MLX. mlx-lm has no
prompt lookup, so its speculation with a draft model gets one that looks up (see peers/mlx_lm_model.py), with
as many drafts as a block of anespec takes. Every run of anespec has a draft source that does not know its
text. Reading the prompt is part of the time.

MLX's products for processors take as long for each further row, so that there a pass of 128 rows of a 1 GB
model takes minutes; --widest 8 leaves out such passes.
"""

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import describe, emit, gigabytes, machine, show_table
from smoke_options import MODEL, command_line
from spending import Sources
from spending import proven as proven_of
from subjects import artifact_of, narrowed, pass_of, prefill
from turns import TURN_CALLS, Key, take_turns

from anespec.convert.options import ConvertOptions
from anespec.manifests.fields import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import BACKENDS, MLX, open_verifier
from anespec.runtime.drafters import DraftSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.passes import Verifier, run_pass
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.cost_measurement import measure_pass_costs
from anespec.runtime.speculation.pass_costs import PassCosts

REPEATING = "def area(width, height):\n    return width * height\n\n" * 40
ROWS = (1, 4, 8)
DRAFTER = "auto"
PLAIN, DRAFTED, PEER, PEER_LOOKUP = "anespec", "anespec, drafts", "mlx-lm", "mlx-lm, prompt lookup"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--widest", type=int, help="the most rows of a pass (default all)")
    parser.add_argument("--peer-type", choices=("float16", "float32"))
    parser.add_argument("--json", action="store_true")
    smoke = (MODEL, "--tokens", 4, "--prompt-tokens", 12, "--rounds", 1, "--context", 64)
    return parser.parse_args(command_line(parser, *smoke))


def generated(
    verifier: Verifier, proven: Proven, costs: PassCosts, request: Request, source: DraftSource | None
) -> tuple[list[int], int]:
    """Return a request's tokens and its accepted drafts, of an engine of its own."""
    engine, tokens = Engine(verifier, proven, source, costs=costs), list[int]()
    for event in engine.generate(request):
        if event.error is not None:
            raise SystemExit(f"a sequence failed: {event.error}")
        tokens += [token.id for token in event.tokens]
    engine.close()
    return tokens, engine.counts.accepted


def compared(
    options: argparse.Namespace,
    sources: Sources,
    verifier: Verifier,
    proven: Proven,
    costs: PassCosts,
    model: Any,
    prompt: list[int],
) -> dict[str, object]:
    """Return tokens per second of all programs on one prompt, their ratios, and where texts part.

    `model` is mlx-lm's.
    """
    from peers.mlx_lm_model import plain, with_lookup

    count, drafts = options.tokens, verifier.shape.block - 1
    request = Request(tuple(prompt), count, SamplingParameters())
    with sources.opened(1 + options.rounds * (1 + TURN_CALLS)) as fresh:
        ours, accepted = generated(verifier, proven, costs, request, next(fresh))
        theirs, looked_up = with_lookup(model, prompt, count, drafts)
        contestants: dict[Key, Callable[[], object]] = {
            (PLAIN, 0): partial(generated, verifier, proven, costs, request, None),
            (DRAFTED, 0): lambda: generated(verifier, proven, costs, request, next(fresh)),
            (PEER, 0): partial(plain, model, prompt, count),
            (PEER_LOOKUP, 0): partial(with_lookup, model, prompt, count, drafts),
        }
        times = take_turns(contestants, options.rounds)
    without, _ = generated(verifier, proven, costs, request, None)
    peers = plain(model, prompt, count)
    speeds = {name: 1e3 * len(ours) / timing.median for (name, _), timing in times.items()}
    return {
        "tokens_per_second": speeds,
        "ratios": {
            "drafts / without": speeds[DRAFTED] / speeds[PLAIN],
            "anespec / mlx-lm": speeds[PLAIN] / speeds[PEER],
            "anespec, drafts / mlx-lm": speeds[DRAFTED] / speeds[PEER],
            "anespec, drafts / mlx-lm, prompt lookup": speeds[DRAFTED] / speeds[PEER_LOOKUP],
        },
        "accepted": {DRAFTED: accepted, PEER_LOOKUP: looked_up},
        "tokens": len(ours),
        "equal_with_and_without_drafts": ours == without,
        "peer_equal_with_and_without_lookup": theirs == peers,
        "tokens_before_the_programs_differ": common(ours, peers),
    }


def passes(
    rounds: int, verifier: Verifier, model: Any, prompt: list[int], memory: dict[str, int]
) -> dict[str, object]:
    """Return the times of passes behind a prompt and of prompts, and the bytes that MLX holds."""
    from peers.mlx_lm_model import PeerPasses

    theirs = PeerPasses(model, prompt)
    prefill(verifier, prompt)
    contestants: dict[Key, Callable[[], object]] = {}
    for rows in ROWS:
        plan = narrowed(verifier, pass_of(verifier, prompt[:rows], len(prompt)))
        contestants[PLAIN, rows] = partial(run_pass, verifier, plan)
        contestants[PEER, rows] = partial(theirs.rows, rows)
    contestants[PLAIN, 0] = partial(prefill, verifier, prompt)
    contestants[PEER, 0] = theirs.prompt
    times = take_turns(contestants, rounds)
    return {
        "milliseconds": {f"{who}, {rows}": times[who, rows].median for who, rows in times if rows},
        "prompt_tokens_per_second": {who: 1e3 * len(prompt) / times[who, 0].median for who in (PLAIN, PEER)},
        "speedups": {rows: times[PEER, rows].median / times[PLAIN, rows].median for rows in ROWS}
        | {"prompt": times[PEER, 0].median / times[PLAIN, 0].median},
        "bytes": memory,
    }


def common(one: list[int], other: list[int]) -> int:
    """Return the number of leading tokens that are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def main() -> None:
    """Run all programs on text that repeats and on text that does not, and print figures and ratios."""
    options = arguments()
    lacking = [name for name in ("mlx", "mlx_lm") if importlib.util.find_spec(name) is None]
    if lacking or BACKENDS[MLX].unavailable() is not None:
        reason = f"{' and '.join(lacking) or MLX} is not installed (pip install mlx-lm)"
        emit({"skipped": reason}) if options.json else print(f"skipped: {reason}")
        return
    sources = Sources(options.gguf, DRAFTER)
    random = np.random.default_rng(3)
    prompts = {
        "repetition": sources.tokenizer.encode(REPEATING)[: options.prompt_tokens],
        "no repetition": random.integers(
            3, sources.tokenizer.vocabulary_size, options.prompt_tokens
        ).tolist(),
    }
    weights = WeightChoice(WeightFormat.INT8_BLOCK32)
    converted = ConvertOptions(target=Target.CPU, weights=weights, context=options.context)
    import mlx.core as mx
    from peers.mlx_lm_model import peer_model

    from anespec.runtime.backends.portable.mlx_gpu.library import on_gpu

    empty = mx.get_active_memory()
    verifier = open_verifier(Artifact(artifact_of(options.gguf, converted)), MLX)
    with_ours = mx.get_active_memory()
    model = peer_model(options.gguf, options.peer_type or ("float16" if on_gpu() else "float32"))
    memory = {PLAIN: with_ours - empty, PEER: mx.get_active_memory() - with_ours}
    proven = proven_of(verifier.shape)
    if options.widest is not None:
        kept = tuple(width for width in proven.widths if width <= max(options.widest, verifier.shape.block))
        proven = replace(proven, widths=kept)
    costs = measure_pass_costs(verifier, proven)
    timed = passes(options.rounds, verifier, model, prompts["no repetition"], memory)
    found = {
        name: compared(options, sources, verifier, proven, costs, model, prompt)
        for name, prompt in prompts.items()
    }
    verifier.close()
    report = {"passes": timed, "texts": found, "versions": versions(), **machine()}
    if options.json:
        emit(report)
    else:
        show_passes(timed)
        show(found)
        print(f"{versions()}; {describe(machine())}")


def versions() -> dict[str, str]:
    """Return the versions of the libraries, and the device that ran them."""
    from importlib.metadata import version

    import mlx.core as mx

    return {name: version(name) for name in ("mlx", "mlx-lm")} | {"device": str(mx.default_device().type)}


def show_passes(timed: dict[str, Any]) -> None:
    """Print the times of passes and of prompts, and the memory, beside the peer's."""
    ms, speeds, ratios = timed["milliseconds"], timed["prompt_tokens_per_second"], timed["speedups"]
    rows = [
        (
            f"{rows} rows",
            f"{ms[f'{PLAIN}, {rows}']:.1f} ms",
            f"{ms[f'{PEER}, {rows}']:.1f} ms",
            f"{ratios[rows]:.2f}",
        )
        for rows in ROWS
    ]
    rows.append(("a prompt", f"{speeds[PLAIN]:.0f}/s", f"{speeds[PEER]:.0f}/s", f"{ratios['prompt']:.2f}"))
    rows.append(("memory", *(gigabytes(timed["bytes"][who]) for who in (PLAIN, PEER)), ""))
    show_table(("", PLAIN, PEER, "times as fast"), rows)


def show(found: dict[str, dict[str, object]]) -> None:
    """Print a table for each text."""
    for name, figures in found.items():
        speeds, ratios = figures["tokens_per_second"], figures["ratios"]
        assert isinstance(speeds, dict) and isinstance(ratios, dict)
        show_table((name, "tokens/s"), [(who, f"{speed:.1f}") for who, speed in speeds.items()])
        show_table(("ratio", ""), [(what, f"{ratio:.2f}") for what, ratio in ratios.items()])
        rest = {key: value for key, value in figures.items() if key not in ("tokens_per_second", "ratios")}
        print(", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in rest.items()), end="\n\n")


if __name__ == "__main__":
    main()
