"""Who may import whom (DESIGN.md section 3), and what the command line must not load to say `--help`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("system", "gguf", "manifests", "convert", "runtime", "validate", "models", "checking")
"""Folders from below to above: each may import those before it, but `runtime` nothing of `convert`."""
MAY_IMPORT = {layer: set(LAYERS[: number + 1]) for number, layer in enumerate(LAYERS)}
MAY_IMPORT["runtime"] -= {"convert"}
MAY_IMPORT["embedded"] = {"embedded", "gguf", "manifests", "system"}
MAY_IMPORT["anespec"] = {"anespec", "embedded", *LAYERS}
INSIDE = {"system", "gguf", "models", "checking"}
"""Layers whose folder lies inside anespec/; the others are linked into it."""
HEAVY = {"torch", "coremltools", "numba", "openvino", "transformers"}


def files(folder: str) -> list[Path]:
    """The modules of a layer; those of the library and its command line are what is left of anespec/."""
    found = sorted((ROOT / "anespec" / folder if folder in INSIDE else ROOT / folder).rglob("*.py"))
    if folder != "anespec":
        return found
    return [path for path in found if path.relative_to(ROOT / "anespec").parts[0] not in INSIDE]


def module_name(path: Path) -> str:
    """The dotted name under which a file of the repository is installed."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "anespec" else ("anespec", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for folder in MAY_IMPORT for path in files(folder)}


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    """Dotted names that the import statements among `nodes` ask for; `from a import b` gives a and a.b."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written out, not relative"
            assert node.module is not None
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def imports(path: Path) -> set[str]:
    """Everything that a file imports, inside functions too."""
    return imported(ast.walk(ast.parse(path.read_text())))


def loaded_with_module(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run when a module is loaded: not function bodies, not type-checking imports."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        for field in ("body", "orelse", "handlers", "finalbody"):
            yield from loaded_with_module(getattr(node, field, []))


def heavy_at_load(source: str) -> set[str]:
    names = imported(loaded_with_module(ast.parse(source).body))
    return {name for name in names if name.split(".")[0] in HEAVY}


def room(name: str) -> str:
    """The layer that an installed name belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "anespec"


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_import_direction(folder: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(folder)
        for name in imports(path)
        if name.split(".")[0] == "anespec" and name not in {"anespec", "anespec.__version__"}
        if room(name) not in MAY_IMPORT[folder]
    }
    assert not wrong


def test_top_folders_are_imported_by_their_installed_name() -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES.values()
        for name in imports(path)
        if name.split(".")[0] in set(MAY_IMPORT) - {"anespec", "gguf"}
    }
    assert not wrong


def reachable(start: str) -> set[str]:
    """Our modules that `start` imports, directly or through others of ours."""
    seen: set[str] = set()
    queue = [start]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue += imports(MODULES[name]) & set(MODULES)
    return seen


def test_engine_knows_protocols_only() -> None:
    if "anespec.runtime.engine.engine" not in MODULES:
        pytest.skip("runtime/engine/engine.py does not exist yet")
    concrete = {
        name
        for name in reachable("anespec.runtime.engine.engine")
        if name.startswith(("anespec.runtime.backends", "anespec.runtime.drafters."))
    }
    assert not concrete


def test_command_line_imports_heavy_libraries_inside_its_verbs() -> None:
    heavy = {path.name: names for path in files("anespec") if (names := heavy_at_load(path.read_text()))}
    assert not heavy


def test_command_line_starts_without_heavy_libraries() -> None:
    if find_spec("anespec.cli.main") is None:
        pytest.skip("anespec/cli/main.py does not exist yet")
    program = f"import sys, anespec.cli.main; print(*sorted({HEAVY!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_the_checks_can_fail() -> None:
    source = "import numpy\nif True:\n    from torch import nn\ndef verb():\n    import openvino\n"
    assert heavy_at_load(source) == {"torch", "torch.nn"}
    assert room("anespec.convert.pipeline") == "convert"
    assert room("anespec.cli.main") == "anespec"
