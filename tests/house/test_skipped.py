"""A run of the tests ends with what it skipped, and with the commands that install what was missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from skipped import told

SUPPORT = Path(__file__).resolve().parents[1] / "support"
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_of_a_page(number):
    pytest.skip("needs Chromium on the PATH (apt-get install chromium)")

@pytest.mark.skipif(True, reason="needs strace (apt-get install strace)")
def test_of_files():
    pass

def test_beside_a_peer():
    pytest.importorskip("no_such_package", reason="needs a peer (pip install peer-1.0)")

def test_on_a_gpu():
    pytest.skip("needs a library (pip install library[cpu])")

def test_that_passes():
    pass
"""
ENDING = """\
    3  needs Chromium on the PATH (apt-get install chromium)
    1  needs a folder
    1  needs a library (pip install library[cpu])
    1  needs a peer (pip install peer-1.0)
    1  needs strace (apt-get install strace)
to run what needs them: sudo apt-get install chromium strace
to run what needs them: .venv/bin/python -m pip install library[cpu] peer-1.0
"""


def ending(folder: Path, text: str, *options: str) -> str:
    """What a run of these tests prints, by the plugin alone."""
    (folder / "test_some.py").write_text(text)
    (folder / "test_whole.py").write_text(
        "import pytest\npytest.skip('needs a folder', allow_module_level=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "skipped", "-p", "xdist", *options],
        cwd=folder, env={"PYTHONPATH": str(SUPPORT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.fast_only("alone")
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "in processes"])
def test_reasons_are_counted_and_installed_by_one_command_a_tool(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    found = ending(tmp_path, TESTS, *options)
    assert "= 7 skipped =" in found
    assert ENDING in found


def test_nothing_is_said_where_nothing_was_skipped() -> None:
    assert list(told([])) == []


def test_this_suite_says_it(pytestconfig: pytest.Config) -> None:
    hooks = pytestconfig.pluginmanager.hook.pytest_terminal_summary.get_hookimpls()
    assert "skipped" in {getattr(hook.function, "__module__", "") for hook in hooks}
