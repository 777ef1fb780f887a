"""Which files a SQLite database consists of, so that one that was deleted or replaced is not taken for another."""

from __future__ import annotations

import os
from typing import TypeAlias

Files: TypeAlias = tuple[tuple[int, int], ...]
"""The database and its log, each by its device and number: those stay as they are while a file is open somewhere."""


def why_not_opened(path: str) -> str:
    """What keeps a database from being opened at a path, and what to do about it."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"there is no folder {folder}; create it first"
    if os.path.isdir(path):
        return "this is a folder; name a file in it"
    return "this process may not read or write there; check the permissions of the file and of its folder"


def files_at(path: str) -> Files | None:
    """The files at a path now; `None` if one is missing."""
    try:
        found = [os.stat(file) for file in (path, f"{path}-wal")]
    except OSError:
        return None
    return tuple((file.st_dev, file.st_ino) for file in found)
