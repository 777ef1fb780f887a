"""Store transaction of a step, committed with its outcome.

Rules:

1. The turn ends with the transaction, for every ending.
2. A started store call is not cancelled, and is also started for a step that is being cancelled.
3. A loss by the store is distinguished from a step's failure: it is a `TransactionLost`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from .._core.outcomes import RunId
from .._core.records.records import Append
from .._core.step_paths import StepPath
from ..errors import LeaseLost, StoreError, TransactionLost
from ..stores._store_port import Store, Transaction
from .connection_lock import LockWaiter, queue_for
from .journal import Recorded
from .store_executor import call_at_once, call_store

MakeAppend = Callable[[StepPath, Recorded], Append]
"""Append of a settled step."""

_Block = AbstractContextManager[Transaction]


class StoreTransaction:
    """An open transaction of a store; see the module's rules."""

    def __init__(
        self, turn: LockWaiter, block: _Block, opened: Transaction, append: MakeAppend, done: Callable[[StepPath], None]
    ) -> None:
        self._turn, self._block, self._opened, self._append, self._done = turn, block, opened, append, done

    @classmethod
    async def begin(
        cls, store: Store, step_name: str, append: MakeAppend, done: Callable[[StepPath], None]
    ) -> StoreTransaction:
        """Wait for the step's turn; open a transaction; `done` follows commit."""
        turn = await queue_for(store).turn(step_name)
        try:
            block = store.transaction()
            opened = await call_at_once(block.__enter__, if_left=lambda _: _exit_block(block, _Cancelled()))
        except BaseException:
            turn.release()
            raise
        return cls(turn, block, opened, append, done)

    @property
    def connection(self) -> object:
        """Return the driver's own connection."""
        return self._opened.connection

    async def commit(self, path: StepPath, record: Recorded) -> None:
        """Commit outcome and writes together; an unstorable outcome rolls back."""
        try:
            append = self._append(path, record)
        except BaseException:
            await self.rollback()
            raise
        try:
            await call_at_once(lambda: self._finish(append))
            self._done(path)
        finally:
            self._turn.release()

    def _finish(self, append: Append) -> None:
        try:
            self._opened.append(append)
        except BaseException as error:  # the block decides whether to swallow it, as in a `with`
            if not self._block.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            self._block.__exit__(None, None, None)

    async def rollback(self, reason: object = None) -> TransactionLost | None:
        """Roll back the step's writes; return the store's own loss, if any."""
        return await self._roll_back(reason if isinstance(reason, Exception) else _RolledBack())

    async def abandon(self) -> None:
        """Roll back a cancelled step's writes; its thread may still write."""
        await self._roll_back(_Cancelled())

    async def _roll_back(self, error: BaseException) -> TransactionLost | None:
        try:
            return await call_at_once(lambda: _exit_block(self._block, error))
        finally:
            self._turn.release()


class _RolledBack(Exception):
    """Exception that rolls back a transaction's block."""


class _Cancelled(BaseException):
    """Leaves a transaction's block as a cancellation would."""


def _exit_block(block: _Block, error: BaseException) -> TransactionLost | None:
    try:
        block.__exit__(type(error), error, error.__traceback__)
    except TransactionLost as lost:
        return lost
    except BaseException as raised:  # a block may raise its own exit exception, or return
        if raised is not error:
            raise
    return None


async def written_once(write: Awaitable[None], store: Store, run_id: RunId, unit: StepPath) -> None:
    """Await the write of a unit; ignore a lost reply.

    Another attempt in this process would execute the unit again, although its record is committed.
    """
    try:
        await write
    except LeaseLost:
        raise
    except StoreError:
        records = await call_store(lambda: store.read(run_id))
        if not any(record.kind == "unit" and record.path == unit for record in records):
            raise
