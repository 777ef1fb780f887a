"""What holds for all tests: none of them fails because the machine is slow, and none pays for all the others."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# HTTP clients of the tests and of their processes speak plain text to loopback. Without certificates to load, each
# starts in 1 ms instead of 23.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(__file__)

# A commit of SQLite waits for the disk, so files of tests are in memory where there is plenty of it.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


SERVERS = {"postgres_server", "postgres_place", "browser"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a Postgres, a browser or an engine is slow: the first one waits for seconds until it has started."""
    for item in items:
        if item.get_closest_marker("engines") or (isinstance(item, pytest.Function) and _needs_a_server(item)):
            item.add_marker(pytest.mark.slow)


def _needs_a_server(item: pytest.Function) -> bool:
    asked = item.callspec.params.values() if hasattr(item, "callspec") else ()
    words = (each.partition(" ")[0] for each in asked if isinstance(each, str))  # "postgres with vectors" is one, too
    return bool(SERVERS & set(item.fixturenames)) or "postgres" in words


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect without the garbage collector: everything stays, and it is larger than any test.

    The collector took a fifth of the CPU time of collection, in each worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _no_test_pays_for_those_before_it() -> Iterator[None]:
    """What a module leaves behind is collected once, and what is left of it then is not looked at again."""
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates of captured output: a worker process cannot send them, and would end the session."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
