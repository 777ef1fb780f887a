"""Copies the files of others that the run page needs from their npm package, with their sums: `make vendor`."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE, VERSION = "lit-html", "3.3.3"
FILES = ["lit-html.js", "LICENSE"]
FOLDER = Path(__file__).parents[1] / "src/flujo_actors/page/static/vendor"

HEAD = f"""# Files of others

Copied as they are from the npm package `{PACKAGE}` {VERSION} (BSD-3-Clause, Copyright 2017 Google LLC; see `LICENSE`).
`make vendor` renews them; a test compares them with these sums.

| file | SHA-256 |
|---|---|
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=scratch, check=True, stdout=sys.stderr)
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as packed:
            lines = [written(name, packed.extractfile(f"package/{name}").read()) for name in FILES]
    (FOLDER / "VENDORED.md").write_text(HEAD + "".join(lines), encoding="utf-8")


def written(name: str, data: bytes) -> str:
    """Copies one file; the line that tells of it."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return f"| `{name}` | `{hashlib.sha256(data).hexdigest()}` |\n"


if __name__ == "__main__":
    main()
