"""Builds the wheel as a release would, and installs it where nothing of the project is: `make wheel`.

Rules:
1. The wheel holds the package with `py.typed`, and neither tests nor anything else beside its metadata.
2. It installs into an empty environment, and what is imported there comes from it, not from the sources.
3. Dependencies are lent by the environment that runs this, so nothing but the build's own tools is fetched.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

TRIAL = """
import sys
from pathlib import Path
import flujo_actors
from flujo_actors import *
from flujo_actors import Flujo, Step

place = Path(flujo_actors.__file__)
assert place.is_relative_to(sys.prefix), f"imported from {place}, not from the wheel"
assert place.with_name("py.typed").is_file()
assert Flujo(Step("double", lambda number: 2 * number)).run(21).output == 42
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wheel = built(Path(scratch) / "dist")
        names = zipfile.ZipFile(wheel).namelist()
        if wrong := strangers(names):
            sys.exit(f"{wheel.name} holds what no user needs: {', '.join(wrong)}")
        if "flujo_actors/py.typed" not in names:
            sys.exit(f"{wheel.name} has no py.typed, so type checkers would ignore its types")
        tried(wheel, Path(scratch) / "empty")
        print(f"{wheel.name}: {len(names)} files, installs and runs in an empty environment")


def built(folder: Path) -> Path:
    """The wheel, made from the sources by the build system that pyproject.toml names."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("flujo_actors-*.whl")
    return wheel


def strangers(names: list[str]) -> list[str]:
    """What belongs neither to the package nor to its metadata, and tests inside the package."""
    at_home = [name for name in names if name.startswith("flujo_actors/") or ".dist-info/" in name]
    tests = [name for name in at_home if {"tests", "conftest.py"} & set(name.split("/")) or "/test_" in name]
    return sorted({*names} - {*at_home} | {*tests})


def tried(wheel: Path, home: Path) -> None:
    """Install the wheel in a new environment, lend it the dependencies, and run a pipeline there."""
    venv.create(home, with_pip=False, symlinks=True)
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    subprocess.run([*PIP, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    # A path in a .pth file comes after the wheel's own place, and .pth files found there are not followed: the editable
    # installation of this environment stays out of sight.
    Path(site, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    subprocess.run([str(python), "-I", "-c", TRIAL], check=True, cwd=home)


if __name__ == "__main__":
    main()
