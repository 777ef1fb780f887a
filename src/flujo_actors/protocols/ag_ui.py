"""A pipeline as an AG-UI agent: `app.mount("/agent", ag_ui_app(flujo))`. Needs the extra `ag-ui`.

Rules:

1. A run is a stream of AG-UI events. A pause is an interrupt with the schema of its answer, which comes as `resume`.
2. The id that a client chooses may only start a run. To continue one takes the token of its pause.
3. The run's context comes from the server (`context=`). Of the client's state only `state_fields` are taken, and never
   a field that a retrieval filter reads.
4. A dismissed interrupt (`cancelled`) ends its run as aborted.
5. Text of steps becomes assistant messages; the JSON of structured steps does not, unless `chunks=` names them.
6. A client that lost its connection sends its request again with `Last-Event-ID`, and the stored run continues. Event
   ids are signed and only sent to the client that started the run: a run id alone does not open it.
7. A later user message in such a request steers the run's open granular step, once by the message's id.
8. A sleeping run is an interrupt without a schema; `resume` of it, with any payload, continues the run once it is due.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import inspect
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Literal, TypeAlias, TypeVar

import anyio.to_thread
import attrs
from pydantic import ValidationError

from .._api.client import RunClient
from .._api.flujo import Flujo
from .._api.handle import RunHandle
from .._core.lazy_exports import missing_extra
from .._core.outcomes import (
    PipelineResult,
    RunId,
)
from .._core.records.pause_tokens import parse_token
from .._core.records.records import StoredRun, has_ended
from .._core.step_paths import StepPath
from .._dsl.chunk_filter import Chunks, shown_chunks
from .._dsl.context_sources import FromState
from .._dsl.declaration_tree import find_step, walk_places, walk_steps
from .._dsl.pipeline import AnyStep
from .._dsl.step_declaration import Step
from .._durable.watch_poller import RunWatch
from ..errors import DeclarationError, FlujoError
from ._questions import OpenQuestion, asked_at, refuse_foreign

try:
    from ag_ui.core import (
        BaseEvent,
        CustomEvent,
        Interrupt,
        RunAgentInput,
        RunErrorEvent,
        RunFinishedCancelledOutcome,
        RunFinishedEvent,
        RunFinishedInterruptOutcome,
        RunFinishedSuccessOutcome,
        RunStartedEvent,
        StateSnapshotEvent,
        UserMessage,
    )
    from sse_starlette import EventSourceResponse, ServerSentEvent
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from ._ag_ui_events import EventTranslator, as_text, plain
except ModuleNotFoundError as _missing:
    raise missing_extra(_missing, extra="ag-ui", needed_by="flujo_actors.protocols.ag_ui") from _missing

T = TypeVar("T")

_SHORTEST_SECRET = 32

_logger = logging.getLogger("flujo_actors")

Read: TypeAlias = Callable[[RunAgentInput], object]
"""Input of the pipeline, from a client's request."""
ServerContext: TypeAlias = Callable[[Request], "Mapping[str, object] | Awaitable[Mapping[str, object]]"]
"""Context of the run, from an authenticated request."""
ServerLabels: TypeAlias = Callable[
    [Request, RunAgentInput], "Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None"
]
"""Labels of the run, from an authenticated request."""
Execute: TypeAlias = Literal["here", "workers"]


def ag_ui_app(
    flujo: Flujo,
    *,
    data: Read | None = None,
    context: ServerContext | None = None,
    labels: ServerLabels | None = None,
    state_fields: Iterable[str] = (),
    chunks: Chunks | None = None,
    execute: Execute = "here",
    secret: str | None = None,
) -> Starlette:
    """Return an ASGI application that speaks AG-UI for a pipeline.

    Authentication belongs to the application around this one.

    Args:
        flujo: pipeline that runs.
        data: function of the request that returns the input; by default the text of the last user message.
        context: function of the request that returns the run's context; may be async.
        labels: function `(request, asked)` that returns the run's labels; a client sets none.
        state_fields: fields of the client's state that become context.
        chunks: steps whose text becomes assistant messages, as in `run_async`; by default all but structured ones.
        execute: `"here"`, or `"workers"` to submit runs to the store's workers.
        secret: key of event ids, shared by the processes of one address.

    Raises:
        DeclarationError: an argument is not valid.

    Example:
        ```python
        from flujo_actors.protocols.ag_ui import ag_ui_app

        app = ag_ui_app(Flujo(Step("greet", str.upper)))  # uvicorn app:app
        ```
    """
    _check(flujo, context, labels, execute)
    agent = _Agent(
        flujo=flujo,
        read=data or last_user_text,
        reads_all=data is not None,
        context=context,
        labels=labels,
        state_fields=_checked_fields(flujo, state_fields),
        chunks=_checked_chunks(flujo, chunks),
        execute=execute,
        key=_key_of(secret),
    )
    return Starlette(routes=[Route("/", agent.respond, methods=["POST"])])


