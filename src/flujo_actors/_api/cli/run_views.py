"""Views of one run on the terminal: rows, JSON lines, streamed text.

Sections:

- Journal of a run of this process, printed as it is stored.
- The result of a run on standard output, and nothing else there.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ..._core.outcomes import Chunk, Failure, PipelineResult, RunId
from ..._core.step_paths import ROOT, StepPath, is_top_level, named
from ..._core.views.live_view import all_rows
from ..._core.views.record_summaries import LightOutcomes, RecordSummary
from ..._core.views.result_tree import shown_cost
from ..._core.views.run_tree import RunTree, in_lines, one_line
from ..._dsl.chunk_filter import NO_CHUNKS, shown_chunks
from ..._durable.watch_poller import RunWatch
from ..._runtime.run.json_text import to_json
from ...errors import NotSerializable
from ...stores._dsn_redaction import without_password
from ...stores._store_port import Store
from ...terminal._renderers import Display, Progress, Quiet
from ...terminal._watch_view import display_on, text_of
from .command_group import Invocation
from .output import DONE, FAILED, PAUSED, printable

if TYPE_CHECKING:
    from ..._core.records.run_state import RunState
    from ..._durable.operations.run_check import RunCheck
    from ..._durable.operations.run_totals import TotalsRow
    from ..client import Question, RunClient, RunInfo
    from ..flujo import Flujo
    from ..handle import RunHandle
    from .run_command import RunOptions

SCHEMA_VERSION = 1

BY_STATUS = {
    "completed": DONE,
    "failed": FAILED,
    "aborted": FAILED,
    "paused": PAUSED,
    "sleeping": PAUSED,
    "running": DONE,
}
"""Exit codes of a command that shows a run."""


def document(**parts: object) -> str:
    """Return a JSON document for programs."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **parts}, ensure_ascii=False, indent=2)


def run_data(run: RunInfo) -> dict[str, object]:
    """Return a run as JSON data."""
    return attrs.asdict(run)


