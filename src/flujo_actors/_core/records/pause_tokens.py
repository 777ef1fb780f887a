"""External identifiers: `state_token` of a pause, idempotency key of a step.

A token identifies the run, the step and the pause. It carries a hash of the prompt and of its data, so an answer to an
earlier pause is never accepted for a later one.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote

from ...errors import NotPaused, NotSerializable
from .. import records
from ..outcomes import RunId
from ..step_paths import StepPath


def make_token(run_id: RunId, path: StepPath, *, asked: str) -> str:
    """Return the token of the pause at `path`, for any run id."""
    return f"{quote(run_id, safe='', errors='surrogatepass')}:{asked}:{path}"


def parse_token(token: str) -> tuple[RunId, StepPath]:
    """Return the run and the step behind a token."""
    parts = str(token).split(":", 2)
    if len(parts) != 3:
        raise NotPaused(
            f"{token!r} is not the state_token of a pause: an answer goes to the `state_token` of the paused result, "
            "of the `Paused` outcome, or of `RunClient(store).get(run_id)`"
        )
    run_id, _, path = parts
    return RunId(unquote(run_id, errors="surrogatepass")), StepPath(path)


def idempotency_key(run_id: RunId, path: StepPath) -> str:
    """Return a step's external key `run:path`, equal in every attempt and process.

    A `:` inside either is written `%3A` and a `%` is written `%25`, so that no two steps of any runs share a key.
    """
    return f"{_without_colon(run_id)}:{_without_colon(path)}"


def _without_colon(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def approval_hash(message: str, data: object, *, before: int = 0) -> str:
    """Return the hash of a pause: prompt, data and answer count."""
    try:
        about = records.json_of(data)
    except NotSerializable:
        about = type(data).__qualname__
    again = f"\0{before}" if before else ""
    return hashlib.sha256(f"{message}\0{about}{again}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
