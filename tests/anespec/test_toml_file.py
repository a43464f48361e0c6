"""Files of options: keys of thousands of parts, for which tomllib needs minutes, are refused before it."""

import tomllib
from pathlib import Path

import pytest

from anespec.system.errors import UsageError
from anespec.system.toml_file import MOST_PARTS, read_toml

MANY = MOST_PARTS + 1


def dotted(parts: int, part: str = "a", dot: str = ".") -> str:
    return dot.join([part] * parts)


@pytest.mark.parametrize(
    "text",
    [
        f"{dotted(400_000)} = 1",
        f"[{dotted(MANY)}]",
        f"[[{dotted(MANY)}]]",
        f"x = {{{dotted(MANY)} = 1}}",
        f"{dotted(MANY, dot=' . ')} = 1",
        f"{dotted(300_000, part=chr(34) * 2)} = 1",
        f"""{dotted(MANY, part="'a.b'")} = 1""",
        f'x = """a""""  # "\n{dotted(MANY)} = 1',
        f'x = {{a = """b"""", {dotted(MANY)} = 1, c = "x"}}',
        f"x = '''a'''' # '\n{dotted(MANY)} = 1",
    ],
)
def test_a_key_of_too_many_parts_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("it is parsed"))
    path = tmp_path / "serve.toml"
    path.write_text(f"# a comment\n{text}\n")
    with pytest.raises(UsageError) as refused:
        read_toml(path)
    line = 3 if text.count("\n") else 2
    said = f"{path}: line {line} has a key of more than {MOST_PARTS} parts, and no option has that many"
    assert str(refused.value) == said


@pytest.mark.parametrize(
    "text",
    [
        f"{dotted(MOST_PARTS)} = 1",
        f'x = "{dotted(1000)}"',
        f"x = '{dotted(1000)}'",
        f'x = """\n{dotted(1000)} "" {dotted(1000)}"""""',
        f"x = '''{dotted(1000)} ' \n{dotted(1000)}'''",
        f'x = "\\"{dotted(1000)}"',
        f'x = 1  # {dotted(1000)} ... "',
        f"x = [{'1.5, ' * 1000}]",
        "\n".join(f"[models.m{number}]\npath = 'a.b.c/d'" for number in range(100)),
    ],
)
def test_texts_values_and_comments_may_have_dots(tmp_path: Path, text: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    assert read_toml(path) == tomllib.loads(text)