def listed(runs: Sequence[RunInfo], *, now: float) -> list[str]:
    """Return a table of runs, one line each."""
    head = ("RUN", "STATE", "SINCE", "TOKENS", "COST", "PIPELINE")
    return table([head, *(_listed(run, now) for run in runs)])


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the rows as aligned lines; the last column is unpadded."""
    last = len(rows[0]) - 1
    widths = [max(len(row[column]) for row in rows) for column in range(last)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[last]]).rstrip()
        for row in rows
    ]


def _listed(run: RunInfo, now: float) -> tuple[str, ...]:
    tokens = f"{run.tokens:,}" if run.tokens else "-"
    cost = shown_cost(run.cost_usd) if run.cost_usd else "-"
    return printable(run.run_id), run.state, ago(run.since, now), tokens, cost, printable(run.pipeline)


def checks(found: Sequence[RunCheck]) -> list[str]:
    """Return a table of checked runs, one line a run."""
    rows = [(printable(each.run_id), each.verdict, printable(each.reason or "-")) for each in found]
    return table([("RUN", "VERDICT", "REASON"), *rows]) if rows else []


def totals(groups: Sequence[str], rows: Sequence[TotalsRow]) -> list[str]:
    """Return a table of totals, one line a group."""
    head = [each.removeprefix("label:").upper() for each in groups]
    counts = ["RUNS", "COMPLETED", "FAILED", "ABORTED", "OPEN", "P50", "P95", "TOKENS", "COST"]
    return table([tuple(head + counts), *(_totals(row) for row in rows)])


def _totals(row: TotalsRow) -> tuple[str, ...]:
    key = [printable(each) if each is not None else "-" for each in row.key.values()]
    counts = [f"{each:,}" for each in (row.runs, row.completed, row.failed, row.aborted, row.open)]
    spans = ["-" if each is None else f"{each:.1f} s" for each in (row.p50_s, row.p95_s)]
    cost = shown_cost(row.cost_usd) if row.cost_usd else "-"
    return (*key, *counts, *spans, f"{row.tokens:,}" if row.tokens else "-", cost)


def ago(at: float, now: float) -> str:
    """Return an elapsed time for display."""
    seconds = max(0.0, now - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def questions(asked: Iterable[Question]) -> list[str]:
    """Return the lines of open questions: token and prompt."""
    return [f"{printable(each.state_token)}  {printable(each.message)}" for each in asked]


def shown(client: RunClient, run_id: str, *, at: int | None) -> list[str]:
    """Return the lines of one run: status, tree and open pauses."""
    run, outline = client.get(run_id), outline_of(client, run_id, at=at)
    lines = [f"{printable(run.run_id)}  {printable(run.pipeline)}", f"started {_when(run.created_at)}"]
    if outline.origin:
        lines.append(f"forked from {printable(outline.origin)} at record {outline.origin_seq}")
    if run.labels:
        lines.append(" ".join(["labels", *(f"{name}={printable(value)}" for name, value in run.labels.items())]))
    rows = all_rows(outline, now=time.time())
    lines += [row.text for row in rows[:-1]]
    lines.append(f"{_foot(rows[-1].text, run, at=at)}  at record {outline.seq}")
    if at is None and run.reason is not None:
        lines.append(f"{run.state}: {printable(run.reason)}")
    asked = client.questions(run_id=run_id) if at is None and run.state_token is not None else ()
    return [*lines, *(line for each in asked for line in _question(each))]


def _question(question: Question) -> list[str]:
    """Return the lines of an open question: text, options, deadline, command."""
    to = f" {printable(question.to)}" if question.to else ""
    lines = [f"asks{to}: {printable(question.message)}"]
    if question.options:
        lines.append(f"options: {', '.join(printable(each.name) for each in question.options)}")
    if question.due_at is not None:
        lines.append(f"due {_when(question.due_at)}")
    return [*lines, f"answer with: flujo-actors runs answer {printable(question.state_token)} VALUE"]


def _foot(text: str, run: RunInfo, *, at: int | None) -> str:
    """Return a tree's last line, with the run's current state."""
    shown = "running" if run.status == "running" else "paused"
    return text if at is not None or run.state in ("running", "waiting") else text.replace(shown, run.state, 1)


def _when(at: float) -> str:
    return f"{dt.datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %z}"


def outline_of(client: RunClient, run_id: str, *, at: int | None) -> RunTree:
    """Return the tree of a run, now or at a record."""
    return RunTree(record for record in client.records(run_id) if at is None or record.seq <= at)


def state_data(client: RunClient, run_id: str, *, at: int | None) -> dict[str, object]:
    """Return the state of a run as JSON data."""
    state: RunState = client.state(run_id) if at is None else client.state_at(run_id, at)
    steps = [
        {
            "path": path,
            "name": node.name,
            "status": node.status,
            "latency_s": node.latency_s,
            "attempts": node.attempts,
            "tokens": node.tokens,
            "cost_usd": node.cost_usd,
            "note": node.note,
        }
        for path, node in outline_of(client, run_id, at=at).nodes.items()
        if path
    ]
    facts = {"output": state.output, "input": state.input, "context": state.context, "answers": dict(state.answers)}
    return {
        "run": run_data(client.get(run_id)),
        "seq": state.seq,
        "status": state.status,
        "feedback": state.feedback,
        "tokens": state.usage.tokens,
        "cost_usd": state.usage.cost_usd,
        "questions": dict(state.pauses),
        "origin": None if state.origin is None else attrs.asdict(state.origin),
        "steps": steps,
        **json.loads(to_json(facts, plain=True)),
    }


def out(lines: Iterable[str]) -> None:
    """Lines of a result, on standard output."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# --- Journal of a run of this process -----------------------------------------------------------------------------


