"""Chunks and outcomes of remote steps, told to whoever iterates the run: live, in order, at most once.

Rules:

1. They go beside the journal, as signals, and are not kept: who is not there misses them; a step's text is its output.
2. What a worker says is cut into frames that a signal can hold, and put together again.
3. A worker is at most a window ahead of the reader: then it waits for word of what was read, and so a slow reader slows
   it. Word can be lost: after a while it sends another window.
4. A step that is begun again by another worker says again what it said: what was told before is not told twice.
"""

from __future__ import annotations

import base64
import os
from collections import deque
from typing import Any

import attrs
import trio

from .._bridge.guard import guarded
from .._core.json_codec import from_json
from .._core.outcomes import Chunk, ToldOutcome
from .._json_text import to_json
from .._run.outlet import Outlet
from .signals import Listener, Signals, passed_on, read_signal, signal_of

TOLD, READ = "told", "read"
"""Signals: something was said, and so much of it was read."""

FRAME_BYTES = 5_000
WINDOW_BYTES = 256 * 1024
NOTE_BYTES = WINDOW_BYTES // 8
PATIENCE_S = 2.0
"""How long a worker waits for word from its reader."""


class Speaker:
    """The worker's side: one remote step that is listened to."""

    def __init__(self, signals: Signals, channel: str, child: str, epoch: int, ears: Ears) -> None:
        self._signals, self._channel, self._child, self._epoch, self._ears = signals, channel, child, epoch, ears
        self._sent = self._read = self._seq = 0
        self._changed = trio.Event()

    async def pass_on(self, outlet: Outlet) -> None:
        """Send all that is put into an outlet, until it is closed."""
        with self._ears.listening(self._child, self._heard):
            async for outcome in outlet:
                await self._say(to_json(outcome).encode())

    async def _say(self, text: bytes) -> None:
        for start in range(0, len(text), FRAME_BYTES):
            piece = text[start : start + FRAME_BYTES]
            await self._window()
            last = start + FRAME_BYTES >= len(text)
            frame = [self._epoch, self._seq, last, base64.b64encode(piece).decode(), self._ears.channel]
            self._signals.send(self._channel, signal_of(TOLD, self._child, frame))
            self._seq, self._sent = self._seq + 1, self._sent + len(piece)

    async def _window(self) -> None:
        while self._sent - self._read >= WINDOW_BYTES:
            with trio.move_on_after(PATIENCE_S) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                self._read = self._sent

    def _heard(self, read: int) -> None:
        self._read = max(self._read, read)
        self._changed.set()
        self._changed = trio.Event()


class Ears:
    """What a worker hears from those who read its chunks; one for each trio run."""

    def __init__(self, url: str) -> None:
        self.channel = f"flujo_{os.urandom(12).hex()}"
        self._hear: dict[str, Any] = {}
        token = trio.lowlevel.current_trio_token()
        self._listener = Listener(url, self.channel, lambda message: passed_on(token, self._heard, message))

    def listening(self, child: str, hear: object) -> _Listening:
        """Tell of what was read of a remote step, during the block."""
        return _Listening(self._hear, child, hear)

    def _heard(self, message: str) -> None:
        if message:
            kind, child, read = read_signal(message)
            if kind == READ and child in self._hear:
                self._hear[child](read)


_ears: trio.lowlevel.RunVar[dict[str, Ears]] = trio.lowlevel.RunVar("flujo_actors ears")


def ears_of(url: str) -> Ears:
    """The ears of the current trio run, in one database."""
    try:
        ears = _ears.get()
    except LookupError:
        ears = {}
        _ears.set(ears)
    if url not in ears:
        ears[url] = Ears(url)
    return ears[url]


@attrs.frozen
class _Listening:
    """A block during which somebody is told."""

    told: dict[str, object]
    child: str
    hear: object

    def __enter__(self) -> None:
        self.told[self.child] = self.hear

    def __exit__(self, *error: object) -> None:
        self.told.pop(self.child, None)


class Reader:
    """The caller's side: what one remote step says, for whoever iterates the run."""

    def __init__(self, child: str, outlet: Outlet, signals: Signals) -> None:
        self._child, self._outlet, self._signals = child, outlet, signals
        self._epoch, self._next = 0, 0
        self._pieces: list[bytes] = []
        self._waiting: deque[tuple[bytes, int, str]] = deque()
        self._seen: dict[tuple[str, int], int] = {}
        self._read = 0
        self._busy = False
        self._idle = trio.Event()
        """Set while nothing waits to be told."""
        self._idle.set()
        self._ended = trio.Event()

    def hear(self, frame: list[Any]) -> None:
        """Take a frame in; whoever is behind the last one is another worker, and begins anew."""
        epoch, seq, last, piece, channel = frame
        if epoch > self._epoch:
            self._epoch, self._next, self._pieces, self._read = epoch, 0, [], 0
        if epoch < self._epoch or seq != self._next:
            return  # the rest of what was said by a dead worker, or something was lost
        self._next += 1
        self._pieces.append(base64.b64decode(piece))
        if not last:  # what is put together may be longer than a window
            self._note(len(self._pieces[-1]), channel)
        else:
            self._waiting.append((b"".join(self._pieces), len(self._pieces[-1]), channel))
            self._pieces = []
            self._idle = trio.Event() if self._idle.is_set() else self._idle
            if not self._busy:
                self._busy = True
                trio.lowlevel.spawn_system_task(guarded, self._tell_all)  # whoever read may have left

    def end(self) -> None:
        """The worker has said all."""
        self._ended.set()

    async def rest(self) -> None:
        """Wait until all was told that the worker said, as far as it was not lost."""
        with trio.move_on_after(PATIENCE_S):
            await self._ended.wait()
        await self._idle.wait()

    async def _tell_all(self) -> None:
        try:
            while self._waiting:
                text, unread, channel = self._waiting.popleft()
                outcome: ToldOutcome = from_json(text.decode(), ToldOutcome)
                if self._is_new(outcome):
                    await self._outlet.put(outcome)
                self._note(unread, channel)
        finally:
            self._busy = False
            self._idle.set()

    def _note(self, read: int, channel: str) -> None:
        """Let the worker know, now and then, how much was read."""
        before, self._read = self._read, self._read + read
        if before // NOTE_BYTES != self._read // NOTE_BYTES:
            self._signals.send(channel, signal_of(READ, self._child, self._read))

    def _is_new(self, outcome: ToldOutcome) -> bool:
        if not isinstance(outcome, Chunk):
            return True
        key = outcome.step_name, outcome.attempt
        new = outcome.seq > self._seen.get(key, -1)
        self._seen[key] = max(outcome.seq, self._seen.get(key, -1))
        return new
