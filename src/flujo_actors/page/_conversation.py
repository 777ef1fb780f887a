"""Messages of an agent's step with its model and tools.

Rules:

1. A granular step has a record per model turn, tool call and retrieval. Tokens, dollars and latency are those of the
   record; the latency is the time since its intent.
2. Any other agent step has the transcript of its settled record; its turns have the usage that the model reported.
3. A tool call and its result are one message. A call that was approved with changes has both argument sets.
4. System texts are shown if a record has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeAlias

from .._core.step_paths import StepPath
from .._core.validators import is_number
from .._core.views.record_summaries import RecordSummary
from ._browser_json import dollars_text, seconds_text

Fields: TypeAlias = dict[str, object]
"""JSON object of a record or a message."""

Message: TypeAlias = Fields


class RecordBodies(Protocol):
    """Record summaries of a run, and their bodies on demand."""

    @property
    def light(self) -> tuple[RecordSummary, ...]:
        """Return the summaries."""

    def raw(self, seq: int) -> dict[str, object]:
        """Return a stored body."""

    def input_of(self, record: RecordSummary) -> dict[str, object]:
        """Return the derived input of a step."""


def conversation_of(bodies: RecordBodies, path: StepPath) -> list[Message]:
    """Return the messages of a step, oldest first. Blocks."""
    units = [each for each in bodies.light if _belongs(each.path, path)]
    settled = next((each for each in reversed(bodies.light) if each.path == path and each.kind == "settled"), None)
    transcript = [] if settled is None else _transcript(bodies.raw(settled.seq))
    if any(each.kind in ("intent", "unit") and not _is_context(each.path) for each in units):
        return [*_opening(bodies, path, transcript), *_unit_messages(bodies, units)]
    context = [_retrieved(bodies.raw(each.seq), each) for each in units if each.kind == "unit"]
    messages = list(_transcript_messages(transcript, settled))
    return [*messages[:1], *filter(None, context), *messages[1:]] if messages else []


_HEADS = {
    "system": ("", "system", "System"),
    "user": ("", "waiting", "User"),
    "assistant": ("model", "model", "Assistant"),
    "retrieved": ("tool", "book", "Retrieved"),
}


def with_head(message: Message) -> Message:
    """Return a message with the parts of its header."""
    role = str(message["role"])
    kind, mark, name = _HEADS.get(role, ("tool", "tool", str(message.get("tool") or role)))
    return {**message, "head": (kind, mark, name, _subject(role, message), _figures(message))}


def _subject(role: str, message: Message) -> str:
    match role:
        case "assistant":
            return f"turn {message.get('turn')}"
        case "retrieved":
            used = len(_items(message.get("sources")))
            return f"{used} of {used + _count(message.get('dropped'))} passages used"
        case "system":
            return str(message.get("text") or "")[:80]
        case _:
            return str(message.get("about") or "")


def _figures(message: Message) -> str:
    waited, tokens, cached, cost, latency = (
        _number(message.get(name)) for name in ("waited_ms", "tokens", "cached_tokens", "cost_usd", "latency_ms")
    )
    parts = [
        f"waited {seconds_text(waited / 1000)}" if waited else "",
        f"{tokens:,.0f} tokens" if tokens else "",
        f"{cached:,.0f} cached" if cached else "",
        dollars_text(cost) if cost else "",
        seconds_text(latency / 1000) if latency else "",
    ]
    return " · ".join(filter(None, parts))


def _number(value: object) -> float:
    return float(value) if is_number(value) else 0.0


def turns_of(bodies: RecordBodies, path: StepPath) -> list[str]:
    """Return the texts and tool calls of a step's model turns. Blocks."""
    turns = [each for each in conversation_of(bodies, path) if each["role"] == "assistant"]
    return ["\n".join(filter(None, [str(each.get("text") or ""), *_call_texts(each)])) for each in turns]


def _call_texts(turn: Message) -> Iterator[str]:
    for call in map(_fields, _items(turn.get("calls"))):
        yield f"{call.get('tool')}({json.dumps(call.get('arguments'), ensure_ascii=False, indent=2)})"


def _belongs(path: str, step: StepPath) -> bool:
    """Return whether a record is of a unit of the step."""
    inner, _, _ = path.partition("/~u")
    return inner != path and (inner == step or (inner.startswith(f"{step}/~g") and "/" not in inner[len(step) + 1 :]))


