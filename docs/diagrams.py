"""Diagrams of the documents, drawn from the tables below: `make docs`.

Rules:
1. A diagram is data: lanes with moments, or boxes with arrows. The two functions that draw them share the style.
2. Colors are those of `run_picture.py`; the site derives the dark variant of every diagram from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import attrs

from flujo_actors._api.cli.file_replacement import replace_file

IMAGES = Path(__file__).parent / "images"
INK, FAINT, FRAME = "#212529", "#e9ecef", "#adb5bd"
WORK, FAILED, WRITE, SIGNAL = "#a5d8ff", "#ffa8a8", "#2f9e44", "#d9480f"
COLUMN, LANE, LEFT, TOP = 96, 52, 150, 64
BOX_WIDTH, BOX_HEIGHT = 150, 52


@attrs.frozen
class Bar:
    """Work in a lane from one column to another."""

    lane: str
    start: float
    end: float
    text: str
    color: str = WORK


@attrs.frozen
class Arrow:
    """Message between two lanes at a column."""

    sender: str
    receiver: str
    at: float
    text: str
    color: str = WRITE


@attrs.frozen
class Timeline:
    """Lanes of processes, their work and their messages, from left to right."""

    title: str
    lanes: Sequence[str]
    marks: Sequence[Bar | Arrow]
    columns: int


@attrs.frozen
class Boxes:
    """Boxes on a grid, and arrows between them."""

    title: str
    boxes: Mapping[str, tuple[float, float]]
    arrows: Sequence[tuple[str, str, str]]


Diagram: TypeAlias = Timeline | Boxes

CRASH = Timeline(
    "A durable run with a crash",
    ["process 1", "store", "process 2"],
    [
        Bar("process 1", 0, 1, "draft"),
        Arrow("process 1", "store", 1, "settled draft"),
        Bar("process 1", 1.2, 2.2, "send, kill -9", FAILED),
        Arrow("store", "process 2", 2.8, "claim, draft is recalled"),
        Bar("process 2", 4.6, 5.8, "send, same key"),
        Arrow("process 2", "store", 5.8, "settled send, ended"),
    ],
    8,
)
PAUSE = Timeline(
    "Pause and resume over two processes",
    ["worker 1", "store", "web process", "worker 2"],
    [
        Bar("worker 1", 0, 1, "draft"),
        Arrow("worker 1", "store", 1.1, "question, lease released"),
        Arrow("store", "web process", 2.6, "inbox"),
        Arrow("web process", "store", 3.4, "answer, stored once"),
        Arrow("store", "worker 2", 5.2, "claim"),
        Bar("worker 2", 5.4, 6.4, "publish"),
        Arrow("worker 2", "store", 6.4, "ended"),
    ],
    8,
)
FLEET = Boxes(
    "A fleet",
    {
        "browser": (0, 0),
        "web process": (1.6, 0),
        "web process 2": (1.6, 1.4),
        "Postgres": (3.4, 0.7),
        "worker, default": (5.2, 0),
        "worker, gpu": (5.2, 1.4),
    },
    [
        ("browser", "web process", ""),
        ("browser", "web process 2", ""),
        ("web process", "Postgres", "submit"),
        ("web process 2", "Postgres", "answer"),
        ("worker, default", "Postgres", "claim"),
        ("worker, gpu", "Postgres", "commit"),
    ],
)
STRUCTURED = Boxes(
    "Stages of structured output",
    {
        "text or chunks": (0, 0),
        "normalize": (1.25, 0),
        "parse": (2.5, 0),
        "validate": (3.75, 0),
        "value": (5, 0),
        "repair": (2.5, 1.8),
        "ask again": (3.75, 1.8),
        "failure": (5, 1.8),
    },
    [
        ("text or chunks", "normalize", ""),
        ("normalize", "parse", ""),
        ("parse", "validate", ""),
        ("validate", "value", ""),
        ("parse", "repair", ""),
        ("repair", "validate", ""),
        ("validate", "ask again", ""),
        ("ask again", "failure", ""),
    ],
)


def flow(title: str, *rows: Sequence[str], links: Sequence[tuple[str, str]] = ()) -> Boxes:
    """Rows of boxes, each with an arrow to the next one of its row, and links between rows."""
    boxes = {name: (1.25 * x, 1.8 * y) for y, row in enumerate(rows) for x, name in enumerate(row) if name}
    chains = [pair for row in rows for pair in pairwise(row) if all(pair)]
    return Boxes(title, boxes, [(sender, receiver, "") for sender, receiver in (*chains, *links)])


EXAMPLES: Mapping[str, Diagram] = {
    "agent-pipeline": flow(
        "Model agents with tools",
        ("question", "plan", "answer", "validator", "answer, priced"),
        ("", "", "tool: weather"),
        links=[("answer", "tool: weather")],
    ),
    "approval-webhook": flow(
        "Approval by a signed webhook",
        ("run asks", "store", "worker", "chat application"),
        ("run continues", "answer in store", "web process", "button clicked"),
        links=[("chat application", "button clicked")],
    ),
    "bulk-extraction": flow(
        "1,000 documents, one budget",
        ("documents", "map, 16 at once", "typed rows", "total"),
        ("budget reached", "question", "more budget"),
        ("unreadable", "error report"),
        links=[("map, 16 at once", "budget reached"), ("more budget", "typed rows"), ("budget reached", "unreadable")],
    ),
    "chat-page": flow(
        "Chat page with reconnect",
        ("page", "POST, 202", "store", "worker"),
        ("reloaded page", "events", "text, ended"),
        links=[("page", "reloaded page"), ("store", "events")],
    ),
    "cited-answers": flow(
        "Answers that cite",
        ("question", "retrieval, tenant", "answer", "known citations", "answer, cited"),
        ("", "", "asked again"),
        links=[("known citations", "asked again"), ("asked again", "answer")],
    ),
    "dataset-evaluation": flow(
        "An evaluation with a baseline",
        ("dataset", "version 1", "baseline", "comparison", "gates"),
        ("", "version 2", "results"),
        links=[("dataset", "version 2"), ("results", "comparison")],
    ),
    "deep-research": flow(
        "Deep research",
        ("question", "plan", "search: the moon", "facts", "report, streamed"),
        ("", "", "search: the sun"),
        ("", "", "search: coasts"),
        links=[
            ("plan", "search: the sun"),
            ("plan", "search: coasts"),
            ("search: the sun", "facts"),
            ("search: coasts", "facts"),
        ],
    ),
    "demo": flow(
        "A newsroom, offline",
        ("question", "archive", "headline", "shorten, loop", "article, streamed"),
        ("", "lab"),
        ("", "web", "own notes"),
        links=[("question", "lab"), ("question", "web"), ("lab", "headline"), ("own notes", "headline")],
    ),
    "fastapi-app": flow(
        "Stream, pause and resume over HTTP",
        ("POST /drafts", "draft", "chunk, success", "paused, token"),
        ("POST /answers", "resume", "publish", "ended"),
        links=[("paused, token", "POST /answers")],
    ),
    "fastapi-inbox": flow(
        "An inbox for tenants",
        ("tenant 7 submits", "store, label 7", "inbox of tenant 7", "answer", "paid"),
        ("tenant 8 submits", "store, label 8", "inbox of tenant 8"),
    ),
    "granular-agent": Timeline(
        "A durable agent, killed in its third booking",
        ["process 1", "store", "process 2"],
        [
            Bar("process 1", 0, 1.7, "Oslo, Bergen"),
            Arrow("process 1", "store", 1.7, "2 calls committed"),
            Bar("process 1", 3.2, 4.4, "Lima, killed", FAILED),
            Arrow("store", "process 2", 4.6, "turns and calls"),
            Bar("process 2", 5.8, 7.4, "Lima, again"),
            Arrow("process 2", "store", 7.4, "ended"),
        ],
        9,
    ),
    "learning-router": flow(
        "A router that learns",
        ("question", "Thompson sampling", "model A", "reward"),
        ("", "statistics", "model B"),
        links=[("Thompson sampling", "model B"), ("reward", "statistics"), ("statistics", "Thompson sampling")],
    ),
    "local-model": flow(
        "A local model",
        ("step", "openai-chat client", "OPENAI_BASE_URL", "Ollama, vLLM"),
    ),
    "nightly-job": flow(
        "A nightly job, exactly once",
        ("schedule, 02:00", "one run per night", "worker 1", "report"),
        ("", "", "worker 2"),
        links=[("one run per night", "worker 2")],
    ),
    "notebook": flow(
        "A pipeline in a notebook",
        ("cell", "await run_async", "result", "tree of steps"),
    ),
    "one-bot": flow(
        "One bot four times",
        ("question", "draft, 3 attempts", "person approves", "send"),
    ),
    "plain-script": flow(
        "A plain script",
        ("order", "price", "cheap: ordered"),
        ("", "", "expensive: asked", "answer", "ordered"),
        links=[("price", "expensive: asked")],
    ),
    "prompt-regression": flow(
        "Prompt regression",
        ("stored runs", "new prompt", "verdict by run", "gates", "deploy or keep"),
        ("recorded tools",),
        links=[("recorded tools", "new prompt")],
    ),
    "saga": flow(
        "A saga",
        ("trip", "flight booked", "hotel booked", "car fails"),
        ("", "flight cancelled", "hotel cancelled", "car asked for"),
        links=[
            ("car fails", "car asked for"),
            ("car asked for", "hotel cancelled"),
            ("hotel cancelled", "flight cancelled"),
        ],
    ),
    "steered-agent": flow(
        "A steered conversation",
        ("prompt", "turn 1", "turn 2", "turn 3", "second run"),
        ("person", "By train, please", "And a hotel"),
        links=[("By train, please", "turn 2"), ("And a hotel", "turn 3")],
    ),
    "structured-step": flow(
        "A structured step",
        ("damaged JSON", "parse and correct", "validate", "Recipe"),
        ("", "", "ask again", "failure"),
        links=[("validate", "ask again")],
    ),
    "support-desk": flow(
        "Support desk: two web processes, two workers, one Postgres",
        ("customer", "web 1, run page", "Postgres", "worker 1", "agent, help pages"),
        ("approver", "web 2, run page", "", "worker 2", "refund, approved"),
        links=[("web 2, run page", "Postgres"), ("Postgres", "worker 2")],
    ),
    "tenant-budgets": flow(
        "Budgets of tenants",
        ("orders of acme", "2 of 2 requests", "third run sleeps", "midnight", "completed"),
        ("order of globex", "1 of 2 requests", "executed"),
    ),
    "text-to-sql": flow(
        "Text to SQL",
        ("question", "model writes SQL", "EXPLAIN accepts", "execute", "rows"),
        ("", "refusal"),
        links=[("EXPLAIN accepts", "refusal"), ("refusal", "model writes SQL")],
    ),
    "trio-program": flow(
        "A trio program",
        ("nursery", "run: Lima", "results"),
        ("", "run: Oslo"),
        ("deadline", "run: forecast", "cleaned up"),
        links=[("nursery", "run: Oslo"), ("nursery", "deadline"), ("run: Oslo", "results")],
    ),
    "webhook-callback": flow(
        "Webhook, 202, worker, callback",
        ("sender", "POST, 202", "store", "worker"),
        ("verified", "callback, signed"),
        links=[("worker", "callback, signed"), ("callback, signed", "verified"), ("verified", "sender")],
    ),
}
"""Pictures of the examples, by the name of their page."""

DIAGRAMS: Mapping[str, Diagram] = {
    **{f"example-{name}": diagram for name, diagram in EXAMPLES.items()},
    "durable-crash": CRASH,
    "pause-and-resume": PAUSE,
    "fleet": FLEET,
    "structured-stages": STRUCTURED,
}


def main() -> None:
    for name, diagram in DIAGRAMS.items():
        replace_file(IMAGES / f"{name}.svg", drawn(diagram).encode())


def drawn(diagram: Diagram) -> str:
    """The diagram as an SVG document."""
    match diagram:
        case Timeline():
            width, height = LEFT + COLUMN * diagram.columns, TOP + LANE * len(diagram.lanes)
            return _document(diagram.title, width, height, _timeline(diagram, width))
        case Boxes():
            width = int(32 + BOX_WIDTH * (max(x for x, _ in diagram.boxes.values()) + 1))
            height = int(TOP + BOX_HEIGHT * (max(y for _, y in diagram.boxes.values()) + 1) + 24)
            return _document(diagram.title, width, height, _boxes(diagram))


def _document(title: str, width: int, height: int, parts: Iterator[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
    )
    lines = [head, f'<rect width="{width}" height="{height}" fill="white"/>']
    lines += [f'<text x="16" y="26" font-size="16" font-weight="600">{escape(title)}</text>', *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def _timeline(diagram: Timeline, width: int) -> Iterator[str]:
    heights = {lane: TOP + LANE * number for number, lane in enumerate(diagram.lanes)}
    for lane, y in heights.items():
        yield f'<text x="16" y="{y + 4}">{escape(lane)}</text>'
        yield _line(LEFT, y, width - 16, y, FAINT)
    for mark in diagram.marks:
        yield from _bar(mark, heights) if isinstance(mark, Bar) else _message(mark, heights)


def _bar(bar: Bar, heights: Mapping[str, int]) -> Iterator[str]:
    x, y = _x(bar.start), heights[bar.lane]
    yield f'<rect x="{x:g}" y="{y - 12}" width="{_x(bar.end) - x:g}" height="24" rx="4" fill="{bar.color}"/>'
    yield f'<text x="{x + 6:g}" y="{y + 4}">{escape(bar.text)}</text>'


def _message(arrow: Arrow, heights: Mapping[str, int]) -> Iterator[str]:
    x, start, end = _x(arrow.at), heights[arrow.sender], heights[arrow.receiver]
    yield _line(x, start, x, end, arrow.color)
    yield f'<circle cx="{x:g}" cy="{end}" r="4" fill="{arrow.color}"/>'
    yield f'<text x="{x + 8:g}" y="{(start + end) / 2 + 4:g}" fill="{arrow.color}">{escape(arrow.text)}</text>'


def _boxes(diagram: Boxes) -> Iterator[str]:
    corners = {name: (16 + x * BOX_WIDTH, TOP + y * BOX_HEIGHT) for name, (x, y) in diagram.boxes.items()}
    middle = {name: (x + BOX_WIDTH * 0.42, y + BOX_HEIGHT / 2) for name, (x, y) in corners.items()}
    for sender, receiver, text in diagram.arrows:
        (x1, y1), (x2, y2) = middle[sender], middle[receiver]
        yield _line(x1, y1, x2, y2, WRITE)
        yield _head(x1, y1, x2, y2)
        if text:
            yield f'<text x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 - 8:g}" fill="{SIGNAL}">{escape(text)}</text>'
    for name, (x, y) in corners.items():
        yield (
            f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH * 0.84:g}" height="{BOX_HEIGHT}" rx="6" '
            f'fill="{WORK}" stroke="{FRAME}"/>'
        )
        centered = f'x="{x + BOX_WIDTH * 0.42:g}" y="{y + BOX_HEIGHT / 2 + 4:g}" text-anchor="middle"'
        yield f"<text {centered}>{escape(name)}</text>"


def _head(x1: float, y1: float, x2: float, y2: float) -> str:
    """The head of an arrow where it meets the box around its end."""
    x, y = x2 - x1, y2 - y1
    inside = min(share for share in (BOX_WIDTH * 0.42 / abs(x) if x else 1, BOX_HEIGHT / 2 / abs(y) if y else 1))
    tip_x, tip_y, angle = x2 - x * inside, y2 - y * inside, math.degrees(math.atan2(y, x))
    place = f"translate({tip_x:.1f} {tip_y:.1f}) rotate({angle:.1f})"
    return f'<path d="M0 0 L-10 -5 L-10 5 Z" fill="{WRITE}" transform="{place}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.5"/>'


def _x(column: float) -> float:
    return LEFT + COLUMN * column


if __name__ == "__main__":
    main()
