"""Access control of the page: an ASGI middleware.

Rules:

1. Without `auth` only loopback is served: the peer and the `Host` header are both loopback, since a
   foreign name may resolve here (DNS rebinding). A forwarded request is refused: its peer is only claimed.
2. `auth` is a token (as a bearer, or once in the address, which becomes a cookie), a callable `request -> user | None`,
   or `HOST_APP`: then the enclosing application authenticates.
   A callable admits by naming a user: a non-empty string or a user object (`name_of_user`). Any other value is 401.
3. A change comes as JSON, from a page of the same origin, with a bounded length.
4. Every response forbids the browser to load foreign content or to interpret text as a script.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import inspect
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import attrs
from outcome import Error, acapture
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._api.client import RunClient
from .._core.labels import MOST_LABELS, LabelFilter, checked_filter, checked_labels, has_labels
from .._core.outcomes import RunId
from .._core.records.pause_tokens import parse_token
from .._core.records.records import StoredRun
from .._durable.operations.bulk_actions import BulkReport, RunFilter, matching_runs
from .._durable.pause_lookup import Question
from .._durable.run_states import RUN_STATES, RunStateName
from .._fleet.health_probe import KNOWN_FOR_S
from ..errors import (
    AlreadyAnswered,
    DeclarationError,
    FlujoError,
    InvalidAnswer,
    InvalidEvent,
    NotPaused,
    RunLeased,
    RunNotFound,
)
from ..stores._record_rows import not_found
from ..stores._store_port import Store, required
from ._browser_json import JsonAnswer

Answer: TypeAlias = Callable[[Request], Awaitable[Response]]
"""Endpoint of the page."""

User: TypeAlias = object
"""A non-empty string, or an object that `name_of_user` can name."""

AskUser: TypeAlias = Callable[[Request], "User | Awaitable[User | None] | None"]


class HostApp:
    """Type of `HOST_APP`."""

    def __repr__(self) -> str:
        return "HOST_APP"


HOST_APP: Final = HostApp()
"""Marker: the enclosing application authenticates users."""

COOKIE = "flujo_page"
LONGEST_POST = 1_000_000
SHORTEST_TOKEN = 8

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
"""Proxy headers: the request may come from any machine."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html"
)

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ONLY_HERE = (
    "this page shows runs to this machine only: open it as localhost, or say with run_page(store, auth=…) who may see "
    "it (a token, a function of the request, or HOST_APP if the application around it has seen to that)"
)
_FORWARDED = (
    "this request was forwarded by a proxy, so its origin is unknown: set run_page(store, auth=…) to a token, a "
    "function of the request, or HOST_APP if the application around the page authenticates"
)
_NOT_KNOWN = "you are not signed in: open the page by the link with its token, or send it as a bearer"
_FOREIGN = "only this page itself may change runs: send JSON, from the same origin"


@attrs.define(eq=False)
class OneTimeLink:
    """Token that opens the page once; a cookie identifies its user afterwards."""

    token: str
    used: bool = False

    def opens(self, given: str) -> bool:
        """Return whether the token is correct and unused."""
        if self.used or not hmac.compare_digest(given.encode(), self.token.encode()):
            return False
        self.used = True
        return True


Auth: TypeAlias = str | OneTimeLink | AskUser | HostApp | None


@attrs.frozen(eq=False)
class Guard:
    """Authentication middleware; see the module's rules."""

    app: ASGIApp
    auth: Auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = await self._refused(Request(scope))
        if refused is not None:
            await refused(scope, receive, _with_headers(send))
        else:
            await self.app(scope, _bounded(receive) if scope["method"] == "POST" else receive, _with_headers(send))

    async def _refused(self, request: Request) -> Response | None:
        entered = await self.entry(request)
        if entered is not None:
            return entered
        if request.method == "POST":
            return _refused_post(request.headers)
        return None if request.method in ("GET", "HEAD") else _no(405, f"nothing here takes a {request.method}")

    async def entry(self, request: Request) -> Response | None:
        """Return the refusal of a request by `auth`, or None."""
        match self.auth:
            case None:
                return refused_by_machine(request)
            case HostApp():
                return None
            case str() | OneTimeLink() as token:
                return _by_token(request, token)
            case ask:
                user = ask(request)
                user = await user if inspect.isawaitable(user) else user
                request.scope["flujo_user"] = name_of_user(user)
                request.scope["flujo_user_object"] = user
                return None if name_of_user(user) is not None else _no(401, "you are not signed in")


