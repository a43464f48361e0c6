"""Milliseconds per pass of one model in every form of K/V, side by side in one run.

python benchmarks/kv_forms.py model.gguf [--backends openvino torch] [--context 2048] [--json]
"""

import argparse
import contextlib
from functools import partial
from pathlib import Path

import numpy as np
from measure import describe, emit, machine, show_table
from smoke_options import MODEL, command_line
from subjects import artifact_of, narrowed, pass_of, prefill
from turns import Contestant, Key, take_turns

from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import KVForm, Target
from anespec.runtime.backends import OPENVINO, TORCH, open_verifier
from anespec.runtime.passes import run_pass
from anespec.system.machine import processors

ROWS = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--backends", nargs="+", choices=(OPENVINO, TORCH), default=[OPENVINO])
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--past", type=int, default=256, help="tokens before the measured pass")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(command_line(parser, MODEL, "--context", 128, "--past", 16, "--rounds", 1))


def main() -> None:
    options, where = arguments(), machine()
    contestants: dict[Key, Contestant] = {}
    with contextlib.ExitStack() as stack:
        for form in KVForm:
            choices = ConvertOptions(target=Target.CPU, context=options.context, kv_form=form)
            artifact = artifact_of(options.gguf, choices)
            for backend in options.backends:
                verifier = open_verifier(artifact, backend, options.threads)
                stack.callback(verifier.close)
                vocabulary = verifier.shape.vocabulary
                tokens = np.random.default_rng(1).integers(0, vocabulary, options.past + ROWS).tolist()
                prefill(verifier, tokens[: options.past])
                plan = pass_of(verifier, tokens[options.past :], options.past)
                contestants[f"{backend} {form}, all slots", ROWS] = partial(run_pass, verifier, plan)
                short = narrowed(verifier, plan)
                contestants[f"{backend} {form}, slots in use", ROWS] = partial(run_pass, verifier, short)
        passes = take_turns(contestants, options.rounds)
    if options.json:
        emit({**where, "passes": {name: timing.as_json() for (name, _), timing in passes.items()}})
        return
    print(describe(where))
    print(f"{options.gguf.name}, {options.threads} threads, context {options.context}, {ROWS} rows: ms")
    rows = [(name, f"{timing.median:.1f}", f"{timing.least:.1f}") for (name, _), timing in passes.items()]
    show_table(("K/V", "median", "least"), rows)


if __name__ == "__main__":
    main()
