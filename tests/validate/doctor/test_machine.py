"""What the doctor makes of machines, from what they answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_system import RecordedSystem

from anespec.system.errors import StorageError
from anespec.validate.doctor.machine import has_engine, look_at
from anespec.validate.doctor.system import ThisSystem
from anespec.validate.findings import Finding, Level

MAC = RecordedSystem.read("m4-max")
Change = Callable[[RecordedSystem], RecordedSystem]


def found(system: RecordedSystem, subject: str) -> Finding:
    (finding,) = [finding for finding in look_at(system) if finding.subject == subject]
    return finding


def test_a_healthy_mac_has_nothing_to_mend() -> None:
    findings = look_at(MAC)
    assert {finding.level for finding in findings} == {Level.OK}
    texts = {finding.subject: finding.text for finding in findings}
    assert texts["chip"] == (
        "Apple M4 Max in a MacBook Pro, 10 performance and 4 efficiency cores, with a Neural Engine"
    )
    assert texts["system"] == "macOS 26.1 (25B78)"
    assert "command line tools, without coremlcompiler" in texts["xcode"]
    assert texts["swift"] == "Swift 6.2.1"
    assert "14 processors" in texts["memory"]
    assert "auto` is worker" in texts["worker"]


def test_a_worker_that_was_never_built_is_no_fault_and_says_how_to_build_it() -> None:
    finding = found(replace(MAC, worker=False), "worker")
    assert finding.level is Level.NOT_HERE
    assert "anespec worker build" in finding.text


def test_a_plain_installation_has_no_torch_and_says_how_to_add_it() -> None:
    finding = found(replace(MAC, versions={"coremltools": "9.0", "openvino": "2026.1"}), "torch")
    assert finding.level is Level.NOT_HERE
    assert "self-test" in finding.text
    assert "[torch]" in finding.text


def test_a_plain_installation_has_no_mlx_and_says_how_to_add_it() -> None:
    finding = found(replace(MAC, versions={"coremltools": "9.0", "openvino": "2026.1"}), "mlx")
    assert finding.level is Level.NOT_HERE
    assert "[mlx]" in finding.text


def test_nothing_that_names_the_machine_is_said() -> None:
    said = " ".join(finding.text for finding in look_at(MAC))
    for secret in ("KXJ2P0QRST", "0A1B2C3D", "00006041", "Z1FW0008XD"):
        assert secret in MAC.commands["system_profiler -json SPHardwareDataType"]
        assert secret not in said


@pytest.mark.parametrize(
    ("subject", "level", "change", "words", "mend"),
    [
        ("system", Level.FAIL, lambda s: s.saying("sw_vers -productVersion", "14.7"), "before 15", "upgrade"),
        ("system", Level.WARN, lambda s: s.saying("sw_vers -productVersion", None), "cannot be read", "15"),
        ("chip", Level.WARN, lambda s: s.saying("sysctl -n hw.optional.arm64", "0"), "no Neural", "cpu"),
        ("python", Level.FAIL, lambda s: replace(s, python=("3.12.7", "x86_64")), "translated", "arm64"),
        ("python", Level.FAIL, lambda s: replace(s, python=("3.9.6", "arm64")), "too old", "3.11"),
        ("coremltools", Level.FAIL, lambda s: replace(s, versions={"torch": "2"}), "not installed", "pip"),
        ("coremltools", Level.FAIL, lambda s: replace(s, versions={"coremltools": "8.3"}), "too old", "9.0"),
        ("coremltools", Level.FAIL, lambda s: replace(s, modules=()), "no native library", "3.12"),
        ("openvino", Level.WARN, lambda s: replace(s, versions={"torch": "2"}), "portable backend", "pip"),
        ("xcode", Level.WARN, lambda s: s.saying("xcode-select -p", None), "no developer", "--install"),
        ("swift", Level.WARN, lambda s: s.saying("swift --version", None), "Swift is not", "--install"),
        ("swift", Level.WARN, lambda s: s.saying("swift --version", "Swift version 5.10"), "too old", "6.0"),
        ("memory", Level.WARN, lambda s: replace(s, bytes_of_memory=(4 * 10**9, 9)), "4.00 GB", "smaller"),
        ("disk", Level.WARN, lambda s: replace(s, bytes_free=5 * 10**9), "5.00 GB free", "anespec rm"),
        ("disk", Level.WARN, lambda s: replace(s, bytes_free=None), "cannot be read", "20 GB"),
        ("cache", Level.WARN, lambda s: replace(s, bytes_held=30 * 10**9), "30.00 GB", "anespec rm"),
        ("power", Level.WARN, lambda s: s.saying("pmset -g", " lowpowermode  1\n"), "low power", "off"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_mend(
    subject: str, level: Level, change: Change, words: str, mend: str
) -> None:
    changed = change(MAC)
    assert changed != MAC
    finding = found(changed, subject)
    assert finding.level is level
    assert words in finding.text
    assert finding.mend is not None
    assert mend in finding.mend


@pytest.mark.parametrize(
    "told", [None, "", "[]", "{}", '{"SPHardwareDataType": []}', '{"SPHardwareDataType": [3]}']
)
def test_any_answer_of_system_profiler_is_borne(told: str | None) -> None:
    system = MAC.saying("system_profiler -json SPHardwareDataType", told)
    assert found(system, "chip").text == "Apple M4 Max, with a Neural Engine"


def test_the_form_of_kv_to_try_is_told_by_chip() -> None:
    assert "--kv-form at_position" in found(MAC, "K/V form").text
    newer = found(MAC.saying("sysctl -n machdep.cpu.brand_string", "Apple M5 Pro"), "K/V form").text
    assert "--kv-form outside" in newer and "(B: mobius#77" in newer


def test_linux_is_no_patient() -> None:
    linux = replace(MAC, name="Linux", processor="x86_64 EPYC", commands={}, python=("3.11.7", "x86_64"))
    assert not has_engine(linux)
    levels = {finding.subject: finding.level for finding in look_at(linux)}
    assert levels["xcode"] is Level.NOT_HERE
    assert levels["swift"] is Level.WARN
    assert levels["chip"] is levels["system"] is levels["coremltools"] is Level.OK


def test_without_a_home_the_cache_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise StorageError("this user has no home folder")

    monkeypatch.setattr("anespec.validate.doctor.machine.cache_folder", homeless)
    assert found(MAC, "disk").level is Level.FAIL


def test_the_machine_itself_answers(tmp_path: Path) -> None:
    system = ThisSystem()
    assert system.output_of("/bin/echo", " a ") == "a"
    assert system.output_of("/bin/false") is None
    scratch = system.output_of("/bin/sh", "-c", "mktemp -d")
    assert scratch is not None
    assert not Path(scratch).parent.exists(), "what a command leaves among temporary files goes with them"
    assert system.output_of("no-such-command-anywhere") is None
    assert system.version("numpy") is not None
    assert system.version("no-such-package") is None
    assert system.has_module("numpy")
    assert not system.has_module("no_such.module")
    (tmp_path / "a").write_bytes(b"123")
    assert system.held(tmp_path) == 3
    assert system.held(tmp_path / "absent") == 0
    assert (system.room(tmp_path / "not" / "there") or 0) > 0
    assert system.memory()[0] > system.memory()[1] > 0
    assert look_at(system)
