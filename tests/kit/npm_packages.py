"""Official JavaScript clients, installed by npm outside the repository; tests skip where that is impossible."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def npm_packages(cache: pytest.Cache, *packages: str) -> Path:
    """Return a folder with these packages in `node_modules`; skip the test if npm cannot install them."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("NO NODE: the JavaScript client was not tested; install node and npm")
    folder = cache.mkdir("npm-" + "-".join(package.replace("/", "_") for package in packages))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of several processes share the folder
        if not (folder / "installed").exists():
            _install(npm, folder, packages)
    return folder


def _install(npm: str, folder: Path, packages: tuple[str, ...]) -> None:
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("NO NPM PACKAGES: the JavaScript client was not tested: npm did not end within 240 s")
    if done.returncode:
        pytest.skip(f"NO NPM PACKAGES: the JavaScript client was not tested: {done.stderr[-300:]}")
    (folder / "installed").touch()


def run_script(folder: Path, script: str, *arguments: str) -> str:
    """Output of a module script that may import the packages of a folder."""
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=folder) as file:
        file.write(script)
        file.flush()
        done = subprocess.run(["node", file.name, *arguments], capture_output=True, text=True, timeout=240, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
