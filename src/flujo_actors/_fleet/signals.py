"""Word from workers to whoever waits for them: hints, in batches, beside the journal (publish and subscribe).

Rules:

1. A signal may be lost: whoever waits also looks. So nothing is written down, and nobody waits for a signal to arrive.
2. NOTIFY takes a lock over the whole server when it commits. So signals go out in statements of their own, never in a
   transaction that writes: the first at once, those of the next milliseconds together.
3. A message is a short text without meaning to the database; what is too long for one goes in several.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import trio

logger = logging.getLogger("flujo_actors")

GATHER_S = 0.005
"""For how long signals are gathered after some were sent."""

MESSAGE_BYTES = 7_500
"""How long a message may be: NOTIFY takes 8,000 bytes."""

_IDLE_S = 30.0
"""After how long a sender that has nothing to send gives up its connection."""

_NOTIFY = """
    SELECT pg_notify(coalesce((SELECT reply FROM flujo_runs WHERE run_hash = about), channel), message)
    FROM unnest(%s::text[], %s::text[], %s::bytea[]) AS t(channel, message, about)"""
"""Whoever waits for a remote step may have been replaced since it was asked for: the address is looked up."""


Signal: TypeAlias = tuple[str, str, bytes | None]
"""A channel, a message, and the hash of the remote step whose new address counts, if it has one."""


def signal_of(kind: str, child: str, rest: object = None) -> str:
    """A signal about a remote step, as text."""
    return json.dumps([kind, child, rest])


def read_signal(message: str) -> tuple[str, str, object]:
    """A signal that was heard."""
    kind, child, rest = json.loads(message)
    return kind, child, rest


def passed_on(token: trio.lowlevel.TrioToken, hear: Callable[[str], None], message: str) -> bool:
    """Tell a trio run of a message, from the listener's thread; whether there is still one."""
    try:
        token.run_sync_soon(hear, message)
    except trio.RunFinishedError:
        return False
    return True


class Signals:
    """Sends messages through a Postgres database; from any thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: list[Signal] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._taken_at = -GATHER_S

    def send(self, channel: str, message: str, *, about: str | None = None) -> None:
        """Send a message soon, to whoever waits by then for the remote step that it is about; never blocks or fails."""
        hashed = None if about is None else hashlib.sha256(about.encode("utf-8", "surrogatepass")).digest()
        with self._changed:
            self._waiting.append((channel, message, hashed))
            if self._thread is None:
                self._thread = threading.Thread(target=_send_all, args=(weakref.ref(self),), daemon=True)
                self._thread.start()
            self._changed.notify()

    def take(self) -> list[Signal] | None:
        """What is to be sent, some time after the last time; `None` when there was nothing for long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting, _IDLE_S):
                self._thread = None
                return None
        time.sleep(max(0.0, self._taken_at + GATHER_S - time.monotonic()))
        with self._changed:
            taken, self._waiting = self._waiting, []
            self._taken_at = time.monotonic()
            return taken

    @property
    def url(self) -> str:
        """Where the database is."""
        return self._url


def _send_all(me: weakref.ref[Signals]) -> None:
    """The sender's thread: it ends when there is nothing to send for long; what cannot be sent is lost."""
    db: Any = None
    try:
        while (signals := me()) is not None and (taken := signals.take()) is not None:
            db = _sent(db, signals.url, taken)
            del signals
    finally:
        if db is not None:
            db.close()


def _sent(db: Any, url: str, messages: list[Signal]) -> object:
    """The connection that the messages went out on, or would have."""
    import psycopg  # the driver, which only stores in Postgres need

    with contextlib.suppress(psycopg.Error):
        if db is None or db.closed:
            db = psycopg.connect(url, autocommit=True, application_name="flujo signals")
        for start in range(0, len(messages), 100):
            part = messages[start : start + 100]
            db.execute(_NOTIFY, [list(column) for column in zip(*part, strict=True)])
    return db


class Listener:
    """Hears what is said on one channel, in a thread of its own, until it is closed or nobody refers to it."""

    def __init__(self, url: str, channel: str, hear: Callable[[str], bool]) -> None:
        """`hear` is called in the thread with each message, and with `""` now and then; `False` ends the listening."""
        self._closed = threading.Event()
        self.listening = threading.Event()
        threading.Thread(target=self._listen, args=(url, channel, hear), daemon=True).start()

    def close(self) -> None:
        """Hear nothing more."""
        self._closed.set()

    def _listen(self, url: str, channel: str, hear: Callable[[str], bool]) -> None:
        import psycopg  # as above

        while not self._closed.is_set():
            try:
                with psycopg.connect(url, autocommit=True, application_name="flujo listener") as db:
                    db.execute(f'LISTEN "{channel}"')  # it is made of letters and digits
                    self.listening.set()
                    if not hear("") or not self._hear_all(db, hear):  # what was said before was not heard
                        return
            except psycopg.Error as error:
                logger.debug("signals cannot be heard (%s); whoever waits looks", type(error).__name__)
                self._closed.wait(1.0)

    def _hear_all(self, db: Any, hear: Callable[[str], bool]) -> bool:
        while not self._closed.is_set():
            for note in db.notifies(timeout=1.0):
                if not hear(note.payload):
                    return False
            if not hear(""):
                return False
        return False
