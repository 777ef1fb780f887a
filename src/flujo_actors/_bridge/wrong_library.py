"""Code that ran on a loop it was not written for: what its exception means, and what to do.

A coroutine cannot know on which library it is awaited. It fails with whatever happens first there, and that says little
of what is wrong. The signs are texts of asyncio's and trio's own; they are looked for in the exception, in the members
of a group, and in what an exception was raised from.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Literal, TypeAlias

from .._core.error_info import cause_of, frames_of, leaves_of, message_of
from .host import Host, TrioHost

Library: TypeAlias = Literal["asyncio", "trio"]

_NEEDS_ASYNCIO = (
    "no running event loop",
    "There is no current event loop",
    "trio.run received unrecognized yield message",
    "Timeout should be used inside a task",
    "Timeout context manager should be used inside a task",
)
"""How errors begin of code that found no asyncio loop, or awaited what only asyncio can wait for."""

_NEEDS_TRIO = (
    "must be called from async context",
    "Task got bad yield: <class 'trio.",
    "Task got bad yield: <trio.",
    "this thread wasn't created by Trio",
)
"""The same of code that found no trio run."""

_LONGEST_CHAIN = 20
_THREADS = os.path.join(os.path.dirname(__file__), "threads.py")
_ASYNCIO = f"{os.sep}asyncio{os.sep}"

_ON_THE_OTHER = (
    'this code is written for {needed}, but it ran on {other}: call `flujo.run(data, backend="{needed}")`, or await '
    "`flujo.run_async(data)` in {a} {needed} program; code written with anyio runs on both"
)
_IN_A_THREAD = (
    "this code is written for {needed}, but a plain function runs in a thread, where there is no loop: make it "
    '`async def`, and call `flujo.run(data, backend="{needed}")`, or await `flujo.run_async(data)` in {a} {needed} '
    "program"
)
_IN_AN_AGENT = (
    "this code is written for {needed}, but the tools and models of an agent always run on {other}: write it with "
    "anyio, which runs on both"
)


def library_hint(error: BaseException, host: Host) -> str | None:
    """What to do about code that ran on the wrong library; `None` if that is not what the error means."""
    found = next(((each, needed) for each in _behind(error) if (needed := _needed_by(each))), None)
    if found is None:
        return None
    raised, needed = found
    facts = {"needed": needed, "other": "trio" if needed == "asyncio" else "asyncio"}
    return _advice(raised, needed, host).format(**facts, a="an" if needed == "asyncio" else "a")


def _advice(error: BaseException, needed: Library, host: Host) -> str:
    if any(frame.file == _THREADS for frame in frames_of(error)):
        return _IN_A_THREAD
    return _IN_AN_AGENT if needed == "trio" and isinstance(host, TrioHost) else _ON_THE_OTHER


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The error, the members of a group, and what each was raised from."""
    for leaf in leaves_of(error):
        yield from itertools.islice(_raised_from(leaf), _LONGEST_CHAIN)


def _raised_from(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = cause_of(error)


def _needed_by(error: BaseException) -> Library | None:
    if not isinstance(error, RuntimeError | TypeError | AttributeError):
        return None
    text = message_of(error)
    if text.startswith(_NEEDS_ASYNCIO) or _misses_its_loop(error, text):
        return "asyncio"
    return "trio" if text.startswith(_NEEDS_TRIO) else None


def _misses_its_loop(error: BaseException, text: str) -> bool:
    """Whether asyncio itself stumbled over the loop that is not there, as its locks, queues and events do."""
    frames = frames_of(error)
    return text.startswith("'NoneType' object has no attribute") and bool(frames) and _ASYNCIO in frames[-1].file
