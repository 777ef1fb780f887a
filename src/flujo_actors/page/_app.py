"""`run_page`: ASGI application (Starlette) for a store's runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
import attrs
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from .._api.client import RunClient
from .._api.flujo import Flujo
from .._core.labels import LabelFilter
from .._core.outcomes import RunId
from .._core.records.pause_tokens import parse_token
from .._core.records.records import QuestionQuery, RunQuery, StoredRun
from .._core.step_paths import StepPath
from .._durable.live_text import place_of
from .._durable.pause_lookup import Question, open_questions, question_at
from .._durable.run_states import RUN_STATES, RunStateName, StateCounts, states_of
from .._fleet.health_probe import KNOWN_FOR_S
from ..errors import (
    DeclarationError,
)
from ..stores._store_factory import open_store
from ..stores._store_port import Store
from ..telemetry._redaction.redactor import LiveRedactor
from ._auth import (
    SCOPED,
    Answer,
    AskAnswer,
    AskScope,
    Auth,
    BulkRequest,
    Guard,
    asked_labels,
    bulk_request,
    check_in_scope,
    checked_auth,
    checked_may_answer,
    checked_scope,
    error_response,
    is_allowed,
    keep_scope,
    labels_in_scope,
    named_runs,
    refuse_outside,
    scope_of,
    user_of,
    with_refusals,
)
from ._browser_json import JsonAnswer, bounded, cut, json_text, request_json
from ._conversation import Message, conversation_of, with_head
from ._event_app import all_of, recovered, resumed, send_from_page, steer_from_page, woken_run
from ._events import Listing, list_events, run_events
from ._form import about_question, answer_form, answers_of, latest_answers, question_view, questions_of_run
from ._overview import (
    changed_schedule,
    events_of,
    input_schema,
    limits_of,
    listed_runs,
    now_of,
    overview_of,
    read_input,
    schedules_of,
)
from ._record_view import (
    Bodies,
    Hide,
    as_lines,
    cards_of,
    compared,
    compared_text,
    declared_steps,
    difference,
    evaluation_tables,
    listed,
    outputs_of,
    prompts_at,
    rows_of,
    run_state,
    two_texts,
)

T = TypeVar("T")

STATIC = Path(__file__).with_name("static")
FILES = {
    path.relative_to(STATIC).as_posix(): path
    for path in sorted(STATIC.rglob("*"))
    if path.suffix in (".js", ".css", ".svg")
}
"""Static files by name; no other file is ever read."""

MOST_ROWS = 5_000
_QUESTIONS = 50
MOST_RUNS = 200
MOST_LISTINGS = 1_000
"""Number of scopes whose latest runs are kept."""


def run_page(
    store: Store | str,
    *,
    auth: Auth = None,
    read_only: bool = False,
    content: bool = True,
    flujos: Sequence[Flujo] = (),
    scope: AskScope | None = None,
    may_answer: AskAnswer | None = None,
) -> Starlette:
    """Return an ASGI application that shows every run of `store`.

    Args:
        store: a store or its URL.
        auth: a token, a callable `request -> user | None`, or `HOST_APP` if the enclosing application authenticates.
            Without it, only loopback is answered.
        read_only: whether nothing can be changed.
        content: whether inputs, outputs and texts are shown, or only the structure of runs.
        flujos: pipelines that this process can start and resume from the page.
        scope: function `(request, user)` that returns labels: the user sees and changes only runs with all of them.
            `{}` is every run; `None` or an error shows nothing.
        may_answer: function `(user, question)`; a refused answer is status 403. Without it every user may answer.

    Raises:
        DeclarationError: a token is too short, or an argument is not valid.

    Example:
        ```python
        app = run_page("sqlite:///runs.db", auth="a-long-random-token", read_only=True)
        ```
    """
    opened = _opened(store)
    known, asks = _flujos_of(opened, flujos), checked_scope(scope, opened)
    judge = checked_may_answer(may_answer)
    page = _Page(opened, read_only=read_only, content=content, flujos=known, scope=asks, judge=judge)
    guards = [
        Middleware(Guard, auth=checked_auth(auth)),
        Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=3),
    ]
    return Starlette(routes=page.routes(), middleware=guards)


def _opened(store: Store | str) -> Store:
    if store is None:
        raise DeclarationError(
            "run_page needs a store: pass its URL ('sqlite:///runs.db', 'postgresql://…') or a Store"
        )
    return open_store(store, reader=True)


def _flujos_of(store: Store, flujos: object) -> tuple[Flujo, ...]:
    """Pipelines that this process can resume, all of the page's own store."""
    if not isinstance(flujos, list | tuple) or not all(isinstance(each, Flujo) for each in flujos):
        raise DeclarationError(f"flujos must be a list of Flujo objects, flujos=[flujo], not {flujos!r:.100}")
    for each in flujos:
        if each.store is None or place_of(each.store) != place_of(store):
            where = "has no store" if each.store is None else "uses another store"
            raise DeclarationError(
                f"the page cannot resume runs of {each.pipeline.title!r}: its Flujo {where}; pass the same store to "
                "both, Flujo(pipeline, store=store) and run_page(store, flujos=[flujo])"
            )
    return tuple(flujos)


