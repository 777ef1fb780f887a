"""`flujo-actors validate`: findings of blueprints, and fixes.

Sections:

- Files of `validate`: found, linted, fixed, and written back if they are unchanged.
- `explain`, `schema`: rules and the JSON Schema of blueprints.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from ..._blueprint.lint.fixer import Fixed, fix_all
from ..._blueprint.lint.linter import Linted, Linter, without
from ..._blueprint.lint.rules import RULES, Rule
from ..._blueprint.parser.findings import SEVERITIES, Finding, Severity, at_least, matches
from ..._blueprint.parser.json_schema import blueprint_schema
from ..._blueprint.parser.project import Project
from ..._core.validators import nearest
from ...errors import BlueprintError, FlujoError
from ..blueprint_files import project_of, read_file
from .command_group import Invocation, pass_call
from .file_replacement import leads_out_of, replace_file
from .output import DONE, FAILED, printable, styled

SCHEMA_VERSION = 1


@attrs.frozen(kw_only=True)
class LintReport:
    """Result of a `validate` call."""

    findings: Sequence[Finding]
    fixed: Sequence[Finding] = ()
    color: bool = False


def as_text(report: LintReport) -> str:
    """`file:line:column: severity RULE message`, a line for each."""
    return "".join(f"{_line(finding, color=report.color)}\n" for finding in report.findings)


def _line(finding: Finding, *, color: bool) -> str:
    place = f"{_file(finding)}:{finding.line}:{finding.column}:"
    severity = styled(finding.severity, finding.severity, color=color)
    rule = styled(finding.rule, "rule", color=color)
    return f"{place} {severity} {rule} {printable(finding.message)}"


def _file(finding: Finding) -> str:
    """Return a file name that cannot be mistaken for a CI command."""
    name = printable(finding.file)
    return f"./{name}" if name.startswith(("::", "##")) else name


def as_json(report: LintReport) -> str:
    """One document."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "findings": [_as_data(finding) for finding in report.findings],
        "fixed": [{"rule": each.rule, "file": each.file, "line": each.line} for each in report.fixed],
    }
    return json.dumps(document, indent=2) + "\n"


def _as_data(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "message": finding.message,
        "fix": None if finding.fix is None else {"safe": finding.fix.safe},
    }


def as_github(report: LintReport) -> str:
    """Commands that annotate the lines of a pull request."""
    return "".join(_annotation(finding) for finding in report.findings)


def _annotation(finding: Finding) -> str:
    kind = "notice" if finding.severity == "note" else finding.severity
    options = {"file": finding.file, "line": finding.line, "col": finding.column, "title": finding.rule}
    listed = ",".join(f"{key}={_escaped(str(value), more=':,')}" for key, value in options.items())
    return f"::{kind} {listed}::{_escaped(printable(finding.message))}\n"


def _escaped(text: str, *, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def as_sarif(report: LintReport) -> str:
    """SARIF 2.1.0, with all rules declared and fixes carried."""
    driver = {
        "name": "flujo-actors",
        "rules": [_declared(rule) for rule in RULES],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": [*map(_result, report.findings)]}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(document, indent=2) + "\n"


def _declared(rule_id: str) -> dict[str, object]:
    rule = RULES[rule_id]
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.finds},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.cure},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding) -> dict[str, Any]:
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": finding.file},
            "region": {"startLine": finding.line, "startColumn": finding.column},
        }
    }
    result = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": finding.message},
        "locations": [place],
    }
    return result if finding.fix is None else result | {"fixes": [_sarif_fix(finding)]}


def _sarif_fix(finding: Finding) -> dict[str, object]:
    assert finding.fix is not None
    replacements = [
        {
            "deletedRegion": {"charOffset": edit.start, "charLength": edit.end - edit.start},
            "insertedContent": {"text": edit.text},
        }
        for edit in finding.fix.edits
    ]
    changes = [{"artifactLocation": {"uri": finding.file}, "replacements": replacements}]
    return {"description": {"text": RULES[finding.rule].cure}, "artifactChanges": changes}


