"""Files as `validate` handles them: found, looked at, fixed, and written back if nobody changed them meanwhile."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from .._blueprint.findings import Finding, matches
from .._blueprint.fixing import Fixed, fix_all
from .._blueprint.lint_secrets import without
from .._blueprint.linting import Linted, Linter
from .._blueprint.project import Project
from .._blueprints import project_of, read_file
from ..errors import BlueprintError
from .printing import printable

STDIN = "<stdin>"


@attrs.frozen(kw_only=True)
class Wanted:
    """What a call of `validate` asks for."""

    allow: tuple[str, ...] = ()
    config: Path | None = None
    resolve: bool = False
    copy_schema: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    unsafe: bool = False

    def means(self, finding: Finding) -> bool:
        """Whether a finding is asked for; what must not be silenced always is."""
        if finding.rule.startswith(("V-Y", "V-X")):
            return True
        selected = not self.select or matches(finding.rule, self.select)
        return selected and not matches(finding.rule, self.ignore)


@attrs.define(kw_only=True)
class CheckedFile:
    """One file, or standard input."""

    file: str
    path: Path | None
    content: bytes
    wanted: Wanted
    linted: Linted
    fixed: Fixed | None = None

    @classmethod
    def of(cls, file: str, wanted: Wanted) -> CheckedFile:
        """Read a file and look at it."""
        path = None if file == "-" else Path(file)
        content = sys.stdin.buffer.read() if path is None else read_file(path)
        project = project_of(path, allow=wanted.allow, config=wanted.config, resolve=wanted.resolve)
        name = STDIN if path is None else file
        linted = _look(project, wanted, name, path, content)
        return cls(file=name, path=path, content=content, wanted=wanted, linted=linted)

    def fix(self) -> None:
        """Work out the text with its fixes."""
        project = project_of(self.path, allow=self.wanted.allow, config=self.wanted.config, resolve=self.wanted.resolve)
        self.fixed = fix_all(
            self.linted,
            lambda text: _look(project, self.wanted, self.file, self.path, text.encode("utf-8")),
            unsafe=self.wanted.unsafe,
            wanted=self.wanted.means,
        )

    def findings(self) -> list[Finding]:
        """What is left to say."""
        linted = self.linted if self.fixed is None else self.fixed.linted
        return [each for each in linted.findings if self.wanted.means(each)]

    def diff(self) -> str:
        """What the fixes change, as a unified diff without secrets."""
        import difflib  # for those who want to see it

        assert self.fixed is not None
        before, after = (text.splitlines(keepends=True) for text in (self.linted.source.whole, self.fixed.text))
        lines = difflib.unified_diff(before, after, f"a/{self.file}", f"b/{self.file}")
        shown = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        return without(self.linted.secrets, printable(shown, lines=True))

    def write(self) -> None:
        """Put the fixed text in the place of the old one, all at once; refused if the file changed meanwhile."""
        assert self.fixed is not None
        text = self.fixed.text.encode("utf-8")
        if self.path is None or text == self.content:
            return
        target = self.path.resolve()
        if read_file(target) != self.content:
            raise BlueprintError(f"{self.file} changed while it was looked at, and was not written; run it again")
        _replace(target, text)


def _look(project: Project, wanted: Wanted, name: str, path: Path | None, content: bytes) -> Linted:
    place = None if path is None else path.resolve()
    return Linter(project, copy_schema=wanted.copy_schema).lint(name, content, place)


def _replace(target: Path, content: bytes) -> None:
    import tempfile  # loads half of the standard library, for those who fix something

    mode = stat.S_IMODE(target.stat().st_mode)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
        os.chmod(name, mode)
        os.replace(name, target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def files_in(paths: Iterable[str]) -> Iterator[str]:
    """The files that are meant: a directory means every blueprint below it."""
    for path in paths:
        if path != "-" and Path(path).is_dir():
            found = (each for pattern in ("*.yaml", "*.yml") for each in Path(path).rglob(pattern))
            yield from sorted(str(each) for each in found if not _is_hidden(each.relative_to(path)))
        else:
            yield path


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
