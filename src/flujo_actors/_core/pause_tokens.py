"""What a place in a run is called outside: the `state_token` of a pause, and the idempotency key of a step.

A token says which run, which step of it, and what was asked. An answer is bound to what its giver saw: the token
carries a hash of the question and of the data it was asked about, so an answer to an earlier question is never taken
for an answer to a later one.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote

from ..errors import NotPaused, NotSerializable
from .outcomes import RunId
from .paths import StepPath


def make_token(run_id: RunId, path: StepPath, *, asked: str) -> str:
    """The token of the pause at `path`; a run id may hold any character."""
    return f"{quote(run_id, safe='', errors='surrogatepass')}:{asked}:{path}"


def parse_token(token: str) -> tuple[RunId, StepPath]:
    """The run and the step behind a token."""
    parts = str(token).split(":", 2)
    if len(parts) != 3:
        raise NotPaused(
            f"{token!r} is not the state_token of a pause: an answer goes to the `state_token` of the paused result, "
            "of the `Paused` outcome, or of `RunClient(store).get(run_id)`"
        )
    run_id, _, path = parts
    return RunId(unquote(run_id, errors="surrogatepass")), StepPath(path)


def idempotency_key(run_id: RunId, path: StepPath) -> str:
    """What a step is known by in the world outside: `run:path`, the same on every attempt and in every process.

    A `:` inside either is written `%3A` and a `%` is written `%25`, so that no two steps of any runs share a key.
    """
    return f"{_without_colon(run_id)}:{_without_colon(path)}"


def _without_colon(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def approval_hash(message: str, data: object, *, before: int = 0) -> str:
    """What tells questions apart: the text, the data it is about, how often it was answered before."""
    from .json_codec import json_of  # loads cattrs, which only runs that pause need

    try:
        about = json_of(data)
    except NotSerializable:
        about = type(data).__qualname__
    again = f"\0{before}" if before else ""
    return hashlib.sha256(f"{message}\0{about}{again}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
