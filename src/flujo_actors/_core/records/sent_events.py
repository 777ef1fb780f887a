"""Events sent to waiting runs.

Rules:

1. A wait and an event match if their names and their keys are equal.
2. One wait consumes one event: the oldest that is buffered, or the next that is sent.
3. The id of an event is unique for its name, for a time.
4. The data is checked against the JSON Schema of the wait that would get it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from ..outcomes import RunId
from ..step_paths import StepPath
from .record_bodies import read_value
from .records import OpenPause, Record

EventStatus: TypeAlias = Literal["buffered", "delivered", "refused"]
"""Status of a stored event."""


Fate: TypeAlias = Literal["delivered", "buffered"]
"""Status of an event when it is accepted."""


@attrs.frozen
class Sent:
    """Result of sending an event."""

    id: str
    """Id of the event."""
    status: Literal["delivered", "buffered", "duplicate"]
    """Whether a wait consumed it, it is stored, or it was sent before."""
    delivered_to: tuple[str, ...] = ()
    """Runs that received it."""


SteerWhen: TypeAlias = Literal["next_turn", "when_done"]
"""Turn that contains a message: the next one, or one more after the last."""


@attrs.frozen
class Steered:
    """Result of steering an agent."""

    id: str
    """Id of the message."""
    seq: int
    """Number of its record; messages are delivered in this order."""
    status: Literal["queued", "delivered", "duplicate"]
    """Whether it is queued, was delivered, or was sent before."""


@attrs.frozen(kw_only=True)
class SteeringMessage:
    """A stored message to a granular step."""

    id: str
    seq: int
    path: StepPath
    content: Any
    """Text, or a list of contents as in a prompt."""
    when: SteerWhen = "next_turn"


class Steering(Protocol):
    """Optional: messages to granular steps of unfinished runs."""

    def steer(self, run_id: RunId, *, record: Record, after: int) -> int | None:
        """Append a `steered` record; return its number, `None` after the end.

        Return 0 and write nothing if the run has a newer message than number `after`. No lease is needed, as for
        `answer`; the owner receives a `MessageNotice`. Raise `RunNotFound` if there is no such run.
        """


@attrs.frozen(kw_only=True)
class EventInfo:
    """A stored event at a glance."""

    id: str
    """Id of the event."""
    event: str
    """Name of the event."""
    key: str
    """Key of the event."""
    status: EventStatus
    """Whether a wait consumed it."""
    sent_at: float
    """Time of acceptance in seconds since the epoch."""
    data: Any = None
    """Data of the event."""
    by: str | None = None
    """Sender, as given; not verified."""
    delivered_to: tuple[str, ...] = ()
    """Runs that received it."""
    refused_by: str | None = None
    """Run whose wait did not accept the data."""
    reason: str | None = None
    """Reason of a refusal."""


@attrs.frozen(kw_only=True)
class OutgoingEvent:
    """Event that is about to be sent."""

    event: str
    key: str
    id: str
    body: str
    """Body of the record that ends a wait with it."""
    by: str | None = None
    to_all: bool = False
    """Whether every open wait gets it, and none later."""
    retain_s: float
    """Time in which a later wait may consume it."""
    dedupe_s: float
    """Time in which its id is not accepted again."""

    @property
    def keep_s(self) -> float:
        """Return the seconds until its row may be deleted."""
        return max(self.retain_s, self.dedupe_s)


Accepts: TypeAlias = Callable[[str, OpenPause], None]
"""Raise `InvalidEvent` if the wait of a run does not accept the data."""


def data_in(body: str) -> Any:
    """Return the data of an event from its body."""
    return read_value(json.loads(body).get("answer"), where="an event")


def refusal_of(body: str, pause_body: str) -> str | None:
    """Return why a wait does not accept an event, or None."""
    schema = json.loads(pause_body).get("schema")
    problems = [] if schema is None else problems_in(data_in(body), schema)
    return "; ".join(problems) or None


_TYPES = {
    "number": "number",
    "integer": "integer",
    "string": "string",
    "boolean": "boolean",
    "array": "list",
    "object": "dictionary",
}
"""Words for the types of JSON, as in the messages of pydantic."""


def problems_in(data: object, schema: Mapping[str, Any]) -> list[str]:
    """Return the places of data that a JSON Schema refuses, with reasons."""
    import jsonschema_rs  # a run without events does not load it

    validator = jsonschema_rs.validator_for(dict(schema))
    return [_problem(error, jsonschema_rs.ValidationErrorKind) for error in validator.iter_errors(data)]


def _problem(error: Any, kinds: Any) -> str:
    place = ["data", *map(str, error.instance_path)]
    match error.kind:
        case kinds.Required(property=name):
            return f"{'.'.join([*place, name])}: Field required"
        case kinds.Type(types=types) if len(types) == 1 and types[0] in _TYPES:
            return f"{'.'.join(place)}: Input should be a valid {_TYPES[types[0]]}"
        case _:
            return f"{'.'.join(place)}: {error.message}"
