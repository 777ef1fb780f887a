"""The `state_token` of a pause: which run, and which step of it, an answer is for."""

from __future__ import annotations

from urllib.parse import quote, unquote

from ..errors import NotPaused
from .outcomes import RunId
from .paths import StepPath


def make_token(run_id: RunId, path: StepPath) -> str:
    """The token of the pause at `path`; a run id may hold any character."""
    return f"{quote(run_id, safe='', errors='surrogatepass')}:{path}"


def parse_token(token: str) -> tuple[RunId, StepPath]:
    """The run and the step behind a token."""
    run_id, separator, path = str(token).partition(":")
    if not separator:
        raise NotPaused(f"{token!r} is not the state_token of a pause")
    return RunId(unquote(run_id, errors="surrogatepass")), StepPath(path)
