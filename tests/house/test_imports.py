"""Who may import whom (DESIGN.md section 3), and what the command line must not load to say `--help`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("system", "gguf", "manifests", "convert", "runtime", "validate", "models", "checking")
"""Folders from below to above: each may import those before it, but `runtime` nothing of `convert`."""
MAY_IMPORT = {layer: set(LAYERS[: number + 1]) for number, layer in enumerate(LAYERS)}
MAY_IMPORT["runtime"] -= {"convert"}
MAY_IMPORT["embedded"] = {"embedded", "gguf", "manifests", "system"}
MAY_IMPORT["anespec"] = {"anespec", "embedded", *LAYERS}
INSIDE_RUNTIME = (
    "text",
    "sampling",
    "kv",
    "backends",
    "drafters",
    "speculation",
    "engine",
    "draft_model",
    "server",
)
"""Folders of runtime from below to above. Modules beside them may import those below speculation."""
INSIDE = {"system", "gguf", "models", "checking"}
"""Layers whose folder lies inside anespec/; the others are linked into it."""
RULES_OF_THEIR_SCHEMA = {"anespec.manifests.schema", "anespec.manifests.consistency"}
"""A manifest is checked whenever one is made, by rules that are about its models."""
HEAVY = {"torch", "coremltools", "mlx", "numba", "openvino", "transformers"}


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


@cache
def imports(path: Path) -> frozenset[str]:
    """Everything that a file imports, inside functions too."""
    return frozenset(imported(ast.walk(ast.parse(path.read_text()))))


def loaded_with_module(body: list[ast.stmt], lazy: bool = False) -> Iterator[ast.AST]:
    """What runs when a module is loaded, and in its functions if `lazy`; no type-checking imports."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        for field in ("body", "orelse", "handlers", "finalbody"):
            yield from loaded_with_module(getattr(node, field, []), lazy)


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


def test_import_direction_inside_runtime() -> None:
    def height(name: str) -> int | None:
        folder = name.split(".")[2] if name.startswith("anespec.runtime.") else None
        return INSIDE_RUNTIME.index(folder) if folder in INSIDE_RUNTIME else None

    beside = INSIDE_RUNTIME.index("speculation") - 1
    own = {name: path for name, path in MODULES.items() if name.startswith("anespec.runtime.")}
    wrong = {
        f"{name} imports {target}"
        for name, path in own.items()
        for target in imports(path)
        if (found := height(target)) is not None
        if found > (beside if (here := height(name)) is None else here)
    }
    assert not wrong
    assert {height(name) for name in own} == {None, *range(len(INSIDE_RUNTIME))}


def test_the_design_page_draws_the_imports() -> None:
    """The first table of section 3 has a row for each layer, and an x for each layer that it imports."""
    section = (ROOT / "docs" / "DESIGN.md").read_text().split("\n## 3. ")[1]
    table = section[section.index("| imports |") :].split("\n\n")[0]
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    drawn = {
        row[0]: {layer for layer, cell in zip(header[1:], row[1:], strict=True) if cell == "x"}
        for row in rows
    }
    real = {
        folder: {
            room(name)
            for path in files(folder)
            for name in imports(path)
            if name.split(".")[0] == "anespec" and name not in {"anespec", "anespec.__version__"}
        }
        - {folder}
        for folder in MAY_IMPORT
    }
    assert drawn == real


@pytest.mark.slow
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


def cycles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules each of which reaches all others of its set."""
    reach = {name: set(targets) for name, targets in edges.items()}
    changed = True
    while changed:
        changed = False
        for targets in reach.values():
            wider = targets.union(*(reach[each] for each in targets))
            if wider != targets:
                changed = True
                targets |= wider
    together = {frozenset(other for other in reach[name] if name in reach[other]) for name in edges}
    return [set(each) for each in together if len(each) > 1]


def test_no_modules_import_each_other() -> None:
    """Lazy imports count; imports for type checking do not, nor a package beside a module of it."""
    edges = {}
    for name, path in MODULES.items():
        asked = imported(loaded_with_module(ast.parse(path.read_text()).body, lazy=True))
        packages = {each.rpartition(".")[0] for each in asked & set(MODULES)}
        edges[name] = asked & set(MODULES) - packages - {name}
    assert cycles(edges) == [RULES_OF_THEIR_SCHEMA]


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]


def test_engine_knows_protocols_only() -> None:
    concrete = {
        name
        for name in reachable("anespec.runtime.engine.engine")
        if name.startswith(("anespec.runtime.backends", "anespec.runtime.drafters."))
    }
    assert not concrete


def test_command_line_imports_heavy_libraries_inside_its_verbs() -> None:
    heavy = {path.name: names for path in files("anespec") if (names := heavy_at_load(path.read_text()))}
    assert not heavy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("anespec.cli.main", HEAVY | {"gguf", "jinja2", "starlette", "tokenizers", "uvicorn"}),
        ("anespec.api", HEAVY | {"gguf", "jinja2", "rich", "tokenizers"}),
        ("anespec.validate.cost_model.forecast", HEAVY),
    ],
)
def test_imports_load_no_heavy_libraries(module: str, unwanted: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted({unwanted!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_no_package_is_callable() -> None:
    import anespec.convert
    import anespec.validate

    assert not any(map(callable, (anespec, anespec.convert, anespec.validate)))


def test_the_checks_can_fail() -> None:
    source = "import numpy\nif True:\n    from torch import nn\ndef verb():\n    import openvino\n"
    assert heavy_at_load(source) == {"torch", "torch.nn"}
    assert room("anespec.convert.pipeline") == "convert"
    assert room("anespec.cli.main") == "anespec"
