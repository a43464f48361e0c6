"""Check a machine: each probe checks one property and reports it."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from anespec.runtime.backends.coreml.library import FIRST_MACOS
from anespec.runtime.backends.worker.build import MINIMUM_SWIFT
from anespec.system.errors import StorageError
from anespec.system.formatting import bytes_text, counted
from anespec.system.packages import EXTRAS, install_command
from anespec.system.user_folders import cache_folder
from anespec.validate.doctor.system import System
from anespec.validate.findings import Finding, Level

OLDEST_PYTHON = (3, 11)
OLDEST_COREMLTOOLS = (9, 0)
MIN_MEMORY = 8_000_000_000
MIN_DISK_SPACE = 20_000_000_000
"""A model of 4 GB is stored three times: as GGUF, as artifact and compiled."""
LARGE_CACHE = 20_000_000_000

Probe = Callable[[System], Iterator[Finding]]


def look_at(system: System) -> tuple[Finding, ...]:
    """Return all findings on a machine, in the order of the probes."""
    return tuple(finding for probe in PROBES for finding in probe(system))


def is_mac(system: System) -> bool:
    """Return whether the machine runs macOS."""
    return system.name == "Darwin"


def has_engine(system: System) -> bool:
    """Return whether the machine is a Mac with Apple's own chip, all of which have a Neural Engine."""
    return is_mac(system) and system.output_of("sysctl", "-n", "hw.optional.arm64") == "1"


def _ok(subject: str, text: str) -> Finding:
    return Finding(subject=subject, level=Level.OK, text=text)


def _not_here(subject: str, text: str) -> Finding:
    return Finding(subject=subject, level=Level.NOT_HERE, text=text)


def _warn(subject: str, text: str, mend: str) -> Finding:
    return Finding(subject=subject, level=Level.WARN, text=text, mend=mend)


def _fail(subject: str, text: str, mend: str) -> Finding:
    return Finding(subject=subject, level=Level.FAIL, text=text, mend=mend)


def _chip(system: System) -> Iterator[Finding]:
    if not is_mac(system):
        yield _ok("chip", f"{system.processor or 'unknown'}; shards run on the portable backend")
        return
    brand = system.output_of("sysctl", "-n", "machdep.cpu.brand_string") or "unknown"
    if not has_engine(system):
        yield _warn(
            "chip", f"{brand} has no Neural Engine", "convert with --target cpu: the portable backend runs it"
        )
        return
    hardware = _hardware(system)
    cores = re.fullmatch(r"proc (\d+):(\d+):(\d+)", str(hardware.get("number_processors", "")))
    shape = f", {cores[2]} performance and {cores[3]} efficiency cores" if cores else ""
    model = f" in a {hardware['machine_name']}" if "machine_name" in hardware else ""
    yield _ok("chip", f"{brand}{model}{shape}, with a Neural Engine")
    yield from _kv_form(brand)


def _kv_form(brand: str) -> Iterator[Finding]:
    """Report which form of K/V to try on this chip, according to a source."""
    if re.search(r"\bM5\b", brand):
        yield _ok(
            "K/V form",
            "states in the graph failed on the engine of M5 with -14 or Code=8 (B: mobius#77, VoxCPMANE#10, "
            "#15); first try `convert --kv-form outside`, whose cache the graph only reads, and compare it "
            "with the others in the self-test",
        )
    else:
        yield _ok(
            "K/V form",
            "the default is the form that was measured on the engine (B: ane-book journal 093); if K/V "
            "take much of a pass (`inspect --plan`), try `convert --kv-form at_position`, which others ship "
            "(B: ANEMLL, CoreML-LLM)",
        )