def last_user_text(asked: RunAgentInput) -> str:
    """Text of the last user message."""
    for message in reversed(asked.messages):
        if isinstance(message, UserMessage):
            return _text_of(message)
    return ""


def _text_of(message: UserMessage) -> str:
    parts = message.content if isinstance(message.content, list) else [message.content]
    return "".join(part if isinstance(part, str) else getattr(part, "text", "") for part in parts)


# --- declarations ---


def _check(flujo: object, context: object, labels: object, execute: object) -> None:
    if not isinstance(flujo, Flujo):
        raise DeclarationError(f"ag_ui_app needs a Flujo: pass ag_ui_app(Flujo(pipeline)), not {flujo!r:.100}")
    for name, given in (("context", context), ("labels", labels)):
        if given is not None and not callable(given):
            raise DeclarationError(f"{name} must be a function of the request, not {given!r:.100}")
    if execute not in ("here", "workers"):
        raise DeclarationError(f"execute must be 'here' or 'workers', not {execute!r:.100}")
    if execute == "workers" and flujo.store is None:
        raise DeclarationError("execute='workers' needs a store that workers share: pass Flujo(pipeline, store=…)")


def _key_of(secret: object) -> bytes:
    if secret is None:
        return secrets.token_bytes(32)
    if not isinstance(secret, str) or len(secret) < _SHORTEST_SECRET:
        raise DeclarationError(
            f"secret must be a text of at least {_SHORTEST_SECRET} characters: make one with secrets.token_urlsafe()"
        )
    return secret.encode()


def _checked_fields(flujo: Flujo, fields: object) -> frozenset[str]:
    """Return the fields that a client may set, excluding retrieval filters."""
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise DeclarationError(f"state_fields must be a list of field names, ('draft',), not {fields!r:.100}")
    names = frozenset(fields)
    for name in names:
        if not isinstance(name, str):
            raise DeclarationError(f"state_fields must be names of context fields, not {name!r:.100}")
        for step, field in _filters(flujo.pipeline, name):
            raise DeclarationError(
                f"state_fields: a client may not set {name!r}, because step {step!r} filters {field!r} by it: set it "
                "on the server with ag_ui_app(flujo, context=lambda request: {…})"
            )
    return names


def _filters(pipeline: AnyStep, name: str) -> Iterator[tuple[str | None, str]]:
    """Steps and filters of retrievals that read a context field."""
    for step in walk_steps(pipeline):
        sources = step.context_sources if isinstance(step, Step) else None
        for source in () if sources is None else sources.searches:
            yield from ((step.name, field) for field, value in source.filters.items() if _reads(value, name))


def _reads(value: object, name: str) -> bool:
    """Return whether a filter may read a context field, by code names."""
    where = value.where if isinstance(value, FromState) else value
    if isinstance(where, str):
        return isinstance(value, FromState) and where.partition(".")[0] == name
    if not callable(where):
        return False
    code = getattr(where, "__code__", None)
    return code is None or name in code.co_names or name in code.co_consts


def _checked_chunks(flujo: Flujo, chunks: Chunks | None) -> Chunks:
    if chunks is not None:
        shown_chunks(flujo.pipeline, chunks)
        return chunks
    places = [(path, step) for path, step in walk_places(flujo.pipeline) if isinstance(step, Step)]
    shown = [path for path, step in places if not _is_structured(step)]
    return True if len(shown) == len(places) else shown or False


def _is_structured(step: AnyStep | None) -> bool:
    """Return whether a step's model writes JSON for a schema."""
    if not isinstance(step, Step) or step.plan.shape != "model":
        return False
    return step.processing.schema is not None or getattr(step.agent, "output_type", str) is not str


# --- one request ---


