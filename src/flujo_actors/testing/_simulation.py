"""Simulation of a pipeline under seeded schedules of faults.

Rules:

1. One seed is one history: the order of tasks, all faults, ids, model delays and times.
2. Some seeds run twice; a history that differs from itself is an error of the simulated code, or of the simulation.
3. A failing history is shrunk: faults are removed one by one, then the order of tasks, as long as it fails.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import itertools
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import attrs
import trio
from outcome import Value, capture

from .._api.client import RunClient, stored_result
from .._api.flujo import Flujo
from .._bridge.guest_scheduler import is_known_trio
from .._core import seams
from .._core.outcomes import PipelineResult
from .._core.records.records import ENDED, has_ended
from .._core.step_paths import Named, StepPath, known_segment
from .._core.type_parameters import NOTHING
from .._core.usage import UsageLimits
from .._core.validators import brief_repr, is_count, is_number, nearest
from .._dsl.declaration_tree import find_step, walk_steps
from .._dsl.pipeline import Pipeline
from .._durable.pause_lookup import Question
from ..errors import DeclarationError, FingerprintMismatch, FlujoError, InvalidAnswer, NotPaused, RunNotFound
from ..stores._memory_store import MemoryStore
from . import faults as fault_kinds
from ._simulated_process import ProcessCrashed, SimulatedProcess, installed
from ._simulated_rules import broken_rule
from ._simulated_world import RUN_ID, FaultPlan, InjectedFault, World
from .faults import FaultKind

F = TypeVar("F")

Factory: TypeAlias = Callable[[World], Flujo]
Check: TypeAlias = Callable[[World], object]
Drive: TypeAlias = Callable[[World, Flujo], Awaitable[object]]

CALM_LIVES = 10
"""Last lives of a history, without faults."""

MAX_LIVES = 50
"""Default number of lives of a history."""

SHRINK_RUNS = 200
"""Maximum number of histories to shrink one failure."""

_MARGIN_S = 1.0
"""Time between the expiry of a lease and the next life."""


class SimulationFailed(AssertionError):
    """History that broke a rule or a check."""

    def __init__(
        self, *, seed: object, reason: str, faults: Sequence[InjectedFault], found: int, world: World, pasted: str
    ) -> None:
        self.seed: object = seed
        """Seed of the history."""
        self.reason: str = reason
        """Broken rule."""
        self.faults: tuple[InjectedFault, ...] = tuple(faults)
        """Injected faults."""
        self.world: World = world
        """World at the end of the history."""
        self.timeline: tuple[str, ...] = tuple(map(str, world.events))
        """Events of the history, one line each."""
        counted = f"{found} fault{'' if found == 1 else 's'}, {len(self.faults)} after shrinking"
        lines = "\n".join(self.timeline)
        super().__init__(f"seed {seed!r}: {reason}\n{counted}\n{lines}\nreproduce it with: {pasted}")


class NotDeterministic(AssertionError):
    """History of a seed that differs from its repetition."""

    def __init__(self, seed: object, first: str, second: str, number: int) -> None:
        self.seed: object = seed
        """Seed of the history."""
        self.first: str = first
        """First event of the one execution that differs."""
        self.second: str = second
        """Event of the other execution at its place."""
        super().__init__(
            f"seed {seed!r} has two histories, which differ in event {number}:\n  {first}\n  {second}\nlikely causes: "
            "time or random numbers that do not come from the world, the order of a set, threads, sockets, and state "
            "outside the world that survives a life"
        )


@attrs.frozen(kw_only=True)
class Simulation:
    """Result of `simulate`."""

    seeds: int
    """Number of histories."""
    lives: int
    """Number of simulated processes."""
    crashes: int
    """Number of injected crashes."""
    injected: Mapping[str, int]
    """Number of injected faults by name."""
    failures: tuple[SimulationFailed, ...]
    """Histories that broke a rule."""
    cpu_s: float
    """Seconds of CPU time."""
    _simulator: Simulator = attrs.field(repr=False, eq=False, alias="simulator")

    def trace(self, seed: object) -> str:
        """Return every event of a seed's history, with digests of record bodies.

        Args:
            seed: seed of the history.
        """
        return _trace_of(self._simulator.history(seed).world)


@attrs.frozen(kw_only=True, eq=False)
class History:
    """One run of a seed."""

    world: World
    reason: str | None

    @property
    def faults(self) -> list[InjectedFault]:
        return self.world.plan.injected


@attrs.frozen(kw_only=True, eq=False)
class Simulator:
    """Histories of one pipeline."""

    factory: Factory
    input: object
    faults: Sequence[FaultKind]
    check: Check | None
    answers: Mapping[str, object]
    drive: Drive | None
    fresh: bool
    max_lives: int

    def history(self, seed: object, *, only: Sequence[InjectedFault] | None = None, shuffles: bool = True) -> History:
        """Run the history of a seed, or only these of its faults."""
        process = SimulatedProcess(seed, shuffles=shuffles)
        replayed = None if only is None else {each.at: each for each in only}
        plan = FaultPlan(self.faults, random.Random(f"{seed}/faults"), replayed)
        world = World(seed, plan, process)
        with installed(process):
            seams.on_call = world.called
            return History(world=world, reason=self._lived(world))

    def _lived(self, world: World) -> str | None:
        """Run lives until the run ends or rests; return the broken rule."""
        anew = functools.partial(self._made, world)
        made: Callable[[], Flujo] = anew if self.fresh else functools.cache(anew)
        while world.life < self.max_lives:
            world.begin_life()
            world.plan.calm = world.life > self.max_lives - CALM_LIVES
            ended = self._life(world, made)
            if ended is not None:
                self._refuse_unknown_answers(world)
                return ended or self._checked(world)
            world.process.pass_time(world.process.lease_s + _MARGIN_S)
        return f"(a) the run has not ended after {self.max_lives} lives; open steps: {_open_steps(world)}"

    def _made(self, world: World) -> Flujo:
        """Return the application of a life."""
        flujo = self.factory(world)
        world.process.replace_late()
        _refuse_coroutine(flujo, "the factory")
        if not isinstance(flujo, Flujo):
            raise DeclarationError(f"simulate: the factory must return a Flujo, not {type(flujo).__name__}")
        if flujo._store is not world.store:
            raise DeclarationError("simulate: the factory must return a Flujo with store=world.store")
        world.process.lease_s = flujo._settings.durability.lease_s
        world.pipeline = flujo.pipeline
        world.limits, world.limits_of = flujo._limits, functools.cache(functools.partial(_limits_at, flujo.pipeline))
        return flujo

    def _refuse_unknown_answers(self, world: World) -> None:
        """Refuse unused answers whose names no step has."""
        pipeline = world.pipeline
        if self.drive is not None or pipeline is None:
            return
        for name in (each for each in self.answers if each not in world.answer_names):
            names = {each.name for each in walk_steps(pipeline) if each.name is not None}
            last = name.rpartition("/")[2]
            if last.startswith("~") or last in names or find_step(pipeline, StepPath(name)) is not None:
                continue
            near = nearest(last, sorted(names))
            hint = "" if near is None else f"; did you mean {near!r}?"
            raise DeclarationError(f"simulate: answers has {name!r}, but there is no such step{hint}")

    def _life(self, world: World, made: Callable[[], Flujo]) -> str | None:
        """Run one life; return None to continue, or the broken rule."""
        try:
            flujo = made()
            main, on_asyncio = functools.partial(self._driven, world, flujo), is_on_asyncio(world, flujo)
            _refuse_running_loop(on_asyncio=on_asyncio)
            ended = world.process.run(main, life=world.life, on_asyncio=on_asyncio)
        except ProcessCrashed:
            if world.process.stuck is not None:
                return f"(a) life {world.life} is stuck: {world.process.stuck}; open steps: {_open_steps(world)}"
            world.note("crash", "")
            return world.violation
        except DeclarationError:
            raise
        except (InvalidAnswer, FingerprintMismatch) as error:  # every further life would raise it, too
            return self._raised(world, error)
        except FlujoError as error:
            return self._ended_by(world, error)
        except AssertionError as error:
            raised = self._raised(world, error)
            return f"drive: {error}" if str(error) else raised
        except Exception as error:  # user code: the factory, the drive and what they call
            only = _only_of(error)
            return self._ended_by(world, only) if isinstance(only, FlujoError) else self._raised(world, only)
        world.result = ended if isinstance(ended, PipelineResult) else world.result
        return world.violation or ("" if self.drive is None else _rest(world, unknown=""))

    def _ended_by(self, world: World, error: FlujoError) -> str | None:
        """Note an error of the library that ended a life."""
        world.note("life ended", type(error).__name__)
        world.result = getattr(error, "result", None) or world.result
        return world.violation or _rest(world)

    def _raised(self, world: World, error: Exception) -> str:
        world.error = error
        return f"life {world.life} raised {type(error).__name__}: {error}"

    async def _driven(self, world: World, flujo: Flujo) -> object:
        if self.drive is None:
            return self._returned(world, await default_drive(world, flujo, self.input, self.answers))
        driven = self.drive(world, flujo)
        if not inspect.isawaitable(driven):
            raise DeclarationError("simulate: drive must be an async function, or return an awaitable")
        return self._returned(world, await driven)

    def _returned(self, world: World, answer: object) -> object:
        """Return the answer of a drive after checking its last record."""
        if isinstance(answer, PipelineResult) and answer.status in ENDED:
            records = world.records(answer.run_id)
            if records and records[-1].kind != "ended":
                world.violate(f"(d) the run returned {answer.status!r} without an `ended` record")
        return answer

    def _checked(self, world: World) -> str | None:
        broken = broken_rule(world, world.result)
        if broken is not None or self.check is None:
            return broken
        got = capture(self.check, world)
        if isinstance(got, Value):
            _refuse_coroutine(got.value, "check")
            return f"check: {got.value}" if isinstance(got.value, str) and got.value else None
        if not isinstance(got.error, Exception):
            raise got.error
        world.error = got.error
        kind, text = type(got.error).__name__, str(got.error)
        return (
            f"check: {text}"
            if text and isinstance(got.error, AssertionError)
            else f"check: {kind}: {text}".rstrip(": ")
        )

    # --- failures ---

    def failure(self, history: History, *, shrink: bool) -> SimulationFailed:
        """Return the error of a failing history, shrunk if wanted."""
        found, seed = len(history.faults), history.world.seed
        smallest = self._shrunk(history) if shrink else history
        assert smallest.reason is not None
        failed = SimulationFailed(
            seed=seed,
            reason=smallest.reason,
            faults=smallest.faults,
            found=found,
            world=smallest.world,
            pasted=self._pasted(seed),
        )
        failed.__cause__ = smallest.world.error
        return failed

    def _pasted(self, seed: object) -> str:
        """Return the call that reproduces a seed, short and with all arguments."""
        name, short = _code_of(self.factory, "app"), f"seeds=[{seed!r}]"
        given = [] if self.input is NOTHING else [_code_of(self.input, "input")]
        options = [f"{key}={code}" for key, code in self._options()]
        line = f"simulate({name}, {short})"
        if not given and not options:
            return line
        return f"{line} and the same arguments:\nsimulate({', '.join([name, *given, short, *options])})"

    def _options(self) -> Iterator[tuple[str, str]]:
        """Yield the arguments of a history other than defaults, as code."""
        if list(self.faults) != fault_kinds.default():
            yield "faults", f"[{', '.join(map(str, self.faults))}]"
        for key in ("check", "answers", "drive"):
            if value := getattr(self, key):
                yield key, _code_of(value, key)
        if not self.fresh:
            yield "fresh", "False"
        if self.max_lives != MAX_LIVES:
            yield "max_lives", str(self.max_lives)

    def _shrunk(self, history: History) -> History:
        runs = itertools.count(1)
        smallest, shrinking = history, True
        while shrinking:
            shrinking = False
            for fault in list(smallest.faults):
                if fault not in smallest.faults or next(runs) > SHRINK_RUNS:
                    continue
                fewer = [each for each in smallest.faults if each is not fault]
                again = self.history(history.world.seed, only=fewer)
                if again.reason is not None:
                    smallest, shrinking = again, True
        if next(runs) > SHRINK_RUNS:
            return smallest
        ordered = self.history(history.world.seed, only=smallest.faults, shuffles=False)
        return smallest if ordered.reason is None else ordered

    def repeat(self, history: History) -> None:
        """Run a history again; raise `NotDeterministic` if it differs."""
        first = _trace_of(history.world).splitlines()
        second = _trace_of(self.history(history.world.seed).world).splitlines()
        for number, (one, other) in enumerate(itertools.zip_longest(first, second, fillvalue="(no event)"), 1):
            if one != other:
                raise NotDeterministic(history.world.seed, one, other, number)


def simulate(
    factory: Factory,
    input: object = NOTHING,
    *,
    seeds: int | Iterable[object] = 1000,
    faults: Sequence[FaultKind] | None = None,
    check: Check | None = None,
    answers: Mapping[str, object] | None = None,
    drive: Drive | None = None,
    fresh: bool = True,
    max_lives: int = MAX_LIVES,
    shrink: bool = True,
    for_s: float | None = None,
    raises: bool = True,
) -> Simulation:
    """Run a pipeline under seeded crashes, faults and task orders, in memory.

    Args:
        factory: function of a `World` that returns the `Flujo` of one simulated process.
        input: input of the run.
        seeds: number of seeds, or the seeds themselves.
        faults: kinds of faults; by default all.
        check: function of the `World` that raises `AssertionError` or returns a sentence.
        answers: answers to questions by path.
        drive: function `(world, flujo)` of one life; by default it runs or resumes run `"r"`.
        fresh: whether each life has a new `Flujo`.
        max_lives: most lives of one history; the last ten have no faults.
        shrink: whether a failing history is shrunk.
        for_s: CPU seconds for further seeds.
        raises: whether a failure is raised.

    Raises:
        SimulationFailed: a rule was broken; the error has the shrunk history.

    Example:
        ```python
        report = simulate(lambda world: Flujo(Step("greet", str.upper), store=world.store), "ada", seeds=5)
        assert report.failures == ()
        ```
    """
    if not is_count(max_lives):
        raise DeclarationError(f"simulate: max_lives must be at least 1, not {brief_repr(max_lives)}")
    _refuse_times(seeds, for_s)
    _warn_if_unseeded()
    simulator = Simulator(
        factory=_callable(factory, "factory"),
        input=input,
        faults=fault_kinds.default() if faults is None else _kinds_of(faults),
        check=None if check is None else _callable(check, "check"),
        answers=_mapping(answers),
        drive=None if drive is None else _callable(drive, "drive"),
        fresh=fresh,
        max_lives=max_lives,
    )
    return _Totals(simulator, shrink=shrink, raises=raises).simulated(seeds, for_s)


# --- wrong arguments ----------------------------------------------------------------------------------------------


def _refuse_times(seeds: object, for_s: object) -> None:
    """Refuse seeds and seconds of a wrong type."""
    is_given = isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes)
    if not is_given and not is_count(seeds, at_least=0):
        raise DeclarationError(
            f"simulate: seeds must be a number of at least 0, or the seeds themselves, not {brief_repr(seeds)}"
        )
    if for_s is not None and (not is_number(for_s) or for_s < 0):
        raise DeclarationError(f"simulate: for_s must be seconds of at least 0, not {brief_repr(for_s)}")


def _refuse_running_loop(*, on_asyncio: bool) -> None:
    """Refuse a call from a coroutine whose loop a life cannot share."""
    inside = on_asyncio and asyncio._get_running_loop() is not None
    if inside or trio.lowlevel.in_trio_run():
        raise DeclarationError("simulate runs event loops of its own: call it in synchronous code, not in a coroutine")


def _callable(given: F, what: str) -> F:
    if not callable(given):
        raise DeclarationError(f"simulate: {what} must be a function, not {brief_repr(given)}")
    return given


def _kinds_of(faults: object) -> tuple[FaultKind, ...]:
    """Return the given faults; refuse anything else."""
    if isinstance(faults, Iterable) and not isinstance(faults, str):
        given = tuple(faults)
        if all(isinstance(each, FaultKind) for each in given):
            return given
    raise DeclarationError(f"simulate: faults must be a list such as [faults.crash()], not {brief_repr(faults)}")


def _mapping(answers: Mapping[str, object] | None) -> Mapping[str, object]:
    if answers is not None and not isinstance(answers, Mapping):
        raise DeclarationError(f"simulate: answers must be a mapping from paths to answers, not {brief_repr(answers)}")
    return answers or {}


def _refuse_coroutine(value: object, what: str) -> None:
    """Refuse the result of an async function."""
    if inspect.iscoroutine(value):
        value.close()
        raise DeclarationError(f"simulate: {what} must not be async")


class _Totals:
    """Sums over the histories of one call."""

    def __init__(self, simulator: Simulator, *, shrink: bool, raises: bool) -> None:
        self._simulator, self._shrink, self._raises = simulator, shrink, raises
        self._seeds = self._lives = self._crashes = 0
        self._injected: Counter[str] = Counter()
        self._failures: list[SimulationFailed] = []

    def simulated(self, seeds: int | Iterable[object], for_s: float | None) -> Simulation:
        began = time.process_time()
        for number, seed in enumerate(_seeds(seeds, for_s, began)):
            self._add(self._simulator.history(seed), twice=number < 3 or number % 100 == 0)
        return Simulation(
            seeds=self._seeds,
            lives=self._lives,
            crashes=self._crashes,
            injected=dict(self._injected),
            failures=tuple(self._failures),
            cpu_s=time.process_time() - began,
            simulator=self._simulator,
        )

    def _add(self, history: History, *, twice: bool) -> None:
        world = history.world
        self._seeds += 1
        self._lives += world.life
        self._crashes += world.crashes
        self._injected.update(fault.name for fault in history.faults)
        if twice and is_known_trio():  # the order of tasks of another release is not held
            self._simulator.repeat(history)
        if history.reason is not None:
            failure = self._simulator.failure(history, shrink=self._shrink)
            if self._raises:
                raise failure
            self._failures.append(failure)


def _seeds(seeds: int | Iterable[object], for_s: float | None, began: float) -> Iterator[object]:
    highest = -1
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        highest = max(highest, seed) if isinstance(seed, int) else highest
        yield seed
    further = itertools.count(highest + 1)
    while for_s is not None and time.process_time() - began < for_s:
        yield next(further)


def _trace_of(world: World) -> str:
    """Return all events, with digests."""
    return "\n".join(f"{event}  {event.digest}".rstrip() for event in world.events)


def _rest(world: World, *, unknown: str | None = None) -> str | None:
    """Return "" at rest, None otherwise, `unknown` without a run."""
    try:
        run = MemoryStore.get(world.store, RUN_ID)
    except RunNotFound:
        return unknown
    if has_ended(run.status) and world.result is None:
        world.result = stored_result(run, RunClient(world.store, allow_blocking=True).state(RUN_ID))
    return "" if has_ended(run.status) or (unknown is not None and run.status != "running") else None


def _only_of(error: Exception) -> Exception:
    """Return the only error of a group, or the error itself."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _code_of(value: object, name: str) -> str:
    """Return a value as code: a literal, or a name."""
    if callable(value):
        found = str(getattr(value, "__name__", name))
        return found if found.isidentifier() else name
    try:
        is_literal = ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        is_literal = False
    return repr(value) if is_literal else name


