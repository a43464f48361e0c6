"""The units that start a daemon at login: a launchd agent, or a systemd user unit.

Both stop it with SIGTERM, allow the time to drain, and restart it after a failure. The agent has not been run
on a Mac.
"""

import os
import plistlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anespec.serving.records import SECONDS_TO_CLOSE
from anespec.system.errors import (
    ArtifactError,
    GGUFError,
    NotFoundError,
    RequestError,
    StorageError,
    UnsupportedModelError,
    UsageError,
)
from anespec.system.safe_files import Folder

MARK = "Written by anespec serve, which also removes it."
"""The marker of files written by anespec. It is also part of an XML comment, so it has no `--`."""
AGENT = "anespec.serve"
UNIT = "anespec.service"
SECONDS_BETWEEN_STARTS = 5

KEPT_VARIABLES = (
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_TOKEN_PATH",
)
"""Variables with the paths of caches and presets. The unit never contains a token."""

PERMANENT_ERRORS = (UsageError, GGUFError, UnsupportedModelError, ArtifactError, NotFoundError, RequestError)
"""Errors that a restart does not fix."""


@dataclass(frozen=True)
class Job:
    """The command to run, with absolute paths, its environment, and the seconds that stopping may take."""

    command: Sequence[str]
    variables: Mapping[str, str]
    stop_seconds: int

    @classmethod
    def of(cls, arguments: Sequence[str], drain_seconds: float) -> "Job":
        """Return the job that runs `anespec serve` with these arguments, with this Python."""
        return cls(
            (sys.executable, "-m", "anespec", "serve", *arguments),
            {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
            int(drain_seconds + SECONDS_TO_CLOSE) + 1,
        )


@dataclass(frozen=True)
class Unit:
    """A unit file. `start` are the commands to run after it was written, `end` those after it was removed."""

    path: Path
    text: str
    start: tuple[str, ...]
    end: tuple[str, ...]


def unit_for(platform: str, job: Job) -> Unit:
    """Return the unit file for a `sys.platform`.

    Raises:
        UsageError: the platform has no unit files, or a word has characters that they cannot hold.
    """
    for word in (*job.command, *job.variables.values()):
        if not word.isprintable():
            raise UsageError(f"{word!r} has characters that a unit cannot hold; give the path another name")
    if platform == "darwin":
        return _agent(job)
    if platform.startswith("linux"):
        return _unit(job)
    raise UsageError(f"a daemon cannot be installed on {platform}; start `anespec serve` in another way")


def _agent(job: Job) -> Unit:
    home = _home()
    log = str(home / "Library" / "Logs" / "anespec.log")
    facts = {
        "Label": AGENT,
        "ProgramArguments": list(job.command),
        "EnvironmentVariables": dict(job.variables),
        "WorkingDirectory": str(home),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": SECONDS_BETWEEN_STARTS,
        "ExitTimeOut": job.stop_seconds,
        # Clients wait for the answers, so the scheduler must not treat it as a background job.
        "ProcessType": "Interactive",
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "Umask": 0o077,
    }
    text = plistlib.dumps(facts, sort_keys=False).decode()
    head, opening, rest = text.partition("<plist")
    path = home / "Library" / "LaunchAgents" / f"{AGENT}.plist"
    return Unit(
        path,
        f"{head}<!-- {MARK} -->\n{opening}{rest}",
        (f'launchctl bootstrap gui/$(id -u) "{path}"', f'tail -f "{log}"'),
        (f"launchctl bootout gui/$(id -u)/{AGENT}",),
    )


def _unit(job: Job) -> Unit:
    codes = " ".join(str(code) for code in sorted({error.exit_code for error in PERMANENT_ERRORS}))
    variables = "".join(
        f"Environment={_quoted(f'{name}={value}')}\n" for name, value in job.variables.items()
    )
    text = f"""# {MARK}
[Unit]
Description=anespec serve

[Service]
Type=notify
ExecStart={" ".join(map(_word, job.command))}
ExecReload=/bin/kill -HUP $MAINPID
{variables}Restart=on-failure
RestartSec={SECONDS_BETWEEN_STARTS}
RestartPreventExitStatus={codes}
KillSignal=SIGTERM
TimeoutStartSec=infinity
TimeoutStopSec={job.stop_seconds}
UMask=0077

[Install]
WantedBy=default.target
"""
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    base = given if given.is_absolute() else _home() / ".config"
    return Unit(
        base / "systemd" / "user" / UNIT,
        text,
        (
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {UNIT}",
            f"journalctl --user -fu {UNIT}",
        ),
        (f"systemctl --user disable --now {UNIT}", "systemctl --user daemon-reload"),
    )


def _word(text: str) -> str:
    """Quote a word of a command for systemd; `$` is escaped, so that no variable is replaced."""
    return _quoted(text.replace("$", "$$"))


def _quoted(text: str) -> str:
    """Quote a text for systemd. `$` stays: systemd does not replace variables in the value of a variable."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise StorageError("this user has no home folder; set HOME") from None


# Write and remove unit files.

LARGEST_UNIT = 1 << 20


def install(unit: Unit, force: bool) -> bool:
    """Write the unit; return whether there was a change to write.

    Raises:
        UsageError: the path holds another file, and `force` is False.
        StorageError: the file system refuses.
    """
    present = _present(unit.path)
    if present == unit.text:
        return False
    if present is not None and not force:
        problem = "exists with other content" if MARK in present else "exists and was not written by anespec"
        raise UsageError(f"{unit.path}: {problem}; --force replaces it")
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        with Folder.open(unit.path.parent) as folder:
            folder.replace_parts(unit.path.name, (unit.text.encode(),), mode=0o644)
    except OSError as error:
        raise StorageError(f"{unit.path}: cannot be written ({error.strerror})") from error
    return True


def uninstall(path: Path, force: bool) -> bool:
    """Remove the unit; return whether it existed.

    Raises:
        UsageError: the file was not written by anespec, and `force` is False.
        StorageError: the file system refuses.
    """
    present = _present(path)
    if present is None:
        return False
    if MARK not in present and not force:
        raise UsageError(f"{path}: was not written by anespec; --force removes it")
    try:
        path.unlink()
    except OSError as error:
        raise StorageError(f"{path}: cannot be removed ({error.strerror})") from error
    return True


def _present(path: Path) -> str | None:
    """Return the current content of the file; None if there is none."""
    try:
        with Folder.open(path.parent) as folder:
            return folder.read(path.name, LARGEST_UNIT).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
