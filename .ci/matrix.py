"""Runs the suite on every supported Python of this machine, and names those that it did not find: `make matrix`.

Each has an environment of its own below `.venvs`. `make matrix TARGET=test-fast` runs another target.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
VERSION_PROGRAM = "import sys; print('%d.%d' % sys.version_info[:2])"


def main(target: str) -> None:
    found = {version: python for version in SUPPORTED if (python := interpreter(version))}
    failed = [version for version, python in found.items() if not passes(version, python, target)]
    for version in SUPPORTED:
        print(f"Python {version}: {verdict(version, found, failed)}")
    sys.exit(1 if failed or not found else 0)


def verdict(version: str, found: dict[str, str], failed: list[str]) -> str:
    if version not in found:
        return "not found, so not tested"
    return f"{'FAILED' if version in failed else 'passed'} ({found[version]})"


def interpreter(version: str) -> str | None:
    """Return a Python of that version that runs, if there is one."""
    return next((python for python in candidates(version) if version_of(python) == version), None)


def candidates(version: str) -> Iterator[str]:
    """Yield the places of interpreters: this one, the path, the versions of pyenv and uv."""
    yield sys.executable
    if python := shutil.which(f"python{version}"):
        yield python
    homes = (os.environ.get("PYENV_ROOT", "~/.pyenv"), "~/.local/share/uv/python")
    for home, pattern in zip(homes, (f"versions/{version}.*", f"cpython-{version}.*"), strict=True):
        yield from (str(place / "bin/python") for place in sorted(Path(home).expanduser().glob(pattern), reverse=True))


def version_of(python: str) -> str | None:
    try:
        return subprocess.run(
            [python, "-c", VERSION_PROGRAM], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def passes(version: str, python: str, target: str) -> bool:
    print(f"--- Python {version}: make {target}", flush=True)
    command = ["make", target, f"PYTHON={python}", f"VENV=.venvs/{version}"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["test"]))
