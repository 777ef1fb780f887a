"""Repeats the tests that failed in `make test` or `make test-evals`, alone and once: `make retest`.

Rules:
1. It refuses after a run that did not end by itself, after a run without a failed test, and after more than three.
2. A test that passes now is printed as flaky: it is a bug, and has to be filed.
3. The exit code is that of the repeated tests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

MOST = 3
TESTS_FAILED = "1"
COMMAND = ["--last-failed", "--last-failed-no-failures", "none", "-n", "0", "-v"]


def main(exit_file: Path, cache: Path = Path(".pytest_cache"), *tests: str) -> None:
    failed_file = cache / "v" / "cache" / "lastfailed"
    exit_code = exit_file.read_text(encoding="utf-8").strip() if exit_file.exists() else "none"
    failed = list(json.loads(failed_file.read_text(encoding="utf-8"))) if failed_file.exists() else []
    if problem := refusal(exit_code, failed):
        sys.exit(f"not repeated: {problem}")
    sys.exit(pytest.main([*COMMAND, "-o", f"cache_dir={cache}", *tests], plugins=[Flaky()]))


def refusal(exit_code: str, failed: list[str]) -> str | None:
    """Return the reason not to repeat the failed tests of a run, if there is one."""
    if exit_code != TESTS_FAILED:
        return f"the last run ended with exit code {exit_code}; {TESTS_FAILED} is a complete run with failed tests"
    if not failed:
        return "the last run has no failed test"
    return f"{len(failed)} tests failed, and more than {MOST} are no accident" if len(failed) > MOST else None


class Flaky:
    """Prints the tests that passed alone, before the summary of pytest."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = [each.nodeid for each in terminalreporter.stats.get("passed", [])]
        for name in passed:
            terminalreporter.write_line(f"FLAKY {name}: failed in the full run and passed alone; file it as a bug")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), *sys.argv[3:])
