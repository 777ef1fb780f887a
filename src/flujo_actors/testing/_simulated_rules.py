"""Rules that hold in every simulated history.

Rules:

1. (a) The run ends or rests within the permitted lives. (Checked by the caller.)
2. (b) A step, turn or tool call whose record is committed is not called again.
3. (c) A repeated call has the same idempotency key, another call another one.
4. (d) A result is returned only after its `ended` record.
5. (e) Records have no gap, and belong to one epoch at a time.
6. (f) Of several answers to a question one is used.
7. (g) Recorded usage includes all committed model calls; limits of runs and steps hold.
8. (h) A compensation runs only after a failure, and is committed once.
9. (i) The state of the final records equals the returned result.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from .._core.outcomes import PipelineResult, StepResult
from .._core.records import record_bodies
from .._core.records.records import ENDED, Record
from .._core.records.run_state import RunState
from .._core.step_paths import is_tried, is_undoing
from ._simulated_world import World, exceeded


def broken_rule(world: World, result: PipelineResult | None) -> str | None:
    """Return the first rule that any run breaks, or None."""
    with world.outside() as client:
        run_ids = [run.run_id for run in client.list()]
        found = (_found(world, client.state(run_id), result) for run_id in run_ids)
        return next(itertools.chain.from_iterable(found), None)


def _found(world: World, state: RunState, result: PipelineResult | None) -> Iterator[str]:
    records, used = world.records(state.run_id), world.used[state.run_id].tokens
    yield from _gaps(records)
    yield from _answers(records)
    if used > state.usage.tokens:
        yield (
            f"(g) {state.usage.tokens} tokens are recorded, but committed model calls used {used}; "
            "an agent that a tool calls is counted with usage=ctx.usage"
        )
    reached = exceeded(world.limits, state.usage)
    if reached is not None:
        yield f"(g) the run has used {reached}"
    yield from _compensations(world, records)
    if result is not None and result.run_id == state.run_id:
        yield from _differences(state, result)


def _gaps(records: Sequence[Record]) -> Iterator[str]:
    if any(record.kind == "compacted" for record in records):
        return
    for place, record in enumerate(records, 1):
        if record.seq != place:
            yield f"(e) record {record.kind} {record.path!r} has number {record.seq}, not {place}"


def _answers(records: Sequence[Record]) -> Iterator[str]:
    asked = Counter(record.path for record in records if record.kind == "paused")
    answered = Counter(record.path for record in records if record.kind == "answered")
    for path, count in answered.items():
        if count > asked[path]:
            yield f"(f) question {path!r} was asked {asked[path]} times and answered {count} times"


def _compensations(world: World, records: Sequence[Record]) -> Iterator[str]:
    """Check that compensation follows a failure, and commits once."""
    failed = any(event.kind == "cancel" for event in world.events)
    settled: set[str] = set()
    for record in records:
        failed = failed or record.kind == "cancelled" or _is_failure(record)
        if not is_undoing(record.path) or record.kind not in ("settled", "started"):
            continue
        if not failed:
            yield f"(h) compensation {record.path!r} runs before any failure"
        if record.kind == "settled" and record.path in settled and not is_tried(record.path):
            yield f"(h) compensation {record.path!r} is committed twice"
        settled |= {record.path} if record.kind == "settled" else set()


def _is_failure(record: Record) -> bool:
    return record.kind == "settled" and "success" not in record_bodies.read_body(record.body, where="a record")


def _differences(state: RunState, result: PipelineResult) -> Iterator[str]:
    if state.status != result.status:
        yield f"(i) the run returned {result.status!r}, its records say {state.status!r}"
    if _is_miscounted(state.usage.tokens, result):
        yield f"(i) the run returned {result.total_tokens} tokens, its records say {state.usage.tokens}"
    if result.status == "completed":
        for what, returned, recorded in _compared(state, result):
            if returned != recorded:
                yield f"(i) the run returned the {what} {returned!r:.200}, its records say {recorded!r:.200}"


def _is_miscounted(recorded: int, result: PipelineResult) -> bool:
    """Return whether the tokens differ; a cancelled step may not be recalled."""
    if result.status == "aborted":
        return result.total_tokens > recorded
    return result.status in ENDED and result.total_tokens != recorded


def _compared(state: RunState, result: PipelineResult) -> Iterator[tuple[str, object, object]]:
    """Yield the facts of a completed run, as returned and as recorded."""
    yield "output", result.output, state.output
    yield "steps", [_facts_of(each) for each in result.step_history], [_facts_of(each) for each in state.results]
    yield "cost", round(result.total_cost_usd, 9), round(state.usage.cost_usd, 9)
    if result.final_context is not None:
        yield "context", result.final_context, state.context


def _facts_of(result: StepResult) -> tuple[str, bool, int, object]:
    return result.name, result.success, result.attempts, result.output
