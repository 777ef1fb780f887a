"""Webhooks: messages about questions and ended runs to application endpoints.

Rules:

1. A message is written in the transaction that stores the question or the end, with its whole body. A process that dies
   between commit and delivery loses nothing.
2. Workers deliver. A claimed message is invisible to others for `CLAIM_S`; after a crash it is delivered again, under
   the same id. So a receiver gets it at least once.
3. A status of 2xx ends a message. Otherwise it is sent again after `DELAYS_S`, by the clock of the store; then it has
   failed.
4. Only the key of a webhook is stored, a hash of its URL. The delivering worker has URL and secret from its own
   declaration; a message without such a worker waits.
5. The admission of a run names its webhooks, so that a client without the pipeline can report a cancelled run, and a
   question that it defers: that has another token.
6. The address is resolved before each delivery, and the connection is made to that address. Addresses that are not
   global are refused unless `allow_private`. Redirects are not followed.

Sections:

- Declaration of a webhook, and its signature (Standard Webhooks).
- Messages of a run.
- Delivery by a worker.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args
from urllib.parse import SplitResult, urlsplit

import attrs
import trio
from outcome import Error

from ..._bridge.user_code_guard import guarded
from ..._core.error_info import message_of
from ..._core.labels import Labels, checked_filter, has_labels
from ..._core.outcomes import PipelineResult, RunId
from ..._core.policies.approval_policy import answer_schema, read_question
from ..._core.records.json_codec import json_of, untagged
from ..._core.records.record_bodies import read_body
from ..._core.records.records import Admission, OpenPause, OutboxMessage, StoredRun, has_ended
from ..._core.validators import suggests_options
from ...errors import DeclarationError, NotSerializable
from ...stores._store_port import Store, required
from ..journal import Pause
from ..store_executor import call_store

logger = logging.getLogger("flujo_actors")

# --- Declaration of a webhook -------------------------------------------------------------------------------------


WebhookEvent: TypeAlias = Literal["question", "ended"]
"""Event of a run that a webhook reports."""

_NOTED = "webhooks"
"""Key of a run's webhooks in its admission."""

_PREFIX = "whsec_"
"""Beginning of a secret in base64, as Standard Webhooks writes it."""


