"""Compare drafting on a suite's prompts with llama.cpp's, on the same weights, in one run.

    python benchmarks/suite_peers.py model.gguf [--suite ngram] [--draft small.gguf] [--tokens 128] [--json]

The prompts are those of `anespec bench prompts --suite NAME`, as token ids, so that both programs read the
same. anespec runs without drafts, with simple (lookup of 12 tokens), with mod and with auto; llama-server
(benchmarks/llama_server.py) without drafts, with ngram-simple and with ngram-mod; with --draft both also with
this second model. If mlx-lm is installed and the model is a Llama, it runs on MLX's default device without
drafts and with prompt lookup (peers/mlx_lm_model.py), in passes as wide as anespec's. Each continues every
prompt greedily, once to warm up and then in --rounds rounds. Speedups are against the same program without
drafts, and so is "same text": whether drafts left every token as it was.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from http_server import free_port, started
from llama_server import BINARY, serve_command
from measure import emit, machine, show_table
from smoke_options import MODEL, command_line
from subjects import artifact_of

import anespec
from anespec.convert.options import ConvertOptions
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.runtime.options import NO_FOLDER, WhenGates
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.machine import processors
from anespec.system.progress import SILENT
from anespec.validate.bench.suites.prompts import Frame, prompt_ids
from anespec.validate.bench.suites.schema import read_suite

Prompt = tuple[int, ...]

PLAIN, SECOND_MODEL = "without drafts", "second model"


@dataclass(frozen=True)
class Answer:
    """A continuation: its tokens, its seconds, and how many tokens drafts saved a pass of."""

    ids: tuple[int, ...]
    seconds: float
    accepted: int


@dataclass(frozen=True)
class Figures:
    """One way of one program over all prompts."""

    program: str
    way: str
    tokens_per_second: float
    speedup: float
    tokens_per_pass: float
    same_text: bool


Continue = Callable[[Prompt, int], Answer]


def own_ways(draft: Path | None) -> Mapping[str, Mapping[str, Any]]:
    """Return anespec's options, by way."""
    ways: dict[str, Mapping[str, Any]] = {
        PLAIN: {"drafter": "none"},
        "simple": {"drafter": "lookup", "lookup_min": 12, "lookup_max": 12},
        "mod": {"drafter": "mod", "mod_match": 16},
        "auto": {"drafter": "auto"},
    }
    return ways if draft is None else {**ways, SECOND_MODEL: {"drafter": "model", "draft": draft}}


def peer_ways(draft: Path | None) -> Mapping[str, Sequence[str]]:
    """Return llama-server's options, by way."""
    ways: dict[str, Sequence[str]] = {
        PLAIN: (),
        "simple": ("--spec-type", "ngram-simple"),
        "mod": ("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "16"),
    }
    if draft is None:
        return ways
    return {**ways, SECOND_MODEL: ("--spec-type", "draft-simple", "-md", str(draft))}


@contextmanager
def own(artifact: Path, options: Mapping[str, Any]) -> Iterator[Continue]:
    """Yield a function that continues a prompt with anespec."""
    with anespec.load(
        artifact, watch=SILENT, gates=WhenGates.NOW, draft_memory=NO_FOLDER, **options
    ) as model:

        def answered(prompt: Prompt, tokens: int) -> Answer:
            began = time.perf_counter()
            (choice,) = model.generate(list(prompt), max_tokens=tokens, ignore_eos=True).choices
            return Answer(choice.output_ids, time.perf_counter() - began, choice.statistics.accepted)

        yield answered


@contextmanager
def peer(gguf: Path, context: int, options: Sequence[str]) -> Iterator[Continue]:
    """Yield a function that continues a prompt with a llama-server of its own."""
    port = free_port()
    command = [*serve_command(gguf, port, threads=processors(), context=context), *options]
    with started("llama-server", command, port, "/health") as server:

        def answered(prompt: Prompt, tokens: int) -> Answer:
            body = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0, "ignore_eos": True}
            body |= {"cache_prompt": False, "return_tokens": True}
            began = time.perf_counter()
            # It closed kept connections in mid-answer here, so each request has its own.
            found = httpx.post(f"{server.url}/completion", json=body, timeout=None).raise_for_status().json()
            seconds = time.perf_counter() - began
            return Answer(tuple(found["tokens"]), seconds, found["timings"].get("draft_n_accepted", 0))

        yield answered


