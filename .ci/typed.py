"""Checks that pyright knows the type of every public name of the installed library: `make check`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
COMMAND = [str(BIN / "basedpyright"), "--verifytypes", "flujo_actors", "--ignoreexternal"]


def main() -> None:
    # pyright looks for the library in the environment of the first `python` on the path.
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True)
    lines = [line.strip() for line in done.stdout.splitlines() if " error: " in line or "score" in line]
    print(*lines, sep="\n")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