@attrs.frozen(kw_only=True, eq=False)
class _Agent:
    """A pipeline that answers AG-UI requests."""

    flujo: Flujo
    read: Read
    reads_all: bool
    """Whether `data=` reads the whole request, ignoring nothing."""
    context: ServerContext | None
    labels: ServerLabels | None
    state_fields: frozenset[str]
    chunks: Chunks
    execute: Execute
    key: bytes = attrs.field(repr=False)
    """Key of the signatures of event ids."""

    async def respond(self, request: Request) -> Response:
        """Stream the events of a run."""
        try:
            asked = RunAgentInput.model_validate_json(await request.body())
        except ValidationError as error:
            return JSONResponse({"error": f"that is no AG-UI request: {error}"}, status_code=422)
        translator = EventTranslator(self._run_of(asked), said=_last_message_digest(asked))
        return EventSourceResponse(self._sent(self._events(request, asked, translator), translator), sep="\n")

    async def _sent(
        self, events: AsyncGenerator[BaseEvent, None], translator: EventTranslator
    ) -> AsyncGenerator[ServerSentEvent, None]:
        async with aclosing(events):
            async for event in events:
                sent = event.model_dump_json(by_alias=True)
                name = (
                    self._event_id(translator.run_id, translator.seq, translator.said) if translator.is_open else None
                )
                yield ServerSentEvent(data=sent, id=name, sep="\n")

    def _event_id(self, run_id: str, seq: int, last: str) -> str | None:
        """Return an event's signed position in the records; `None` without store.

        It contains the last user message of its request, if any (rule 7).
        """
        if self.flujo.store is None:
            return None
        return f"{seq}.{self._signed(run_id, last)}" + (f".{last}" if last else "")

    def _signed(self, run_id: str, about: str) -> str:
        """Return the signature of a run id for a purpose."""
        key = hmac.digest(self.key, about.encode(), "sha256") if about else self.key
        return hmac.new(key, run_id.encode("utf-8", "surrogatepass"), "sha256").hexdigest()[:32]

    def _seen(self, request: Request, run_id: str) -> tuple[int, str] | None:
        """Return a reconnecting client's position; `None` if new or forged."""
        number, _, rest = (given := request.headers.get("last-event-id", "")).partition(".")
        if not number.isdecimal() or len(number) > 15:
            return None
        last = rest.partition(".")[2]
        expected = self._event_id(run_id, int(number), last)
        is_ours = expected is not None and hmac.compare_digest(given.encode(), expected.encode())
        return (int(number), last) if is_ours else None

    def _sleeper(self, token: str) -> str | None:
        """Return the run of a sleep's token, or None (rule 8)."""
        about, _, rest = token.partition(".")
        signed, _, run_id = rest.partition(".")
        is_ours = about == "sleeping" and hmac.compare_digest(signed.encode(), self._signed(run_id, about).encode())
        return run_id if is_ours else None

    def _run_of(self, asked: RunAgentInput) -> str:
        """Return a request's run id: the client's, or its answered interrupt's."""
        if not asked.resume:
            return asked.run_id
        token = asked.resume[0].interrupt_id
        with contextlib.suppress(FlujoError):
            return self._sleeper(token) or str(parse_token(token)[0])
        return asked.run_id

    async def _events(
        self, request: Request, asked: RunAgentInput, translator: EventTranslator
    ) -> AsyncGenerator[BaseEvent, None]:
        yield RunStartedEvent(thread_id=asked.thread_id, run_id=asked.run_id)
        for event in self._ignored(asked):
            yield event
        try:
            async with aclosing(self._run_events(request, asked, translator)) as events:
                async for event in events:
                    yield event
        except FlujoError as error:
            for event in translator.close_open():
                yield event
            yield RunErrorEvent(message=str(error), code=type(error).__name__)

    async def _run_events(
        self, request: Request, asked: RunAgentInput, translator: EventTranslator
    ) -> AsyncGenerator[BaseEvent, None]:
        """Yield the run's events, continuing a paused run per answer."""
        result: PipelineResult | None = None
        for begin in await self._parts(request, asked, translator):
            translator.paused.clear()
            begun = await begin()
            translator.is_open = not isinstance(begun, RunHandle)
            if isinstance(begun, PipelineResult):
                result = begun
                continue
            if isinstance(begun, str):
                async with aclosing(self._steps(begun, translator)) as events:
                    async for event in events:
                        yield event
                result = await self._waited(begun)
                continue
            async with begun as run:
                async for outcome in run:
                    translator.is_open = True  # an id that is taken is refused before the first outcome
                    for event in translator.events(outcome):
                        yield event
                result = await run
        for event in translator.close_open():
            yield event
        if result is not None:
            for event in await self._end(asked, translator, result):
                yield event

    async def _parts(self, request: Request, asked: RunAgentInput, translator: EventTranslator) -> list[_Begin]:
        seen = self._seen(request, translator.run_id)
        if seen is not None:
            translator.seq, last = seen
            return [functools.partial(self._reconnect, translator.run_id, _later_messages(asked, last))]
        if not asked.resume:
            given = {"context": await self._first_context(request, asked), "labels": await self._labels(request, asked)}
            return [functools.partial(self._begin, asked, given)]
        if (sleeper := self._sleeper(asked.resume[0].interrupt_id)) is not None:
            ends = asked.resume[0].status == "cancelled"
            return [functools.partial(self._cancel if ends else self._reconnect, sleeper)]
        open_ = [await self._question(entry.interrupt_id) for entry in asked.resume]
        translator.announced.update(
            translator.call_id(str(each.tool["tool_call_id"])) for each in open_ if each.tool is not None
        )
        if any(entry.status == "cancelled" for entry in asked.resume):
            return [functools.partial(self._cancel, str(parse_token(open_[0].token)[0]))]
        return [functools.partial(self._resume, translator, each.interrupt_id, each.payload) for each in asked.resume]

    async def _question(self, token: str) -> OpenQuestion:
        await refuse_foreign(self.flujo, str(parse_token(token)[0]))
        return await asked_at(self.flujo, token)

    async def _begin(self, asked: RunAgentInput, given: dict[str, Any]) -> _Begun:
        data = self.read(asked)
        if self.execute == "workers":
            return await self.flujo.submit(data, run_id=asked.run_id, **given)
        return self.flujo.run_async(data, run_id=asked.run_id, started=True, tools=True, chunks=self.chunks, **given)

    async def _reconnect(self, run_id: str, last: Iterable[UserMessage] = ()) -> _Begun:
        """Continue a returning client's run, here or from its records."""
        await refuse_foreign(self.flujo, run_id)
        for message in last:
            await _in_thread(functools.partial(self._client().steer, run_id, _text_of(message), id=message.id))
        assert self.flujo.store is not None  # only events of stored runs have ids
        run = await _in_thread(self.flujo.store.get, RunId(run_id))
        if self.execute == "workers" or run.leased or _is_at_rest(run):
            return run_id
        return self.flujo.resume_async(run_id, started=True, tools=True, chunks=self.chunks)

    async def _steps(self, run_id: str, translator: EventTranslator) -> AsyncGenerator[BaseEvent, None]:
        """Steps of a run that another process executes, until it rests."""
        assert self.flujo.store is not None
        watch = RunWatch(self.flujo.store, RunId(run_id), after=translator.seq)
        try:
            while (batch := await watch.next_batch()) is not None:
                for record in batch:
                    for event in translator.record(record.seq, record.kind, record.path):
                        yield event
                if watch.run is not None and _is_at_rest(watch.run) and translator.seq >= watch.run.records:
                    return
        finally:
            watch.close()

    async def _resume(self, translator: EventTranslator, token: str, answer: object) -> _Begun:
        if self.execute == "workers":
            translator.seq = (await _in_thread(self._client().get, translator.run_id)).records
            await _in_thread(self._client().answer, token, answer)
            return str(parse_token(token)[0])
        return self.flujo.resume_async(token, answer, started=True, tools=True, chunks=self.chunks)

    async def _cancel(self, run_id: str) -> PipelineResult:
        await refuse_foreign(self.flujo, run_id)
        ended = await self.flujo.cancel_async(run_id, "the question was dismissed")
        return PipelineResult(run_id=run_id, status="aborted") if ended is None else ended

    async def _waited(self, run_id: str) -> PipelineResult:
        return await _in_thread(self._client().wait, run_id)

    def _client(self) -> RunClient:
        assert self.flujo.store is not None  # checked with execute="workers"
        return RunClient(self.flujo.store)

    async def _labels(self, request: Request, asked: RunAgentInput) -> Mapping[str, str] | None:
        found = None if self.labels is None else self.labels(request, asked)
        return await found if inspect.isawaitable(found) else found

    async def _first_context(self, request: Request, asked: RunAgentInput) -> Mapping[str, object] | None:
        state = asked.state if isinstance(asked.state, dict) else {}
        taken = {name: value for name, value in state.items() if name in self.state_fields}
        given = {} if self.context is None else self.context(request)
        given = await given if inspect.isawaitable(given) else given
        if not isinstance(given, Mapping):
            raise DeclarationError(f"context must return a dict of the run's context, not {given!r:.100}")
        return {**taken, **given} or None

    def _ignored(self, asked: RunAgentInput) -> Iterator[BaseEvent]:
        """Report parts of a request that no step can see."""
        parts = {"tools": [tool.name for tool in asked.tools or ()], "context": len(asked.context or ())}
        ignored = {name: part for name, part in parts.items() if part}
        if ignored and not self.reads_all:
            why = "this agent has no use for tools and context of the front end; ag_ui_app(flujo, data=…) can read them"
            _logger.warning("run %r: %s: %s", asked.run_id, ", ".join(ignored), why)
            yield CustomEvent(name="ignored", value={**ignored, "why": why})

    # --- end ---

    async def _end(self, asked: RunAgentInput, translator: EventTranslator, result: PipelineResult) -> list[BaseEvent]:
        if result.status == "failed":
            return [RunErrorEvent(message=result.feedback or "the run failed")]
        events: list[BaseEvent] = [StateSnapshotEvent(snapshot=plain(result.final_context))]
        if result.status == "completed" and self._is_message(translator, result):
            events.extend(translator.message(as_text(result.output)))
        questions = await self._questions(translator, result)
        for each in questions:
            if each.tool is not None:
                events.extend(
                    translator.announce(str(each.tool["tool_call_id"]), str(each.tool["tool"]), each.tool["arguments"])
                )
        finished = {"thread_id": asked.thread_id, "run_id": asked.run_id, "result": plain(result.output)}
        outcome = self._asleep(result) or _outcome(translator, result, questions)
        return [*events, RunFinishedEvent(**finished, outcome=outcome)]

    def _asleep(self, result: PipelineResult) -> RunFinishedInterruptOutcome | None:
        """Return the outcome of a sleeping run (rule 8)."""
        if result.status != "sleeping":
            return None
        token = f"sleeping.{self._signed(result.run_id, 'sleeping')}.{result.run_id}"
        facts = {"kind": "sleeping", "wakes_at": result.wakes_at}
        return RunFinishedInterruptOutcome(
            interrupts=[Interrupt(id=token, reason="sleeping", message="the run is asleep", metadata=facts)]
        )

    async def _questions(self, translator: EventTranslator, result: PipelineResult) -> list[OpenQuestion]:
        if result.status != "paused":
            return []
        tokens = [each.state_token for each in translator.paused] or [result.state_token]
        return [await asked_at(self.flujo, token) for token in tokens if token is not None]

    def _is_message(self, translator: EventTranslator, result: PipelineResult) -> bool:
        """Return whether the output is still to be shown as a message."""
        if result.output is None or not result.step_history:
            return result.output is not None
        last = result.step_history[-1].name
        if last in translator.streamed:
            return False
        return self.chunks is True or not _is_structured(find_step(self.flujo.pipeline, StepPath(last)))


