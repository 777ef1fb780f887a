"""Replay and rehearsal: stored runs on a changed pipeline.

Rules:

1. A run is forked before the first changed step that it reached. Everything before is recalled. A change that does not
   reach the run executes nothing.
2. Models are asked within one budget for all runs; tools and functions answer from the record.
3. An exception concerns one run: it is skipped with the reason.
4. The original store is only read. Forks are kept in another store on request, and have ended there.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast, get_args

import attrs
import trio
from outcome import Error

from ..._bridge.host_loop import Host
from ..._bridge.user_code_guard import guarded
from ..._core.error_info import message_of
from ..._core.outcomes import PipelineResult, RunId
from ..._core.quota import Amount, Quota
from ..._core.records.records import Record, StoredRun
from ..._core.records.run_state import project
from ..._core.step_paths import ROOT, StepPath, above_of, parent_of
from ..._core.usage import NO_USAGE, Usage, UsageLimits
from ..._core.validators import brief_repr, is_count, nearest
from ..._durable.fingerprint import Facts, Fingerprint
from ..._durable.operations.run_files import open_run_file
from ..._durable.pipeline_diff import ChangedSteps, changed_steps, changes_between, declared_at
from ..._durable.remote_result_refs import read_resolved, remote_steps_of
from ..._durable.store_executor import call_store
from ...errors import ControlError, DeclarationError, Diverged, FlujoError, PricingNotConfiguredError, RunNotFound
from ...stores._store_factory import open_store
from ...stores._store_port import Store
from ...telemetry._redaction.redactor import redacted
from .. import rehearsal as _rehearsal
from ..evaluation.comparison import compared
from ..evaluation.gates import Gate, Measured, Vocabulary, parse_gates
from .oracle import Models, Oracle, Present, RecordEnds, is_aside, names_around
from .playback import Performer, Playback, RunRehearsal, runs_to_keep, summary_to_keep
from .recorded_run import RecordedRun, model_turns
from .verdicts import Difference, RehearsalVerdict, RehearsedRun, Replay, ReplayVerdict
from .verdicts import Rehearsal as Rehearsal

RUN_FILE = ".flujo.jsonl"
"""Suffix of run files."""
UNREACHED = "the change does not reach this run"
MISSING = "there is no such run"

_VOCABULARY = Vocabulary(plain=("same", "different", "diverged", "skipped", "cost", "tokens", "turns"))


# --- Options ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class RehearsalOptions:
    """Options of one rehearsal, checked before anything runs."""

    at: str | None
    tools: str
    models: Models
    live_steps: Iterable[str]
    same: Callable[[Any, Any], Any] | None
    evaluators: Iterable[object]
    repeat: int
    max_cost_usd: float | None
    max_concurrency: int
    gates: Iterable[str]
    into: str | Store | None
    connect: bool

    def check(self) -> None:
        """Raise `ValueError` or `DeclarationError` for impossible options."""
        if self.tools != "recorded":
            raise ValueError("there is no live mode: run the pipeline instead")
        if self.models not in get_args(Models):
            raise ValueError(f"models must be 'live' or 'recorded', not {self.models!r}")
        for name in ("repeat", "max_concurrency"):
            value = getattr(self, name)
            if not is_count(value):
                raise DeclarationError(f"rehearse: {name} must be at least 1, not {brief_repr(value)}")
        if self.models == "live" and not _is_money(self.max_cost_usd):
            raise DeclarationError("rehearse with live models needs max_cost_usd")
        if self.same is not None and not callable(self.same):
            raise DeclarationError(f"rehearse: same must be a function of two outputs, not {self.same!r:.100}")


def _is_money(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _checked_evaluators(given: Iterable[object]) -> tuple[Any, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError(f"rehearse: evaluators must be a list, not {given!r:.100}")
    listed = tuple(given)
    if listed:
        _rehearsal.require_evals()
    return listed


@attrs.frozen(kw_only=True)
class RecordedCase:
    """A recorded run as a case of pydantic-evals."""

    inputs: Any
    expected_output: Any
    metadata: object = None


class LiveBudget(Quota):
    """Budget of live requests: recalled usage is not counted."""

    local_models_are_free = True

    @property
    def is_spent(self) -> bool:
        """Return whether nothing is left."""
        return self.spent.cost_usd > 0 and self.spent.cost_usd >= (self.limits.total_cost_usd_limit or 0)

    def recall(self, used: Usage, caller: str | None = None) -> None:
        """Count nothing."""

    def recall_tool_call(self, one: Amount) -> None:
        """Count nothing."""


# --- Rehearsal ----------------------------------------------------------------------------------------------------


async def rehearsed(
    performer: Performer, origin: Store | None, runs: Any, options: RehearsalOptions, host: Host, _: object = None
) -> Rehearsal:
    """Return the result of stored runs on a changed pipeline."""
    options.check()
    gates = parse_gates(options.gates, _VOCABULARY, baseline=True)
    if options.at is not None:
        _declared(options.at, Fingerprint.of(performer.pipeline).steps)
    session = _Session(
        performer=performer,
        origin=origin,
        options=options,
        budget=_budget(performer, options),
        into=await call_store(functools.partial(_target, options.into, origin)),
        live_steps=checked_live_steps(options.live_steps, Fingerprint.of(performer.pipeline).steps),
        evaluators=_checked_evaluators(options.evaluators),
    )
    listed = list(_listed(runs))
    rehearsal = _concluded(await session.all(listed, host), gates, session.budget)
    forks = [run.rehearsed_id for run in rehearsal.runs if run.rehearsed_id is not None]
    if session.into is not None and forks:
        summary = summary_to_keep(session.rehearsal_id, json.loads(rehearsal.to_json()), forks[0])
        await call_store(functools.partial(session.into.put, [summary]))
    return rehearsal


def _budget(performer: Performer, options: RehearsalOptions) -> LiveBudget | None:
    if options.models != "live":
        return None
    usage, limit = performer.settings.usage, float(cast(float, options.max_cost_usd))
    guess = Amount(tokens=usage.first_call_tokens, cost_usd=min(usage.first_call_usd, limit))
    return LiveBudget(UsageLimits(total_cost_usd_limit=limit), owner="the rehearsal", guess=guess)


def _target(into: str | Store | None, origin: Store | None) -> Store | None:
    """Return the store of the forks, if they are kept. Blocks."""
    if into is None:
        return None
    opened = open_store(into)
    if opened is origin or _is_same_database(opened, origin):
        raise DeclarationError("rehearse: into must be another store than that of the runs")
    if not hasattr(opened, "put"):
        raise DeclarationError(f"store {type(opened).__name__} has no 'put': rehearse(into=…) needs it")
    return opened


def _is_same_database(one: Store, other: Store | None) -> bool:
    """Return whether two stores are one file, or tables of one database."""
    found = [getattr(store, "identity", lambda: None)() for store in (one, other)]
    return found[0] is not None and found[0] == found[1]


def _listed(runs: Any) -> Iterable[str | os.PathLike[str]]:
    """Yield ids and run files, also those of folders."""
    several = isinstance(runs, Iterable) and not isinstance(runs, str | bytes | os.PathLike)
    for run in runs if several else [runs]:
        named = getattr(run, "run_id", run)
        if not isinstance(named, str | os.PathLike):
            raise DeclarationError(f"rehearse: a run is an id, a RunInfo or a run file, not {run!r:.100}")
        yield from run_files_in(named) if isinstance(named, os.PathLike) and os.path.isdir(named) else [named]


def run_files_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the run files of a folder and its folders, sorted."""
    found = (os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)
    return sorted(file for file in found if file.endswith(RUN_FILE))


