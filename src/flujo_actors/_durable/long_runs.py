"""Long runs, read in parts: outputs of settled items.

Rules of a resume of a run with more than `LONG_RUN` records:

1. Records outside items are read as those of any run. If all maps and loops are settled, nothing else is read.
2. Records inside items are read last first, a page at a time: an item settles after its steps. Of a settled item
   of a map only the output and the usage are kept, 40 bytes instead of 1,500.
3. Records inside a settled item are dropped, except pauses, answers, contexts and compensations.
4. An item that failed, changed the context or can be compensated is kept as it is.
5. Nested results of settled maps and loops are read from the store when they are used.
"""

from __future__ import annotations

import abc
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from .._core import step_paths
from .._core.outcomes import RunId
from .._core.records import record_bodies
from .._core.records.json_codec import decode
from .._core.records.records import PLAIN_VERSION, ItemRow, Record, RecordKind
from .._core.step_paths import StepPath, number_of
from .._core.usage import NO_USAGE
from .journal import NO_OUTPUT, ElapsedTime, Pause

LONG_RUN = 20_000
"""Number of records beyond which a run is read in parts."""

_PAGE = 10_000


_ITEM, _COMPENSATION = "/~i", "/~c"

_SCALARS = frozenset({int, float, str, bool, type(None)})

_DROPPED = frozenset({"settled", "started", "unit", "intent", "chosen"})

_FACTS = frozenset({"v", "success", "of", "history", "worked"})

_plain = re.compile(
    rf'^\{{"v":{PLAIN_VERSION},"success":\{{"name":"[^"\\]*","output":(.+),"latency_s":[-+.0-9e]+'
    r'(?:,"metadata":\{"branch":"[^"\\]*"\})?\}(?:,"history":\[(?:"[^"\\]*",?)*\])?(?:,"of":\d+)?\}$',
    re.MULTILINE,
)
"""Text of the output in the body of a plain success."""


class SettledItems:
    """Outputs of the settled items of one map, and their usage."""

    __slots__ = ("outputs", "usage")

    def __init__(self) -> None:
        self.outputs: list[object] = []
        self.usage = NO_USAGE

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index < len(self.outputs) and self.outputs[index] is not NO_OUTPUT

    def put(self, index: int, output: object) -> None:
        """Keep the output of an item."""
        self.outputs.extend([NO_OUTPUT] * (index + 1 - len(self.outputs)))
        self.outputs[index] = output

    def put_all(self, numbers: list[int], outputs: list[Any]) -> None:
        """Keep the outputs of several items."""
        self.outputs.extend([NO_OUTPUT] * (max(numbers) + 1 - len(self.outputs)))
        kept = self.outputs
        for number, output in zip(numbers, outputs, strict=True):
            kept[number] = output


