"""`event_app`: ASGI application (Starlette) that receives events for waiting runs.

Rules:

1. `POST /{event}?key=K` with the data as JSON; the header `Idempotency-Key` is the id of the event.
2. Without `auth` and `signature` only loopback is served, and only JSON: a foreign page cannot send that.
3. A token is a bearer; cookies are not accepted. `signature` gets the request and its whole body.
4. An answer names no run, unless `auth` is given. There is no limit of rates: that of a reverse proxy is needed.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import anyio.to_thread
import attrs
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .._api.client import RunClient
from .._api.flujo import Flujo
from .._api.wiring import settings_of
from .._core.outcomes import RunId
from .._core.records.records import StoredRun
from ..errors import AmbiguousStep, DeclarationError, FlujoError, InvalidEvent, NotSteerable, TooLate
from ..stores._store_factory import open_store
from ..stores._store_port import Store, required
from ._auth import Auth, Guard, HostApp, OneTimeLink, error_response, is_bearer, refused_by_machine, user_of
from ._browser_json import JsonAnswer

logger = logging.getLogger("flujo_actors")

Signature: TypeAlias = Callable[[Request, bytes], bool]
"""Whether the signature of a request fits its body."""

_CODES = {"delivered": 200, "duplicate": 200, "buffered": 202}


def event_app(
    store: Store | str, *, auth: Auth, events: Iterable[str] | None = None, signature: Signature | None = None
) -> Starlette:
    """Return an ASGI application that receives events by `POST /{event}?key=K`.

    Args:
        store: a store or its URL.
        auth: that of `run_page`; without `auth` and `signature` it answers loopback only.
        events: accepted names, by default all.
        signature: function `(request, body)` that returns whether the body is authentic.

    Raises:
        DeclarationError: an argument is not valid.

    Example:
        ```python
        app = event_app("sqlite:///runs.db", auth="a-long-random-token", events=["payment"])
        ```
    """
    if isinstance(events, str) or (events is not None and not all(isinstance(each, str) for each in (*events,))):
        raise DeclarationError(f"event_app: events must be a list of names, not {events!r:.100}")
    opened = open_store(store, reader=True)
    required(opened, "send", subject="event_app", port="Events")
    names = None if events is None else frozenset(events)
    receiver = _Receiver(store=opened, auth=auth, names=names, signature=signature)
    return Starlette(routes=[Route("/{event}", receiver.receive, methods=["POST"])])


@attrs.frozen(kw_only=True, eq=False)
class _Receiver:
    """Receiver of events over HTTP; see the module's rules."""

    store: Store
    auth: Auth
    names: frozenset[str] | None
    signature: Signature | None

    async def receive(self, request: Request) -> Response:
        """Send the event of a request."""
        refused = await self._refused(request)
        if refused is not None:
            return refused
        most = settings_of(None)().events.max_bytes
        body = await _bounded_body(request, most)
        if body is None:
            return error_response(413, f"that is too long: {most:,} bytes can be sent")
        if self.signature is not None and not await self._is_signed(request, body):
            return error_response(401, "the signature does not fit")
        event = request.path_params["event"]
        if self.names is not None and event not in self.names:
            return error_response(404, f"there is no event {event!r}")
        return await self._sent(request, event, body)

    async def _refused(self, request: Request) -> Response | None:
        if self.auth is None:
            if self.signature is not None:
                return None
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            return refused_by_machine(request) or (
                None if kind == "application/json" else error_response(403, "send the data as application/json")
            )
        if isinstance(self.auth, str | OneTimeLink):
            known = is_bearer(request, self.auth if isinstance(self.auth, str) else self.auth.token)
            return None if known else error_response(401, "send the token as a bearer")
        return None if isinstance(self.auth, HostApp) else await Guard(request.app, self.auth).entry(request)

    async def _is_signed(self, request: Request, body: bytes) -> bool:
        assert self.signature is not None
        given: Any = self.signature(request, body)
        return (await given if inspect.isawaitable(given) else given) is True

    async def _sent(self, request: Request, event: str, body: bytes) -> Response:
        try:
            data = json.loads(body) if body else None
        except (ValueError, RecursionError) as error:
            return error_response(422, f"the body is no JSON: {error}")
        key, given = request.query_params.get("key", ""), request.headers.get("idempotency-key")
        send = RunClient(self.store, allow_blocking=True).send
        try:
            sent = await anyio.to_thread.run_sync(
                partial(send, event, key=key, data=data, id=given, by=user_of(request))
            )
        except (InvalidEvent, DeclarationError) as error:
            return error_response(422, str(error))
        answer: dict[str, object] = {"id": sent.id, "status": sent.status}
        if self.auth is not None:
            answer["delivered_to"] = list(sent.delivered_to)
        return JsonAnswer(answer, status_code=_CODES[sent.status])


async def _bounded_body(request: Request, most: int) -> bytes | None:
    """Return the body of a request; None if it is too long."""
    parts: list[bytes] = []
    async for part in request.stream():
        parts.append(part)
        if sum(map(len, parts)) > most:
            return None
    return b"".join(parts)


async def send_from_page(store: Store, request: Request) -> Response:
    """Send the event of a form of the run page."""
    body = await request.json()
    named = {name: str(body.get(name) or "") for name in ("event", "key", "id")}
    send = partial(
        RunClient(store, allow_blocking=True).send,
        named["event"],
        key=named["key"],
        data=body.get("data"),
        id=named["id"] or None,
        to="all" if body.get("to") == "all" else "one",
        by=user_of(request),
    )
    return JsonAnswer(attrs.asdict(await anyio.to_thread.run_sync(send)))


async def steer_from_page(store: Store, request: Request) -> Response:
    """Send a form's message from the run page to an agent."""
    body = await request.json()
    steer = partial(
        RunClient(store, allow_blocking=True).steer,
        str(body.get("run") or ""),
        str(body.get("message") or ""),
        path=str(body["path"]) if body.get("path") else None,
        when="when_done" if body.get("when") == "when_done" else "next_turn",
        id=str(body["id"]) if body.get("id") else None,
        by=user_of(request),
    )
    try:
        return JsonAnswer(attrs.asdict(await anyio.to_thread.run_sync(steer)))
    except (NotSteerable, AmbiguousStep, TooLate) as error:
        return error_response(409, str(error))


async def woken_run(store: Store, request: Request) -> StoredRun | None:
    """End the sleep of the run named by a form."""
    run_id = RunId(str((await request.json()).get("run") or ""))
    client = RunClient(store, allow_blocking=True)
    woken = await anyio.to_thread.run_sync(client.wake, run_id)
    return await anyio.to_thread.run_sync(store.get, run_id) if woken else None


# --- runs that this process executes after a response ---------------------------------------------------------


async def all_of(tasks: list[BackgroundTask]) -> None:
    """Execute background tasks one after the other."""
    for task in tasks:
        await task()


async def recovered(flujos: Sequence[Flujo]) -> None:
    """Execute the retried runs of some pipelines."""
    for flujo in flujos:
        await flujo.recover_async()


async def resumed(flujo: Flujo, run_id: str) -> None:
    """Resume a run in the background of a response."""
    try:
        await flujo.resume_async(run_id, wait=False)
    except FlujoError as error:
        logger.warning("run %r cannot be resumed: %s", run_id, error)