@attrs.frozen(kw_only=True, eq=False)
class _Session:
    """State of one rehearsal."""

    performer: Performer
    origin: Store | None
    options: RehearsalOptions
    budget: LiveBudget | None
    into: Store | None
    live_steps: frozenset[str]
    evaluators: tuple[Any, ...]
    _changes: dict[str, tuple[Mapping[StepPath, Facts], ChangedSteps]] = attrs.field(factory=dict)
    """Present facts and changes, by stored fingerprint."""
    rehearsal_id: str = attrs.field(factory=lambda: f"rehearsal {os.urandom(8).hex()}")
    """Id of the rehearsal, and beginning of the ids of its forks."""

    async def all(self, runs: list[str | os.PathLike[str]], host: Host) -> list[RehearsedRun]:
        """Return the results in order, a few runs at a time."""
        found: dict[int, RehearsedRun] = {}
        room = trio.CapacityLimiter(self.options.max_concurrency)

        async def one(index: int, run: str | os.PathLike[str]) -> None:
            async with room:
                found[index] = await self._safely(index, run, host)

        async with trio.open_nursery() as nursery:
            for index, run in enumerate(runs):
                nursery.start_soon(one, index, run)
        return [found[index] for index in range(len(runs))]

    async def _safely(self, index: int, run: str | os.PathLike[str], host: Host) -> RehearsedRun:
        got = await guarded(self._one, index, run, host)
        if not isinstance(got, Error):
            return got.value
        if not isinstance(got.error, Exception):
            raise got.error
        name = os.path.basename(run) if isinstance(run, os.PathLike) or str(run).endswith(RUN_FILE) else str(run)
        why = MISSING if isinstance(got.error, RunNotFound) else _described(got.error)
        return RehearsedRun(run_id=name, verdict="skipped", reason=why)

    async def _one(self, index: int, run: str | os.PathLike[str], host: Host) -> RehearsedRun:
        recording = await call_store(functools.partial(read_recorded, self.origin, run))
        refused = self._refusal(recording)
        if refused is not None:
            return _result(recording, "skipped", refused)
        steps, changes = self._changed(recording)
        seq = self._fork_seq(recording, changes)
        if seq is None:
            return attrs.evolve(_result(recording, "same", UNREACHED), same_of=(self.options.repeat,) * 2)
        if self.budget is not None and self.budget.is_spent:
            return _result(recording, "skipped", "the budget of the rehearsal is reached")
        present = self._present(steps, changes)
        found = []
        for number in range(1, self.options.repeat + 1):
            name = RunId(f"{self.rehearsal_id}/{index + 1}" + (f"#{number}" if self.options.repeat > 1 else ""))
            found.append(await self._repetition(recording, present, seq, host, name))
        same = sum(each.verdict == "same" for each in found)
        shown = next((each for each in found if each.verdict != "same"), found[0])
        return attrs.evolve(shown, same_of=(same, len(found)))

    def _refusal(self, recording: RecordedRun) -> str | None:
        """Return why a run cannot be rehearsed, or None."""
        if recording.run.pipeline != self.performer.pipeline.title and not self._is_related(recording):
            return f"it is a run of another pipeline, {recording.run.pipeline!r}"
        return None if recording.has_ended else f"it has not ended: it is {recording.status}"

    def _is_related(self, recording: RecordedRun) -> bool:
        """Return whether the run shares a step with the pipeline."""
        return bool(recording.steps.keys() & self._changed(recording)[0].keys())

    def _changed(self, recording: RecordedRun) -> tuple[Mapping[StepPath, Facts], ChangedSteps]:
        known = recording.run.fingerprint or ""
        if not known or known not in self._changes:
            steps = self.performer.steps(recording)
            self._changes[known] = steps, changed_steps(recording.steps, steps)
        return self._changes[known]

    def _fork_seq(self, recording: RecordedRun, changes: ChangedSteps) -> int | None:
        """Return the record before the first changed step, or None (rule 1)."""
        steps = self._changes[recording.run.fingerprint or ""][0]
        if self.options.at is not None:
            return _before(recording, {_declared(self.options.at, steps)})
        if not changes:
            return None
        behind, around = _positions(changes, steps)
        started = _before(recording, changes.differing | changes.removed | behind)
        return min(filter(None, (started, _before_end(recording, around))), default=None)

    def _present(self, steps: Mapping[StepPath, Facts], changes: ChangedSteps) -> Present:
        at = set() if self.options.at is None else {_declared(self.options.at, steps)}
        return Present(
            pipeline=self.performer.pipeline,
            steps=steps,
            changed=changes.differing | frozenset(changes.added) | frozenset(at),
            live_steps=self.live_steps,
            models=self.options.models,
            connect=self.options.connect,
            follows=False,
        )

    # --- one repetition ---

    async def _repetition(
        self, recording: RecordedRun, present: Present, seq: int, host: Host, new_id: RunId
    ) -> RehearsedRun:
        oracle = Oracle(recording, present, seq)
        playback = Playback(
            performer=self.performer, recording=recording, rehearsing=RunRehearsal(oracle, self.budget), seq=seq
        )
        result: PipelineResult | None = None
        verdict: RehearsalVerdict = "skipped"
        reason, difference = None, None
        try:
            result = await playback.run(host)
        except Diverged as error:
            verdict, reason, difference = "diverged", str(error), error.difference
        except RecordEnds as error:
            verdict, reason = "diverged", str(error)
        except ControlError as error:
            own = isinstance(error, PricingNotConfiguredError) or getattr(error, "reached", None) is self.budget
            reason, result = (str(error), None) if own and self.budget is not None else (None, error.result)
        if result is not None:
            verdict, difference = await self._compared(recording, oracle, result)
            reason = None if difference is None else str(difference)
        if self.into is not None:
            kept = runs_to_keep(playback, new_id, redacted_or_none(reason))
            await call_store(functools.partial(self.into.put, kept))
        found = await self._concluded(recording, playback, verdict, redacted_or_none(reason), difference)
        return attrs.evolve(found, rehearsed_id=None if self.into is None else new_id)

    async def _compared(
        self, recording: RecordedRun, oracle: Oracle, result: PipelineResult
    ) -> tuple[RehearsalVerdict, Difference | None]:
        """Return the verdict of a run that came to an end."""
        end = recording.seq(ROOT)
        if _waits_as_recorded(recording, result):
            return "same", None
        if result.status == "paused":
            return "diverged", Difference(path="", what="status", recorded=recording.status, now="paused", seq=end)
        if result.status != recording.status:
            first = min(oracle.differences, key=lambda each: each.seq, default=None)
            ended = Difference(path="", what="status", recorded=recording.status, now=result.status, seq=end)
            return "different", first or ended
        if result.status != "completed" or await self._is_same(recording, result):
            return "same", None
        first = min(oracle.differences, key=lambda each: each.seq, default=None)
        recorded = recording.output()
        return "different", first or Difference(path="", what="output", recorded=recorded, now=result.output, seq=end)

    async def _is_same(self, recording: RecordedRun, result: PipelineResult) -> bool:
        """Return whether an output counts as the recorded one."""
        if self.options.same is not None:
            answer: object = self.options.same(recording.output(), result.output)
            return bool(await answer if isinstance(answer, Awaitable) else answer)
        if self.evaluators:
            return await self._holds(recording, result)
        last = recording.last
        return last is not None and recording.is_same(recording.output_data(last.path), result.output)

    async def _holds(self, recording: RecordedRun, result: PipelineResult) -> bool:
        """Return whether the recorded output is expected by all evaluators."""
        case: Any = RecordedCase(inputs=recording.input(), expected_output=recording.output())
        facts = {"output": result.output, "duration_s": recording.run.worked_s, "tokens": result.total_tokens}
        run = {**facts, "requests": 0, "tool_calls": 0, "cost_usd": result.total_cost_usd}
        context = _rehearsal.context_of(case, recording.run.run_id, recording.run.run_id, run)
        quotas = () if self.budget is None else (self.budget,)
        for evaluator in self.evaluators:
            judge = _rehearsal.Judge(evaluator=evaluator, prices=self.performer.settings.usage, quotas=quotas)
            judged = await judge.judged(context)
            if judged["failure"] is not None:
                raise DeclarationError(f"evaluator {judged['name']!r} failed: {judged['failure']}")
            if judged["stopped"] or not all(value for _, kind, value, _ in judged["results"] if kind == "assertions"):
                return False
        return True

    async def _concluded(
        self,
        recording: RecordedRun,
        playback: Playback,
        verdict: RehearsalVerdict,
        reason: str | None,
        difference: Difference | None,
    ) -> RehearsedRun:
        """Return the result of a run that was executed."""
        run, records = playback.records()
        used = await guarded(_usage_in, run, records)
        spent = NO_USAGE if isinstance(used, Error) else used.value
        units = {each.path for each in records if each.kind == "unit"} | recording.units_until(playback.seq)
        return attrs.evolve(
            _result(recording, verdict, reason),
            ran=True,
            fork_seq=playback.seq,
            difference=difference,
            cost_after_usd=spent.cost_usd,
            tokens_after=spent.tokens,
            turns_after=len(model_turns(units)),
        )


