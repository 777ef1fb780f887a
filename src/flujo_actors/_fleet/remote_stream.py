"""Live chunks and outcomes of remote steps: ordered, at most once.

Rules:

1. They are signals outside the journal, and are not stored: an absent reader misses them; a step's text is its output.
2. A worker's messages are split into frames that fit a signal, and reassembled.
3. A worker is at most a window ahead of the reader: then it waits for an acknowledgment, and so a slow reader slows
   it. An acknowledgment can be lost: after a while the worker sends another window.
4. A step restarted by another worker repeats its messages: those already delivered are skipped.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio

from .._bridge.user_code_guard import guarded
from .._core.outcomes import Chunk, ToldOutcome
from .._core.records.json_codec import from_json
from .._runtime.run.json_text import to_json
from .._runtime.run.messages import EventStream

if TYPE_CHECKING:
    from ..stores.postgres._session import Signals

logger = logging.getLogger("flujo_actors")


def signal_of(kind: str, child: str, rest: object = None) -> str:
    """Return a signal about a remote step, as text."""
    return json.dumps([kind, child, rest])


def read_signal(message: str) -> tuple[str, str, object]:
    """Return a signal that was heard."""
    kind, child, rest = json.loads(message)
    return kind, child, rest


def passed_on(token: trio.lowlevel.TrioToken, receive: Callable[[str], None], message: str) -> bool:
    """Pass a message to a trio run; return whether it exists."""
    try:
        token.run_sync_soon(receive, message)
    except trio.RunFinishedError:
        return False
    return True


class Listener:
    """Listener on one channel in its own thread, until closed or unreferenced."""

    def __init__(self, url: str, channel: str, receive: Callable[[str], bool]) -> None:
        """Call `receive` with each message, and with `""` periodically; `False` ends listening."""
        self._closed = threading.Event()
        self.listening = threading.Event()
        threading.Thread(target=self._listen, args=(url, channel, receive), daemon=True).start()

    def close(self) -> None:
        """Hear nothing more."""
        self._closed.set()

    def _listen(self, url: str, channel: str, receive: Callable[[str], bool]) -> None:
        import psycopg  # the driver, which only stores in Postgres need

        while not self._closed.is_set():
            try:
                with psycopg.connect(url, autocommit=True, application_name="flujo listener") as db:
                    db.execute(f'LISTEN "{channel}"')  # it is made of letters and digits
                    self.listening.set()
                    if not receive("") or not self._receive_all(db, receive):  # earlier messages were not received
                        return
            except psycopg.Error as error:
                logger.debug("signals cannot be received (%s); waiters poll", type(error).__name__)
                self._closed.wait(1.0)

    def _receive_all(self, db: Any, receive: Callable[[str], bool]) -> bool:
        while not self._closed.is_set():
            for note in db.notifies(timeout=1.0):
                if not receive(note.payload):
                    return False
            if not receive(""):
                return False
        return False


TOLD, READ = "told", "read"
"""Signals: new data, and acknowledgment."""

FRAME_BYTES = 5_000
WINDOW_BYTES = 256 * 1024
NOTE_BYTES = WINDOW_BYTES // 8
PATIENCE_S = 2.0
"""Timeout of a worker for an acknowledgment."""


class ChunkPublisher:
    """The worker's side: one remote step that is listened to."""

    def __init__(self, signals: Signals, channel: str, child: str, epoch: int, listener: SignalListener) -> None:
        self._signals, self._channel, self._child, self._epoch, self._listener = (
            signals,
            channel,
            child,
            epoch,
            listener,
        )
        self._sent = self._read = self._seq = 0
        self._changed = trio.Event()

    async def pass_on(self, event_stream: EventStream) -> None:
        """Send all items of an event stream until it is closed."""
        with self._listener.acknowledgments(self._child, self._on_acknowledged):
            async for outcome in event_stream:
                await self._send(to_json(outcome).encode())

    async def _send(self, text: bytes) -> None:
        for start in range(0, len(text), FRAME_BYTES):
            chunk = text[start : start + FRAME_BYTES]
            await self._window()
            last = start + FRAME_BYTES >= len(text)
            frame = [self._epoch, self._seq, last, base64.b64encode(chunk).decode(), self._listener.channel]
            self._signals.send(self._channel, signal_of(TOLD, self._child, frame))
            self._seq, self._sent = self._seq + 1, self._sent + len(chunk)

    async def _window(self) -> None:
        while self._sent - self._read >= WINDOW_BYTES:
            with trio.move_on_after(PATIENCE_S) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                self._read = self._sent

    def _on_acknowledged(self, read: int) -> None:
        self._read = max(self._read, read)
        self._changed.set()
        self._changed = trio.Event()


