"""A session of a Postgres server, neither side of which waits for the other for ever.

Rules:

1. Whoever uses a connection says until when. A server that is silent then loses it: the connection is closed, and the
   call ends with `ServerSilent`.
2. The server ends a transaction whose client is silent, since its locks keep others from claiming the runs that it
   touched. `idle_in_transaction_session_timeout` does that where the server waits for a statement, and from version 17
   on `transaction_timeout` does it everywhere.
3. In pipeline mode a server that was only asked to flush does not call itself idle. So questions are put with a
   `turn`, which costs as many round trips.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import Pipeline
from psycopg.abc import Params, PQGen
from psycopg.waiting import Ready, Wait

from . import _statements as sql

R = TypeVar("R")

_HAS_TRANSACTION_TIMEOUT = 170_000
_GRACE_S = 0.5
"""How much longer a transaction may last than it may wait for a lock: then the server says what was wrong."""


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that knows its session on the server; see the module's rules."""

    session: tuple[object, ...] = ()
    """The process that serves it, and when that began: no other session ever has both."""
    deadline = math.inf
    """Until when the server may be silent, on the monotonic clock."""
    _limit_s = 0.0
    _pipelined: Pipeline | None = None

    def wait(self, gen: PQGen[R], *args: Any, **options: Any) -> R:
        """As the driver's own, until the deadline."""
        if self.deadline == math.inf:
            return super().wait(gen, *args, **options)
        try:
            return super().wait(_until(self.deadline, gen), *args, **options)
        except ServerSilent:
            self.close()
            raise

    def limit(self, seconds: float) -> None:
        """Let the server end what waits for a lock for so long, and transactions that last longer, from now on."""
        if seconds != self._limit_s:
            self._set_limits(lock_s=seconds, transaction_s=seconds + _GRACE_S, local=False)
            self._limit_s = seconds

    def limit_rest(self, lock_s: float, transaction_s: float = 0.0) -> None:
        """The same for the rest of the open transaction, which has no limit if it is 0."""
        self._set_limits(lock_s=lock_s, transaction_s=transaction_s, local=True)

    def _set_limits(self, *, lock_s: float, transaction_s: float, local: bool) -> None:
        knows_both = self.pgconn.server_version >= _HAS_TRANSACTION_TIMEOUT
        limits = {"lock": f"{lock_s * 1000:.0f}", "transaction": f"{transaction_s * 1000:.0f}", "local": local}
        self.execute(sql.LIMIT if knows_both else sql.LIMIT_IDLE, limits)

    def in_pipeline(self, do: Callable[[], R]) -> R:
        """What `do` returns, whose statements travel together until a turn."""
        with self.pipeline() as self._pipelined:
            try:
                return do()
            finally:
                self._pipelined = None

    def ask(self, statement: Any, parameters: Params | None = None) -> list[tuple[Any, ...]]:
        """The rows that a statement returns."""
        cursor = self.execute(statement, parameters)
        self.turn()
        return cursor.fetchall()

    def turn(self) -> None:
        """Have everything answered that was sent; without a pipeline that is so anyway."""
        if self._pipelined is not None:
            self.wait(_all_sent(self))
            self._pipelined.sync()


def _until(deadline: float, gen: PQGen[R]) -> PQGen[R]:
    """The driver's generator, which is sent something at least ten times a second, until the deadline."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if time.monotonic() > deadline:
                raise ServerSilent("the server did not answer in time; its connection was given up")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: R = end.value
        return result


def _all_sent(db: Connection) -> PQGen[None]:
    """Waits until the server has been sent everything, taking in what it says meanwhile.

    `sync` waits for answers alone: where more was written than the socket takes at once, the rest would stay in the
    client, and both sides would wait for ever.
    """
    while db.pgconn.flush():
        ready = yield Wait.RW
        if ready & Ready.R:
            db.pgconn.consume_input()