_Begun: TypeAlias = RunHandle | PipelineResult | str
"""A run executed here, ended, or executed by another process (id)."""
_Begin: TypeAlias = Callable[[], Awaitable[_Begun]]


def _is_at_rest(run: StoredRun) -> bool:
    """Return whether a run has ended, or waits for an answer."""
    return has_ended(run.status) or (run.status == "paused" and bool(run.pauses))


async def _in_thread(call: Callable[..., T], *arguments: object) -> T:
    return await anyio.to_thread.run_sync(call, *arguments, abandon_on_cancel=True)


def _last_message_digest(asked: RunAgentInput) -> str:
    """Return a digest of a request's last user message, if any."""
    ids = [message.id for message in asked.messages if isinstance(message, UserMessage)]
    return _name_of(ids[-1]) if ids else ""


def _name_of(message_id: str) -> str:
    return hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _later_messages(asked: RunAgentInput, last: str) -> list[UserMessage]:
    """Return the user messages of a request after the named one."""
    sent = [message for message in asked.messages if isinstance(message, UserMessage)]
    names = [_name_of(message.id) for message in sent]
    return sent[names.index(last) + 1 :] if last in names else []


def _outcome(translator: EventTranslator, result: PipelineResult, questions: list[OpenQuestion]) -> Any:
    match result.status:
        case "paused":
            return RunFinishedInterruptOutcome(interrupts=[_interrupt(translator, each) for each in questions])
        case "aborted":
            return RunFinishedCancelledOutcome()
    return RunFinishedSuccessOutcome()


def _interrupt(translator: EventTranslator, asked: OpenQuestion) -> Interrupt:
    tool = {} if asked.tool is None else {"tool": asked.tool["tool"], "arguments": plain(asked.tool["arguments"])}
    return Interrupt(
        id=asked.token,
        reason="question" if asked.kind == "input" else asked.kind,
        message=asked.message,
        response_schema=asked.schema,
        tool_call_id=None if asked.tool is None else translator.call_id(str(asked.tool["tool_call_id"])),
        metadata={"kind": asked.kind, **tool},
    )
