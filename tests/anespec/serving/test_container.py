"""The health check of the image, as the Dockerfile has it, over a daemon."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from daemons import started

DOCKERFILE = Path(__file__).resolve().parents[3] / "Dockerfile"


def code_of_the_check(port: str) -> int:
    """The exit code of the check; Docker calls 0 healthy."""
    (command,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    python, *arguments = json.loads(command)
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *arguments], env={"ANESPEC_SERVE_PORT": port}, capture_output=True, check=False
    )
    return done.returncode


@pytest.mark.slow
def test_a_daemon_is_healthy_until_it_has_ended(measured: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text("me:0123456789abcdef\n")
    with started(tmp_path, "--host", "0.0.0.0", "--api-key-file", keys, measured) as daemon:
        port = daemon.url.rpartition(":")[2].strip("/;")
        assert code_of_the_check(port) == 0
    assert code_of_the_check(port) == 1