def _result(recording: RecordedRun, verdict: RehearsalVerdict, reason: str | None) -> RehearsedRun:
    """Return the result of a run that is not executed."""
    run, turns = recording.run, recording.turns()
    return RehearsedRun(
        run_id=run.run_id,
        verdict=verdict,
        reason=reason,
        cost_before_usd=run.cost_usd,
        cost_after_usd=run.cost_usd,
        tokens_before=run.tokens,
        tokens_after=run.tokens,
        turns_before=turns,
        turns_after=turns,
    )


async def _usage_in(run: StoredRun, records: list[Record]) -> Usage:
    """Return the usage of a fork, recalled and live."""
    return project(run.run_id, records).usage


def _described(error: Exception) -> str:
    known = isinstance(error, FlujoError)
    return redacted(message_of(error) if known else f"{type(error).__name__}: {message_of(error)}")


def redacted_or_none(text: str | None) -> str | None:
    """Return a text without secrets."""
    return None if text is None else redacted(text)


# --- Fork points --------------------------------------------------------------------------------------------------


def _declared(path: str, steps: Mapping[StepPath, Facts]) -> StepPath:
    place = declared_at(StepPath(path), steps)
    if place is None:
        raise DeclarationError(f"rehearse: there is no step {path!r} in the pipeline")
    return place


