"""What `convert` says when it is interrupted: what is kept, on both streams, with the code for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KEPT = "interrupted; 2 of 5 shards are kept (2 MB in .m.partial); run the same command again to continue"

PROGRAM = """
import sys
from anespec.convert import pipeline
from anespec.cli.main import main

said = sys.argv.pop().split("|")[1:]

def interrupted(*_, **__):
    raise KeyboardInterrupt(*said)

pipeline.convert = interrupted
main()
"""


@pytest.mark.fast_only("-interrupted; run the same command again to continue")
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (f"|{KEPT}", KEPT),
        pytest.param(
            *("|interrupted; nothing was finished", "interrupted; nothing was finished"),
            marks=pytest.mark.slow,
        ),
        ("", "interrupted; run the same command again to continue"),
    ],
)
def test_an_interrupted_run_says_what_is_kept(gguf: Path, tmp_path: Path, raised: str, said: str) -> None:
    arguments = ["convert", str(gguf), "-o", str(tmp_path / "m.anespec"), "--json", raised]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert [line for line in done.stderr.splitlines() if not line.startswith("note: ")] == [said]
    assert json.loads(done.stdout) == {"error": said, "exit_code": 130}