@suggests_options
@attrs.frozen
class Webhook:
    """Endpoint that receives questions and ended runs.

    Args:
        url: address of the endpoint.
        secret: key of the signature; with `whsec_` it is base64.
        on: events: `"question"`, `"ended"`.
        labels: labels that a run must have, as in `RunClient.list`.
        content: whether prompts and outputs are sent.
        allow_private: whether private and loopback addresses are allowed.

    Raises:
        DeclarationError: the address, the secret or an event is not valid.

    Example:
        ```python
        hook = Webhook("https://example.org/hooks", secret="whsec_c2VjcmV0IG9mIHRoZSByZWNlaXZlcg==", on=("ended",))
        flujo = Flujo(Step("greet", str.upper), store="sqlite:///runs.db", webhooks=[hook])
        flujo.run("ada", run_id="r1")
        assert RunClient("sqlite:///runs.db").webhooks(run_id="r1")[0].status == "pending"
        ```
    """

    url: str
    secret: str = attrs.field(kw_only=True, repr=False)
    """Key of the signature; `whsec_…` is base64. It is never stored."""
    on: tuple[WebhookEvent, ...] = attrs.field(default=("question", "ended"), kw_only=True)
    labels: Mapping[str, str | None] | None = attrs.field(default=None, kw_only=True, hash=False)
    content: bool = attrs.field(default=False, kw_only=True)
    allow_private: bool = attrs.field(default=False, kw_only=True)
    """Whether private, loopback and link-local addresses are allowed."""

    def __attrs_post_init__(self) -> None:
        parts = _checked_url(self.url)
        if not isinstance(self.secret, str) or not self.secret:
            raise DeclarationError(f"Webhook {_shown(parts)}: secret must be a non-empty text")
        _key_of(self.secret, _shown(parts))
        object.__setattr__(self, "on", _checked_events(self.on, _shown(parts)))
        checked_filter(self.labels)
        for name in ("content", "allow_private"):
            if not isinstance(getattr(self, name), bool):
                raise DeclarationError(f"Webhook {_shown(parts)}: {name} must be True or False")

    @property
    def key(self) -> str:
        """Return the stored name of the endpoint: a hash of its URL."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:32]

    @property
    def shown(self) -> str:
        """Return the URL without credentials and query, for listings."""
        return _shown(urlsplit(self.url))

    def headers(self, message_id: str, body: bytes, *, now: float) -> dict[str, str]:
        """Return the headers of Standard Webhooks for one delivery."""
        signed = b".".join((message_id.encode(), str(int(now)).encode(), body))
        digest = hmac.new(_key_of(self.secret, self.shown), signed, hashlib.sha256).digest()
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now)),
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


def _checked_events(on: object, shown: str) -> tuple[WebhookEvent, ...]:
    events = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Iterable) else ()
    if not events or any(each not in get_args(WebhookEvent) for each in events):
        known = " and ".join(map(repr, get_args(WebhookEvent)))
        raise DeclarationError(f"Webhook {shown}: on takes {known}, not {on!r:.100}")
    return events


def _checked_url(url: object) -> SplitResult:
    parts = urlsplit(url) if isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url else None
    try:
        is_valid = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and parts is not None and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        is_valid = False
    if parts is None or not is_valid:
        raise DeclarationError("Webhook: url must be an address like https://example.org/hooks")
    if parts.username is not None or parts.password is not None:
        raise DeclarationError(f"Webhook {_shown(parts)}: the URL must not contain a user or a password")
    return parts


def _shown(parts: SplitResult) -> str:
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _key_of(secret: str, shown: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise DeclarationError(f"Webhook {shown}: the secret after {_PREFIX!r} is not base64") from None


@attrs.frozen(eq=False)
class Webhooks:
    """Webhooks of a pipeline."""

    hooks: tuple[Webhook, ...]

    def noted(self, admission: Admission) -> Admission:
        """Return an admission that names the webhooks of its run (rule 5)."""
        facts = [
            {"key": each.key, "url": each.shown, "on": list(each.on), **({"content": True} if each.content else {})}
            for each in self.hooks
            if has_labels(admission.labels, checked_filter(each.labels))
        ]
        body = f'{admission.body[:-1]},"{_NOTED}":{json.dumps(facts)}}}' if facts else admission.body
        return attrs.evolve(admission, body=body)

    def messages(self, run_id: RunId, pipeline: str, labels: Labels) -> RunMessages:
        """Return the messages about one run."""
        return RunMessages(hooks=self.hooks, run_id=run_id, pipeline=pipeline, labels=labels)

    def sender(self, store: Store, *, owner: str, redact: Callable[[str], str]) -> WebhookSender:
        """Return the delivery for one worker."""
        return WebhookSender(store=store, hooks={each.key: each for each in self.hooks}, owner=owner, redact=redact)


def checked_webhooks(given: object, store: Store | None) -> Webhooks | None:
    """Return the webhooks of a pipeline; `DeclarationError` if they cannot work."""
    hooks = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | Webhook) else (given,)
    for each in hooks:
        if not isinstance(each, Webhook):
            raise DeclarationError(f"webhooks must be a list of Webhook(url, secret=…), not {given!r:.100}")
    if hooks and store is None:
        raise DeclarationError("webhooks need a store: their messages are stored with the runs; pass `store` to Flujo")
    if hooks and store is not None:
        required(store, "claim_messages", subject="webhooks", port="RunOutbox")
    if len({each.key for each in hooks}) < len(hooks):
        raise DeclarationError("webhooks: two have the same URL")
    return Webhooks(hooks) if hooks else None


# --- Messages of a run --------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class RunMessages:
    """Messages about one run, for the transactions that write its changes."""

    hooks: Sequence[Webhook]
    run_id: RunId
    pipeline: str
    labels: Labels
    wall: Callable[[], float] = time.time

    def pause_messages(self, pause: Pause, schema: object) -> tuple[OutboxMessage, ...]:
        """Return the messages about a question; `schema` is that of plain answers."""
        spec = pause.question
        if spec is not None and spec.wait is not None:  # it needs no person
            return ()
        facts = {
            "state": "waiting",
            "token": pause.paused.state_token,
            "to": None if spec is None else spec.facts.get("to"),
            "schema": answer_schema(spec, pause.path, schema if isinstance(schema, Mapping) else None),
        }
        return self._all("question", facts, {"message": pause.paused.message})

    def ended(self, result: PipelineResult) -> tuple[OutboxMessage, ...]:
        """Return the messages about a run's end; none for a pause."""
        if not has_ended(result.status):
            return ()
        facts = {"state": result.status, "token": None, "to": None, "schema": None}
        return self._all("ended", facts, {"output": _plain(result.output)})

    def _all(
        self, event: WebhookEvent, facts: Mapping[str, object], content: Mapping[str, object]
    ) -> tuple[OutboxMessage, ...]:
        fitting = [
            hook for hook in self.hooks if event in hook.on and has_labels(self.labels, checked_filter(hook.labels))
        ]
        return tuple(self._message(hook, event, facts, content if hook.content else {}) for hook in fitting)

    def _message(
        self, hook: Webhook, event: WebhookEvent, facts: Mapping[str, object], content: Mapping[str, object]
    ) -> OutboxMessage:
        fields = {**facts, **content}
        return _message_to(hook.key, hook.shown, event, self.run_id, self.pipeline, self.labels, fields, at=self.wall())


