"""Draws `images/run.svg`, the picture of a run, from a run: `make docs`.

Rules:
1. A small pipeline really runs, on a clock that jumps; what telemetry, hooks, the reader and the store notice of it is
   kept in the order in which it happened, and nothing else is drawn.
2. A moment is a column. Children that start at one time share it: what happens at once has no order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import attrs
import trio

from flujo_actors import Backoff, Chunk, Flujo, HookPayload, MemoryStore, PostStep, Step
from flujo_actors._api.cli.file_replacement import replace_file
from flujo_actors.testing import JumpingClock

PICTURE = Path(__file__).parent / "images" / "run.svg"

DRAWN = {"run.started", "step.started", "attempt.ended failure", "step.retry", "run.ended completed"}
"""The events that are drawn; how steps end is told by hooks."""
WRITTEN = {"admitted", "failed attempt", "settled", "ended"}
TOLD = {"Chunk", "Success", "run.ended completed"}

LANES = {
    "reader": "reader of the run",
    "": "run",
    "plan": "plan",
    "gather": "gather",
    "gather/search": "search",
    "gather/read": "read",
    "write": "write",
    "store": "journal and store",
}
"""Who is drawn, from top to bottom; steps by their path."""

LEFT, TOP, COLUMN, LANE, BAR = 170, 118, 27, 40, 18
INK, FAINT, FRAME = "#212529", "#e9ecef", "#adb5bd"
WORK, FAILED, WRITE, TELL = "#a5d8ff", "#ffa8a8", "#2f9e44", "#d9480f"

# --- the run ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Notice:
    """Something that happened: `what` at the step with this path, in the run's seconds."""

    what: str
    path: str
    at: float = attrs.field(factory=lambda: round(trio.current_time(), 3))


async def plan(topic: str) -> str:
    await trio.sleep(1)
    return topic


class Search:
    """Fails the first time it is asked."""

    asked = 0

    async def run(self, topic: str) -> str:
        await trio.sleep(0.4)
        self.asked += 1
        if self.asked == 1:
            raise ConnectionError("down")
        return f"what others say of {topic}"


async def read(topic: str) -> AsyncIterator[str]:
    for piece in ("what ", "books say of ", topic):
        await trio.sleep(0.9)
        yield piece
    await trio.sleep(0.1)


async def write(sources: dict[str, str]) -> str:
    await trio.sleep(1)
    return " and ".join(sources.values())


class NoticingStore(MemoryStore):
    """Notices what is written; stores are called from threads, which have no time of their own."""

    def __init__(self, notices: list[Notice]) -> None:
        super().__init__()
        self._notices = notices

    def admit_all(self, admissions: Sequence[Any], **lease: Any) -> list[Any]:
        done = super().admit_all(admissions, **lease)
        self._notices.append(Notice("admitted", "", self._now()))
        return done

    def append(self, batch: Sequence[Any]) -> list[Any]:
        done = super().append(batch)
        record = batch[-1].records[-1]
        path, attempt, _ = str(record.path).partition("/~")
        self._notices.append(Notice("failed attempt" if attempt else record.kind, path, self._now()))
        return done

    def _now(self) -> float:
        return self._notices[-1].at if self._notices else 0.0


@attrs.frozen
class Listener:
    """Takes events of telemetry, payloads of hooks and the chunks that a reader gets."""

    notices: list[Notice]

    def emit(self, event: Any) -> None:
        how = f" {event.status}" if event.kind.endswith(".ended") else ""
        if f"{event.kind}{how}" in DRAWN:
            self.notices.append(Notice(f"{event.kind}{how}", event.path))

    def hook(self, payload: HookPayload) -> None:
        if isinstance(payload, PostStep):
            self.notices.append(Notice(type(payload.outcome).__name__, payload.path))

    async def watch(self, flujo: Flujo) -> None:
        async for outcome in flujo.run_async("trio"):
            if isinstance(outcome, Chunk):
                self.notices.append(Notice("Chunk", f"gather/{outcome.step_name}"))


def noticed() -> list[Notice]:
    """What happened in a run, in order."""
    notices: list[Notice] = []
    listener = Listener(notices)
    branches = {
        "search": Step("search", Search(), max_retries=1, backoff=Backoff(first=0.3, jitter=0)),
        "read": Step("read", read),
    }
    pipeline = Step("plan", plan) >> Step.parallel("gather", branches) >> Step("write", write)
    settings = {"telemetry": {"sinks": (listener,)}}
    flujo = Flujo(pipeline, store=NoticingStore(notices), hooks=listener.hook, settings=settings)
    trio.run(listener.watch, flujo, clock=JumpingClock())
    return notices