FORMATS: Mapping[str, Callable[[LintReport], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
    "sarif": as_sarif,
}


# --- Files of `validate` ------------------------------------------------------------------------------------------


STDIN = "<stdin>"


@attrs.frozen(kw_only=True)
class ValidateOptions:
    """Options of a `validate` call."""

    allow: tuple[str, ...] = ()
    config: Path | None = None
    resolve: bool = False
    copy_schema: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    unsafe: bool = False

    def means(self, finding: Finding) -> bool:
        """Return whether a finding is selected; unsilenceable ones always are."""
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
    within: Path | None
    """Directory that the file was found in; `None` if named itself."""
    wanted: ValidateOptions
    linted: Linted
    fixed: Fixed | None = None

    @classmethod
    def of(cls, file: str, wanted: ValidateOptions, within: Path | None = None) -> CheckedFile:
        """Read and lint a file."""
        path = None if file == "-" else Path(file)
        content = sys.stdin.buffer.read() if path is None else read_file(path)
        project = project_of(path, allow=wanted.allow, config=wanted.config, resolve=wanted.resolve)
        name = STDIN if path is None else file
        linted = _lint(project, wanted, name, path, content)
        return cls(file=name, path=path, content=content, within=within, wanted=wanted, linted=linted)

    @property
    def is_foreign(self) -> bool:
        """Return whether the file is a link out of its directory."""
        return self.path is not None and self.within is not None and leads_out_of(self.path, self.within)

    def fix(self) -> None:
        """Apply the fixes to the text, not yet to the file."""
        if self.is_foreign:
            return
        project = project_of(self.path, allow=self.wanted.allow, config=self.wanted.config, resolve=self.wanted.resolve)
        self.fixed = fix_all(
            self.linted,
            lambda text: _lint(project, self.wanted, self.file, self.path, text.encode("utf-8")),
            unsafe=self.wanted.unsafe,
            wanted=self.wanted.means,
        )

    def findings(self) -> list[Finding]:
        """Return the remaining findings."""
        linted = self.linted if self.fixed is None else self.fixed.linted
        return [each for each in linted.findings if self.wanted.means(each)]

    def diff(self) -> str:
        """Return the changes of the fixes as a unified diff without secrets."""
        import difflib  # only for verbose output

        if self.fixed is None:
            return ""
        before, after = (text.splitlines(keepends=True) for text in (self.linted.source.whole, self.fixed.text))
        lines = difflib.unified_diff(before, after, f"a/{self.file}", f"b/{self.file}")
        shown = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        return without(self.linted.secrets, printable(shown, lines=True))

    def write(self) -> None:
        """Write applied fixes; raise `BlueprintError` if the file changed meanwhile."""
        content = self.fixed_content()
        if self.path is None or content == self.content:
            return
        if read_file(self.path) != self.content:
            raise BlueprintError(f"{self.file} changed while it was looked at, and was not written; run it again")
        replace_file(self.path, content, within=self.within)

    def fixed_content(self) -> bytes:
        """Return the bytes after the fixes, if any."""
        applied = self.fixed is not None and self.fixed.applied and self.fixed.linted.root is not None
        return self.fixed.text.encode("utf-8") if self.fixed is not None and applied else self.content


def _lint(project: Project, wanted: ValidateOptions, name: str, path: Path | None, content: bytes) -> Linted:
    place = None if path is None else path.resolve()
    return Linter(project, copy_schema=wanted.copy_schema).lint(name, content, place)


def files_in(paths: Iterable[str]) -> Iterator[tuple[str, Path | None]]:
    """Yield each file and its directory, searched for blueprints."""
    for path in paths:
        if path != "-" and Path(path).is_dir():
            found = (each for pattern in ("*.yaml", "*.yml") for each in Path(path).rglob(pattern))
            files = sorted(str(each) for each in found if not _is_hidden(each.relative_to(path)))
            yield from ((file, Path(path)) for file in files)
        else:
            yield path, None if path == "-" else Path(path).parent


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


# --- `flujo-actors validate`: findings of blueprints --------------------------------------------------------------


_LOOK_AGAIN_S = 0.5


@attrs.frozen(kw_only=True)
class Job:
    """Handling and output of findings."""

    fix: bool
    diff: bool
    format: str
    fail_on: Severity
    exit_non_zero_on_fix: bool


def _lists(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for each in given for part in each.split(",") if part.strip())


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH...|-]")
@click.option("--fix", is_flag=True, help="Apply safe fixes to the files.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: also fixes that may change the meaning.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and leave the files alone.")
@click.option("--copy-schema", is_flag=True, help="Let the fix of V-A8 also write `schema: agents.X`.")
@click.option(
    "--format", "format_name", type=click.Choice(list(FORMATS)), default="text", help="How to print findings."
)
@click.option(
    "--fail-on", type=click.Choice([*reversed(SEVERITIES)]), default="error", help="What makes the exit code 1."
)
@click.option("--select", multiple=True, callback=_lists, metavar="RULES", help="Only these rules (V-A5, V-T, V-*).")
@click.option("--ignore", multiple=True, callback=_lists, metavar="RULES", help="All rules but these.")
@click.option("--allow", multiple=True, callback=_lists, metavar="MODULES", help="Python that blueprints may name.")
@click.option("--resolve", is_flag=True, help="Look for the Python that is named, without importing it.")
@click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit with 1 if something was fixed.")
@click.option("--watch", is_flag=True, help="Look again whenever a file changes, until Ctrl-C.")
@pass_call
def validate(
    call: Invocation,
    paths: tuple[str, ...],
    fix: bool,
    unsafe_fixes: bool,
    diff: bool,
    copy_schema: bool,
    format_name: str,
    fail_on: Severity,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    allow: tuple[str, ...],
    resolve: bool,
    exit_non_zero_on_fix: bool,
    watch: bool,
) -> int:
    """Check blueprints, and fix them with --fix.

    PATH is a file, a directory or - for standard input; pipeline.yaml by default. Nothing is imported. Notes are shown
    with -v.
    """
    wanted = ValidateOptions(
        allow=allow,
        config=call.config,
        resolve=resolve,
        copy_schema=copy_schema,
        select=select,
        ignore=ignore,
        unsafe=unsafe_fixes,
    )
    job = Job(fix=fix, diff=diff, format=format_name, fail_on=fail_on, exit_non_zero_on_fix=exit_non_zero_on_fix)
    given = paths or ("pipeline.yaml",)
    return _watched(call, job, wanted, given) if watch else _validate(call, job, wanted, given)