def _before(recording: RecordedRun, places: set[StepPath] | frozenset[StepPath]) -> int | None:
    """Return the record before the first step at one of these places."""
    for record in recording.records:
        if record.path and not is_aside(record.path) and record.kind not in ("ended", "resumed"):
            place = declared_at(record.path, recording.steps) or declared_at(_step(record.path), recording.steps)
            if place is not None and not places.isdisjoint((place, *above_of(place))):
                return max(1, record.seq - 1)
    return None


def _step(path: StepPath) -> StepPath:
    """Return the path without conversations and units."""
    return StepPath("/".join(each for each in path.partition("/~u")[0].split("/") if each[:2] not in ("~g", "~t")))


def _positions(changes: ChangedSteps, after: Mapping[StepPath, Facts]) -> tuple[set[StepPath], set[StepPath]]:
    """Return the steps behind added ones, and composites ending with one."""
    behind: set[StepPath] = set()
    around: set[StepPath] = set()
    for added in changes.added:
        parent = parent_of(added)
        kind = "pipeline" if parent == ROOT else str(after[parent].get("kind"))
        siblings = [path for path in after if parent_of(path) == parent and path != ROOT]
        following = next((path for path in siblings[siblings.index(added) + 1 :] if path not in changes.added), None)
        if kind in ("parallel", "map"):
            behind.add(parent)
        elif kind not in ("branch", "selection") and not is_aside(added):
            (around if following is None else behind).add(parent if following is None else following)
    return behind, around