@attrs.frozen(eq=False)
class _Page:
    """The endpoints, over one store."""

    store: Store
    read_only: bool = attrs.field(kw_only=True)
    content: bool = attrs.field(kw_only=True)
    flujos: tuple[Flujo, ...] = attrs.field(kw_only=True)
    scope: AskScope | None = attrs.field(kw_only=True)
    judge: AskAnswer | None = attrs.field(default=None, kw_only=True)
    secrets: LiveRedactor = attrs.field(factory=lambda: LiveRedactor(os.environ), init=False)
    listings: dict[LabelFilter, Listing] = attrs.field(factory=dict, init=False)
    states: StateCounts = attrs.field(init=False)

    @states.default
    def _new_states(self) -> StateCounts:
        return StateCounts(self.store, within_s=KNOWN_FOR_S)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        reading: dict[str, Answer] = {
            "runs": self.runs,
            "records": self.records,
            "record": self.record,
            "events": self.events,
            "graph": self.graph,
            "compare": self.compare,
            "export": self.export,
            "now": self.now,
            "questions": self.questions,
            "question": self.question,
            "conversation": self.conversation,
            "overview": self.overview,
            "answers": self.answers,
            "diff": self.diff,
            "context": self.context,
            "evaluation": self.evaluation,
            "pipeline": self.pipeline,
        }
        changing: dict[str, Answer] = {
            "answer": self.answer,
            "cancel": self.cancel,
            "fork": self.fork,
            "resume": self.resume,
            "start": self.start,
            "bulk": self.bulk,
            "wake": self.wake,
            "steer": partial(steer_from_page, self.store),
        }
        if self.scope is None:  # an event, a schedule and a limit concern runs of all users
            reading |= {"limits": self.limits, "schedules": self.schedules, "waits": self.waits}
            changing |= {"send": partial(send_from_page, self.store), "schedule": self.change_schedule}
        return [
            Route("/", _index),
            Route("/static/{name:path}", _static),
            *(Route(f"/api/{name}", with_refusals(self.scoped(name, answer))) for name, answer in reading.items()),
            *(
                Route(f"/api/{name}", with_refusals(self.scoped(name, answer)), methods=["POST"])
                for name, answer in changing.items()
                if not self.read_only
            ),
        ]

    def scoped(self, name: str, answer: Answer) -> Answer:
        """Return an endpoint that is limited to the runs of its user."""
        ask = self.scope
        if ask is None:
            return answer

        async def limited(request: Request) -> Response:
            labels = await scope_of(ask, request)
            if labels is None:
                return error_response(403, "this page shows you no runs")
            if name not in SCOPED:
                return error_response(404, "this is not there for users with a scope")
            keep_scope(request, labels)
            body = await request_json(request) if request.method == "POST" else {}
            for run_id in named_runs(request, body):
                await _in_thread(refuse_outside, self.store, run_id, labels)
            return await answer(request)

        return limited

    def listing(self, labels: LabelFilter) -> Listing:
        """Return the latest runs of a scope, shared by its readers."""
        if len(self.listings) >= MOST_LISTINGS:
            self.listings.clear()
        return self.listings.setdefault(labels, Listing(self.store, labels))

    # --- texts of strangers ---

    @property
    def hide(self) -> Hide:
        """Return the redaction of notes and prompts."""
        return self.secrets.current().text if self.content else (lambda _: "")

    def clean(self, data: object) -> Any:
        """Data without secrets."""
        return self.secrets.current().value(data)

    def about(self, request: Request | None = None) -> dict[str, object]:
        """Return the facts about the page in every response."""
        facts: dict[str, object] = {"now_ms": round(time.time() * 1000), "read_only": self.read_only}
        if request is None:
            return facts
        scope = self.clean(dict(labels_in_scope(request)))
        pipelines = [each.pipeline.title for each in self.flujos]
        tabs = ["events", "schedules", "limits"] if self.scope is None else []
        return {**facts, "user": user_of(request), "scope": scope, "pipelines": pipelines, "tabs": tabs}

    def run_state(self, run: StoredRun) -> dict[str, object]:
        """Return the state of a run. Blocks."""
        [(_, now)] = states_of(self.store, [run], within_s=KNOWN_FOR_S)
        can_resume = self._flujo_of(run) is not None and not self.read_only
        asked = questions_of_run(run, self.hide, self.clean, content=self.content)
        facts = {**run_state(run, now, self.hide, can_resume=can_resume), "questions": asked}
        return {**facts, "labels": self.clean(dict(run.labels))}

    # --- looking ---

    async def runs(self, request: Request) -> Response:
        """Return the list, with counts and a cursor."""
        asked = request.query_params
        query = RunQuery(
            status="paused" if asked.get("status") == "paused" else None,
            pipeline=asked.get("pipeline") or None,
            order="created",
            search=asked.get("q") or None,
            created_after=_since(asked.get("days")),
            labels=asked_labels(request),
            cursor=asked.get("cursor") or None,
            limit=_number(asked.get("limit"), 50, MOST_RUNS),
        )
        found, more = await _in_thread(listed_runs, self.store, query, _states(asked.get("status")))
        counts = await _in_thread(self._counts, query.labels)
        runs = [{**listed(run, now, self.hide), "labels": self.clean(dict(run.labels))} for run, now in found]
        return JsonAnswer({**self.about(request), "runs": runs, "cursor": more, **counts})

    def _counts(self, labels: LabelFilter) -> dict[str, object]:
        """Return the number of runs per state, and of open pauses."""
        counted, questions = self.states.now(labels)
        return {"counts": dict(counted), "waiting": questions}

    async def records(self, request: Request) -> Response:
        """Return a page of light rows."""
        run_id, after = _run(request), _number(request.query_params.get("after"), 0)
        limit = _number(request.query_params.get("limit"), MOST_ROWS, MOST_ROWS)
        run = await _in_thread(self.store.get, run_id)
        light = await _in_thread(partial(self.store.scan, run_id, after=after, limit=limit))
        following = light[-1].seq if len(light) == limit else None
        rows = rows_of(light, self.hide)
        facts = await _in_thread(self.run_state, run)
        return JsonAnswer({**self.about(request), "rows": rows, "next": following, "run": facts})

    async def record(self, request: Request) -> Response:
        """One body, up to a bound; whole as a download."""
        run_id, seq = _run(request), _number(request.query_params.get("seq"), 1)
        if not self.content:
            return JsonAnswer({"seq": seq, "hidden": True})
        shown = await _in_thread(lambda: self.clean(Bodies.of(self.store, run_id).shown(seq)))
        if request.query_params.get("full"):
            return _download(json_text(shown["body"], indent=1), f"record-{seq}.json")
        return JsonAnswer(bounded(shown))

    async def events(self, request: Request) -> Response:
        """Return the event stream of one run, or of the list."""
        if not request.query_params.get("run"):
            return list_events(self.listing(asked_labels(request)))
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        run_id = _run(request)
        await _in_thread(self.store.get, run_id)
        labels = labels_in_scope(request)

        def facts(run: StoredRun) -> dict[str, object]:
            if labels:
                check_in_scope(self.store, run, labels)
            return self.run_state(run)

        return run_events(self.store, run_id, _number(after, 0), hide=self.hide, standing=facts)

    async def graph(self, request: Request) -> Response:
        """Return the declared steps of a run with their kinds."""
        steps = await _in_thread(declared_steps, self.store, _run(request))
        names = {path: (name, when) for path, _, name, when in steps if name or when}
        pairs = [(path, kind) for path, kind, _, _ in steps]
        return JsonAnswer({**self.about(request), "steps": pairs, "names": names})

    async def compare(self, request: Request) -> Response:
        """Two runs, aligned by path."""
        ids = [RunId(request.query_params.get(name, "")) for name in ("a", "b")]
        sides = [await _in_thread(self.store.scan, each) for each in ids]
        outputs = [await _in_thread(outputs_of, self.store, each) for each in ids]
        steps = compared(sides, outputs)
        runs = [await _in_thread(lambda each=each: self.run_state(self.store.get(each))) for each in ids]
        return JsonAnswer(
            {
                **self.about(request),
                "a": ids[0],
                "b": ids[1],
                "runs": runs,
                "steps": steps,
                "cards": cards_of(steps),
                "sentence": compared_text(steps),
            }
        )

    async def export(self, request: Request) -> Response:
        """Return the records of a run as JSON lines."""
        run_id = _run(request)
        if not self.content:
            return error_response(403, "this page shows the structure of runs, not their content")
        lines = await _in_thread(lambda: list(as_lines(self.store, run_id, self.clean)))
        headers = {"content-disposition": 'attachment; filename="run.jsonl"'}
        return StreamingResponse(iter(lines), media_type="application/x-ndjson", headers=headers)

    async def now(self, request: Request) -> Response:
        """Return one line about each of some runs."""
        ids = [RunId(each) for each in request.query_params.getlist("run")[:MOST_RUNS]]
        return JsonAnswer({"runs": await _in_thread(now_of, self.store, ids, self.hide)})

    async def questions(self, request: Request) -> Response:
        """Return a page of open questions, the nearest deadline first."""
        asked = request.query_params
        query = QuestionQuery(
            labels=asked_labels(request), order="due", cursor=asked.get("cursor") or None, limit=_QUESTIONS
        )
        found = await _in_thread(open_questions, self.store, query)
        more = found[-1].cursor if len(found) == _QUESTIONS else None
        shown = [question_view(each, self.hide, self.clean, content=self.content) for each in found]
        allowed = [await self._may_answer(request, each) for each in found]
        marked = [{**each, "may_answer": may} for each, may in zip(shown, allowed, strict=True)]
        return JsonAnswer({**self.about(request), "questions": marked, "cursor": more or None})

    async def _may_answer(self, request: Request, question: Question) -> bool:
        return self.judge is None or await is_allowed(self.judge, request, question)

    async def question(self, request: Request) -> Response:
        """Return the facts to decide one question by."""
        token = request.query_params.get("token", "")
        if not self.content:
            return JsonAnswer({})
        asked = await _in_thread(question_at, self.store, token)
        return JsonAnswer(await _in_thread(about_question, self.store, asked, self.clean))

    async def conversation(self, request: Request) -> Response:
        """Return the messages of an agent's step."""
        if not self.content:
            return JsonAnswer({"hidden": True})
        run_id, path = _run(request), StepPath(request.query_params.get("step", ""))
        messages = await _in_thread(self._messages, run_id, path)
        return JsonAnswer({"messages": cut(self.clean([with_head(each) for each in messages]))})

    def _messages(self, run_id: RunId, path: StepPath) -> list[Message]:
        """Return a step's messages; system prompts are those of a known pipeline."""
        messages = conversation_of(Bodies.of(self.store, run_id), path)
        flujo = self._flujo_of(self.store.get(run_id))
        if flujo is None or any(each["role"] == "system" for each in messages):
            return messages
        prompts: list[Message] = [
            {"role": "system", "text": each} for each in prompts_at(self.store, run_id, flujo.pipeline, path)
        ]
        return [*prompts, *messages]

    async def overview(self, request: Request) -> Response:
        """Return totals, queues, workers and the first questions."""
        asked, labels = request.query_params, labels_in_scope(request)
        days = _number(asked.get("days"), 14)
        found = await _in_thread(overview_of, self.store, days, asked.get("by") or "", labels)
        open_ones = await _in_thread(open_questions, self.store, QuestionQuery(labels=labels, order="due", limit=4))
        shown = [question_view(each, self.hide, self.clean, content=self.content) for each in open_ones]
        counts = await _in_thread(self._counts, labels)
        return JsonAnswer({**self.about(request), **found, **counts, "questions": shown})

    async def limits(self, request: Request) -> Response:
        """Return rate limits, budgets and queues by key."""
        return await self._tab(request, partial(limits_of, self.store))

    async def _tab(self, request: Request, read: Callable[[], dict[str, object]]) -> Response:
        counts = await _in_thread(self._counts, labels_in_scope(request))
        return JsonAnswer({**self.about(request), "waiting": counts["waiting"], **self.clean(await _in_thread(read))})

    async def schedules(self, request: Request) -> Response:
        """Return the schedules with their next times."""
        return await self._tab(request, partial(schedules_of, self.store, read_only=self.read_only))

    async def waits(self, request: Request) -> Response:
        """Return open waits for events, stored events and a form."""
        read = partial(events_of, self.store, read_only=self.read_only, content=self.content)
        return await self._tab(request, read)

    async def answers(self, request: Request) -> Response:
        """Return the answers of people: of one run, or the latest ones."""
        if not self.content:
            return JsonAnswer({"answers": []})
        more, asked = None, request.query_params
        if asked.get("run"):
            found = await _in_thread(answers_of, self.store, _run(request))
        else:
            labels = labels_in_scope(request)
            found, more = await _in_thread(latest_answers, self.store, labels, asked.get("cursor") or None)
        return JsonAnswer({**self.about(request), "answers": cut(self.clean(found)), "cursor": more})

    async def context(self, request: Request) -> Response:
        """Return the context of a run at a record, and its changes."""
        if not self.content:
            return JsonAnswer({"hidden": True})
        run_id, seq = _run(request), _number(request.query_params.get("at"), 0)
        found = await _in_thread(lambda: Bodies.of(self.store, run_id).context_at(seq))
        return JsonAnswer(cut(self.clean(found)))

    async def evaluation(self, request: Request) -> Response:
        """Return the cases of an evaluation, or the pairs of a rehearsal."""
        asked = request.query_params
        changed, by = asked.get("only") == "changed", asked.get("by") or ""
        read = partial(evaluation_tables, changed=changed, by=by, content=self.content)
        return JsonAnswer(self.clean(await _in_thread(read, self.store, _run(request))))

    async def diff(self, request: Request) -> Response:
        """Return the differences of two steps or of two turns."""
        if not self.content:
            return JsonAnswer({"hidden": True})
        texts = await _in_thread(two_texts, self.store, request.query_params, self.clean)
        return JsonAnswer({"rows": await _in_thread(difference, *texts)})

    async def pipeline(self, request: Request) -> Response:
        """Return the form of a known pipeline's input."""
        flujo = self._flujo_named(request.query_params.get("name", ""))
        return JsonAnswer({"form": answer_form(await _in_thread(input_schema, flujo))})

    # --- changing ---

    async def start(self, request: Request) -> Response:
        """Start a run of a known pipeline in the user's scope."""
        body = await request_json(request)
        flujo = self._flujo_named(str(body.get("pipeline", "")))
        given = body.get("labels")
        own = {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
        labels = {**own, **{name: value for name, value in labels_in_scope(request) if value is not None}}
        data = await _in_thread(read_input, flujo, body.get("input"))
        run_id = await flujo.submit(data, labels=labels or None)
        run = await _in_thread(self.store.get, RunId(run_id))
        return JsonAnswer({"run_id": run_id}, status_code=201, background=self._in_progress(run))

    async def bulk(self, request: Request) -> Response:
        """Retry, cancel or delete some runs; return the reasons of skipped ones."""
        body = await request_json(request)
        asked = bulk_request(body, labels_in_scope(request), user_of(request))
        report = await _in_thread(asked.done, self.store)
        following = None if asked.dry_run else await self._continued(asked)
        return JsonAnswer({**self.about(), **report}, background=following)

    async def _continued(self, asked: BulkRequest) -> BackgroundTask | None:
        """Return the execution of retried runs whose pipelines are known here."""
        if asked.action != "retry" or not self.flujos:
            return None
        if asked.where.run_ids is None:
            return BackgroundTask(recovered, self.flujos)
        runs = [await _in_thread(self.store.get, RunId(str(each))) for each in asked.where.run_ids]
        tasks = [task for run in runs if run.status == "running" and (task := self._in_progress(run)) is not None]
        return BackgroundTask(all_of, tasks) if tasks else None

    async def answer(self, request: Request) -> Response:
        """Answer a pause; the run resumes if this process knows its pipeline."""
        body = await request_json(request)
        client, token = RunClient(self.store), str(body.get("token", ""))
        if self.judge is not None:
            question = await _in_thread(question_at, self.store, token)
            if not await self._may_answer(request, question):
                return error_response(403, "you may not answer this question")
        await _in_thread(partial(client.answer, token, body.get("answer"), by=user_of(request)))
        run = await _in_thread(self.store.get, parse_token(token)[0])
        return Response(status_code=204, background=self._in_progress(run))

    async def cancel(self, request: Request) -> Response:
        """Cancel a run, with or without an owner."""
        body = await request_json(request)
        by = user_of(request)
        reason = str(body.get("reason") or "cancelled from the page") + (f" by {by}" if by else "")
        await _in_thread(RunClient(self.store).cancel, str(body.get("run", "")), reason)
        return Response(status_code=204)

    async def wake(self, request: Request) -> Response:
        """End the sleep of a run now."""
        run = await woken_run(self.store, request)
        return JsonAnswer({"woken": run is not None}, background=None if run is None else self._in_progress(run))

    async def change_schedule(self, request: Request) -> Response:
        """Pause, resume or trigger a schedule."""
        body = await request_json(request)
        done = await _in_thread(changed_schedule, self.store, str(body.get("name", "")), str(body.get("action", "")))
        return JsonAnswer(done)

    async def fork(self, request: Request) -> Response:
        """Fork a run at a record; start it if possible here."""
        body = await request_json(request)
        options: dict[str, Any] = {"input": body["input"]} if "input" in body else {}
        seq = body.get("seq")
        if not isinstance(seq, int) or isinstance(seq, bool):
            return error_response(422, f"seq must be a number, not {seq!r}")
        forked = await _in_thread(partial(RunClient(self.store).fork, str(body.get("run", "")), seq, **options))
        run_id = str(getattr(forked, "run_id", forked))
        run = await _in_thread(self.store.get, RunId(run_id))
        return JsonAnswer({"run_id": run_id}, background=self._in_progress(run))

    async def resume(self, request: Request) -> Response:
        """Resume an unowned run."""
        body = await request_json(request)
        run = await _in_thread(self.store.get, RunId(str(body.get("run", ""))))
        going_on = self._in_progress(run)
        if going_on is None:
            why = f"this page knows no pipeline {run.pipeline!r}: a process that has it must recover() the run"
            return error_response(409, why)
        return JsonAnswer({"run_id": run.run_id}, status_code=202, background=going_on)

    def _flujo_named(self, name: str) -> Flujo:
        found = next((each for each in self.flujos if each.pipeline.title == name), None)
        if found is None:
            raise DeclarationError(f"this page knows no pipeline {name!r}: pass it as run_page(store, flujos=[flujo])")
        return found

    def _flujo_of(self, run: StoredRun) -> Flujo | None:
        return next((each for each in self.flujos if each.pipeline.title == run.pipeline), None)

    def _in_progress(self, run: StoredRun) -> BackgroundTask | None:
        flujo = self._flujo_of(run)
        return None if flujo is None else BackgroundTask(resumed, flujo, run.run_id)


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html", headers={"cache-control": "no-cache"})


async def _static(request: Request) -> Response:
    path = FILES.get(request.path_params["name"])
    if path is None:
        return error_response(404, "there is no such file")
    kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[path.suffix]
    return FileResponse(path, media_type=kind, headers={"cache-control": "no-cache"})


async def _in_thread(call: Callable[..., T], *arguments: object) -> T:
    return await anyio.to_thread.run_sync(call, *arguments, abandon_on_cancel=True)


def _run(request: Request) -> RunId:
    return RunId(request.query_params.get("run", ""))


def _since(days: str | None) -> float | None:
    """Return the start of the last days, in seconds since the epoch."""
    number = _number(days, 0)
    return time.time() - number * 86_400 if 0 < number <= 3_660 else None


def _states(text: str | None) -> Sequence[RunStateName] | None:
    return [each for each in RUN_STATES if each == text] or None


def _number(text: str | None, default: int, most: int | None = None) -> int:
    number = int(text) if text is not None and text.isdecimal() and len(text) < 16 else default
    return number if most is None else max(1, min(number, most))


def _download(text: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="application/json", headers=headers)