def _validate(call: Invocation, job: Job, wanted: ValidateOptions, paths: Sequence[str]) -> int:
    gc.disable()  # a large file is many small objects, and cycle detection among them takes half of the time
    try:
        return _validated(call, job, wanted, paths)
    finally:
        gc.enable()


def _validated(call: Invocation, job: Job, wanted: ValidateOptions, paths: Sequence[str]) -> int:
    checked = [CheckedFile.of(file, wanted, within) for file, within in files_in(paths)]
    if job.fix or job.diff:
        for each in checked:
            each.fix()
    left = [finding for each in checked for finding in each.findings()]
    fixed = [finding for each in checked if each.fixed is not None for finding in each.fixed.applied]
    changed = _print_result(call, job, wanted, checked, left, fixed)
    _summarize(call, left, fixed if job.fix and not job.diff else [])
    foreign = [each.file for each in checked if each.is_foreign and (job.fix or job.diff)]
    for file in foreign:
        call.print_note(f"{file} is a link out of its directory and was not fixed; name the file itself")
    failed = bool(at_least(left, job.fail_on)) or (job.diff and changed) or bool(foreign)
    return FAILED if failed or (job.exit_non_zero_on_fix and fixed) else DONE


def _print_result(
    call: Invocation,
    job: Job,
    wanted: ValidateOptions,
    checked: list[CheckedFile],
    left: list[Finding],
    fixed: list[Finding],
) -> bool:
    """Print the result and write files; whether a diff is not empty."""
    color = call.colors()
    report = LintReport(findings=_selected(call, job, wanted, left), fixed=fixed if job.fix else (), color=color)
    if job.diff:
        diff = "".join(each.diff() for each in checked)
        sys.stdout.write(diff)
        sys.stderr.write(FORMATS["text"](attrs.evolve(report, color=call.colors(sys.stderr))))
        return bool(diff)
    refused = _unwritten(checked) if job.fix else []
    piped = [each for each in checked if each.path is None and each.fixed is not None]
    for each in piped:
        sys.stdout.flush()
        sys.stdout.buffer.write(each.fixed_content())
        sys.stdout.buffer.flush()
    (sys.stderr if piped else sys.stdout).write(FORMATS[job.format](report))
    if refused:
        raise BlueprintError("; ".join(refused))
    return False


def _unwritten(checked: list[CheckedFile]) -> list[str]:
    """Write every file; return the reasons of failures."""
    refused: list[str] = []
    for each in checked:
        try:
            each.write()
        except FlujoError as error:
            refused.append(str(error))
    return refused


