"""`run_page`: an ASGI application (Starlette) that shows the runs of a store, and takes answers to what they ask."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anyio.to_thread
import attrs
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from .._client import RunClient
from .._core.outcomes import RunId
from .._core.pause_tokens import parse_token
from .._core.records import RunQuery, StoredRun
from ..errors import AlreadyAnswered, DeclarationError, FlujoError, InvalidAnswer, NotPaused, RunLeased, RunNotFound
from ..stores._opening import open_store
from ..stores._port import Store
from ..telemetry._redaction.live_redaction import LiveRedactor
from ._bodies import Bodies, as_lines, declared_steps, outputs_of
from ._differences import compared
from ._events import list_events, run_events
from ._guard import Auth, Guard, HostApp, OneTimeLink, error_response, user_of
from ._json import JsonAnswer, json_text
from ._rows import Hide, listed, rows_of, standing

if TYPE_CHECKING:
    from .._runner import Flujo

T = TypeVar("T")

logger = logging.getLogger("flujo_actors")

STATIC = Path(__file__).with_name("static")
FILES = {
    path.relative_to(STATIC).as_posix(): path
    for path in sorted(STATIC.rglob("*"))
    if path.suffix in (".js", ".css", ".svg")
}
"""What may be asked for, by name; nothing else is ever looked for on the disk."""

MOST_ROWS = 5_000
MOST_RUNS = 200
MOST_COUNTED = 1_000
LONGEST_BODY = 256_000
STATUSES = ("running", "paused", "completed", "failed", "aborted")

Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


def run_page(
    store: Store | str,
    *,
    auth: Auth = None,
    read_only: bool = False,
    content: bool = True,
    flujos: Sequence[Flujo] = (),
) -> Starlette:
    """An ASGI application that shows every run of `store`: mount it anywhere, `app.mount("/runs", run_page(store))`.

    Without `auth` it answers this machine only. `auth` is a token, a callable `request -> user | None`, or `HOST_APP`
    if the application around it lets in only whom it knows. With `read_only` nothing can be changed; without `content`
    only the structure of runs is shown. `flujos` are the pipelines that this process can go on with: their runs are
    resumed from the page, and go on when they are answered.
    """
    page = _Page(open_store(store), read_only=read_only, content=content, flujos=tuple(flujos))
    guards = [Middleware(Guard, auth=_checked(auth)), Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=3)]
    return Starlette(routes=page.routes(), middleware=guards)


def _checked(auth: object) -> Auth:
    if auth is None or callable(auth) or (isinstance(auth, str) and auth):
        return auth
    if isinstance(auth, HostApp | OneTimeLink):
        return auth
    raise DeclarationError(f"auth must be a token, a callable of the request, or HOST_APP, not {auth!r}")


@attrs.frozen(eq=False)
class _Page:
    """The endpoints, over one store."""

    store: Store
    read_only: bool = attrs.field(kw_only=True)
    content: bool = attrs.field(kw_only=True)
    flujos: tuple[Flujo, ...] = attrs.field(kw_only=True)
    secrets: LiveRedactor = attrs.field(factory=lambda: LiveRedactor(os.environ), init=False)

    def routes(self) -> list[BaseRoute]:
        """Where everything is."""
        reading: dict[str, Answer] = {
            "runs": self.runs,
            "records": self.records,
            "record": self.record,
            "events": self.events,
            "graph": self.graph,
            "compare": self.compare,
            "export": self.export,
        }
        changing: dict[str, Answer] = {
            "answer": self.answer,
            "cancel": self.cancel,
            "fork": self.fork,
            "resume": self.resume,
        }
        return [
            Route("/", _index),
            Route("/static/{name:path}", _static),
            *(Route(f"/api/{name}", _told(answer)) for name, answer in reading.items()),
            *(
                Route(f"/api/{name}", _told(answer), methods=["POST"])
                for name, answer in changing.items()
                if not self.read_only
            ),
        ]

    # --- texts of strangers ---

    @property
    def hide(self) -> Hide:
        """What becomes of a note or a question."""
        return self.secrets.current().text if self.content else (lambda _: "")

    def clean(self, data: object) -> Any:
        """Data without secrets."""
        return self.secrets.current().value(data)

    def about(self) -> dict[str, object]:
        """What every answer says of the page itself."""
        return {"now_ms": round(time.time() * 1000), "read_only": self.read_only}

    def standing(self, run: StoredRun) -> dict[str, object]:
        """How a run stands."""
        return standing(run, self.hide, can_resume=self._flujo_of(run) is not None and not self.read_only)

    # --- looking ---

    async def runs(self, request: Request) -> Response:
        """The list, with counts and a cursor."""
        asked = request.query_params
        query = RunQuery(
            status=_status(asked.get("status")),
            abandoned=asked.get("status") == "abandoned",
            pipeline=asked.get("pipeline") or None,
            search=asked.get("q") or None,
            cursor=asked.get("cursor") or None,
            limit=_number(asked.get("limit"), 50, MOST_RUNS),
        )
        found = await _in_thread(self.store.find, query)
        more = found[-1].cursor if found and len(found) == query.limit else None
        counts = await _in_thread(self._counts)
        runs = [listed(run, self.hide) for run in found]
        return JsonAnswer({**self.about(), "runs": runs, "cursor": more or None, **counts})

    def _counts(self) -> dict[str, object]:
        """How many runs there are of each status, up to a bound, and how many questions wait."""
        found = {each: self.store.find(RunQuery(status=each, limit=MOST_COUNTED)) for each in STATUSES}  # type: ignore[arg-type]
        counts = {each: len(runs) for each, runs in found.items() if runs}
        left = sum(not run.leased for run in found["running"])
        waiting = sum(len(run.pauses) for each in ("running", "paused") for run in found[each])
        return {"counts": {**counts, **({"abandoned": left} if left else {})}, "waiting": waiting}

    async def records(self, request: Request) -> Response:
        """A page of light rows."""
        run_id, after = _run(request), _number(request.query_params.get("after"), 0)
        limit = _number(request.query_params.get("limit"), MOST_ROWS, MOST_ROWS)
        run = await _in_thread(self.store.get, run_id)
        light = await _in_thread(partial(self.store.scan, run_id, after=after, limit=limit))
        following = light[-1].seq if len(light) == limit else None
        rows = rows_of(light, self.hide)
        return JsonAnswer({**self.about(), "rows": rows, "next": following, "run": self.standing(run)})

    async def record(self, request: Request) -> Response:
        """One body, up to a bound; whole as a download."""
        run_id, seq = _run(request), _number(request.query_params.get("seq"), 1)
        if not self.content:
            return JsonAnswer({"seq": seq, "hidden": True})
        shown = await _in_thread(lambda: self.clean(Bodies.of(self.store, run_id).shown(seq)))
        if request.query_params.get("full"):
            return _download(json_text(shown["body"], indent=1), f"record-{seq}.json")
        return JsonAnswer(_bounded(shown))

    async def events(self, request: Request) -> Response:
        """The stream of what happens: in one run, or in the list."""
        if not request.query_params.get("run"):
            return list_events(self.store)
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        run_id = _run(request)
        await _in_thread(self.store.get, run_id)
        return run_events(self.store, run_id, _number(after, 0), hide=self.hide, standing=self.standing)

    async def graph(self, request: Request) -> Response:
        """The steps of a run as they were declared, each with its kind."""
        steps = await _in_thread(declared_steps, self.store, _run(request))
        return JsonAnswer({**self.about(), "steps": steps})

    async def compare(self, request: Request) -> Response:
        """Two runs, aligned by path."""
        ids = [RunId(request.query_params.get(name, "")) for name in ("a", "b")]
        sides = [await _in_thread(self.store.scan, each) for each in ids]
        outputs = [await _in_thread(outputs_of, self.store, each) for each in ids]
        steps = compared(*sides)
        for each in steps:
            both = each["a"] is not None and each["b"] is not None
            each["same"] = outputs[0].get(each["path"]) == outputs[1].get(each["path"]) if both else None
        return JsonAnswer({**self.about(), "a": ids[0], "b": ids[1], "steps": steps})

    async def export(self, request: Request) -> Response:
        """The records of a run as JSON lines."""
        run_id = _run(request)
        if not self.content:
            return error_response(403, "this page shows the structure of runs, not their content")
        lines = await _in_thread(lambda: list(as_lines(self.store, run_id, self.clean)))
        headers = {"content-disposition": 'attachment; filename="run.jsonl"'}
        return StreamingResponse(iter(lines), media_type="application/x-ndjson", headers=headers)

    # --- changing ---

    async def answer(self, request: Request) -> Response:
        """Answer a question; the run goes on if this process knows its pipeline."""
        body = await _json(request)
        client, token = RunClient(self.store), str(body.get("token", ""))
        await _in_thread(partial(client.answer, token, body.get("answer"), by=user_of(request)))
        run = await _in_thread(self.store.get, parse_token(token)[0])
        return Response(status_code=204, background=self._going_on(run))

    async def cancel(self, request: Request) -> Response:
        """End a run, whoever works on it."""
        body = await _json(request)
        by = user_of(request)
        reason = str(body.get("reason") or "cancelled from the page") + (f" by {by}" if by else "")
        await _in_thread(RunClient(self.store).cancel, str(body.get("run", "")), reason)
        return Response(status_code=204)

    async def fork(self, request: Request) -> Response:
        """A new run from the records of one up to a point; it begins at once if this process knows its pipeline."""
        body = await _json(request)
        options: dict[str, Any] = {"input": body["input"]} if "input" in body else {}
        seq = body.get("seq")
        if not isinstance(seq, int) or isinstance(seq, bool):
            return error_response(422, f"seq must be a number, not {seq!r}")
        forked = await _in_thread(partial(RunClient(self.store).fork, str(body.get("run", "")), seq, **options))
        run_id = str(getattr(forked, "run_id", forked))
        run = await _in_thread(self.store.get, RunId(run_id))
        return JsonAnswer({"run_id": run_id}, background=self._going_on(run))

    async def resume(self, request: Request) -> Response:
        """Go on with a run that nobody works on."""
        body = await _json(request)
        run = await _in_thread(self.store.get, RunId(str(body.get("run", ""))))
        going_on = self._going_on(run)
        if going_on is None:
            why = f"this page knows no pipeline {run.pipeline!r}: a process that has it must recover() the run"
            return error_response(409, why)
        return JsonAnswer({"run_id": run.run_id}, status_code=202, background=going_on)

    def _flujo_of(self, run: StoredRun) -> Flujo | None:
        return next((each for each in self.flujos if each.pipeline.title == run.pipeline), None)

    def _going_on(self, run: StoredRun) -> BackgroundTask | None:
        flujo = self._flujo_of(run)
        return None if flujo is None else BackgroundTask(_resumed, flujo, run.run_id)


async def _resumed(flujo: Flujo, run_id: str) -> None:
    """Go on with a run in the background of an answer; what it comes to is told by its records."""
    try:
        await flujo.resume_async(run_id, wait=False)
    except FlujoError as error:
        logger.warning("run %r cannot go on: %s", run_id, error)


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html", headers={"cache-control": "no-cache"})


async def _static(request: Request) -> Response:
    path = FILES.get(request.path_params["name"])
    if path is None:
        return error_response(404, "there is no such file")
    kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[path.suffix]
    return FileResponse(path, media_type=kind, headers={"cache-control": "no-cache"})


def _told(answer: Answer) -> Answer:
    """An endpoint whose refusals are told as the page shows them."""

    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except InvalidAnswer as error:
            return error_response(422, str(error), place=getattr(error, "place", None))
        except (AlreadyAnswered, NotPaused) as error:
            gone = isinstance(error.__cause__, RunNotFound)
            return error_response(404 if gone else 409, str(error))
        except RunLeased as error:
            return error_response(423, str(error))
        except RunNotFound as error:
            return error_response(404, str(error))
        except DeclarationError as error:
            return error_response(422, str(error))
        except FlujoError as error:
            return error_response(500, f"{type(error).__name__}: {error}")

    return answered


async def _in_thread(call: Callable[..., T], *arguments: object) -> T:
    return await anyio.to_thread.run_sync(call, *arguments, abandon_on_cancel=True)


def _run(request: Request) -> RunId:
    return RunId(request.query_params.get("run", ""))


def _status(text: str | None) -> Any:
    return "running" if text == "abandoned" else text if text in STATUSES else None


def _number(text: str | None, default: int, most: int | None = None) -> int:
    number = int(text) if text is not None and text.isdecimal() and len(text) < 16 else default
    return number if most is None else max(1, min(number, most))


async def _json(request: Request) -> dict[str, object]:
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise InvalidAnswer(f"that is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidAnswer("that is JSON, but no object")
    return body


def _bounded(shown: dict[str, Any]) -> dict[str, Any]:
    """What is looked at is not loaded without end, stored or derived: beyond a bound there is the download."""
    chars = len(json.dumps(shown["body"], ensure_ascii=False))
    if len(json.dumps(shown, ensure_ascii=False)) <= LONGEST_BODY:
        return {**shown, "chars": chars, "cut": False}
    parts = {name: _cut(part) for name, part in shown.items() if name != "seq"}
    return {**parts, "seq": shown["seq"], "chars": chars, "cut": True}


def _cut(part: object) -> object:
    text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
    if len(text) <= LONGEST_BODY // 8:
        return part
    if isinstance(part, dict):
        return {name: _cut(each) for name, each in part.items()}
    if isinstance(part, list):
        return [_cut(each) for each in part[:100]] + ([f"… {len(part) - 100:,} more"] if len(part) > 100 else [])
    return f"{text[: LONGEST_BODY // 8]} …"


def _download(text: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="application/json", headers=headers)