def _before_end(recording: RecordedRun, places: set[StepPath]) -> int | None:
    """Return the record before one of these composites, or the run, completed."""
    for record in recording.records:
        ended = record.kind == "ended" and record.path == ROOT and recording.status == "completed"
        place = ROOT if ended else declared_at(record.path, recording.steps) if record.kind == "settled" else None
        if place is not None and place in places and (ended or record.path):
            return max(1, record.seq - 1)
    return None


# --- Conclusion ---------------------------------------------------------------------------------------------------


def _concluded(found: list[RehearsedRun], gates: tuple[Gate, ...], budget: LiveBudget | None) -> Rehearsal:
    names = _names(found)
    judged = [(name, run) for name, run in zip(names, found, strict=True) if run.verdict in ("same", "different")]
    before = {each: {name: float(getattr(run, f)) for name, run in judged} for each, f in _BEFORE.items()}
    after = {each: {name: float(getattr(run, f)) for name, run in judged} for each, f in _AFTER.items()}
    verdicts = {
        verdict: {name: float(run.verdict == verdict) for name, run in zip(names, found, strict=True)}
        for verdict in get_args(RehearsalVerdict)
    }
    comparison = compared("recorded", before, after)
    measured = Measured(
        subject="the rehearsal",
        values={**verdicts, **after},
        before=before,
        after=after,
        comparison=comparison,
        counts=frozenset(),
    )
    return Rehearsal(
        runs=tuple(found),
        cost_usd=0.0 if budget is None else budget.spent.cost_usd,
        comparison=comparison,
        gates=tuple(gate.check(measured) for gate in gates),
    )


_BEFORE = {"cost": "cost_before_usd", "tokens": "tokens_before", "turns": "turns_before"}
_AFTER = {"cost": "cost_after_usd", "tokens": "tokens_after", "turns": "turns_after"}


def _names(found: list[RehearsedRun]) -> list[str]:
    """Return unique names of the runs."""
    seen: dict[str, int] = {}
    names = []
    for run in found:
        seen[run.run_id] = number = seen.get(run.run_id, 0) + 1
        names.append(run.run_id if number == 1 else f"{run.run_id} #{number}")
    return names


# --- Sources ------------------------------------------------------------------------------------------------------


def is_run_file(run: object) -> bool:
    """Return whether a run is named by a path."""
    return isinstance(run, os.PathLike) or (isinstance(run, str) and run.endswith(RUN_FILE))