def _selected(call: Invocation, job: Job, wanted: ValidateOptions, findings: list[Finding]) -> list[Finding]:
    """Return the findings to show; notes only on request."""
    notes = call.verbosity > 0 or job.fail_on == "note" or bool(wanted.select)
    return findings if notes else at_least(findings, "warning")


def _summarize(call: Invocation, left: list[Finding], fixed: list[Finding]) -> None:
    counts = [(severity, sum(each.severity == severity for each in left)) for severity in reversed(SEVERITIES)]
    said = [f"{count} {severity}{'s' * (count > 1)}" for severity, count in counts if count and severity != "note"]
    if fixed:
        said.append(f"{len(fixed)} fixed")
    fixable = sum(each.fix is not None and each.fix.safe for each in left if each.severity != "note")
    if fixable and not fixed:
        said.append(f"{fixable} can be mended with --fix")
    if said:
        call.print_note(", ".join(said))


def _watched(call: Invocation, job: Job, wanted: ValidateOptions, paths: Sequence[str]) -> int:
    """Check again whenever one of the files changes."""
    seen: dict[str, float] = {}
    code = DONE
    while True:
        now = {file: _changed_at(file) for file, _ in files_in(paths)}
        if now != seen:
            seen = now
            code = _validate(call, job, wanted, paths)
            call.print_note("waiting for changes; Ctrl-C ends it")
        try:
            time.sleep(_LOOK_AGAIN_S)
        except KeyboardInterrupt:
            return code


def _changed_at(file: str) -> float:
    try:
        return Path(file).stat().st_mtime
    except OSError:
        return 0.0


@click.command()
@click.argument("rule", required=False)
@click.option("--all", "everything", is_flag=True, help="Explain every rule.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(rule: str | None, everything: bool, as_json: bool) -> None:
    """Explain a rule: why, a bad and a good example, the fix.

    RULE is an id such as V-A5.
    """
    chosen = list(RULES.values()) if everything or rule is None else [_named(rule)]
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "rules": [_rule_data(each) for each in chosen]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    elif rule is None and not everything:
        width = max(map(len, RULES))
        click.echo("\n".join(f"{each.id:{width}}  {each.severity:7}  {_short(each.finds)}" for each in chosen))
    else:
        click.echo("\n\n".join(map(explained, chosen)))


def _named(name: str) -> Rule:
    found = RULES.get(name.upper())
    if found is None:
        near = nearest(name.upper(), list(RULES), cutoff=0.4)
        hint = f"did you mean {near}?" if near else "`flujo-actors explain` lists them"
        raise click.UsageError(f"there is no rule {name!r}: {hint}")
    return found


def _rule_data(rule: Rule) -> dict[str, object]:
    return attrs.asdict(rule) | {"can_be_ignored": rule.can_be_ignored}


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def explained(rule: Rule) -> str:
    """Return a rule for people."""
    severity = rule.severity if rule.also is None else f"{rule.severity} or {rule.also}"
    parts = [
        f"{rule.id} ({severity}): {rule.finds}",
        rule.why,
        "Bad:",
        _indented(rule.bad),
        "Good:",
        _indented(rule.good),
    ]
    return "\n\n".join([*parts, f"To mend it: {rule.cure}", _fix_hint(rule)])


def _fix_hint(rule: Rule) -> str:
    how = {
        "": "Nothing mends it by itself.",
        "safe": "`flujo-actors validate --fix` mends it where it can.",
        "unsafe": "`flujo-actors validate --fix --unsafe-fixes` mends it.",
        "safe or unsafe": "`--fix` applies safe fixes, `--fix --unsafe-fixes` all of them.",
    }[rule.mends]
    silence = f"Silence it with `# flujo: ignore {rule.id}`." if rule.can_be_ignored else "It cannot be silenced."
    return f"{how} {silence}"


def _indented(text: str) -> str:
    return "\n".join(f"    {_short(line)}" for line in text.rstrip("\n").split("\n"))


# --- `flujo-actors schema`: the JSON Schema of the language -------------------------------------------------------


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write it to a file.")
def schema(output: str | None) -> None:
    """Print the JSON Schema of blueprints, for editors.

    With `# yaml-language-server: $schema=FILE` above a blueprint, VS Code and every other client of
    yaml-language-server complete and check it.
    """
    text = json.dumps(blueprint_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    replace_file(Path(output), text)
