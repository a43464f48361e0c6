"""Ctrl-C is heard even where a library's bare `except:` would swallow it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anespec.system.interrupts import ends_as_interrupts, interrupts_held_back


def press() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def test_one_is_heard_at_the_end() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        press()
        done.append("the block goes on")
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_is_heard_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        press()
        press()
        done.append("the block goes on")
    assert not done


def test_without_one_nothing_happens() -> None:
    with interrupts_held_back():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_ignores_it_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held_back():
            press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            with interrupts_held_back():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not failed


@pytest.mark.slow
def test_ctrl_c_while_coremltools_imports_torch_is_not_lost(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-c", "import anespec.convert.graph.builder"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_is_an_interruption_of_the_block(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), ends_as_interrupts():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_nohup_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_as_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
