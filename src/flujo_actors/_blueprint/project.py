"""Where a blueprint may read: its root, and what its owner allows.

Rules:

1. The root is the directory of the nearest `flujo.toml` upward, else the directory of the file.
2. No file outside the root is read, whether it is named by an absolute path, with `..` or through a link.
3. What is allowed comes from `flujo.toml`, the command line or the caller, never from a blueprint.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from .._core.default_settings import CONFIG_FILE
from .source import MOST_BYTES


@attrs.frozen(kw_only=True)
class Project:
    """What is known besides the text: where it stands and what it may name."""

    root: Path
    allow: tuple[str, ...] = ()
    path: tuple[str, ...] = (".",)
    """Directories, seen from the root, in which allowed modules are looked for."""
    ignore: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    warning: tuple[str, ...] = ()
    total_cost_usd_limit: float | None = None
    total_tokens_limit: int | None = None
    resolve: bool = False
    """Whether names of Python are looked for, without importing anything."""

    def module_directories(self) -> list[Path]:
        """Where the project's own modules are looked for."""
        return [self.root / each for each in self.path]


def root_of(file: Path | None) -> Path:
    """The root of a file; of a text that is no file, of the current directory."""
    directory = Path.cwd() if file is None else file.resolve().parent
    config = config_of(directory)
    return directory if config is None else config.parent


def config_of(directory: Path) -> Path | None:
    """The nearest `flujo.toml` upward."""
    for each in (directory, *directory.parents):
        if (each / CONFIG_FILE).is_file():
            return each / CONFIG_FILE
    return None


class Outside(Exception):
    """A path leaves the root."""


def inside(root: Path, directory: Path, path: str) -> Path:
    """The file that a path names, seen from a directory; `Outside` if it is not inside the root."""
    if "\x00" in path or Path(path).is_absolute() or path.startswith(("~", "\\")):
        raise Outside
    found = (directory / path).resolve()
    if not found.is_relative_to(root.resolve()):
        raise Outside
    return found


def content_of(file: Path) -> bytes:
    """The bytes of a file, or one more than a blueprint may have; `OSError` if it cannot be read."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file.name!r}" if not file.exists() else f"{file.name!r} is no file")
    with file.open("rb") as opened:
        return opened.read(MOST_BYTES + 1)