class JournalLines:
    """Follow one run in a thread while another loop executes it."""

    def __init__(self, store: Store, display: Display) -> None:
        self._store, self._display = store, display
        self._seen = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, run_id: str) -> None:
        """From now on; the run must be there."""
        if self._thread is None:
            self._thread = threading.Thread(target=trio.run, args=(self._follow, RunId(run_id)), daemon=True)
            self._thread.start()

    def finish(self, run_id: str) -> None:
        """Print the remaining records after the end."""
        self._over.set()
        with self._lock:
            self._show_records(self._store.scan(RunId(run_id), after=self._seen))

    async def _follow(self, run_id: RunId) -> None:
        watch = RunWatch(self._store, run_id)
        while (batch := await watch.next_batch()) is not None and not self._over.is_set():
            with self._lock:
                self._show_records([record for record in batch if record.seq > self._seen])

    def _show_records(self, records: Iterable[RecordSummary]) -> None:
        for record in records:
            self._display.show(record)
            self._seen = record.seq


# --- The result of a run on standard output -----------------------------------------------------------------------


def print_result(view: RunView, result: PipelineResult, options: RunOptions) -> None:
    """Print a run's result to stdout, notes to standard error."""
    if options["as_json"]:
        _write(json_result(result))
    elif result.status == "completed" and not view.streamed_all:
        _write(output_text(result.output))
    view.show_end(result)


def json_result(result: PipelineResult) -> str:
    """Return the result as one document."""
    data = json.loads(to_json(result, plain=True))
    data.pop("kind", None)
    return json.dumps({"schema_version": SCHEMA_VERSION, **data}, ensure_ascii=False, indent=2)


def output_text(output: object) -> str:
    """Return a text as it is, anything else as JSON."""
    if isinstance(output, str):
        return output
    try:
        return json.dumps(json.loads(to_json(output, plain=True)), ensure_ascii=False, indent=2)
    except NotSerializable:
        return repr(output)


def write_text(text: str) -> None:
    """Write text to stdout; control sequences are escaped on a terminal."""
    shown = in_lines(text) if sys.stdout.isatty() else text
    sys.stdout.write(shown.encode("utf-8", "backslashreplace").decode("utf-8"))
    sys.stdout.flush()


def _write(text: str) -> None:
    write_text(text if text.endswith("\n") else f"{text}\n")


def _wake_text(wakes_at: float | None) -> str:
    if wakes_at is None:
        return "after the event that it waits for"
    return f"at {dt.datetime.fromtimestamp(wakes_at).astimezone().isoformat(timespec='seconds')}"


# --- Views of one run on the terminal -----------------------------------------------------------------------------


_LEFT_SHOWN = 5