@contextmanager
def mlx_peer(gguf: Path, drafts: int) -> Iterator[Continue]:
    """Yield a function that continues a prompt with mlx-lm, with so many looked-up drafts a pass."""
    from mlx import core as mx
    from peers.mlx_lm_model import peer_model, plain, with_lookup

    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    # For processors MLX's products of fp16 are many times slower than those of fp32.
    model = peer_model(gguf, "float16" if on_gpu else "float32")

    def answered(prompt: Prompt, tokens: int) -> Answer:
        began = time.perf_counter()
        if drafts:
            ids, accepted = with_lookup(model, prompt, tokens, drafts)
        else:
            ids, accepted = plain(model, prompt, tokens), 0
        return Answer(tuple(ids), time.perf_counter() - began, accepted)

    yield answered


def runs_on_mlx(gguf: Path) -> bool:
    """Return whether mlx-lm is there, and can run the model."""
    with GGUFFile(gguf) as file:
        is_llama = file.metadata.get("general.architecture") == "llama"
    return is_llama and None not in map(find_spec, ("mlx", "mlx_lm"))


def measured(
    program: str,
    ways: Mapping[str, Callable[[], AbstractContextManager[Continue]]],
    prompts: Sequence[Prompt],
    tokens: int,
    rounds: int,
) -> list[Figures]:
    """Return the figures of all ways of one program; each way is opened alone."""
    found: dict[str, list[list[Answer]]] = {}
    for way, opened in ways.items():
        with opened() as answered:
            turns = [[answered(prompt, tokens) for prompt in prompts] for _ in range(rounds + 1)]
        found[way] = turns[1:]
    plain = found[PLAIN]
    return [
        Figures(
            program,
            way,
            max(map(_speed, turns)),
            median(_speed(each) / _speed(base) for each, base in zip(turns, plain, strict=True)),
            _tokens(turns[0]) / (_tokens(turns[0]) - sum(each.accepted for each in turns[0])),
            all(_texts(each) == _texts(plain[0]) for each in turns),
        )
        for way, turns in found.items()
    ]


def _tokens(turn: Sequence[Answer]) -> int:
    return sum(len(each.ids) for each in turn)


def _texts(turn: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [each.ids for each in turn]


def _speed(turn: Sequence[Answer]) -> float:
    return _tokens(turn) / sum(each.seconds for each in turn)


def suite_prompts(name: str, gguf: Path, longest: int) -> list[Prompt]:
    """Return a suite's prompts of at most so many tokens, in a file's vocabulary."""
    suite = read_suite(name)
    with GGUFFile(gguf) as file:
        tokenizer = Tokenizer.from_gguf(file)
    frame = Frame.of(tokenizer)
    return [
        prompt_ids(tokenizer, frame, kind, tokens, suite.seed, number)
        for kind, tokens, number in suite.prompts
        if tokens <= longest
    ]


def main() -> None:
    """Measure both programs, print a table, and fail if drafts changed a text of anespec."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--suite", default="ngram")
    parser.add_argument("--draft", type=Path, help="a second model that drafts for both")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    smoke = (MODEL, "--tokens", 4, "--rounds", 1, "--context", 256)
    options = parser.parse_args(command_line(parser, *smoke))
    prompts = suite_prompts(options.suite, options.gguf, options.context - options.tokens)
    if not prompts:
        raise SystemExit(f"a --context of {options.context} holds no prompt of the suite {options.suite}")
    artifact = artifact_of(options.gguf, ConvertOptions(target=Target.CPU, context=options.context))
    ours = {way: partial(own, artifact, given) for way, given in own_ways(options.draft).items()}
    rows = measured("anespec", ours, prompts, options.tokens, options.rounds)
    if BINARY.exists():
        theirs = {
            way: partial(peer, options.gguf, options.context, given)
            for way, given in peer_ways(options.draft).items()
        }
        rows += measured("llama-server", theirs, prompts, options.tokens, options.rounds)
    else:
        print(f"{BINARY} is missing; `make llama-server` builds it")
    if runs_on_mlx(options.gguf):
        block = Artifact(artifact).manifest.block
        on_mlx = {PLAIN: partial(mlx_peer, options.gguf, 0)}
        on_mlx["lookup"] = partial(mlx_peer, options.gguf, block - 1)
        rows += measured("mlx-lm", on_mlx, prompts, options.tokens, options.rounds)
    else:
        print("mlx-lm is not installed, or cannot run this architecture here")
    if options.json:
        emit({"suite": options.suite, "prompts": len(prompts), "rows": list(map(asdict, rows)), **machine()})
    else:
        show_table(
            ["program", "drafts", "tokens/s", "speedup", "tokens per pass", "same text"],
            [
                [
                    each.program,
                    each.way,
                    f"{each.tokens_per_second:.1f}",
                    f"{each.speedup:.2f}",
                    f"{each.tokens_per_pass:.2f}",
                    "yes" if each.same_text else "NO",
                ]
                for each in rows
            ],
        )
    if not all(each.same_text for each in rows if each.program == "anespec"):
        raise SystemExit("drafts changed a text of anespec")


if __name__ == "__main__":
    main()