def _open_steps(world: World) -> str:
    with contextlib.suppress(FlujoError), world.outside() as client:
        return ", ".join(map(repr, client.state(RUN_ID).open_steps)) or "none"
    return "none"


def _warn_if_unseeded() -> None:
    if not is_known_trio():
        version = ".".join(trio.__version__.split(".")[:2])
        logging.getLogger("flujo_actors").warning("trio %s is not known here: schedules are not seeded", version)


# --- Default drive of a life: run or resume, and answer questions -----------------------------------------------------


async def default_drive(world: World, flujo: Flujo, data: object, answers: Mapping[str, object]) -> PipelineResult:
    """Run or resume run `"r"` to its end, answering its questions."""
    result = await _begun(world, flujo, data)
    while True:
        again = await _continued(world, flujo, result, answers)
        if again is None:
            return result
        result = again


async def _begun(world: World, flujo: Flujo, data: object) -> PipelineResult:
    client = RunClient(world.store, allow_blocking=True)
    try:
        run = world.store.get(RUN_ID)
    except RunNotFound:
        return await flujo.run_async(data, run_id=RUN_ID)
    if has_ended(run.status):
        return stored_result(run, client.state(RUN_ID))
    return await _resumed(world, flujo)


async def _resumed(world: World, flujo: Flujo) -> PipelineResult:
    client = RunClient(world.store, allow_blocking=True)
    try:
        return await flujo.resume_async(RUN_ID)
    except NotPaused:
        run = world.store.get(RUN_ID)
        if not has_ended(run.status):
            raise
        return stored_result(run, client.state(RUN_ID))