class RunView:
    """View of one run over all its sessions."""

    def __init__(self, call: Invocation, flujo: Flujo, options: RunOptions, *, target: str | None, run_id: str) -> None:
        self._call, self._flujo, self._options, self._target = call, flujo, options, target
        self._display: Display = Quiet()
        self._outline = RunTree()
        self._progress: Progress = "quiet" if call.quiet or options["events"] else options["progress"]
        self._last = named(ROOT, flujo.pipeline.named_steps[-1][1]) if flujo.pipeline.named_steps else ROOT
        self.run_id = run_id
        self.streamed_all = False
        """Whether the output has been written while it was made."""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """A time in which the run is shown."""
        color, chunks = self._call.color, self._options["chunks"]
        with display_on(sys.stderr, self._progress, color=color, chunks=chunks, title=self.run_id) as self._display:
            yield
        self._display = Quiet()

    async def follow(self, run: RunHandle) -> PipelineResult:
        """Show a run while it runs; its result."""
        self._show_chunks(run)
        rows, journal = LightOutcomes(at=time.time()), self._journal()
        self._outline = RunTree([rows.first])
        if journal is None:
            self._display.show(rows.first)
        async for outcome in run:
            if journal is not None:
                journal.begin(self.run_id)
            self._show(outcome, rows, rowless=journal is not None)
        result = await run
        if journal is not None:
            journal.finish(result.run_id)
        else:
            self._display.show(rows.end(result, at=time.time()))
        return result

    def _show_chunks(self, run: RunHandle[Any, Any]) -> None:
        """Request chunks only if they are shown."""
        if self._options["events"] or self._display.shows_text:
            return
        last = [self._last] if self._options["stream"] else []
        run.show_chunks(shown_chunks(self._flujo.pipeline, last) or NO_CHUNKS)

    def _journal(self) -> JournalLines | None:
        """Return the journal reader: with a store, JSON lines are its records."""
        if self._progress != "json" or self._flujo.store is None:
            return None
        return JournalLines(self._flujo.store, self._display)

    def _show(self, outcome: Any, rows: LightOutcomes, *, rowless: bool) -> None:
        if self._options["events"]:
            self._event(outcome)
        if isinstance(outcome, Chunk):
            self._text(outcome)
            return
        record = rows.record(outcome, at=time.time())
        if record is not None:
            self._outline.apply(record)
            if not rowless:
                self._display.show(record)
        if isinstance(outcome, Failure) and is_top_level(StepPath(outcome.path)):
            self.streamed_all = False

    def _event(self, outcome: object) -> None:
        sys.stderr.write(f"{to_json(outcome, plain=True)}\n")
        sys.stderr.flush()

    def _text(self, chunk: Chunk) -> None:
        text = text_of(chunk.data)
        self._display.text(StepPath(chunk.path), text)
        if self._options["stream"] and chunk.path.partition("/")[0] == self._last and isinstance(chunk.data, str):
            self.streamed_all = True
            write_text(text)

    # --- end of a run ---

    def print_note(self, text: str) -> None:
        """Write a line for people, or a JSON line if configured."""
        if self._writes_json and not self._call.quiet:
            sys.stderr.write(f"{json.dumps({'kind': 'note', 'text': text}, ensure_ascii=False)}\n")
        else:
            self._call.print_note(text)

    @property
    def _writes_json(self) -> bool:
        return self._options["events"] or self._progress == "json"

    def show_end(self, result: PipelineResult) -> None:
        """Print the notes of a result."""
        if self._options["events"]:
            self._event(result)
        if self.streamed_all and not self._options["as_json"]:
            write_text("\n")
        match result.status:
            case "failed" | "aborted" if self._progress == "quiet" and not self._options["events"]:
                sys.stderr.write(f"{result.status}: {one_line(result.feedback or '')}\n")
            case "paused" if not self._options["events"]:  # whose last line has the question and its token
                self._show_pause(result)
            case "sleeping":
                self.print_note(f"sleeping: a worker resumes it {_wake_text(result.wakes_at)}")
            case _:
                pass

    def _show_pause(self, result: PipelineResult) -> None:
        token = shlex.quote(str(result.state_token))
        self.print_note(f"paused: {result.feedback}")
        if self._writes_json:
            self.print_note(f"token: {one_line(str(result.state_token))}")
        else:
            sys.stderr.write(f"token: {one_line(str(result.state_token))}\n")  # also in quiet mode
        if self._flujo.store is None:
            self.print_note("a run without a store cannot be resumed: pass --store URL, or --ask to answer here")
        else:
            self.print_note(f"answer with: flujo-actors runs answer {token} VALUE{self._where()}")

    def show_resume_command(self) -> None:
        """After a run was stopped."""
        if self._flujo.store is None:
            self.print_note("a run without a store cannot be resumed")
            return
        run_id, target = shlex.quote(self.run_id), shlex.quote(self._target) if self._target else ""
        self.print_note(f"resume with: flujo-actors runs resume {run_id} {target}{self._where()}".rstrip())

    def _where(self) -> str:
        given = self._options["store"]
        return f" --store {shlex.quote(without_password(given))}" if given else ""

    def left(self) -> str:
        """Return the steps in flight when the process was killed."""
        names = [one_line(node.name) for node in self._outline.steps() if node.status == "running" and not node.running]
        more = f" and {len(names) - _LEFT_SHOWN} more" if len(names) > _LEFT_SHOWN else ""
        facts = ", ".join(names[:_LEFT_SHOWN]) + more if names else "nothing was running"
        return f"left as it was: {facts}" if names else facts