class LongRun:
    """Records of a long run, and the items that they leave out."""

    def __init__(self, run_id: RunId, records: list[Record], is_map: Callable[[StepPath], bool]) -> None:
        self._run_id, self.records = run_id, records
        self.worked: dict[str, float] = {}
        self.progress = 0
        """Number of the last record of a step that is left out."""
        self._is_map = is_map
        self._known: dict[StepPath, SettledItems | None] = {}
        self._settled = {record.path for record in records if record.kind == "settled"}
        self._over: dict[StepPath, bool] = {}
        self._kept: list[Record] = []

    def read(self, store: Any) -> None:
        """Read the records inside items as far as they are needed; blocks."""
        if not any(map(_refers_inside, self.records)) and all(map(self._is_over, store.repeated(self._run_id))):
            return
        before = sys.maxsize >> 32
        while rows := store.read_inside(self._run_id, before=before, limit=_PAGE):
            self._take(rows)
            before = rows[-1][0]
        self.records = sorted((*self.records, *self._kept), key=lambda record: record.seq)

    def _is_over(self, path: StepPath) -> bool:
        return path in self._settled or any(above in self._settled for above in step_paths.within_of(path))

    def _take(self, rows: Sequence[ItemRow]) -> None:
        if not self._take_uniform(rows):
            self._take_singly(rows)

    def _take_uniform(self, rows: Sequence[ItemRow]) -> bool:
        """Take a page of plain successes of one map at once.

        A row takes 1.5 µs instead of 4.
        """
        parent = StepPath(rows[0][2].rpartition(_ITEM)[0])
        if _ITEM in parent or self._is_over(parent) or (items := self._items(parent)) is None:
            return False
        places = "\n".join([row[2] for row in rows])
        numbers = f"\n{places}".split(f"\n{parent}{_ITEM}")[1:]
        if {row[1] for row in rows} != {"settled"} or len(numbers) != len(rows):
            return False
        outputs = self._decoded(_plain.findall("\n".join([row[3] for row in rows])))
        if len(outputs) != len(rows) or not all(map(str.isdecimal, numbers)):
            return False
        items.put_all(list(map(int, numbers)), outputs)
        self.progress = max(self.progress, rows[0][0])
        return True

    def _take_singly(self, rows: Sequence[ItemRow]) -> None:
        plain: list[tuple[SettledItems, int, str, ItemRow]] = []
        for row in rows:
            _, kind, path, body, _ = row
            parent, _, key = path.rpartition(_ITEM)
            number = number_of(key)
            if kind in _DROPPED and self.leaves_out(path if kind == "settled" else StepPath(f"{path}/")):
                self._drop(row)
            elif kind != "settled" or number is None or (items := self._items(StepPath(parent))) is None:
                self._keep(row)
            elif (found := _plain.fullmatch(body)) is not None:
                items.put(number, found[1])
                plain.append((items, number, found[1], row))
            else:
                self._reduce(items, number, row)
        self._decode(plain)

    def leaves_out(self, path: StepPath) -> bool:
        """Return whether a step around this one is over.

        A path that ends with `/` asks for the step itself, too.
        """
        at = path.find(_ITEM)
        if at == -1:
            return False
        top = StepPath(path[:at])
        if top not in self._over:
            self._over[top] = self._is_over(top)
        return self._over[top] or self._is_inside(path, at)

    def _is_inside(self, path: StepPath, at: int) -> bool:
        while at != -1 and (end := path.find("/", at + 1)) != -1:
            items, number = self._known.get(StepPath(path[:at])), number_of(path[at + len(_ITEM) : end])
            if items is not None and number is not None and number in items:
                return True
            at = path.find(_ITEM, end)
        return False

    def _items(self, parent: StepPath) -> SettledItems | None:
        if parent not in self._known:
            self._known[parent] = SettledItems() if self._is_map(parent) else None
        return self._known[parent]

    def _drop(self, row: ItemRow) -> None:
        if _refers(row[3]) or _COMPENSATION in row[2]:
            self._keep(row)
        else:
            self._leave(row)

    def _leave(self, row: ItemRow) -> None:
        seq, kind, _, body, _ = row
        if kind != "started" and kind != "intent":
            self.progress = max(self.progress, seq)
        for path, seconds in record_bodies.worked_in(body).items():
            self.worked[path] = max(seconds, self.worked.get(path, 0.0))

    def _keep(self, row: ItemRow) -> None:
        seq, kind, path, body, at = row
        self._kept.append(Record(kind=cast(RecordKind, kind), path=path, body=body, seq=seq, at=at))

    def _reduce(self, items: SettledItems, number: int, row: ItemRow) -> None:
        """Keep the output of an item, or its record for other effects."""
        where = f"record {row[0]} of run {self._run_id!r}"
        body = record_bodies.read_body(row[3], where=where)
        result = body.get("success")
        if not isinstance(result, dict) or body.keys() - _FACTS or not _is_reducible(result):
            if number in items:
                items.outputs[number] = NO_OUTPUT
            self._keep(row)
            return
        items.put(number, record_bodies.read_value(result["output"], where=where))
        if "usage" in result:
            items.usage += record_bodies.read_usage(result["usage"], where=where)
        self._leave(row)

    def _decode(self, plain: Sequence[tuple[SettledItems, int, str, ItemRow]]) -> None:
        """Decode the outputs of a page at once, five times as fast."""
        outputs = self._decoded([text for _, _, text, _ in plain])
        if len(outputs) != len(plain):  # a result with other fields than most
            for items, number, _, row in plain:
                self._reduce(items, number, row)
            return
        for (items, number, _, row), output in zip(plain, outputs, strict=True):
            items.outputs[number] = output
            self.progress = max(self.progress, row[0])

    def _decoded(self, texts: list[str]) -> list[object]:
        """Return the values of JSON texts, or fewer if not all are."""
        try:
            values: list[object] = json.loads(f"[{','.join(texts)}]")
        except ValueError:
            return []
        if _SCALARS.issuperset(map(type, values)):
            return values
        with record_bodies.reading(f"the items of run {self._run_id!r}"):
            return cast(list[Any], decode(values))

    def taken(self, path: StepPath) -> SettledItems | None:
        """Return the left out items of a map, or None."""
        items = self._known.get(path)
        return items if items is not None and items.outputs else None


def _is_reducible(result: dict[str, Any]) -> bool:
    metadata = result.get("metadata") or {}
    return "output" in result and "degraded" not in metadata and "degraded_items" not in metadata


def _refers_inside(record: Record) -> bool:
    return record.kind in ("settled", "paused") and _refers(record.body)


def _refers(body: str) -> bool:
    """Return whether a body may refer to another one, or reversely."""
    return '"context_' in body or '"undo":' in body


class StoredItems:
    """Items of a long run in its journal."""

    _pauses: dict[StepPath, Pause]
    _long: LongRun | None = None

    @property
    @abc.abstractmethod
    def times(self) -> ElapsedTime:
        """Return the work times, where time is limited."""

    @abc.abstractmethod
    def load(self, records: Iterable[Record]) -> None:
        """Load the records of earlier sessions."""

    def load_parts(self, run: LongRun) -> None:
        """Load a long run without the results of its settled items."""
        self._long = run
        if run.worked:
            self.times.restore(run.worked)
        self.load(run.records)
        self._pauses = {path: each for path, each in self._pauses.items() if not run.leaves_out(path)}

    def settled_items(self, path: StepPath) -> SettledItems | None:
        """Return the left out items of a map, or None."""
        return None if self._long is None else self._long.taken(path)
