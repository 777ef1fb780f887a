"""Writes the addresses of `[project.urls]` into the documents that repeat them: `make addresses`.

Rules:
1. CITATION.cff has the addresses that the documents have now. They are replaced wherever they stand, so any new address
   will do.
2. With `--check` nothing is written, and an old address, or a document without a new one, ends it with exit code 1.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CITATION.cff", "docs/llms.txt", "docs/examples/index.md")
LINES = {"Repository": "repository-code", "Documentation": "url"}
"""Addresses, and their lines in CITATION.cff."""


def main(*options: str) -> None:
    urls = tomllib.loads(read("pyproject.toml"))["project"]["urls"]
    new, old = {name: urls[name] for name in LINES}, written(read("CITATION.cff"))
    changed = {name: text for name in DOCUMENTS if (text := renewed(before := read(name), old, new)) != before}
    if options == ("--check",):
        wrong = [*changed, *(name for name in DOCUMENTS if not any(each in read(name) for each in new.values()))]
        sys.exit(f"make addresses: {', '.join(dict.fromkeys(wrong))}" if wrong else 0)
    for name, text in changed.items():
        (ROOT / name).write_text(text, encoding="utf-8")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def written(citation: str) -> dict[str, str]:
    """Return the addresses that the documents have now."""
    return {name: re.findall(rf"^{line}: (\S+)$", citation, re.MULTILINE)[0] for name, line in LINES.items()}


def renewed(text: str, old: dict[str, str], new: dict[str, str]) -> str:
    """Return a text with the new addresses of repository, raw files and site."""
    pairs = [(old[name], new[name]) for name in LINES]
    pairs.append((raw(old["Repository"]), raw(new["Repository"])))
    found = dict(pairs)
    pattern = "|".join(re.escape(each) for each in sorted(found, key=len, reverse=True))
    return re.sub(rf"(?:{pattern})(?![\w-])", lambda match: found[match[0]], text)


def raw(repository: str) -> str:
    """Return the address of a repository's files without a page around them."""
    return repository.replace("https://github.com/", "https://raw.githubusercontent.com/")


if __name__ == "__main__":
    main(*sys.argv[1:])
