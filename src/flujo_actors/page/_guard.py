"""Who may see the page, and what a browser may do with it: an ASGI middleware.

Rules:

1. Without `auth` only this machine is answered: the peer and the `Host` that it asked for are both loopback, since a
   name of somebody else's may point here (DNS rebinding).
2. `auth` is a token (as a bearer, or once in the address, which becomes a cookie), a callable `request -> user | None`,
   or `HOST_APP`: then the application around the page has seen to it.
3. What changes something comes as JSON, from a page of the same origin, and is not long.
4. Every answer tells the browser to load nothing from anywhere else, and to take no text for a script.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import attrs
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._json import JsonAnswer

User: TypeAlias = str
AskUser: TypeAlias = Callable[[Request], "User | Awaitable[User | None] | None"]


class HostApp:
    """The kind of `HOST_APP`, of which there is one."""

    def __repr__(self) -> str:
        return "HOST_APP"


HOST_APP: Final = HostApp()
"""Says that the application around the page lets in only whom it knows."""

COOKIE = "flujo_page"
LONGEST_POST = 1_000_000

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html"
)

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ONLY_HERE = (
    "this page shows runs to this machine only: open it as localhost, or say with run_page(store, auth=…) who may see "
    "it (a token, a function of the request, or HOST_APP if the application around it has seen to that)"
)
_NOT_KNOWN = "you are not signed in: open the page by the link with its token, or send it as a bearer"
_FOREIGN = "only this page itself may change runs: send JSON, from the same origin"


@attrs.define(eq=False)
class OneTimeLink:
    """A token that opens the page once; whoever came that way is known by a cookie from then on."""

    token: str
    used: bool = False

    def opens(self, given: str) -> bool:
        """Whether the token is right and nobody has used it."""
        if self.used or not hmac.compare_digest(given.encode(), self.token.encode()):
            return False
        self.used = True
        return True


Auth: TypeAlias = str | OneTimeLink | AskUser | HostApp | None


@attrs.frozen(eq=False)
class Guard:
    """Stands before the page; see the module's rules."""

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
        entered = await self._entry(request)
        if entered is not None:
            return entered
        if request.method == "POST":
            return _refused_post(request.headers)
        return None if request.method in ("GET", "HEAD") else _no(405, f"nothing here takes a {request.method}")

    async def _entry(self, request: Request) -> Response | None:
        match self.auth:
            case None:
                return None if _is_here(request) else _no(403, _ONLY_HERE)
            case HostApp():
                return None
            case str() | OneTimeLink() as token:
                return _by_token(request, token)
            case ask:
                user = ask(request)
                user = await user if inspect.isawaitable(user) else user
                request.scope["flujo_user"] = user
                return None if user is not None else _no(401, "you are not signed in")


def user_of(request: Request) -> str | None:
    """Who sends the request, if the page was told how to know."""
    user = request.scope.get("flujo_user")
    return None if user is None else str(user)


def _is_here(request: Request) -> bool:
    peer = request.client.host if request.client else ""
    return _is_loopback(peer) and _hostname(request.headers.get("host", "")) in _LOOPBACK_NAMES


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _by_token(request: Request, auth: str | OneTimeLink) -> Response | None:
    token = auth if isinstance(auth, str) else auth.token
    pass_ = hashlib.sha256(f"flujo page {token}".encode()).hexdigest()
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    if _equal(request.cookies.get(COOKIE, ""), pass_) or _equal(bearer, token):
        return None
    given = request.query_params.get("token", "")
    if request.method == "GET" and given and _opens(auth, given):
        answer = RedirectResponse("./", status_code=303)
        answer.set_cookie(COOKIE, pass_, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer
    return _no(401, _NOT_KNOWN)


def _opens(auth: str | OneTimeLink, given: str) -> bool:
    return _equal(given, auth) if isinstance(auth, str) else auth.opens(given)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _refused_post(headers: Headers) -> Response | None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or not _same_origin(headers):
        return _no(403, _FOREIGN)
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > LONGEST_POST:
        return _no(413, f"that is too long: {LONGEST_POST:,} bytes can be sent")
    return None


def _same_origin(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == headers.get("host")


def _bounded(receive: Receive) -> Receive:
    """A body is read up to its bound, whatever its length was said to be."""
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
    """A refusal that the page shows as it is."""
    return JsonAnswer({"error": why, **facts}, status_code=status)