async def _continued(
    world: World, flujo: Flujo, result: PipelineResult, answers: Mapping[str, object]
) -> PipelineResult | None:
    """Continue a resting run; None if it ended or cannot continue."""
    if result.status == "sleeping" and result.wakes_at is not None:
        await world.sleep(max(0.0, result.wakes_at - _wall(world)))
        return await _resumed(world, flujo)
    if result.status != "paused":
        return None
    questions = RunClient(world.store, allow_blocking=True).questions(run_id=RUN_ID)
    if not questions:
        return await _resumed(world, flujo)
    for question in questions:
        found = next((name for name in _names_of(question) if name in answers), None)
        if found is not None:
            world.answer_names.add(found)
            return await _answered(world, flujo, question, answers[found])
    return await _timed_out(world, flujo, questions)


def _names_of(question: Question) -> Iterator[str]:
    """Yield the names of a question in `answers`, most specific first."""
    segments = [known_segment(each) for each in question.path.split("/")]
    declared = "/".join(each.name for each in segments if isinstance(each, Named))
    yield from (question.path, declared, f"{declared}/{question.step}", question.step)


async def _answered(world: World, flujo: Flujo, question: Question, given: object) -> PipelineResult:
    answer = given(question, world.rng) if callable(given) else given
    fault = world.answering(question.path)
    name, is_first = (None, False) if fault is None else (fault.name, fault.when == "before")
    if name == "late_answer" and fault is not None:
        await world.sleep(fault.seconds if question.due_at is None else max(0.0, question.due_at - _wall(world)) + 1)
    if name == "duplicate_answer" and is_first:
        with world.outside() as client:
            client.answer(question.state_token, answer)
    try:
        result = await flujo.resume_async(question.state_token, answer)
    except NotPaused:
        RunClient(world.store, allow_blocking=True).expire()
        return await _resumed(world, flujo)
    if name == "duplicate_answer" and not is_first:
        _answer_again(world, question, answer)
    return result