def read_recorded(store: Store | None, run: str | os.PathLike[str]) -> RecordedRun:
    """Return a run of a store or a run file. Blocks."""
    if is_run_file(run):
        return _recorded_in(*open_run_file(run))
    if store is None:
        raise DeclarationError(f"run {run!r} cannot be read: Flujo has no store; pass `store` to Flujo, or a run file")
    return _recorded_in(store, RunId(str(run)))


def _recorded_in(store: Store, run_id: RunId, redacted: bool = False) -> RecordedRun:
    run, records = store.get(run_id), read_resolved(store, run_id)
    remote = [read_resolved(store, each.run_id) for each in remote_steps_of(store, run_id)]
    return RecordedRun(run, records, remote=remote, redacted=redacted)


# --- Replay -------------------------------------------------------------------------------------------------------


async def replayed(
    performer: Performer,
    run: str | os.PathLike[str],
    live_steps: Iterable[str],
    connect: bool,
    host: Host,
    _: object = None,
) -> Replay:
    """Return the comparison of a recorded run with the present code."""
    recording = await call_store(lambda: read_recorded(performer.store, run))
    steps = performer.steps(recording)
    present = Present(
        pipeline=performer.pipeline, steps=steps, live_steps=checked_live_steps(live_steps, steps), connect=connect
    )
    oracle = Oracle(recording, present)
    playback = Playback(performer=performer, recording=recording, rehearsing=RunRehearsal(oracle))
    found = await _first_difference(playback, oracle, host)
    first_asked = [sentence for _, sentence in sorted(oracle.asked_otherwise)[:1]]
    return Replay(
        run_id=recording.run.run_id,
        verdict=found[0],
        difference=found[1],
        changes=(*changes_between(recording.steps, steps, (), mode="strict"), *first_asked),
        checked=tuple(oracle.checked),
        taken=tuple(oracle.taken),
    )


def checked_live_steps(given: Iterable[str], steps: Iterable[StepPath]) -> frozenset[str]:
    """Return the paths of live steps, or raise `DeclarationError`."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError(f"live_steps must be a list of step paths, not {given!r:.100}")
    listed = list(given)
    if not all(isinstance(each, str) for each in listed):
        raise DeclarationError(f"live_steps must be a list of step paths, not {listed!r:.100}")
    known = {name for path in steps for name in names_around(path)} if listed else set()
    for unknown in (each for each in listed if each not in known):
        near = nearest(unknown, sorted(known))
        hint = "" if near is None else f"; did you mean {near!r}?"
        raise DeclarationError(f"live_steps: there is no step {unknown[:100]!r} in the pipeline{hint}")
    return frozenset(listed)


async def _first_difference(playback: Playback, oracle: Oracle, host: Host) -> tuple[ReplayVerdict, Difference | None]:
    found: list[tuple[ReplayVerdict, Difference]] = []
    result: PipelineResult | None = None
    try:
        result = await playback.run(host)
    except Diverged as error:
        found.append(("diverged", error.difference))
    except RecordEnds:
        pass
    except ControlError as error:
        result = error.result
    found += [("diverged", each) for each in oracle.divergences]
    found += [("different", each) for each in oracle.differences]
    if not found and result is not None:
        found += [("different", each) for each in _of_run(oracle, result)]
    return min(found, key=lambda each: each[1].seq) if found else ("same", None)


def _waits_as_recorded(recording: RecordedRun, result: PipelineResult) -> bool:
    """Return whether the run waits, as it did when it was canceled."""
    return result.status == "paused" and recording.status == "aborted"


def _of_run(oracle: Oracle, result: PipelineResult) -> list[Difference]:
    """Return the difference of the whole run, if any."""
    recording, seq = oracle.recording, oracle.recording.seq(ROOT)
    if not recording.has_ended and recording.status != "paused":
        return []
    unvisited = oracle.unvisited()
    if unvisited is not None:
        return [unvisited]
    if _waits_as_recorded(recording, result):
        return []
    if result.status != recording.status:
        return [Difference(path="", what="status", recorded=recording.status, now=result.status, seq=seq)]
    last = recording.last
    if result.status != "completed" or last is None:
        return []
    if recording.is_same(recording.output_data(last.path), result.output):
        return []
    recorded = getattr(getattr(recording.outcome(last.path), "step_result", None), "output", None)
    return [Difference(path="", what="output", recorded=recorded, now=result.output, seq=last.seq)]