def _is_context(path: str) -> bool:
    return path.partition("/~u")[2].startswith("context")


def _unit_of(path: str) -> str:
    """Return the unit that a pause or an answer belongs to."""
    head, mark, key = path.rpartition("~")
    return head if mark and key and "/" not in key and all(each in "0123456789abcdef" for each in key) else path


def step_of_unit(path: str) -> str:
    """Return the step of a record; units belong to their agent's step."""
    step = path.partition("/~u")[0]
    return step if step == path else step.rpartition("/~g")[0] or step


# --- granular steps -----------------------------------------------------------------------------------------


def _opening(bodies: RecordBodies, path: StepPath, transcript: list[object]) -> list[Message]:
    """Return the system and user messages before the first turn."""
    first = transcript[0] if transcript else None
    if isinstance(first, dict):
        found = list(_request_messages(first))
        if found:
            return found
    given = bodies.input_of(RecordSummary(seq=_first_seq(bodies, path), kind="started", path=path))
    return [{"role": "user", "text": _text(given["value"])}] if given.get("known") else []


def _first_seq(bodies: RecordBodies, path: StepPath) -> int:
    return next((each.seq for each in bodies.light if each.path == path), bodies.light[-1].seq)


def _unit_messages(bodies: RecordBodies, units: list[RecordSummary]) -> list[Message]:
    messages: dict[str, Message] = {}
    for each in units:
        unit = _unit_of(each.path)
        body = bodies.raw(each.seq)
        message = messages.setdefault(unit, {"unit": unit, "began": each.at})
        _add(message, each, body)
    turns = [each for each in messages.values() if each.get("role")]
    return [_without_clock(each) for each in turns]


def _add(message: Message, record: RecordSummary, body: Fields) -> None:
    """Add the facts of one record to the message of its unit."""
    match record.kind:
        case "paused":
            facts = _fields(_fields(_fields(body.get("question")).get("facts")).get("metadata"))
            message |= {"role": "tool", "tool": facts.get("tool") or "tool", "asked": facts.get("arguments")}
            message |= {"arguments": facts.get("arguments"), "paused": record.at, "about": "waits for approval"}
        case "answered":
            message |= _answer(body, message, record.at)
        case "intent":
            message["began"] = record.at
            message |= _intended(body, record.path)
        case "unit":
            message |= _committed(body, record, message)


def _answer(body: Fields, message: Message, at: float | None) -> Message:
    answer = body.get("answer")
    given = _fields(answer) or {"approved": answer is True}
    by = body.get("by") or given.get("by")
    approved = bool(given.get("approved", given.get("option") == "approve"))
    about = f"{'approved' if approved else 'denied'}{f' by {by}' if by else ''}"
    waited = _between(message.get("paused"), at)
    found: Message = {"about": about, "waited_ms": waited, "approved": given.get("arguments")}
    return found if approved else {**found, "denied": given.get("reason") or "without a reason"}


def _intended(body: Fields, path: str) -> Message:
    intent = _fields(_parsed(body.get("intent")))
    if "tool" in intent:
        return {"role": "tool", "tool": intent["tool"], "arguments": intent.get("arguments")}
    return {"role": "assistant", "turn": _turn(path), "model": intent.get("model")}


def _turn(path: str) -> int:
    key = path.partition("/~u")[2].partition(":")[0].partition("#")[0]
    return int(key) if key.isdecimal() and len(key) < 16 else 0


def _committed(body: Fields, record: RecordSummary, message: Message) -> Message:
    if _is_context(record.path):
        return _retrieved(body, record) or {}
    spent = {
        "tokens": record.tokens,
        "cost_usd": record.cost_usd,
        "latency_ms": _between(message.get("began"), record.at),
        "cached_tokens": _cached(body.get("usage")),
    }
    result = _parsed(body.get("result"))
    reply = _fields(result)
    if isinstance(reply.get("parts"), list):
        return {"role": "assistant", "turn": _turn(record.path), **_model_reply(reply), **spent}
    value = reply.get("value", result)
    return {"role": "tool", "tool": message.get("tool") or "tool", "result": value, **spent}


