"""Scripted agents: one reply per call.

Sections:

- Scripted retriever: one reply per search.
- Scripted model replies beyond plain values. Importing this does not import pydantic-ai.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import attrs

from .._core.outcomes import Aborted, Failure, Paused, StepResult, Success
from .._core.records.assembled import RetrievalResult, Retrieved, is_relevance
from .._core.usage import Usage

if TYPE_CHECKING:
    from ._scripted_model import ScriptedModel


_OUTCOMES = (Success, Failure, Paused, Aborted, StepResult)


def _as_tuple(pieces: Iterable[object]) -> tuple[object, ...]:
    return tuple(pieces)


@attrs.frozen
class Streamed:
    """Reply in chunks. With an `error`, the stream fails after them."""

    pieces: tuple[Any, ...] = attrs.field(converter=_as_tuple)
    """Chunks of the reply."""
    error: BaseException | None = attrs.field(default=None, kw_only=True)
    """Exception after the last chunk."""


@attrs.frozen
class Delayed:
    """A reply that takes its time."""

    seconds: float
    """Seconds before the reply."""
    reply: Any
    """Reply of the script."""


@attrs.frozen(kw_only=True)
class RecordedCall:
    """Recorded call of a scripted agent."""

    data: Any
    """Data of the call."""
    context: Any = None
    """Context of the run."""
    resources: Any = None
    """Resources of the run."""
    feedback: str | None = None
    """Refusal of the previous attempt."""
    assembled: Any = None
    """`AssembledContext` of the step; empty without sources."""


class Script:
    """Replies in the order of the calls, from any thread."""

    def __init__(self, replies: tuple[object, ...], *, forever: bool, whose: str) -> None:
        self._replies, self._forever, self._whose = replies, forever, whose
        self._taken = 0
        self._lock = threading.Lock()

    def next(self) -> object:
        """Return the next reply; a `forever` script repeats its last one."""
        with self._lock:
            self._taken += 1
            number = self._taken
        if self._replies and (number <= len(self._replies) or self._forever):
            return self._replies[min(number, len(self._replies)) - 1]
        have = len(self._replies)
        raise AssertionError(f"the script of {self._whose} has {have} replies, but this is call {number}")


async def settled(reply: object, *arguments: object) -> object:
    """Return the value of a reply: await delays, call callables, raise exceptions."""
    while True:
        match reply:
            case Delayed(seconds=seconds, reply=later):
                await anyio.sleep(seconds)
                reply = later
            case BaseException():
                raise reply
            case type() if issubclass(reply, BaseException):
                raise reply
            case type():
                return reply
            case _ if callable(reply):
                reply = reply(*arguments)
                if isinstance(reply, Awaitable):
                    reply = await reply
            case _:
                return reply


class ScriptedAgent:
    """Agent with one scripted reply per call; it records its calls.

    Args:
        *replies: outputs; exceptions, which are raised; `Streamed(pieces)`, live if the run is watched;
            `Delayed(seconds, reply)`; outcomes such as `Paused(message=…)`; or callables on the data that return one
            of these.
        name: name of the agent.
        forever: whether the last reply is repeated; otherwise a call after it fails.

    Raises:
        AssertionError: a call has no reply left; the step fails with it.

    Example:
        ```python
        agent = ScriptedAgent(ConnectionError("down"), "up")
        assert Flujo(Step("ask", agent, max_retries=1)).run("why?").output == "up"
        assert agent.inputs == ["why?", "why?"]
        ```
    """

    def __init__(self, *replies: object, name: str = "scripted agent", forever: bool = False) -> None:
        self.name = name
        self.calls: list[RecordedCall] = []
        """Calls so far."""
        self._script = Script(replies, forever=forever, whose=name)

    @property
    def inputs(self) -> list[Any]:
        """Return the data of every call."""
        return [call.data for call in self.calls]

    async def run(
        self,
        data: object,
        *,
        context: object = None,
        resources: object = None,
        feedback: str | None = None,
        assembled: object = None,
    ) -> Any:
        """Return a reply as a whole.

        Args:
            data: data of the step.
            context: context of the run.
            resources: resources of the run.
            feedback: text of the last failure.
            assembled: assembled context.
        """
        reply = await self._reply(data, context, resources, feedback, assembled)
        if not isinstance(reply, Streamed):
            return reply
        if reply.error is not None:
            raise reply.error
        return _joined(reply.pieces)

    async def stream(
        self,
        data: object,
        *,
        context: object = None,
        resources: object = None,
        feedback: str | None = None,
        assembled: object = None,
    ) -> AsyncIterator[Any]:
        """Yield the chunks of a reply for a watched step.

        Args:
            data: data of the step.
            context: context of the run.
            resources: resources of the run.
            feedback: text of the last failure.
            assembled: assembled context.
        """
        reply = await self._reply(data, context, resources, feedback, assembled)
        if not isinstance(reply, Streamed):
            yield reply if isinstance(reply, _OUTCOMES) else Success(step_result=StepResult(name="", output=reply))
            return
        for piece in reply.pieces:
            yield piece
        if reply.error is not None:
            raise reply.error

    async def _reply(
        self, data: object, context: object, resources: object, feedback: str | None, assembled: object
    ) -> object:
        call = RecordedCall(data=data, context=context, resources=resources, feedback=feedback, assembled=assembled)
        self.calls.append(call)
        return await settled(self._script.next(), data)


def _joined(pieces: tuple[Any, ...]) -> object:
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    if all(isinstance(piece, bytes) for piece in pieces):
        return b"".join(pieces)
    return list(pieces)


# --- Scripted retriever -------------------------------------------------------------------------------------------


Found: TypeAlias = tuple[str, float] | RetrievalResult
"""Scripted passage: a text and its score, or a complete result."""


@attrs.frozen(kw_only=True)
class Searched:
    """Recorded search of a scripted retriever."""

    query: str
    top_k: int
    min_relevance: float
    filters: Mapping[str, Any]


class ScriptedRetriever:
    """Retriever with scripted results that records its searches.

    `(text, score)` pairs and results are found by every search: those above the floor, the best first, `top_k` of them;
    their ids are `s1`, `s2`, …. Other replies come first, one per search: a list of such pairs; an exception, which is
    raised; `Retrieved(…)`; `Delayed(seconds, …)`; or a callable on the query that returns one of these. Without pairs
    the last of these is repeated. Scores are not checked: the runtime does that.

    Args:
        script: results and replies of searches.
    """

    def __init__(self, *script: object) -> None:
        self.searches: list[Searched] = []
        """The searches, in order."""
        self._found = [each for each in script if _is_found(each)]
        self._replies = [each for each in script if not _is_found(each)]
        self._lock = threading.Lock()

    async def search(self, query: str, *, top_k: int, min_relevance: float, filters: Mapping[str, Any]) -> Any:
        """Return the next scripted reply.

        Args:
            query: text to search for.
            top_k: most results.
            min_relevance: lowest score of a result.
            filters: required values of fields.
        """
        reply: Any = self._next(Searched(query=query, top_k=top_k, min_relevance=min_relevance, filters=dict(filters)))
        reply = await settled(reply, query)
        if isinstance(reply, Retrieved):
            return reply
        listed = [reply] if _is_found(reply) else reply
        return _best([_result(each, number) for number, each in enumerate(listed, 1)], top_k, min_relevance)

    def _next(self, searched: Searched) -> object:
        with self._lock:
            self.searches.append(searched)
            number = len(self.searches)
        if number <= len(self._replies):
            return self._replies[number - 1]
        return self._found if self._found or not self._replies else self._replies[-1]


def _is_found(each: object) -> bool:
    return isinstance(each, RetrievalResult) or (
        isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) and not isinstance(each[1], tuple)
    )


def _result(each: Found, number: int) -> RetrievalResult:
    if isinstance(each, RetrievalResult):
        return each
    return RetrievalResult(content=each[0], score=each[1], source_id=f"s{number}")


def _best(results: list[RetrievalResult], top_k: int, min_relevance: float) -> list[RetrievalResult]:
    kept = [each for each in results if not is_relevance(each.score) or each.score >= min_relevance]
    return sorted(kept, key=lambda each: -each.score if is_relevance(each.score) else -2.0)[:top_k]


# --- Scripted model replies beyond plain values -------------------------------------------------------------------


DEFAULT_USAGE = Usage(input_tokens=10, output_tokens=5)
"""Default usage of a reply."""


@attrs.frozen
class CallTool:
    """Tool call of the model; a list makes one response."""

    name: str
    """Name of the tool."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    """Arguments of the call."""


@attrs.frozen
class Billed:
    """A reply with its own usage; zero tokens are possible."""

    reply: Any
    """Reply of the script."""
    input_tokens: int = 0
    """Input tokens."""
    output_tokens: int = 0
    """Output tokens."""
    cached_tokens: int = 0
    """Cached input tokens."""


def scripted_model(
    *replies: object, name: str = "scripted", usage: Usage = DEFAULT_USAGE, forever: bool = False
) -> ScriptedModel:
    """Return a pydantic-ai model with one scripted reply per request.

    Each process has its own position in the replies. Where several processes share a run, pass one callable and
    `forever=True`.

    Args:
        *replies: texts; `Streamed(pieces)`; `CallTool(name, arguments)` or a list of them; exceptions;
            `Delayed(seconds, reply)`, in real time; `Billed(reply, …)`; a `ModelResponse`; a callable on the messages;
            or any other value, which is passed to the agent's output tool (as JSON text, if it has none).
        name: name of the model.
        usage: usage of a reply that has none.
        forever: whether the last reply is repeated.

    Raises:
        AssertionError: a call has no reply left; the step fails with it.

    Example:
        ```python
        model = scripted_model("old pond")
        assert Flujo(Step("haiku", make_agent_async(model))).run("a frog").output == "old pond"
        assert model.prompts == ["a frog"]
        ```
    """
    from ._scripted_model import ScriptedModel  # loads pydantic-ai, which only model agents need

    return ScriptedModel(*replies, name=name, usage=usage, forever=forever)
