"""numba takes no settings from the current folder, when it is imported and whenever it compiles."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from anespec.runtime.drafters import compiled

SETTINGS = """\
chrome_trace: {trace}
cache_locator_classes: trap.Locator
disable_jit: 1
"""

AT_IMPORT = """
from anespec.runtime.drafters.candidates import pair_row
from numba.core import config
print(pair_row(3, 4, 1000), config.DISABLE_JIT, repr(config.CHROME_TRACE), repr(config.CACHE_LOCATOR_CLASSES))
"""

IMPORTED_BEFORE = "import numba\n" + AT_IMPORT

LATER = """
from pathlib import Path
from types import ModuleType
from anespec.runtime.drafters.compiled import import_numba
numba = import_numba()
Path("settings").rename(".numba_config.yaml")
function = numba.njit("int64(int64)")(lambda number: number + 1)
from numba.core import config
print(function(3), config.DISABLE_JIT, repr(config.CHROME_TRACE), repr(config.CACHE_LOCATOR_CLASSES))
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder with settings, and a module that they name."""
    folder = tmp_path / "trapped"
    folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    for name in (".numba_config.yaml", "settings"):
        (folder / name).write_text(SETTINGS.format(trace=tmp_path / "precious"))
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("program", [AT_IMPORT, IMPORTED_BEFORE, LATER])
def test_settings_of_the_current_folder_have_no_effect(trapped: Path, program: str) -> None:
    settings = trapped / ".numba_config.yaml"
    if program is LATER:
        settings.unlink()
    if program is IMPORTED_BEFORE:
        # What numba has done before anything of ours runs cannot be undone.
        settings.write_text(settings.read_text().partition("\n")[2])
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=trapped, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[1:] == ["0", "''", "''"]
    assert (trapped.parent / "precious").read_text() == "precious"
    assert not (trapped.parent / "ran").exists()


@pytest.mark.slow
def test_settings_of_the_environment_keep_their_effect(tmp_path: Path) -> None:
    program = "from anespec.runtime.drafters.compiled import import_numba\n"
    program += "print(import_numba().core.config.DISABLE_JIT)"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env={"NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1"]


def test_a_numba_that_names_another_file_is_refused(tmp_path: Path) -> None:
    """It would read that one, before anything could be done about it."""
    config = tmp_path / "config.py"
    config.write_text("name = '.another.yaml'\n")
    loader = compiled._ConfigLoader(SourceFileLoader("numba.core.config", str(config)))
    with pytest.raises(ImportError, match=r"cannot be kept from reading \.numba_config\.yaml"):
        loader.exec_module(ModuleType("numba.core.config"))
