"""Which files a SQLite database consists of, so that one that was deleted or replaced is not taken for another."""

from __future__ import annotations

import os
from typing import TypeAlias

Files: TypeAlias = tuple[tuple[int, int], ...]
"""The database and its log, each by its device and number: those stay as they are while a file is open somewhere."""


def files_at(path: str) -> Files | None:
    """The files at a path now; `None` if one is missing."""
    try:
        found = [os.stat(file) for file in (path, f"{path}-wal")]
    except OSError:
        return None
    return tuple((file.st_dev, file.st_ino) for file in found)
