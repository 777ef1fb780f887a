"""A step's transaction of a store: opened when it is the step's turn, then committed with its outcome, or undone.

Rules:

1. The turn ends with the transaction, however that ends.
2. What is begun with the store is not cut short, and is begun also for a step that is being cancelled.
3. What the store lost under a step is told apart from what the step did: it is a `TransactionLost`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from .._core.paths import StepPath
from .._core.records import Append
from ..errors import TransactionLost
from ..stores._port import Store, Transaction
from .borrowing import Turn, queue_for
from .journal import Recorded
from .store_wait import call_at_once

MakeAppend = Callable[[StepPath, Recorded], Append]
"""What is written when a step has settled."""

_Block = AbstractContextManager[Transaction]


class StoreTransaction:
    """An open transaction of a store; see the module's rules."""

    def __init__(self, turn: Turn, block: _Block, opened: Transaction, append: MakeAppend) -> None:
        self._turn, self._block, self._opened, self._append = turn, block, opened, append

    @classmethod
    async def begin(cls, store: Store, step_name: str, append: MakeAppend) -> StoreTransaction:
        """Wait for the step's turn, and open a transaction."""
        turn = await queue_for(store).turn(step_name)
        try:
            block = store.transaction()
            opened = await call_at_once(block.__enter__, if_left=lambda _: _leave(block, _CutShort()))
        except BaseException:
            turn.give_back()
            raise
        return cls(turn, block, opened, append)

    @property
    def connection(self) -> object:
        """The driver's own connection."""
        return self._opened.connection

    async def commit(self, path: StepPath, record: Recorded) -> None:
        """Make the step's outcome and what it wrote durable, together; an outcome that cannot be stored undoes both."""
        try:
            append = self._append(path, record)
        except BaseException:
            await self.rollback()
            raise
        try:
            await call_at_once(lambda: self._finish(append))
        finally:
            self._turn.give_back()

    def _finish(self, append: Append) -> None:
        try:
            self._opened.append(append)
        except BaseException as error:  # the block decides whether to swallow it, as in a `with`
            if not self._block.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            self._block.__exit__(None, None, None)

    async def rollback(self, reason: object = None) -> TransactionLost | None:
        """Undo what the step wrote, because of an error, perhaps; what the store itself lost it by, if it did."""
        return await self._left_by(reason if isinstance(reason, Exception) else _Undone())

    async def abandon(self) -> None:
        """Undo what a step wrote that was cut short, and of which a thread may be left that writes on."""
        await self._left_by(_CutShort())

    async def _left_by(self, error: BaseException) -> TransactionLost | None:
        try:
            return await call_at_once(lambda: _leave(self._block, error))
        finally:
            self._turn.give_back()


class _Undone(Exception):
    """Leaves a transaction's block so that it rolls back."""


class _CutShort(BaseException):
    """Leaves a transaction's block as a cancellation would."""


def _leave(block: _Block, error: BaseException) -> TransactionLost | None:
    try:
        block.__exit__(type(error), error, error.__traceback__)
    except TransactionLost as lost:
        return lost
    except BaseException as raised:  # a block may raise what it is left by, or return
        if raised is not error:
            raise
    return None
