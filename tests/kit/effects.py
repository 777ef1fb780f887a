"""Effects outside of any database: lines in a file, written at once, by whichever process."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import attrs


@attrs.frozen
class Effects:
    """The file, and how often each line is in it."""

    file: Path

    def add(self, text: str) -> None:
        """Do something that cannot be undone."""
        handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)

    def counted(self, beginning: str = "") -> Counter[str]:
        """How often each was done, of those that begin so; without that beginning."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return Counter(line.removeprefix(beginning) for line in lines if line.startswith(beginning))
