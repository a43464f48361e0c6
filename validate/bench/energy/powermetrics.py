"""Read the energy of a Mac's chip from the samples of its program powermetrics, which needs root.

Not run on a Mac yet; the tests feed it a program that prints samples of the same form.
"""

import contextlib
import os
import plistlib
import select
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import IO
from xml.parsers.expat import ExpatError

from anespec.system.child_python import NEUTRAL_FOLDER
from anespec.validate.bench.energy import NoEnergyError

SAMPLE_MILLISECONDS = 100

COMMAND = (
    "/usr/bin/powermetrics",
    "-b", "0",
    "-i", str(SAMPLE_MILLISECONDS),
    "--samplers", "cpu_power,gpu_power,ane_power",
    "--format", "plist",
)  # fmt: skip

SECONDS_TO_START = 10.0

_SECONDS_TO_LOOK = 0.2

_END = b"</plist>"


@dataclass(frozen=True)
class PowerSample:
    """The mean power of CPU, GPU and Neural Engine over some seconds."""

    seconds: float
    watts: float


def samples_of(stream: IO[bytes], closing: threading.Event | None = None) -> Iterator[PowerSample]:
    """Yield the samples that powermetrics writes, each as soon as it is complete, until `closing` is set.

    Each is a property list; all but the first begin with a NUL.

    Raises:
        NoEnergyError: the program writes something else.
    """
    text = b""
    while closing is None or not closing.is_set():
        if not select.select([stream], [], [], _SECONDS_TO_LOOK)[0]:
            continue
        part = os.read(stream.fileno(), 1 << 16)
        if not part:
            return
        *documents, text = (text + part).split(_END)
        for document in documents:
            yield _sample(document.lstrip(b"\0\n") + _END)


def _sample(document: bytes) -> PowerSample:
    """Read one sample: the time is in nanoseconds, power in milliwatts.

    Some versions of macOS leave out the sum, or parts that a chip lacks.
    """
    try:
        found = plistlib.loads(document)
        processor = found["processor"]
        parts = [processor[name] for name in ("cpu_power", "gpu_power", "ane_power") if name in processor]
        milliwatts = processor.get("combined_power", sum(parts) if parts else None)
        return PowerSample(found["elapsed_ns"] / 1e9, milliwatts / 1e3)
    except (plistlib.InvalidFileException, ExpatError, ValueError, KeyError, TypeError, AttributeError):
        raise NoEnergyError(
            "powermetrics wrote a sample of an unknown form, so the energy per token was not measured; "
            "please report this with your version of macOS"
        ) from None


class PowerMeter:
    """A meter that adds up samples on a thread; between two samples the power of the last one counts on."""

    name = "powermetrics: CPU, GPU and Neural Engine"

    def __init__(self, process: "subprocess.Popen[bytes]", clock: Callable[[], float] = monotonic) -> None:
        """Read the standard output of a running `process`; wait for its first sample.

        Raises:
            NoEnergyError: none comes.
        """
        assert process.stdout is not None
        self._process = process
        self._stream = process.stdout
        self._clock = clock
        self._lock = threading.Lock()
        self._came, self._closing = threading.Event(), threading.Event()
        self._sum, self._watts, self._until, self._shown = 0.0, 0.0, 0.0, 0.0
        self._failure: NoEnergyError | None = None
        self._thread = threading.Thread(target=self._read, name="anespec energy", daemon=True)
        self._thread.start()
        self._came.wait(SECONDS_TO_START)
        if not self._until:
            self.close()
            raise self._failure or NoEnergyError(
                "powermetrics needs root, so the energy per token was not measured; --energy asks for the "
                "password"
            )

    def joules(self) -> float:
        """Return the energy since the meter was opened; it never falls.

        Raises:
            NoEnergyError: the program has ended.
        """
        if not self._thread.is_alive():
            raise self._failure or NoEnergyError(
                "powermetrics ended, so the energy per token was not measured"
            )
        with self._lock:
            since = min(self._clock() - self._until, 2e-3 * SAMPLE_MILLISECONDS)
            self._shown = max(self._shown, self._sum + self._watts * since)
            return self._shown

    def close(self) -> None:
        """Stop the program, which runs as root: it ends when it finds that nobody reads on."""
        self._closing.set()
        with contextlib.suppress(PermissionError):
            self._process.terminate()
        self._thread.join()
        self._stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_START)

    def _read(self) -> None:
        try:
            for sample in samples_of(self._stream, self._closing):
                with self._lock:
                    if self._until:
                        self._sum += sample.watts * sample.seconds
                    self._watts, self._until = sample.watts, self._clock()
                self._came.set()
        except NoEnergyError as error:
            self._failure = error
        self._came.set()


def open_powermetrics(command: Sequence[str] = COMMAND, *, asks: bool = False) -> PowerMeter:
    """Start powermetrics and return its meter; without root it is started by sudo.

    Only if it `asks`, sudo may ask for a password, on the terminal and before the program starts.

    Raises:
        NoEnergyError: it does not start.
    """
    prefix = () if os.geteuid() == 0 else ("sudo", "-n")
    try:
        if asks and prefix and subprocess.run(["sudo", "-v"], cwd=NEUTRAL_FOLDER, check=False).returncode:
            raise NoEnergyError("sudo refused, and powermetrics needs root; leave out --energy")
        process = subprocess.Popen(
            [*prefix, *command],
            cwd=NEUTRAL_FOLDER,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise NoEnergyError(
            f"powermetrics cannot be started ({error.strerror}), so the energy per token was not measured; "
            "it is a part of macOS"
        ) from None
    return PowerMeter(process)