# --- the picture ------------------------------------------------------------------------------------------------


@attrs.frozen
class Moment:
    """A column: what was noticed, and of whom."""

    what: str
    paths: tuple[str, ...]


def moments(notices: Iterable[Notice]) -> list[Moment]:
    """One for each notice, and one for children of a step that start at one time."""
    found: list[Moment] = []
    last = None
    for notice in notices:
        if notice.what == "step.started" and last == (notice.what, parent(notice.path), notice.at):
            found[-1] = Moment(notice.what, tuple(sorted((*found[-1].paths, notice.path))))
        else:
            found.append(Moment(notice.what, (notice.path,)))
        last = (notice.what, parent(notice.path), notice.at)
    return found


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def picture(columns: Sequence[Moment]) -> str:
    """The whole picture, as SVG."""
    parts = [*_heading(), *_lanes(len(columns)), *_arrows(columns)]
    for path in list(LANES)[1:-1]:
        parts += _bars(path, columns)
    parts += _words(columns)
    width, height = _x(len(columns)) + 10, TOP + LANE * len(LANES) + 66
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
    )
    return "\n".join((opening, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>")) + "\n"


def _heading() -> Iterator[str]:
    yield _text(16, 26, "One run, from left to right", 'font-size="16" font-weight="600"')
    yield _text(16, 46, "A bar is a step actor, from request to report. Its outcome is committed, then emitted.")


def _lanes(columns: int) -> Iterator[str]:
    for path, label in LANES.items():
        yield _line(LEFT - 10, _y(path), _x(columns), _y(path), FAINT)
        yield _text(16 + 16 * _depth(path), _y(path) + 4, label)


def _depth(path: str) -> int:
    return 0 if path in ("reader", "", "store") else 1 + path.count("/")


def _arrows(columns: Sequence[Moment]) -> Iterator[str]:
    """Requests in gray from parent to child, writing to the store below, telling to the reader above."""
    for place, moment in enumerate(columns):
        for path in moment.paths:
            if moment.what == "step.started":
                yield _line(_x(place), _y(parent(path)), _x(place), _y(path), FRAME)
            elif moment.what in WRITTEN:
                yield from _arrow(place, path, "store", WRITE)
            elif moment.what in TOLD:
                yield from _arrow(place, path, "reader", TELL)


def _arrow(place: int, begin: str, end: str, color: str) -> Iterator[str]:
    yield _line(_x(place), _y(begin), _x(place), _y(end), color)
    yield f'<circle cx="{_x(place)}" cy="{_y(end)}" r="4" fill="{color}"/>'


def _bars(path: str, columns: Sequence[Moment]) -> Iterator[str]:
    """The attempts of an actor: one, unless some failed; waiting before the next counts as part of it."""
    begin = 0
    for place, moment in enumerate(columns):
        if path not in moment.paths:
            continue
        if moment.what in {"run.started", "step.started", "step.retry"}:
            begin = place
        elif moment.what == "attempt.ended failure":
            yield _bar(begin, place, path, FAILED)
        elif moment.what in {"Success", "run.ended completed"}:
            yield _bar(begin, place, path, WORK)


def _bar(begin: int, end: int, path: str, color: str) -> str:
    x, y, width = _x(begin) - 4, _y(path) - BAR / 2, _x(end) - _x(begin) + 8
    return f'<rect x="{x}" y="{y:g}" width="{width}" height="{BAR}" rx="4" fill="{color}" fill-opacity="0.8"/>'


def _words(columns: Sequence[Moment]) -> Iterator[str]:
    """What is written below the store, and what is told above the reader."""
    for place, moment in enumerate(columns):
        if moment.what in WRITTEN:
            yield _slanted(_x(place) - 2, _y("store") + 16, moment.what, 40, WRITE)
        elif moment.what in TOLD:
            said = "result" if moment.what.startswith("run") else moment.what
            yield _slanted(_x(place), _y("reader") - 10, said, -40, TELL)


def _slanted(x: int, y: int, text: str, angle: int, color: str) -> str:
    return _text(x, y, text, f'fill="{color}" transform="rotate({angle} {x} {y})"')


def _x(place: int) -> int:
    return LEFT + COLUMN * place


def _y(path: str) -> int:
    return TOP + LANE * list(LANES).index(path)


def _text(x: int, y: int, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}>{escape(text)}</text>'


def _line(x1: int, y1: int, x2: int, y2: int, color: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.5"/>'


def drawn() -> str:
    """The picture of a run that has just been made."""
    return picture(moments(noticed()))


if __name__ == "__main__":
    replace_file(PICTURE, drawn())
