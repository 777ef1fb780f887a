"""`python -m flujo_actors` is the command `flujo-actors`."""

from __future__ import annotations

import sys

from ._api.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
