"""The table of docs/architectures.md: what happens to a GGUF of each architecture of llama.cpp's.

Run it to write the table anew: `python tests/support/architecture_table.py`.
"""

from pathlib import Path

from gguf.constants import MODEL_ARCH_NAMES
from page_table import with_table

from anespec.convert.families import FAMILIES
from anespec.convert.families.refused import REFUSED

DOCS = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"

NEWER = frozenset(
    {
        *("bailingmoe3", "dots3note", "glm5-next", "granite_swa", "hy_v4", "kimi-k3", "muse-glimmer"),
        *("nanbeige", "qwen4exp", "spark2_5"),
    }
)
"""What llama.cpp reads and no release of the package gguf names."""


def architectures() -> set[str]:
    """The names of all architectures of llama.cpp's."""
    return {*MODEL_ARCH_NAMES.values(), *NEWER}


def table() -> str:
    """The table in Markdown; a group of architectures for each thing that happens."""
    groups: dict[str, list[str]] = {"converts": sorted(FAMILIES)}
    for name, reason in REFUSED.items():
        groups.setdefault(f"is refused, since it {reason}", []).append(name)
    lines = [["what happens", "architectures"], ["---", "---"]]
    lines += [[what, ", ".join(f"`{name}`" for name in sorted(names))] for what, names in groups.items()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def written() -> str:
    """The page with the table as it should be."""
    return with_table(DOCS, "architectures", table())


if __name__ == "__main__":
    DOCS.write_text(written())
