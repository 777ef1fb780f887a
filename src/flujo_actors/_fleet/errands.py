"""One remote step that somebody waits for, and what the office says of it to the store; all that blocks is here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from .. import errors
from .._core import record_bodies
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.records import Admission, Lease, OpenPause, Record, StoredRun, StoredStatus, has_ended
from .._core.usage import NO_USAGE, Usage
from .._durable.journal import Answered
from ..stores._port import Store
from .port import Ticket
from .seen_journal import SeenJournal
from .streaming import Reader
from .submitting import Counter

PARKED = "nobody waits for this remote step any more; it goes on when its run does"
"""Why a remote step is put to rest, as its worker is told: it does not end then."""

_TOGETHER = 200
"""How many remote steps are admitted in one transaction."""


@attrs.frozen(kw_only=True)
class Answer:
    """The answer to a question of a remote step."""

    path: StepPath
    token: str
    record: Record


@attrs.frozen(kw_only=True)
class End:
    """How a remote step came to rest, as far as its own record does not say it."""

    status: StoredStatus
    feedback: str = ""
    error: BaseException | None = None
    """What ends the whole run, if the step was ended by that."""
    usage: Usage = NO_USAGE
    """What it had used by then."""


@attrs.define(kw_only=True, eq=False)
class Errand:
    """A remote step, or several that went together, and those who wait for it."""

    child: RunId
    ticket: Ticket
    admission: Admission | None = None
    """`None` until it is handed over."""
    answers: list[Answer] = attrs.field(factory=list)
    told: trio.Event = attrs.field(factory=trio.Event)
    """Set when there may be something to read."""
    readers: int = 0
    error: BaseException | None = None
    sure: bool = False
    """Whether it was handed in, so that the store must know it: that may take longer than until the next look."""
    due: float = 0.0
    """When it may be asked for again, on the monotonic clock."""
    stopped: trio.Event | None = None
    reading: trio.Lock = attrs.field(factory=trio.Lock)
    begun: bool = False
    """Whether a worker has begun it, as far as is known since it was stopped."""
    journal: SeenJournal | None = None
    end: End | None = None

    reader: Reader | None = None
    """Who takes in what the step says, if somebody iterates the run."""

    def heard(self, kind: str, rest: Any) -> None:
        """A signal has come."""
        if kind == ENDED:
            self.told.set()
        if self.reader is not None:
            self.reader.end() if kind == ENDED else self.reader.hear(rest)


ENDED = "ended"


# --- what blocks --------------------------------------------------------------------------------------------


def handed_in(store: Store, counter: Counter, errands: Sequence[Errand], reply: str | None) -> list[Errand]:
    """Admit remote steps and tell of them; those that were done before come back."""
    done: list[Errand] = []
    for start in range(0, len(errands), _TOGETHER):
        part = errands[start : start + _TOGETHER]
        answers = counter.admit([_admission(errand) for errand in part], [errand.ticket for errand in part])
        new = [errand for errand, answer in zip(part, answers, strict=True) if isinstance(answer, Lease)]
        known = [errand for errand in part if errand not in new]
        if known and reply is not None and hasattr(store, "readdress"):  # somebody else has asked for them
            store.readdress([errand.child for errand in known], reply)
        done.extend(_taken_up(store, counter, known))
    for errand in errands:
        errand.sure = True
    return done


def _admission(errand: Errand) -> Admission:
    assert errand.admission is not None
    return errand.admission


def _taken_up(store: Store, counter: Counter, errands: Sequence[Errand]) -> list[Errand]:
    """Go on with remote steps that are there; those that are at rest come back."""
    for errand in errands:
        for answer in errand.answers:
            with contextlib.suppress(errors.NotPaused):  # it was passed on before
                store.answer(errand.child, answer.path, token=answer.token, record=answer.record)
    stood = {run.run_id: run for run in store.standing([errand.child for errand in errands])}
    resting = [errand for errand in errands if _rests(stood[errand.child])]
    if resting:
        asked_again(store, counter, resting)
    return [errand for errand in errands if _is_told(stood[errand.child]) and errand not in resting]


def _rests(run: StoredRun) -> bool:
    """Whether it goes on when it is asked to; one that asks for new limits tries: others may have been given them."""
    return run.status == "paused" and all(_is_about_limits(pause) for pause in run.pauses)


def _is_about_limits(pause: OpenPause) -> bool:
    question = json.loads(pause.body).get("question")
    return question is not None and question["kind"] == "limits"


def _is_told(run: StoredRun) -> bool:
    return has_ended(run.status) or (run.status == "paused" and bool(run.pauses))


def asked_again(store: Store, counter: Counter, errands: Sequence[Errand]) -> None:
    """Nobody works on these: have them worked on."""
    store.requeue([errand.child for errand in errands])
    counter.again([errand.ticket for errand in errands])


def parked(store: Store, counter: Counter, children: Sequence[RunId]) -> None:
    """Nobody waits for these: put them to rest."""
    store.park(children, reason=PARKED)
    counter.withdraw(children)


def end_in(records: Sequence[Record], *, where: str) -> End | None:
    """How a remote step came to rest by its records, if it has."""
    last = next((record for record in reversed(records) if record.kind in ("ended", "resumed", "answered")), None)
    if last is None or last.kind != "ended":
        return None
    body = record_bodies.read_body(last.body, where=where)
    return End(
        status=body["status"],
        feedback=str(body.get("feedback") or ""),
        error=_control_error(body.get("control")),
        usage=record_bodies.read_usage(body.get("usage"), where=where),
    )


def control_data(error: BaseException) -> dict[str, object] | None:
    """What ends the whole run, as JSON data, if it is known by name everywhere."""
    name = type(error).__name__
    if _control_type(name) is None:
        return None
    return {"type": name, "message": str(error), "limits": list(getattr(error, "limits", ()))}


def _control_error(data: Any) -> BaseException | None:
    kind = _control_type(data["type"]) if isinstance(data, dict) else None
    if kind is None:
        return None
    error = kind(data["message"])
    if isinstance(error, errors.UsageLimitExceededError):
        error.limits = tuple(data.get("limits", ()))
    return error


def _control_type(name: str) -> type[errors.ControlError] | None:
    """One of the library's own: nothing else is made because a record names it."""
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, errors.ControlError) else None


def answer_of(answered: Answered) -> Answer:
    """An answer to the caller's run, for the remote step that asked."""
    body = record_bodies.make_body(answer=record_bodies.stored_value(answered.answer))
    path = answered.pause.path
    token = answered.pause.paused.state_token or ""
    return Answer(path=path, token=token, record=Record(kind="answered", path=path, body=body))
