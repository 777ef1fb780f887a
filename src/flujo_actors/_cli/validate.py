"""`flujo-actors validate`: what there is to say of blueprints, and fixes that touch nothing else."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import click

from .._blueprint.findings import SEVERITIES, Finding, Severity, at_least
from .call import Call, pass_call
from .checked_files import CheckedFile, Wanted, files_in
from .exits import DONE, FAILED
from .finding_formats import FORMATS, Report

_LOOK_AGAIN_S = 0.5


@attrs.frozen(kw_only=True)
class Job:
    """How findings are handled and shown."""

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
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: also fixes that may change what is meant.")
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
    call: Call,
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
    """Say what is wrong with blueprints, and mend it with --fix.

    PATH is a file, a directory or - for standard input; pipeline.yaml if there is none. Nothing is imported. Notes
    are shown with -v.
    """
    wanted = Wanted(
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
    return _watched(call, job, wanted, given) if watch else _once(call, job, wanted, given)


def _once(call: Call, job: Job, wanted: Wanted, paths: Sequence[str]) -> int:
    gc.disable()  # a large file is many small objects, and looking for circles among them takes half of the time
    try:
        return _validated(call, job, wanted, paths)
    finally:
        gc.enable()


def _validated(call: Call, job: Job, wanted: Wanted, paths: Sequence[str]) -> int:
    checked = [CheckedFile.of(file, wanted) for file in files_in(paths)]
    if job.fix or job.diff:
        for each in checked:
            each.fix()
    left = [finding for each in checked for finding in each.findings()]
    fixed = [finding for each in checked if each.fixed is not None for finding in each.fixed.applied]
    changed = _told(call, job, wanted, checked, left, fixed)
    _summarize(call, left, fixed if job.fix and not job.diff else [])
    failed = bool(at_least(left, job.fail_on)) or (job.diff and changed)
    return FAILED if failed or (job.exit_non_zero_on_fix and fixed) else DONE


def _told(
    call: Call, job: Job, wanted: Wanted, checked: list[CheckedFile], left: list[Finding], fixed: list[Finding]
) -> bool:
    """Print the result and write files; whether a diff is not empty."""
    color = call.colors()
    report = Report(findings=_shown(call, job, wanted, left), fixed=fixed if job.fix else (), color=color)
    if job.diff:
        diff = "".join(each.diff() for each in checked)
        sys.stdout.write(diff)
        sys.stderr.write(FORMATS["text"](attrs.evolve(report, color=call.colors(sys.stderr))))
        return bool(diff)
    if job.fix:
        for each in checked:
            each.write()
    piped = [each for each in checked if each.path is None and each.fixed is not None]
    for each in piped:
        assert each.fixed is not None
        sys.stdout.write(each.fixed.text)
    (sys.stderr if piped else sys.stdout).write(FORMATS[job.format](report))
    return False


def _shown(call: Call, job: Job, wanted: Wanted, findings: list[Finding]) -> list[Finding]:
    """Notes are shown to those who ask for them."""
    notes = call.verbosity > 0 or job.fail_on == "note" or bool(wanted.select)
    return findings if notes else at_least(findings, "warning")


def _summarize(call: Call, left: list[Finding], fixed: list[Finding]) -> None:
    counts = [(severity, sum(each.severity == severity for each in left)) for severity in reversed(SEVERITIES)]
    said = [f"{count} {severity}{'s' * (count > 1)}" for severity, count in counts if count and severity != "note"]
    if fixed:
        said.append(f"{len(fixed)} fixed")
    fixable = sum(each.fix is not None and each.fix.safe for each in left if each.severity != "note")
    if fixable and not fixed:
        said.append(f"{fixable} can be mended with --fix")
    if said:
        call.say(", ".join(said))


def _watched(call: Call, job: Job, wanted: Wanted, paths: Sequence[str]) -> int:
    """Look again whenever one of the files changes."""
    seen: dict[str, float] = {}
    code = DONE
    while True:
        now = {file: _changed_at(file) for file in files_in(paths)}
        if now != seen:
            seen = now
            code = _once(call, job, wanted, paths)
            call.say("waiting for changes; Ctrl-C ends it")
        try:
            time.sleep(_LOOK_AGAIN_S)
        except KeyboardInterrupt:
            return code


def _changed_at(file: str) -> float:
    try:
        return Path(file).stat().st_mtime
    except OSError:
        return 0.0