def _answer_again(world: World, question: Question, answer: object) -> None:
    """Answer a question for the second time, which must be refused."""
    try:
        with world.outside() as client:
            client.answer(question.state_token, answer)
    except NotPaused:
        return
    world.violate(f"(f) question {question.path!r} was answered, and another answer was accepted")


async def _timed_out(world: World, flujo: Flujo, questions: Sequence[Question]) -> PipelineResult | None:
    """Wait for the nearest deadline; None if there is none."""
    due = min((question.due_at for question in questions if question.due_at is not None), default=None)
    if due is None:
        return None
    await world.sleep(max(0.0, due - _wall(world)) + 0.001)
    RunClient(world.store, allow_blocking=True).expire()
    return await _resumed(world, flujo)


def _wall(world: World) -> float:
    return world.process.time()


def _limits_at(pipeline: Pipeline, path: StepPath) -> UsageLimits | None:
    """Return the limits of the step at a run path, if any."""
    step = find_step(pipeline, path) if path else None
    return None if step is None else step.usage_limits


def is_on_asyncio(world: World, flujo: Flujo) -> bool:
    """Return whether a life needs asyncio: for model agents, or by settings."""
    plans = (getattr(step, "plan", None) for step in walk_steps(flujo.pipeline))
    has_models = world.uses_models or any(getattr(plan, "shape", None) == "model" for plan in plans)
    return has_models or flujo.backend() == "asyncio"
