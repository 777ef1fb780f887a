"""A virtual environment for every peer, made once and kept in `.venvs/`.

An environment is whole when it holds a note of what was asked for; one with another note, or with none, is made anew.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.roster import Contender

PLACE = Path(__file__).parents[1] / ".venvs"
NOTE = "requirements.txt"
LONGEST_INSTALL_S = 300.0


class NotInstalled(Exception):
    """An environment could not be made; the message says why, in one line."""


def python_of(contender: Contender, *, place: Path = PLACE) -> str:
    """The interpreter that a contender runs in, after making its environment if it is not there yet."""
    if not contender.requirements:
        return sys.executable
    environment = place / re.sub(r"[^\w.-]+", "-", contender.environment or contender.requirements[0])
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = "".join(f"{requirement}\n" for requirement in contender.requirements)
    note = environment / NOTE
    if not note.exists() or note.read_text(encoding="utf-8") != wanted:
        _make(environment, python, contender.requirements)
        note.write_text(wanted, encoding="utf-8")
    return str(python)


def _make(environment: Path, python: Path, requirements: tuple[str, ...]) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    _do([sys.executable, "-m", "venv", str(environment)])
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    _do([str(python), "-m", "pip", "install", *quiet, *requirements])


def _do(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"installing took longer than {LONGEST_INSTALL_S:g} s") from None
    if done.returncode:
        raise NotInstalled(_reason(done.stderr) or f"{Path(command[0]).name} ended with code {done.returncode}")


def _reason(complaints: str) -> str:
    """The line of pip's output that says what went wrong."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1]