def _cached(usage: object) -> int:
    counts = _fields(usage)
    return _count(counts.get("cached_tokens") or counts.get("cache_read_tokens"))


def _count(value: object) -> int:
    return int(value) if is_number(value) else 0


def _retrieved(body: Fields, record: RecordSummary) -> Message | None:
    """Return the passages that were assembled for the step."""
    found = _fields(_parsed(body.get("result")))
    segments = [_fields(each) for each in _items(found.get("segments"))]
    sources = [
        {"collection": segment["collection"], "text": text, "score": score, "source": source}
        for segment in segments
        for text, score, source, *_ in map(_items, _items(segment.get("results")))
    ]
    facts = {"tokens": found.get("tokens", 0), "dropped": len(_items(found.get("dropped")))}
    return {"role": "retrieved", "unit": record.path, "sources": sources, **facts} if sources else None


# --- transcripts --------------------------------------------------------------------------------------------


def _transcript(body: Fields) -> list[object]:
    """Return the model library's messages in a settled record."""
    done = _fields(body.get("success")) or _fields(_fields(body.get("failure")).get("step_result"))
    return _items(_parsed(done.get("transcript")))


def _transcript_messages(transcript: list[object], settled: RecordSummary | None) -> Iterator[Message]:
    calls: dict[str, Message] = {}
    turn = 0
    responses = sum(1 for each in transcript if isinstance(each, dict) and each.get("kind") == "response")
    for each in transcript:
        if not isinstance(each, dict):
            continue
        if each.get("kind") == "request":
            yield from _request_messages(each, calls)
            continue
        turn += 1
        usage = _fields(each.get("usage"))
        tokens = _count(usage.get("input_tokens")) + _count(usage.get("output_tokens"))
        whole = {"cost_usd": settled.cost_usd, "latency_ms": round(settled.latency_s * 1000)} if settled else {}
        yield {
            "role": "assistant",
            "turn": turn,
            **_model_reply(each),
            "tokens": tokens,
            **(whole if responses == 1 else {}),
        }
        for call in _calls(each):
            message = {"role": "tool", **call}
            calls[str(call["id"])] = message
            yield message


def _request_messages(request: Fields, calls: Mapping[str, Message] | None = None) -> Iterator[Message]:
    if isinstance(request.get("instructions"), str):
        yield {"role": "system", "text": request["instructions"]}
    for part in map(_fields, _items(request.get("parts"))):
        match part.get("part_kind"):
            case "system-prompt":
                yield {"role": "system", "text": _text(part.get("content"))}
            case "user-prompt":
                yield {"role": "user", "text": _text(part.get("content"))}
            case "tool-return" | "retry-prompt" if part.get("tool_call_id") in (calls or {}):
                (calls or {})[str(part["tool_call_id"])]["result"] = part.get("content")
            case "retry-prompt":
                yield {"role": "user", "text": _text(part.get("content"))}


def _model_reply(response: Fields) -> Message:
    """Return the text and the tool calls of a model's reply."""
    parts = [_fields(each) for each in _items(response.get("parts"))]
    texts = [str(each.get("content")) for each in parts if each.get("part_kind") in ("text", "thinking")]
    return {"text": "\n\n".join(filter(None, texts)), "calls": _calls(response)}


def _calls(response: Fields) -> list[Fields]:
    parts = [_fields(each) for each in _items(response.get("parts"))]
    called = [each for each in parts if each.get("part_kind") == "tool-call"]
    return [
        {"id": each.get("tool_call_id"), "tool": each.get("tool_name"), "arguments": _parsed(each.get("args")) or {}}
        for each in called
    ]


# --- values -------------------------------------------------------------------------------------------------


def _fields(value: object) -> Fields:
    """Return a JSON object; empty for any other value."""
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[object]:
    """Return a JSON list; empty for any other value."""
    return value if isinstance(value, list) else []


def _parsed(text: object) -> object:
    """Return the JSON of a text, or the text itself."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(_text(each.get("content", "") if isinstance(each, dict) else each) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _between(start: object, end: float | None) -> int | None:
    return max(0, round((end - start) * 1000)) if isinstance(start, float) and end is not None else None


def _without_clock(message: Message) -> Message:
    return {name: each for name, each in message.items() if name not in ("began", "paused") and each is not None}
