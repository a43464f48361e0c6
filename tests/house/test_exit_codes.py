"""The exit codes that people read about are those that commands end with."""

import re
from pathlib import Path

import anespec.system.errors as errors

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text()


def test_the_documents_list_them_all() -> None:
    section = PAGE.split("## Exit codes\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == errors.EXIT_CODES


def test_every_error_has_a_code_of_the_list() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.AnespecError)}
    assert codes | {0} == set(errors.EXIT_CODES)
