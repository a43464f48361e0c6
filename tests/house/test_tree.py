"""One path for each module: what an import names is what an editor, a type checker and an install open."""

import importlib.util
import subprocess
from collections import Counter
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "anespec"
LINKED = {path.name: path.resolve() for path in PACKAGE.iterdir() if path.is_symlink()}
MAX_LOOSE_FILES = 15


def kept_files() -> list[Path]:
    """Every Python file that Git keeps below the package or a folder linked into it."""
    folders = ["anespec", *sorted(LINKED)]
    listed = subprocess.run(
        ["git", "ls-files", "--", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [Path(name) for name in listed if name.endswith(".py") and "Tests" not in Path(name).parts]


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    parts = parts if parts[0] == "anespec" else ("anespec", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_links_lead_to_the_folder_of_their_name() -> None:
    assert LINKED
    assert {name: ROOT / name for name in LINKED} == LINKED


def test_every_module_is_found_by_its_name_in_a_clone() -> None:
    missing = [
        path
        for path in kept_files()
        if not (ROOT / Path(*module_name(path).split("."))).with_suffix(".py").is_file()
        and not (ROOT / Path(*module_name(path).split(".")) / "__init__.py").is_file()
    ]
    assert not missing


def test_every_module_is_found_by_its_name_where_it_is_installed() -> None:
    for path in kept_files():
        spec = importlib.util.find_spec(module_name(path))
        assert spec is not None, module_name(path)
        assert spec.origin is not None, module_name(path)
        assert Path(spec.origin).resolve() == ROOT / path


def test_every_folder_with_code_is_a_package() -> None:
    packages = {name.replace(".", "/") for name in find_packages(str(ROOT), include=["anespec*"])}
    folders = {module_name(path.parent / "__init__.py").replace(".", "/") for path in kept_files()}
    assert packages == folders


def test_no_folder_has_many_loose_files() -> None:
    loose = Counter(path.parent for path in kept_files() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in loose.items() if count > MAX_LOOSE_FILES} == {}
