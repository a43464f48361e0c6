"""Energy is what the counters and samples add up to; without a meter one sentence says what would help."""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import PATIENCE
from waiting import until

from anespec.system.child_python import NEUTRAL_FOLDER
from anespec.validate.bench.energy import NoEnergyError, open_meter, powermetrics
from anespec.validate.bench.energy.powermetrics import PowerMeter, PowerSample, open_powermetrics, samples_of
from anespec.validate.bench.energy.rapl import RaplMeter

SAMPLE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
<key>is_delta</key><true/>
<key>elapsed_ns</key><integer>{ns}</integer>
<key>hw_model</key><string>Mac16,5</string>
<key>timestamp</key><date>2026-03-01T12:00:00Z</date>
<key>processor</key>
<dict>
<key>clusters</key><array><dict><key>name</key><string>E-Cluster</string></dict></array>
<key>ane_energy</key><integer>210</integer>
<key>cpu_energy</key><integer>57</integer>
{power}
</dict>
</dict>
</plist>
"""
POWER = (
    "<key>cpu_power</key><real>570.5</real><key>gpu_power</key><real>29.5</real>"
    "<key>ane_power</key><real>2100</real>"
)
"""The forms that powermetrics writes: property lists with a NUL before all but the first, in milliwatts."""


def documents(*samples: tuple[int, str]) -> bytes:
    return b"\0".join(SAMPLE.format(ns=ns, power=power).encode() for ns, power in samples)


def package(root: Path, name: str, energy: int, label: str = "package-0", limit: int = 1000) -> Path:
    zone = root / name
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{label}\n")
    (zone / "energy_uj").write_text(f"{energy}\n")
    (zone / "max_energy_range_uj").write_text(f"{limit}\n")
    return zone / "energy_uj"


def test_packages_are_added_up_and_their_parts_are_not_counted_twice(tmp_path: Path) -> None:
    first = package(tmp_path, "intel-rapl:0", 100)
    second = package(tmp_path, "intel-rapl:1", 50, "package-1")
    parts = [
        package(tmp_path, "intel-rapl:0:0", 0, "core"),
        package(tmp_path, "intel-rapl:2", 0, "psys"),
        package(tmp_path, "intel-rapl-mmio:0", 0),
    ]
    meter = RaplMeter(tmp_path)
    assert meter.joules() == 0
    for each in (first, second, *parts):
        each.write_text("900\n")
    assert meter.joules() == pytest.approx((800 + 850) / 1e6)
    meter.close()


def test_a_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    counter = package(tmp_path, "intel-rapl:0", 990, limit=1000)
    meter = RaplMeter(tmp_path)
    for value, joules in ((5, 15e-6), (995, 1005e-6), (0, 1010e-6), (0, 1010e-6)):
        counter.write_text(str(value))
        assert meter.joules() == pytest.approx(joules)


def test_without_counters_one_sentence_says_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoEnergyError, match=r"no energy counters in .*run on the machine itself"):
        RaplMeter(tmp_path / "none")
    counter = package(tmp_path, "intel-rapl:0", 1)
    counter.write_text("soon")
    with pytest.raises(NoEnergyError, match="cannot be read"):
        RaplMeter(tmp_path)

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(NoEnergyError, match=r"root alone.*`sudo chmod a\+r .*energy_uj`"):
        RaplMeter(tmp_path)


def test_samples_are_read_wherever_the_stream_is_cut() -> None:
    text = documents(
        (100_000_000, POWER), (200_000_000, f"{POWER}<key>combined_power</key><real>2650</real>")
    )
    expected = [PowerSample(0.1, 2.7), PowerSample(0.2, 2.65)]
    for cut in range(1, len(text), 97):
        reading, writing = os.pipe()
        writer = threading.Thread(target=_write, args=(writing, text[:cut], text[cut:]))
        writer.start()
        with os.fdopen(reading, "rb") as stream:
            assert list(samples_of(stream)) == expected
        writer.join()


def _write(descriptor: int, *parts: bytes) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as stream:
        for part in parts:
            stream.write(part)


@pytest.mark.parametrize("power", ["", "<key>cpu_power</key><string>much</string>", "<key>cpu"])
def test_a_sample_of_another_form_is_said_to_be_one(power: str, tmp_path: Path) -> None:
    (path := tmp_path / "samples").write_bytes(documents((100_000_000, power)))
    with path.open("rb") as stream, pytest.raises(NoEnergyError, match="unknown form"):
        list(samples_of(stream))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may take as long to start as the machine needs."""
    monkeypatch.setattr(powermetrics, "SECONDS_TO_START", PATIENCE)


PROGRAM = """
import sys, time
for number in range(int(sys.argv[2])):
    sys.stdout.write(("\\0" if number else "") + open(sys.argv[1]).read())
    sys.stdout.flush()
    time.sleep(0.02)
if sys.argv[3:]:
    time.sleep(600)
"""


def started(*arguments: str | Path) -> "subprocess.Popen[bytes]":
    """A program that prints a sample again and again, as powermetrics does."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, cwd=NEUTRAL_FOLDER, stdout=subprocess.PIPE)


def test_a_meter_adds_up_samples_after_the_first(tmp_path: Path) -> None:
    (path := tmp_path / "sample").write_bytes(documents((100_000_000, POWER)))
    process = started(path, "4", "and wait")
    meter = PowerMeter(process, clock=lambda: 7.0)
    until(lambda: meter.joules() > 0.8)
    # The first sample ended when the meter was opened; three more had 2.7 watts for 0.1 seconds.
    assert meter.joules() == pytest.approx(3 * 0.27)
    meter.close()
    assert process.poll() is not None
    with pytest.raises(NoEnergyError, match="powermetrics ended"):
        meter.joules()


def test_between_two_samples_the_power_goes_on_for_a_while(tmp_path: Path) -> None:
    (path := tmp_path / "sample").write_bytes(documents((100_000_000, POWER)))
    now = [7.0]
    meter = PowerMeter(started(path, "1", "and wait"), clock=lambda: now[0])
    found = []
    for now[0] in (7.0, 7.1, 7.05, 9.0):
        found.append(meter.joules())
    assert found == pytest.approx([0.0, 0.27, 0.27, 0.54])
    meter.close()


def test_a_program_that_may_not_start_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NoEnergyError, match="--energy asks for the password"):
        open_powermetrics([sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(NoEnergyError, match="cannot be started"):
        open_powermetrics([str(tmp_path / "powermetrics")])
    (path := tmp_path / "samples").write_bytes(documents((100_000_000, "")))
    with pytest.raises(NoEnergyError, match="unknown form"):
        PowerMeter(started(path, "1"))


def test_the_platform_selects_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Plan9")
    with pytest.raises(NoEnergyError, match="not measured on Plan9"):
        open_meter()
    asked: list[str] = []
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(powermetrics, "open_powermetrics", lambda asks: asked.append("powermetrics"))
    open_meter()
    assert asked == ["powermetrics"]
