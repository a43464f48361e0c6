"""Build llama-server, the peer of `serving_speed.py`, from the source distribution of llama-cpp-python.

    python benchmarks/llama_server.py

Everything is in build/llama.cpp, and existing files are not built again. It takes some minutes, a C++
compiler, cmake and ninja (`make llama-server` installs these two). The compiler gets the instructions that
/proc/cpuinfo lists: its native detection may choose some that a virtual machine refuses to programs.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "llama.cpp"
BINARY = FOLDER / "bin" / "llama-server"
PACKAGE = "llama-cpp-python==0.3.36"
SOURCES = "vendor/llama.cpp"
CPUINFO = Path("/proc/cpuinfo")
OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=OFF"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"),
)
INSTRUCTIONS = {
    "SSE42": {"sse4_2"},
    "AVX": {"avx"},
    "AVX2": {"avx2"},
    "BMI2": {"bmi2"},
    "FMA": {"fma"},
    "F16C": {"f16c"},
    "AVX_VNNI": {"avx_vnni"},
    "AVX512": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "AVX512_VBMI": {"avx512vbmi"},
    "AVX512_VNNI": {"avx512_vnni"},
    "AVX512_BF16": {"avx512_bf16"},
}
"""The options of ggml, and the words of /proc/cpuinfo that each of them needs."""

LEFT_OUT = ("AMX_TILE", "AMX_INT8", "AMX_BF16")
"""On an Intel Xeon in a virtual machine, which lists AMX, llama-server ended with an illegal instruction
(tilezero) before it answered."""


def serve_command(
    gguf: Path, port: int, *, threads: int, context: int, sequences: int = 1, binary: Path = BINARY
) -> list[str]:
    """Return the command that serves a file to so many sequences at a time, each of `context` tokens."""
    command = [str(binary), "--model", str(gguf), "--port", str(port), "--threads", str(threads)]
    return [*command, "--parallel", str(sequences), "--ctx-size", str(sequences * context)]


def instruction_options(words: Iterable[str]) -> list[str]:
    """Return ggml's build options for a processor with these words in /proc/cpuinfo."""
    known = set(words)
    return [
        *(f"-DGGML_{name}={'ON' if needs <= known else 'OFF'}" for name, needs in INSTRUCTIONS.items()),
        *(f"-DGGML_{name}=OFF" for name in LEFT_OUT),
    ]


def processor_words() -> list[str]:
    """Return the instructions that this machine's processor lists; SystemExit if none, as off x86."""
    lines = CPUINFO.read_text("utf-8").splitlines() if CPUINFO.exists() else []
    for line in lines:
        if line.startswith("flags"):
            return line.partition(":")[2].split()
    raise SystemExit(f"{CPUINFO} lists no instructions: build llama-server yourself and give it with --peer")


def _sources() -> Path:
    """Return llama.cpp's source tree, unpacked from the package's source distribution."""
    found = sorted(FOLDER.glob(f"*/{SOURCES}/CMakeLists.txt"))
    if found:
        return found[0].parent
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet")
    download = FOLDER / "download"
    subprocess.run(
        [*pip, "--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(download), PACKAGE], check=True
    )
    (archive,) = download.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        wanted = [member for member in packed.getmembers() if f"/{SOURCES}/" in member.name]
        packed.extractall(FOLDER, wanted, filter="data")
    shutil.rmtree(download)
    return _sources()


def build() -> Path:
    """Return the server's file, built if it is missing; SystemExit if a build tool is missing."""
    if BINARY.exists():
        return BINARY
    # Tools that pip installed are beside this Python, even if its environment is not activated.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    missing = [tool for tool in ("cmake", "ninja", "c++") if shutil.which(tool, path=path) is None]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}; `make llama-server` installs cmake and ninja")
    environment = {**os.environ, "PATH": path}
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = FOLDER / "cmake"
    configure = ["cmake", "-G", "Ninja", "-S", str(_sources()), "-B", str(made), *OPTIONS]
    for command in (
        [*configure, *instruction_options(processor_words())],
        ["cmake", "--build", str(made), "--target", "llama-server"],
    ):
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    BINARY.parent.mkdir(exist_ok=True)
    shutil.copy2(made / "bin" / BINARY.name, BINARY)
    return BINARY


if __name__ == "__main__":
    print(build())
