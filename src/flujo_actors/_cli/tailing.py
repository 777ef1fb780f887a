"""What `flujo-actors runs tail` does."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import trio

from ..terminal._watching import show_stored, showing
from .call import Call
from .stored import BY_STATUS

if TYPE_CHECKING:
    from .. import RunClient


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Ctrl-C ends the looking, also where whoever started this ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def follow(call: Call, client: RunClient, run_id: str, *, progress: object, after: int, out: bool) -> int:
    """Show a run until it has ended or asks somebody; the exit code is the run's own."""
    client.get(run_id)  # before anything is drawn
    wanted: Any = "quiet" if call.quiet else progress
    file = sys.stdout if out else sys.stderr
    with _interrupted(), showing(file, wanted, color=call.color, title=run_id) as display:
        trio.run(lambda: show_stored(client, run_id, display, after=after))
    run = client.get(run_id)
    if run.state_token is not None:
        call.say(f"it asks: {run.message}\nanswer with: flujo-actors runs answer {run.state_token} VALUE")
    return BY_STATUS[run.status]