def aborted_messages(run: StoredRun, admitted: Mapping[str, object]) -> tuple[OutboxMessage, ...]:
    """Return the messages about a run ended without its pipeline.

    `admitted` is the body of its admission. The messages have no content.
    """
    facts = {"state": "aborted", "token": None, "to": None, "schema": None}
    return tuple(_noted_message(each, "ended", run, facts) for each in _noted(admitted, "ended"))


def deferred_messages(run: StoredRun, admitted: Mapping[str, object], pause: OpenPause) -> tuple[OutboxMessage, ...]:
    """Return the messages about a deferred question, which has a new token."""
    body = read_body(pause.body, where="a deferred question")
    schema = answer_schema(read_question(body.get("question")), pause.path, body.get("schema"))
    facts = {"state": "waiting", "token": pause.token, "to": pause.to, "schema": schema}
    fields = {False: facts, True: {**facts, "message": pause.message}}
    hooks = _noted(admitted, "question")
    return tuple(_noted_message(each, "question", run, fields[each.get("content") is True]) for each in hooks)


def _noted(admitted: Mapping[str, object], event: WebhookEvent) -> list[Mapping[str, object]]:
    """Return the webhooks of an admission that report an event."""
    noted = admitted.get(_NOTED)
    found = [each for each in noted if isinstance(each, dict)] if isinstance(noted, list) else []
    return [each for each in found if event in each.get("on", ())]


def _noted_message(
    hook: Mapping[str, object], event: WebhookEvent, run: StoredRun, facts: Mapping[str, object]
) -> OutboxMessage:
    return _message_to(str(hook.get("key")), str(hook.get("url")), event, run.run_id, run.pipeline, run.labels, facts)


def _message_to(
    key: str,
    url: str,
    event: WebhookEvent,
    run_id: RunId,
    pipeline: str,
    labels: Labels,
    facts: Mapping[str, object],
    at: float | None = None,
) -> OutboxMessage:
    message_id = f"msg_{os.urandom(16).hex()}"
    about = {"type": event, "id": message_id, "run_id": run_id, "pipeline": pipeline, "labels": dict(labels)}
    body = {**about, "at": time.time() if at is None else at, **facts}
    text = json.dumps(body, separators=(",", ":"))
    return OutboxMessage(id=message_id, hook=key, url=url, event=event, body=text)


def _plain(value: object) -> object:
    try:
        return untagged(json.loads(json_of(value)))
    except NotSerializable:  # the run is stored, its output cannot be
        return None


# --- Delivery by a worker -----------------------------------------------------------------------------------------


DELAYS_S = (5.0, 30.0, 120.0, 600.0, 3600.0, *(3600.0,) * 24)
"""Delays of the attempts after the first; then a message has failed."""

CLAIM_S = 30.0
"""Time for which a claimed message is invisible to other workers."""

TIMEOUT_S = 10.0
"""Timeout of one delivery."""

POLL_S = 1.0
"""Interval at which a worker looks for messages."""

AT_ONCE = 16
"""Number of deliveries of one worker at the same time."""

_LONGEST_LINE = 8192


class DeliveryError(Exception):
    """A delivery did not succeed; the message has the reason."""


