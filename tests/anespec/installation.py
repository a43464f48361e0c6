"""An ordinary installation: what the wheel holds, in an environment that has nothing else of ours."""

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from commands import CommandResult
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = """
import sys
from anespec.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the packages in it; its dependencies are those of this process."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def run(self, *arguments: object, cwd: Path) -> CommandResult:
        """Run the command `anespec` as the installed script does, in a folder."""
        command = [str(self.folder / "bin" / "anespec"), *map(str, arguments)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)


def install(folder: Path) -> Installation:
    """Install what setuptools would put into the wheel, and the script that pip would write."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # The links of a clone become folders, as in a wheel.
    left_out = shutil.ignore_patterns("__pycache__", ".build", "Tests")
    shutil.copytree(ROOT / "anespec", site / "anespec", ignore=left_out)
    dependencies = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    script = folder / "bin" / "anespec"
    script.write_text(f"#!{folder / 'bin' / 'python'}{COMMAND}")
    script.chmod(0o755)
    return Installation(folder)
