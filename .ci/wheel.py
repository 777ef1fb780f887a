"""Builds the wheel as a release does, and installs it in an empty environment: `make wheel`.

Rules:
1. The wheel contains the package with `py.typed`, its metadata, and no tests.
2. It installs into an empty environment, and imports there find the wheel, not the sources.
3. Dependencies come from the environment of this script, so only the build tools are downloaded.
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
        wheel = build(Path(scratch) / "dist")
        names = zipfile.ZipFile(wheel).namelist()
        if wrong := foreign_files(names):
            sys.exit(f"{wheel.name} contains files outside of the package: {', '.join(wrong)}")
        if "flujo_actors/py.typed" not in names:
            sys.exit(f"{wheel.name} has no py.typed, so type checkers would ignore its types")
        install_and_run(wheel, Path(scratch) / "empty")
        print(f"{wheel.name}: {len(names)} files, installs and runs in an empty environment")


def build(folder: Path) -> Path:
    """Build the wheel with the build system of pyproject.toml."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("flujo_actors-*.whl")
    return wheel


def foreign_files(names: list[str]) -> list[str]:
    """Return files outside of the package and its metadata, and tests inside the package."""
    own = [name for name in names if name.startswith("flujo_actors/") or ".dist-info/" in name]
    tests = [name for name in own if {"tests", "conftest.py"} & set(name.split("/")) or "/test_" in name]
    return sorted({*names} - {*own} | {*tests})


def install_and_run(wheel: Path, home: Path) -> None:
    """Install the wheel in a new environment, add the path of the dependencies, and run a pipeline there."""
    venv.create(home, with_pip=False, symlinks=True)
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    subprocess.run([*PIP, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    # A path of a .pth file comes after the folder of the wheel, and its own .pth files are not read: the editable
    # installation of this environment is not found.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    subprocess.run([str(python), "-I", "-c", TRIAL], check=True, cwd=home)


if __name__ == "__main__":
    main()