@attrs.frozen(kw_only=True, eq=False)
class WebhookSender:
    """Delivery of a store's messages for one worker; see the rules."""

    store: Store
    hooks: Mapping[str, Webhook]
    owner: str
    redact: Callable[[str], str]
    wall: Callable[[], float] = time.time
    _free: trio.CapacityLimiter = attrs.field(factory=functools.partial(trio.CapacityLimiter, AT_ONCE), init=False)

    async def run(self, stop: Callable[[], bool]) -> None:
        """Deliver due messages until the worker stops."""
        async with trio.open_nursery() as deliveries:
            while not stop():
                got = await guarded(self._begin_due, deliveries)
                if isinstance(got, Error):
                    logger.warning("webhooks are not delivered (%s)", self.redact(message_of(got.error)))
                await trio.sleep(POLL_S)

    async def flush(self) -> None:
        """Deliver the messages that are due now, each once."""
        more = True
        while more:
            async with trio.open_nursery() as deliveries:
                got = await guarded(self._begin_due, deliveries)
                more = not isinstance(got, Error) and got.value > 0

    async def _begin_due(self, deliveries: trio.Nursery) -> int:
        """Start the delivery of due messages; return their number."""
        free = int(self._free.available_tokens)
        if free == 0:
            return 0
        claim = functools.partial(
            self.store.claim_messages, list(self.hooks), owner=self.owner, for_s=CLAIM_S, limit=free
        )
        claimed = await call_store(claim)
        for message in claimed:
            deliveries.start_soon(self._deliver, message)
        return len(claimed)

    async def _deliver(self, message: OutboxMessage) -> None:
        async with self._free:
            error = await self._sent(message)
            left = DELAYS_S[message.attempts :]
            after_s = left[0] if error is not None and left else None
            settle = functools.partial(
                self.store.settle_message, message.id, owner=self.owner, error=error, after_s=after_s
            )
            got = await guarded(call_store, settle)
        if isinstance(got, Error):  # it is sent again after its claim
            logger.warning("webhook message %s is not settled: %s", message.id, self.redact(message_of(got.error)))
        elif error is not None and after_s is None:
            logger.error("webhook message %s to %s has failed: %s", message.id, message.url, error)

    async def _sent(self, message: OutboxMessage) -> str | None:
        """Send a message; return the reason of a failure."""
        hook, body = self.hooks[message.hook], message.body.encode()
        headers = hook.headers(message.id, body, now=self.wall())
        try:
            with trio.fail_after(TIMEOUT_S):
                status = await posted(hook, body, headers)
        except trio.TooSlowError:
            return f"no answer within {TIMEOUT_S:g} s"
        except (OSError, trio.BrokenResourceError, ssl.SSLError, DeliveryError) as error:
            return self.redact(f"{type(error).__name__}: {error}")[:500]
        return None if 200 <= status < 300 else f"status {status}"


async def posted(hook: Webhook, body: bytes, headers: Mapping[str, str]) -> int:
    """Send one POST request; return the status of its response."""
    parts = urlsplit(hook.url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    stream: trio.abc.Stream = await _connected(await _address_of(host, port, hook.allow_private), port)
    async with stream:
        if parts.scheme == "https":
            stream = trio.SSLStream(stream, ssl.create_default_context(), server_hostname=host, https_compatible=True)
        await stream.send_all(_request(parts, headers, body))
        return await _status_of(stream)


async def _address_of(host: str, port: int, allow_private: bool) -> str:
    """Return an address of a host that may be used (rule 6)."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(place[0]) for *_, place in found]
    allowed = [each for each in addresses if allow_private or _is_public(each)]
    if not allowed:
        raise DeliveryError(
            f"the address of {host!r} is {', '.join(dict.fromkeys(addresses))}, which is not public; "
            "Webhook(allow_private=True) allows it"
        )
    return allowed[0]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None or int(address) >> 32 == 0x64FF9B << 64:  # also behind NAT64
            return _is_public(str(inner or ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
    return address.is_global and not address.is_multicast


async def _connected(address: str, port: int) -> trio.SocketStream:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(trio.socket.socket(family, socket.SOCK_STREAM))
        await made.connect((address, port))
        stack.pop_all()
    return trio.SocketStream(made)


def _request(parts: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else str(parts.hostname)
    named = {
        "host": host if parts.port is None else f"{host}:{parts.port}",
        "user-agent": "flujo-actors",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def _status_of(stream: trio.abc.ReceiveStream) -> int:
    """Return the final status of a response; interim ones are skipped."""
    got = b""
    while True:
        while b"\r\n\r\n" not in got:
            more = await stream.receive_some(4096)
            if not more or len(got) > _LONGEST_LINE:
                return _status_in(got)
            got += more
        head, _, got = got.partition(b"\r\n\r\n")
        status = _status_in(head)
        if status >= 200:
            return status


def _status_in(head: bytes) -> int:
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit() or len(words[1]) != 3:
        raise DeliveryError("the response is not HTTP")
    return int(words[1])
