"""Write the SQL of the installed version: `python write_statements.py > former_statements.json`."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType

from flujo_actors.stores.postgres import _statements as postgres
from flujo_actors.stores.sqlite import _statements as sqlite

COMPLETE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")


def statements(module: ModuleType) -> dict[str, str]:
    """Return the complete statements of a module, without the parts that they are made of."""
    texts = {name: text for name, text in vars(module).items() if name[0] != "_" and isinstance(text, str)}
    return {name: text for name, text in sorted(texts.items()) if COMPLETE.match(text) and "{" not in text}


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(
            {"postgres": statements(postgres), "sqlite": statements(sqlite), "wanting": postgres.WANTING}, indent=1
        )
        + "\n"
    )