def name_of_user(user: object) -> str | None:
    """Return a user's name from `auth`; `None` if not admitted.

    A user is a non-empty string, or an object with such a `name` or `display_name`. If the object has
    `is_authenticated`, as users of Starlette and Django do, it must be True.
    """
    if isinstance(user, type) or getattr(user, "is_authenticated", True) is not True:
        return None
    for name in (user, getattr(user, "name", None), getattr(user, "display_name", None)):
        if isinstance(name, str) and name.strip():
            return name
    return None


def user_of(request: Request) -> str | None:
    """Name of the user who sends the request, if `auth` names users."""
    name: str | None = request.scope.get("flujo_user")
    return name


def refused_by_machine(request: Request) -> Response | None:
    """Return the refusal of a request from another machine, or None."""
    if any(name in request.headers for name in FORWARDED):
        return _no(403, _FORWARDED)
    return None if _is_local(request) else _no(403, _ONLY_HERE)


def _is_local(request: Request) -> bool:
    peer = request.client.host if request.client else ""
    return _is_loopback(peer) and _hostname(request.headers.get("host", "")) in _LOOPBACK_NAMES


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _hostname(host: str) -> str | None:
    if "@" in host:  # a user, which no browser sends
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _by_token(request: Request, auth: str | OneTimeLink) -> Response | None:
    token = auth if isinstance(auth, str) else auth.token
    pass_ = hashlib.sha256(f"flujo page {token}".encode()).hexdigest()
    if is_bearer(request, token) or _equal(request.cookies.get(COOKIE, ""), pass_):
        return None
    given = request.query_params.get("token", "")
    if request.method == "GET" and given and _opens(auth, given):
        answer = RedirectResponse("./", status_code=303)
        answer.set_cookie(COOKIE, pass_, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer
    return _no(401, _NOT_KNOWN)


def is_bearer(request: Request, token: str) -> bool:
    """Return whether a request has the token as a bearer."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and _equal(bearer.strip(), token)


def _opens(auth: str | OneTimeLink, given: str) -> bool:
    return _equal(given, auth) if isinstance(auth, str) else auth.opens(given)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _refused_post(headers: Headers) -> Response | None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or not _same_origin(headers):
        return _no(403, _FOREIGN)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 15 or int(length) > LONGEST_POST:
        return _no(413, f"that is too long: {LONGEST_POST:,} bytes can be sent")
    return None


def _same_origin(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host, origin = headers.get("host"), headers.get("origin", "")
    return bool(host) and origin in (f"http://{host}", f"https://{host}")


def _bounded(receive: Receive) -> Receive:
    """Read a body up to its limit, regardless of its declared length."""
    seen = 0

    async def received() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return message if seen <= LONGEST_POST else {"type": "http.disconnect"}

    return received


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["content-security-policy"] = POLICY
            headers["x-content-type-options"] = "nosniff"
            headers["referrer-policy"] = "no-referrer"
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sent


def _no(status: int, why: str) -> Response:
    return JsonAnswer({"error": why}, status_code=status)


def error_response(status: int, why: str, **facts: object) -> Response:
    """Return a refusal that the page shows as it is."""
    return JsonAnswer({"error": why, **facts}, status_code=status)


def checked_auth(auth: object) -> Auth:
    """Return a valid `auth` of a page; `DeclarationError` for any other."""
    if isinstance(auth, str):
        _refuse_short(auth)
        return auth
    if auth is None or callable(auth) or isinstance(auth, HostApp | OneTimeLink):
        return auth
    raise DeclarationError(f"auth must be a token, a callable of the request, or HOST_APP, not {auth!r}")


def _refuse_short(token: str) -> None:
    if len(token.strip()) < SHORTEST_TOKEN:
        raise DeclarationError(
            f"auth must be a token of at least {SHORTEST_TOKEN} characters, and this one has {len(token.strip())}: "
            "make one with secrets.token_urlsafe()"
        )


def with_refusals(answer: Answer) -> Answer:
    """Return an endpoint that reports refusals in the page's form."""

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
        except (DeclarationError, InvalidEvent) as error:
            return error_response(422, str(error))
        except FlujoError as error:
            return error_response(500, f"{type(error).__name__}: {error}")

    return answered


logger = logging.getLogger("flujo_actors")

Labels: TypeAlias = Mapping[str, str]
AskScope: TypeAlias = Callable[[Request, Any], "Labels | Awaitable[Labels | None] | None"]

AskAnswer: TypeAlias = Callable[[Any, Question], "bool | Awaitable[bool]"]

SCOPED = frozenset(
    {
        *("runs", "records", "record", "events", "graph", "compare", "export"),
        *(
            "now",
            "questions",
            "question",
            "answers",
            "diff",
            "context",
            "evaluation",
            "conversation",
            "overview",
            "pipeline",
        ),
        *("answer", "cancel", "fork", "resume", "retry", "start", "bulk", "wake", "steer"),
    }
)
"""Endpoints that are limited to the scope."""

_NAMED = ("run", "a", "b")
"""Parameters that name runs."""

_KEY = "flujo_scope"


def checked_scope(scope: object, store: Store) -> AskScope | None:
    """Return the scope of a page; `DeclarationError` if it is no function."""
    if scope is None:
        return None
    required(store, "set_labels", subject="a page with a scope", port="RunLabels")
    if callable(scope):
        return scope
    raise DeclarationError(f"scope must be a function of request and user that returns labels, not {scope!r:.100}")


async def scope_of(ask: AskScope, request: Request) -> LabelFilter | None:
    """Return the labels of the user's runs; `None` shows nothing (rule 2)."""
    got = await acapture(_scope_of, ask, request)
    if isinstance(got, Error):
        if not isinstance(got.error, Exception):
            raise got.error
        logger.error("the scope of the run page failed, so it shows nothing", exc_info=got.error)
        return None
    return got.value


async def _scope_of(ask: AskScope, request: Request) -> LabelFilter | None:
    found = ask(request, request.scope.get("flujo_user_object"))
    labels = await found if inspect.isawaitable(found) else found
    return None if labels is None else tuple(checked_labels(labels).items())


def checked_may_answer(given: object) -> AskAnswer | None:
    """Return the judge of answers; `DeclarationError` if it is no function."""
    if given is None or callable(given):
        return given
    raise DeclarationError(f"may_answer must be a function of user and question, not {given!r:.100}")


async def is_allowed(ask: AskAnswer, request: Request, question: Question) -> bool:
    """Return whether a user may answer a question (rule 6)."""
    got = await acapture(_may_answer, ask, request.scope.get("flujo_user_object"), question)
    if isinstance(got, Error):
        if not isinstance(got.error, Exception):
            raise got.error
        logger.error("may_answer of the run page failed, so the answer is refused", exc_info=got.error)
        return False
    return got.value


async def _may_answer(ask: AskAnswer, user: object, question: Question) -> bool:
    found = ask(user, question)
    return (await found if inspect.isawaitable(found) else found) is True


def keep_scope(request: Request, labels: LabelFilter) -> None:
    """Keep the scope of a request for its endpoint."""
    request.scope[_KEY] = labels


def labels_in_scope(request: Request) -> LabelFilter:
    """Return the labels that every run of a response must have."""
    labels: LabelFilter = request.scope.get(_KEY, ())
    return labels


def asked_labels(request: Request) -> LabelFilter:
    """Return the filter of a list: `?label=tenant:7`, inside the scope."""
    pairs = (text.partition(":") for text in request.query_params.getlist("label") if text)
    wanted = [checked_filter({name: value if colon else None}) for name, colon, value in pairs]
    return (*labels_in_scope(request), *(label for each in wanted[:MOST_LABELS] for label in each))


def named_runs(request: Request, body: Mapping[str, object]) -> Iterator[RunId]:
    """Yield every run that a request names."""
    for name in _NAMED:
        yield from (RunId(each) for each in request.query_params.getlist(name) if each)
        if name in body:  # also 0 and null: endpoints read them as texts
            yield RunId(str(body[name]))
    listed = body.get("runs")
    yield from (RunId(str(each)) for each in listed) if isinstance(listed, list) else ()
    for token in (body.get("token", ""), *request.query_params.getlist("token")):
        with contextlib.suppress(FlujoError):
            yield parse_token(str(token))[0]


def refuse_outside(store: Store, run_id: RunId, labels: LabelFilter) -> None:
    """Raise `RunNotFound` for a run outside the scope. Blocks."""
    check_in_scope(store, store.get(run_id), labels)


def check_in_scope(store: Store, run: StoredRun, labels: LabelFilter) -> None:
    """Raise `RunNotFound` for a stored run outside the scope. Blocks."""
    root = run if run.parent is None else store.get(run.parent)
    if not has_labels(root.labels, labels):
        raise not_found(run.run_id)


# --- Bulk actions inside a scope ----------------------------------------------------------------------------------
# Chosen runs are named by id. A filter has the parameters of the list and is limited to the scope. It is confirmed: its
# preview returns the number of runs and the time; the action names both. Runs that were created later are left out,
# and more runs than confirmed are refused.


@attrs.frozen
class _BulkKind:
    title: str
    past: str
    will: str
    note: str
    fits: tuple[RunStateName, ...]


_ENDED_STATES: tuple[RunStateName, ...] = ("completed", "failed", "aborted")
_BULK = {
    "retry": _BulkKind(
        "Retry", "Retried", "will be retried", "Steps that have succeeded are kept.", ("failed", "aborted")
    ),
    "cancel": _BulkKind(
        "Cancel",
        "Cancelled",
        "will be cancelled",
        "Completed steps are compensated.",
        tuple(each for each in RUN_STATES if each not in (*_ENDED_STATES, "cancelling")),
    ),
    "delete": _BulkKind(
        "Delete",
        "Deleted",
        "will be deleted for good",
        "Records, questions and labels are deleted with them.",
        _ENDED_STATES,
    ),
}
MOST_CHOSEN = 200
_CONFIRM = "confirm the number of runs: send `count` and `before_ms` of the preview"
_REFUSED = f"a bulk action is one of {', '.join(_BULK)}, of at most {MOST_CHOSEN} runs"


@attrs.frozen
class BulkRequest:
    """A checked bulk action of the page."""

    action: str
    where: RunFilter
    reason: str
    count: int | None = None
    """Confirmed number of runs of a filter."""
    dry_run: bool = False

    def done(self, store: Store) -> dict[str, object]:
        """Do it, or count its runs, and return the counts. Blocks."""
        if self.dry_run:
            return self._preview(store)
        if self.count is not None:
            _check_count(len(self._matching(store, fitting=True)), self.count)
        report = self._report(RunClient(store, allow_blocking=True))
        left = f", {report.skipped_count:,} left out" if report.skipped_count else ""
        facts = {"done": report.done, "skipped": dict(report.skipped), "skipped_count": report.skipped_count}
        return {**facts, "sentence": f"{_BULK[self.action].past}: {_runs_text(report.done)}{left}."}

    def _preview(self, store: Store) -> dict[str, object]:
        kind, fitting = _BULK[self.action], self._matching(store, fitting=True)
        left = len(self._matching(store, fitting=False)) - len(fitting)
        rest = f", {left:,} {'is' if left == 1 else 'are'} left out" if left else ""
        title = f"{kind.title} {_runs_text(len(fitting) + left)}"
        facts = {"title": title, "sentence": f"{len(fitting):,} {kind.will}{rest}.", "note": kind.note}
        chosen = None if self.where.run_ids is None else fitting
        return {**facts, "submit": f"{kind.title} {len(fitting):,}", "count": len(fitting), "fit": chosen}

    def _matching(self, store: Store, *, fitting: bool) -> list[RunId]:
        where = self._fitting() if fitting else self.where
        pages = matching_runs(store, where, within_s=KNOWN_FOR_S)
        return [run.run_id for page in pages for run, _ in page]

    def _fitting(self) -> RunFilter:
        fits, asked = _BULK[self.action].fits, self.where.state
        return attrs.evolve(self.where, state=fits if asked is None else [each for each in asked if each in fits])

    def _report(self, client: RunClient) -> BulkReport:
        where = self.where if self.count is None else self._fitting()
        match self.action:
            case "retry":
                return client.bulk_retry(where, reason=self.reason)
            case "cancel":
                return client.bulk_cancel(where, self.reason)
            case _:
                return client.bulk_delete(where)


def _runs_text(number: int) -> str:
    return f"{number:,} run{'' if number == 1 else 's'}"


def _check_count(number: int, count: int) -> None:
    if number > count:
        raise DeclarationError(
            f"{number:,} runs match now, and {count:,} were confirmed: nothing was changed; look at the list again"
        )


def bulk_request(body: Mapping[str, object], scope: LabelFilter, by: str | None) -> BulkRequest:
    """Return the action of a request; `DeclarationError` for a wrong one."""
    action, ids = str(body.get("action", "")), body.get("runs")
    reason = str(body.get("reason") or f"{action} from the page") + (f" by {by}" if by else "")
    where = body.get("where")
    if action not in _BULK:
        raise DeclarationError(_REFUSED)
    if isinstance(where, dict):
        return _of_filter(action, where, scope, reason, body)
    if not isinstance(ids, list) or len(ids) > MOST_CHOSEN:
        raise DeclarationError(_REFUSED)
    where_ids = RunFilter(run_ids=[str(each) for each in ids])
    return BulkRequest(action, where_ids, reason, dry_run=body.get("dry_run") is True)


def _of_filter(
    action: str, where: Mapping[str, object], scope: LabelFilter, reason: str, body: Mapping[str, object]
) -> BulkRequest:
    if body.get("dry_run") is True:
        return BulkRequest(action, _filter(where, scope, before=None), reason, dry_run=True)
    count, before_ms = body.get("count"), body.get("before_ms")
    if type(count) is not int or type(before_ms) is not int:
        raise DeclarationError(_CONFIRM)
    return BulkRequest(action, _filter(where, scope, before=before_ms / 1000), reason, count)


def _filter(where: Mapping[str, object], scope: LabelFilter, *, before: float | None) -> RunFilter:
    """Return the runs of the list's parameters, inside the scope (rule 1)."""
    state, days = str(where.get("status") or ""), str(where.get("days") or "")
    if state and state not in RUN_STATES:
        raise DeclarationError(f"there is no state {state!r}; a run is {', '.join(RUN_STATES)}")
    since = time.time() - int(days) * 86_400 if days.isdecimal() and 0 < len(days) < 5 else None
    return RunFilter(
        state=next((each for each in RUN_STATES if each == state), None),
        pipeline=str(where.get("pipeline") or "") or None,
        search=str(where.get("q") or "") or None,
        labels=_labels(where.get("label"), scope),
        created_after=since,
        created_before=before,
        all=True,
    )


def _labels(asked: object, scope: LabelFilter) -> dict[str, str | None]:
    texts: Sequence[object] = asked if isinstance(asked, list) else []
    pairs = [str(each).partition(":") for each in texts]
    wanted: dict[str, str | None] = {name: value if colon else None for name, colon, value in pairs}
    for name, value in scope:
        if name in wanted and wanted[name] not in (None, value):
            raise DeclarationError(f"the label {name!r} of the filter is outside of your runs")
    return {**wanted, **dict(scope)}
