"""Replacement of a user's file.

Rules:

1. The new content is durable in a temporary file of the same directory before the old file is touched.
2. Owner, mode, extended attributes, symbolic links and hard links stay as they are.
3. A file with several hard links, or of another owner, is written in place. If that fails, the temporary file stays.
4. `within` refuses a target outside a directory, also through a link.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ...errors import DeclarationError


def leads_out_of(path: Path, directory: Path) -> bool:
    """Return whether a path leaves a directory, e.g. by a link."""
    return not path.resolve().is_relative_to(directory.resolve())


def replace_file(path: Path, content: bytes | str, *, within: Path | None = None) -> None:
    """Replace a file atomically: old or new content.

    Raise `DeclarationError` if it cannot be written.
    """
    if within is not None and leads_out_of(path, within):
        raise DeclarationError(f"{path} is a link out of {within} and was not written; name the file itself")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        _replace(path.resolve(), data)
    except OSError as error:
        raise DeclarationError(f"{path} cannot be written: {error.strerror or error}") from error


def _replace(target: Path, data: bytes) -> None:
    if target.exists() and not target.is_file():
        target.write_bytes(data)  # a device or a pipe has no content to lose
        return
    temporary = _durable_copy(target, data)
    try:
        in_place = target.exists() and not _takes_attributes(temporary, target)
        if not in_place:
            os.replace(temporary, target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if in_place:
        _overwrite(target, data, temporary)
    _sync_directory(target.parent)


def _durable_copy(target: Path, data: bytes) -> Path:
    import tempfile  # loads half of the standard library, for the commands that write a file

    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        _write_all(handle, data)
        if not target.exists():
            os.chmod(name, 0o666 & ~_umask())
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _write_all(handle: int, data: bytes) -> None:
    with os.fdopen(handle, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


def _umask() -> int:
    """Return the umask, by setting it twice."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _takes_attributes(temporary: Path, target: Path) -> bool:
    """Copy owner, mode and attributes; False to keep the target's inode."""
    known = target.stat()
    if known.st_nlink > 1 or not os.access(target, os.W_OK):
        return False
    if hasattr(os, "chown"):
        try:
            os.chown(temporary, known.st_uid, known.st_gid)
        except PermissionError:
            return False
    shutil.copystat(target, temporary)
    os.utime(temporary)
    return True


def _overwrite(target: Path, data: bytes, temporary: Path) -> None:
    try:
        with target.open("r+b") as opened:
            opened.write(data)
            opened.truncate()
            opened.flush()
            os.fsync(opened.fileno())
    except PermissionError:
        temporary.unlink(missing_ok=True)  # refused before the first byte
        raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; its new content is in {temporary}") from error
    temporary.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make a rename durable; Windows cannot open a directory."""
    if os.name == "nt":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
