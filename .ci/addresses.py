"""Writes the addresses of `[project.urls]` into the documents that repeat them: `make addresses`.

With `--check` nothing is written, and an old address ends it with exit code 1.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CITATION.cff", "docs/llms.txt")
PROJECT = r"[\w.-]+/flujo-actors\b"
"""Owner and name of a repository, as in an address of the project."""


def main(*options: str) -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    changed = {name: text for name in DOCUMENTS if (text := renewed(old := read(name), urls)) != old}
    if options == ("--check",):
        sys.exit(f"make addresses: {', '.join(changed)}" if changed else 0)
    for name, text in changed.items():
        (ROOT / name).write_text(text, encoding="utf-8")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def renewed(text: str, urls: dict[str, str]) -> str:
    """Return a text with the addresses of repository, raw files and site."""
    repository, site = urls["Repository"], urls["Documentation"]
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")
    for pattern, address in (
        (rf"https://github\.com/{PROJECT}", repository),
        (rf"https://raw\.githubusercontent\.com/{PROJECT}", raw),
        (r"https://[\w-]+\.github\.io/flujo-actors\b", site),
    ):
        text = re.sub(pattern, address, text)
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