class SignalListener:
    """Acknowledgments received by a worker; one per trio run."""

    def __init__(self, url: str) -> None:
        self.channel = f"flujo_{os.urandom(12).hex()}"
        self._receivers: dict[str, Any] = {}
        token = trio.lowlevel.current_trio_token()
        self._listener = Listener(url, self.channel, lambda message: passed_on(token, self._on_signal, message))

    def acknowledgments(self, child: str, receive: object) -> _Subscription:
        """Pass acknowledgments of a remote step to the callback during the block."""
        return _Subscription(self._receivers, child, receive)

    def _on_signal(self, message: str) -> None:
        if message:
            kind, child, read = read_signal(message)
            if kind == READ and child in self._receivers:
                self._receivers[child](read)


_listeners: trio.lowlevel.RunVar[dict[str, SignalListener]] = trio.lowlevel.RunVar("flujo_actors listeners")


def listener_of(url: str) -> SignalListener:
    """Return the listener of the current trio run, in one database."""
    try:
        listeners = _listeners.get()
    except LookupError:
        listeners = {}
        _listeners.set(listeners)
    if url not in listeners:
        listeners[url] = SignalListener(url)
    return listeners[url]


@attrs.frozen
class _Subscription:
    """Registration of a callback for a block."""

    receivers: dict[str, object]
    child: str
    receive: object

    def __enter__(self) -> None:
        self.receivers[self.child] = self.receive

    def __exit__(self, *error: object) -> None:
        self.receivers.pop(self.child, None)


class StreamReader:
    """Caller's side of one remote step's stream."""

    def __init__(self, child: str, event_stream: EventStream, signals: Signals) -> None:
        self._child, self._event_stream, self._signals = child, event_stream, signals
        self._epoch, self._next = 0, 0
        self._chunks: list[bytes] = []
        self._waiting: deque[tuple[bytes, int, str]] = deque()
        self._seen: dict[tuple[str, int], int] = {}
        self._read = 0
        self._busy = False
        self._idle = trio.Event()
        """Set while no message is pending."""
        self._idle.set()
        self._ended = trio.Event()

    def receive(self, frame: list[Any]) -> None:
        """Accept a frame; an earlier number means another worker, which starts anew."""
        epoch, seq, last, chunk, channel = frame
        if epoch > self._epoch:
            self._epoch, self._next, self._chunks, self._read = epoch, 0, [], 0
        if epoch < self._epoch or seq != self._next:
            return  # the rest of a dead worker's message, or a lost frame
        self._next += 1
        self._chunks.append(base64.b64decode(chunk))
        if not last:  # a reassembled message may be longer than a window
            self._note(len(self._chunks[-1]), channel)
        else:
            self._waiting.append((b"".join(self._chunks), len(self._chunks[-1]), channel))
            self._chunks = []
            self._idle = trio.Event() if self._idle.is_set() else self._idle
            if not self._busy:
                self._busy = True
                trio.lowlevel.spawn_system_task(guarded, self._publish_all)  # the reader may have left

    def end(self) -> None:
        """Mark the end of the worker's messages."""
        self._ended.set()

    async def rest(self) -> None:
        """Wait until all received messages were delivered."""
        with trio.move_on_after(PATIENCE_S):
            await self._ended.wait()
        await self._idle.wait()

    async def _publish_all(self) -> None:
        try:
            while self._waiting:
                text, unread, channel = self._waiting.popleft()
                outcome: ToldOutcome = from_json(text.decode(), ToldOutcome)
                if self._is_new(outcome):
                    await self._event_stream.put(outcome)
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
