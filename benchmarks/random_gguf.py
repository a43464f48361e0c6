"""Write a GGUF of realistic shapes with random weights, to measure without a download.

    python benchmarks/random_gguf.py 1gb model.gguf
    python benchmarks/random_gguf.py tiny model.gguf --layers 3 --type F16
    python benchmarks/random_gguf.py Qwen3.5-0.8B model.gguf
    python benchmarks/random_gguf.py OLMoE-1B-7B model.gguf --layers 8

The names with sizes are Llama models; the others have the sizes of a published hybrid or mixture, in Q8_0.

Such a model generates noise, but in the time and memory of a real one. With --circle N the greedy text of one
with published sizes repeats every N tokens, which drafts can predict.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from gguf import GGMLQuantizationType
from measure import gigabytes
from smoke_options import FOLDER, command_line

from anespec.validate.selftest.inputs.random_gguf import Sizes, write
from anespec.validate.selftest.inputs.real_sizes import REAL_SIZES, write_real

PRESETS = {
    "tiny": Sizes(layers=2, d=256, ff=512, heads=4, kv_heads=2, vocabulary=512, head_dim=64),
    "1gb": Sizes(layers=8, d=3072, ff=8192, heads=24, kv_heads=8, vocabulary=32_000),
    "4gb": Sizes(layers=32, d=3072, ff=8192, heads=24, kv_heads=8, vocabulary=200_064),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("preset", choices=[*PRESETS, *REAL_SIZES])
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=("Q8_0", "F16"), default="Q8_0")
    for option in ("layers", "d", "ff", "heads", "kv-heads", "head-dim", "vocabulary", "circle"):
        parser.add_argument(f"--{option}", type=int)
    options = vars(parser.parse_args(command_line(parser, "tiny", FOLDER / "tiny.gguf")))
    options.pop("smoke")
    preset, path, kind = options.pop("preset"), options.pop("path"), options.pop("type")
    chosen = {name: n for name, n in options.items() if n is not None}
    began = time.perf_counter()
    if preset in REAL_SIZES:
        unknown = chosen.keys() - {"layers", "vocabulary", "circle"}
        if unknown := unknown or ({"type"} if kind != "Q8_0" else set()):
            parser.error(f"{preset} has sizes of its own; leave out --{sorted(unknown)[0].replace('_', '-')}")
        write_real(path, REAL_SIZES[preset], **chosen)
    elif "circle" in chosen:
        parser.error(f"{preset} has no --circle; use one of {', '.join(REAL_SIZES)}")
    else:
        write(path, replace(PRESETS[preset], **chosen), GGMLQuantizationType[kind])
    seconds = time.perf_counter() - began
    print(
        f"{path}: {gigabytes(path.stat().st_size)} in {seconds:.1f} s, {preset} {chosen or ''}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