def _hardware(system: System) -> dict[str, Any]:
    """Return the hardware fields of system_profiler; serial numbers are never read from them."""
    answer = system.output_of("system_profiler", "-json", "SPHardwareDataType")
    try:
        found = json.loads(answer or "")["SPHardwareDataType"][0]
    except (ValueError, LookupError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _system(system: System) -> Iterator[Finding]:
    if not is_mac(system):
        yield _ok("system", f"{system.name}: there is no Core ML, so residency is predicted here")
        return
    release = system.output_of("sw_vers", "-productVersion") or ""
    build = system.output_of("sw_vers", "-buildVersion") or "unknown build"
    major = int(release.partition(".")[0]) if release.partition(".")[0].isdecimal() else 0
    if not major:
        yield _warn(
            "system", "the release of macOS cannot be read", f"check that it is {FIRST_MACOS} or later"
        )
    elif major < FIRST_MACOS:
        yield _fail(
            "system",
            f"macOS {release} ({build}): Core ML has no states before {FIRST_MACOS}",
            f"upgrade to macOS {FIRST_MACOS} or later, or use --backend openvino",
        )
    else:
        yield _ok("system", f"macOS {release} ({build})")


def _translated(system: System) -> Iterator[Finding]:
    version, architecture = system.python
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if is_mac(system) and has_engine(system) and architecture != "arm64":
        yield _fail(
            "python",
            f"Python {version} is built for {architecture} and runs translated, so Core ML cannot be reached",
            "install an arm64 Python and set up the virtual environment again",
        )
    elif number < OLDEST_PYTHON:
        yield _fail(
            "python",
            f"Python {version} is too old",
            f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or later",
        )
    else:
        yield _ok("python", f"Python {version}, {architecture}")


def _packages(system: System) -> Iterator[Finding]:
    found = system.version("coremltools")
    if found is None:
        yield _fail("coremltools", "coremltools is not installed", install_command(EXTRAS["coremltools"]))
    elif tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < OLDEST_COREMLTOOLS:
        yield _fail(
            "coremltools", f"coremltools {found} is too old", "pip install --upgrade 'coremltools>=9.0,<10'"
        )
    elif is_mac(system) and not system.has_module("coremltools.libcoremlpython"):
        yield _fail(
            "coremltools",
            f"coremltools {found} has no native library here, so it can convert but not run",
            "install a Python that coremltools has wheels for, such as 3.12, and set up anespec again",
        )
    else:
        native = ", with its native library" if is_mac(system) else ""
        yield _ok("coremltools", f"coremltools {found}{native}")
    if (found := system.version("openvino")) is None:
        yield _warn(
            "openvino",
            "openvino, which the portable backend needs, is not installed",
            install_command(EXTRAS["openvino"]),
        )
    else:
        yield _ok("openvino", f"openvino {found}")
    if (found := system.version("torch")) is None:
        yield _not_here(
            "torch",
            "torch, which the self-test and the backend torch need, is not installed: "
            f"{install_command(EXTRAS['torch'])}",
        )
    else:
        yield _ok("torch", f"torch {found}")
    if (found := system.version("mlx")) is None:
        yield _not_here(
            "mlx", f"mlx, which the backend mlx needs, is not installed: {install_command(EXTRAS['mlx'])}"
        )
    else:
        yield _ok("mlx", f"mlx {found}")


def _tools(system: System) -> Iterator[Finding]:
    if not is_mac(system):
        yield _not_here("xcode", "Apple's tools are for macOS")
    elif (tools := system.output_of("xcode-select", "-p")) is None:
        yield _warn(
            "xcode",
            "no developer tools are selected, so the native worker cannot be built",
            "xcode-select --install",
        )
    else:
        compiler = system.output_of("xcrun", "--find", "coremlcompiler")
        kind = "Xcode" if "Xcode" in tools else "the command line tools"
        has = "with" if compiler else "without"
        yield _ok("xcode", f"{kind}, {has} coremlcompiler (coremltools compiles without it)")
    swift = system.output_of("swift", "--version")
    if swift is None:
        mend = (
            "xcode-select --install" if is_mac(system) else "install Swift 6 if you want to build the worker"
        )
        yield _warn("swift", "Swift is not installed, so the native worker cannot be built", mend)
        return
    number = re.search(r"Swift version (\d+(?:\.\d+)*)", swift)
    text = f"Swift {number[1] if number else 'of an unknown version'}"
    if number is not None and tuple(map(int, number[1].split("."))) < MINIMUM_SWIFT:
        least = ".".join(map(str, MINIMUM_SWIFT))
        yield _warn(
            "swift", f"{text} is too old to build the native worker", f"install Swift {least} or later"
        )
    else:
        yield _ok("swift", text)


def _worker(system: System) -> Iterator[Finding]:
    if not has_engine(system):
        return
    if system.has_worker():
        yield _ok("worker", "the native worker was built, so `--backend auto` is worker")
    else:
        yield _not_here(
            "worker", "not built, so `--backend auto` is coreml; `anespec worker build` builds it"
        )


def _memory(system: System) -> Iterator[Finding]:
    whole, free = system.memory()
    text = (
        f"{bytes_text(whole)} of memory, {bytes_text(free)} free; {counted(system.processors(), 'processor')}"
    )
    if whole < MIN_MEMORY:
        yield _warn("memory", text, "choose models of a gigabyte or two, or a smaller --weights")
    else:
        yield _ok("memory", text)


def _disk(system: System) -> Iterator[Finding]:
    try:
        folder = cache_folder()
    except StorageError as error:
        yield _fail("disk", str(error), "set HOME or XDG_CACHE_HOME")
        return
    if (room := system.room(folder)) is None:
        yield _warn("disk", "the free space cannot be read", "check that 20 GB are free")
    elif room < MIN_DISK_SPACE:
        yield _warn(
            "disk",
            f"{bytes_text(room)} free, and a model of 4 GB takes 12: as GGUF, as artifact and compiled",
            "free some space; `anespec list` shows what `anespec rm` would free",
        )
    else:
        yield _ok("disk", f"{bytes_text(room)} free")
    held = system.held(folder)
    if held > LARGE_CACHE:
        yield _warn(
            "cache", f"{bytes_text(held)} in the cache", "`anespec list` shows what `anespec rm` would free"
        )
    else:
        yield _ok("cache", f"{bytes_text(held)} in the cache")


def _power(system: System) -> Iterator[Finding]:
    if not is_mac(system) or (settings := system.output_of("pmset", "-g")) is None:
        return
    if re.search(r"^\s*lowpowermode\s+1\s*$", settings, re.MULTILINE):
        yield _warn(
            "power", "low power mode is on, which slows every measurement", "turn it off before measuring"
        )


PROBES: tuple[Probe, ...] = (_chip, _system, _translated, _packages, _tools, _worker, _memory, _disk, _power)
