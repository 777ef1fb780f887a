"""Oracle of one rehearsed run: recorded results, and differences from them. Pure.

Rules:

1. Nothing with an effect is executed. A step or tool call runs only if it is declared `live`.
2. A recorded tool call is known by tool and arguments. Each record answers once: in a replay first the one at the same
   place, in a rehearsal in recorded order. A record of a concurrent step is left to that step.
3. Anything without a record stops the run: `Diverged`. A run without an end is compared as far as it is recorded:
   then `RecordEnds` stops it.
4. A replay follows the record: after a difference or a divergence it continues with the recorded outcome. So the
   first one is the first in recorded order, also among concurrent branches.
5. A rehearsal continues with the present outcome. After the first changed one, a step whose input cannot be derived
   has another input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from ... import _dsl
from ..._agents.granular.units import ToolRequest
from ..._core.error_info import describe_error
from ..._core.outcomes import Failure, StepResult, Success, TerminalOutcome
from ..._core.step_paths import (
    ROOT,
    Handler,
    Item,
    Named,
    StepPath,
    is_undoing,
    known_segment,
    last_name,
    parse,
    step_around,
    step_of,
    unit_name,
)
from ..._dsl.context_sources import FromRetrieval
from ..._dsl.declaration_tree import find_step
from ..._dsl.pipeline import AnyStep, Pipeline
from ..._dsl.step_declaration import Step
from ..._durable.fingerprint import Facts, is_same
from ..._durable.journal import Journal, KeptUnit
from ..._durable.pipeline_diff import declared_at
from ...errors import ControlError, Diverged
from .recorded_run import (
    UNKNOWN,
    RecordedQuestion,
    RecordedRun,
    RecordedToolCall,
    failed,
    is_model_turn,
    last_segment,
    stored_form,
    succeeded,
)
from .verdicts import Difference, DifferenceKind

Models: TypeAlias = Literal["live", "recorded"]
"""Source of model responses in a rehearsal."""

Way: TypeAlias = Literal["run", "recorded", "skip"]
"""Handling of a step: execution, its record, or neither."""

_LIVE = 'declare rehearse="live" if it has no effect'


class RecordEnds(ControlError):
    """The recorded run has nothing further to compare."""


@attrs.frozen(kw_only=True, eq=False)
class Present:
    """The present pipeline, with the options of one rehearsal."""

    pipeline: Pipeline
    steps: Mapping[StepPath, Facts]
    """Facts of its steps."""
    changed: frozenset[StepPath] = frozenset()
    """Declared steps whose facts differ from the recorded ones."""
    live_steps: frozenset[str] = frozenset()
    models: Models = "recorded"
    connect: bool = False
    follows: bool = True
    """Whether a difference is followed by the record (rules 4, 5)."""


class Oracle:
    """Recorded results for one run; see the module's rules."""

    def __init__(self, recording: RecordedRun, present: Present, fork_seq: int = 1) -> None:
        self.recording, self.present = recording, present
        self.checked: dict[StepPath, None] = {}
        self.taken: dict[StepPath, None] = {}
        self.differences: list[Difference] = []
        self.divergences: list[Difference] = []
        self.asked_otherwise: list[tuple[int, str]] = []
        """Records of model requests that differ, with their sentences."""
        self.is_changed = False
        """Whether an outcome differs from its record since the fork."""
        self._calls = _Calls(recording, fork_seq)
        self._given: dict[StepPath, KeptUnit] = {}
        self._failed: dict[StepPath, str] = {}
        """Calls that failed an attempt, as in the recorded run."""
        self._items: Counter[StepPath] = Counter()
        self._asked: Counter[StepPath] = Counter()

    # --- steps ---

    def way(self, path: StepPath, step: AnyStep, data: object) -> Way:
        """Return the handling of a step; raise `Diverged` or `RecordEnds`."""
        if isinstance(last_segment(path), Item):
            self._items[step_around(path)] += 1
        if is_aside(path):
            return "recorded" if path in self.recording.settled else "skip"
        if self._is_live(path, step):
            return "run"
        if not isinstance(step, Step):
            return self._way_of_composite(path, step)
        if step.resumable is None:
            return "run" if self._may_be_asked(path, step, data) else "recorded"
        if self.present.follows:
            self._require_begun(path)
        self._refuse_connection(path, step)
        self._refuse_conversation(path, step)
        return "run"

    def _way_of_composite(self, path: StepPath, step: AnyStep) -> Way:
        if step.kind in ("sleep", "wait_for"):
            return "recorded"
        if getattr(step, "keep_history", None) is not None and path in self.recording.settled:
            return "recorded"  # the records of its old turns are deleted
        if self.present.follows:
            self._require_begun(path)
        return "run"

    def _is_live(self, path: StepPath, step: AnyStep) -> bool:
        """Return whether a live step may be executed.

        A step with a transaction never is, and an atomic agent only with live models.
        """
        if isinstance(step, Step) and ("transaction" in step.plan.named or self._lacks_model(step)):
            return False
        return self._is_declared_live(path, step)

    def _is_declared_live(self, path: StepPath, step: AnyStep) -> bool:
        return getattr(step, "rehearse", "recorded") == "live" or self._is_named_live(path)

    def _lacks_model(self, step: Step) -> bool:
        """Return whether the step would need an unrecorded model request."""
        return step.resumable is None and step.plan.shape == "model" and self.present.models != "live"

    def _is_named_live(self, path: StepPath) -> bool:
        if not self.present.live_steps:
            return False
        return not self.present.live_steps.isdisjoint(names_around(path))

    def _may_be_asked(self, path: StepPath, step: Step, data: object) -> bool:
        """Return whether an atomic agent without tools is asked again."""
        if self.present.follows or self.present.models != "live" or step.plan.shape != "model":
            return False
        if step.conversation is not None:
            return False
        return not _dsl.has_tools(step.agent) and not self._can_answer(path, step, data)

    def _can_answer(self, path: StepPath, step: Step, data: object) -> bool:
        known = path in self.recording.settled and not self.is_changed_at(path)
        return known and self._has_same_input(path, step, data, sees_context=step.shows_context)

    def is_changed_at(self, path: StepPath) -> bool:
        """Return whether the declaration of a step differs from the recorded one."""
        return bool(self.present.changed) and declared_at(path, self.present.steps) in self.present.changed

    def _require_begun(self, path: StepPath) -> None:
        if path not in self.recording.begun:
            raise self.unrecorded(path)

    def _refuse_connection(self, path: StepPath, step: Step) -> None:
        found = None if self.present.connect else _dsl.toolset_to_connect(step.agent, step.agent_options)
        if found is not None:
            sentence = f"toolset {found!r} must connect to list its tools; pass connect=True"
            raise self.diverged(path, "tool call", sentence)

    def _refuse_conversation(self, path: StepPath, step: Step) -> None:
        """Refuse to ask a model without the messages of earlier runs."""
        if step.conversation is not None and self.present.models == "live":
            sentence = f"the conversation of step {path!r} is not recorded: messages of earlier runs are missing"
            raise self.diverged(path, "status", sentence)

    def answer(self, path: StepPath, step: AnyStep, data: object, *, sees_context: bool) -> TerminalOutcome:
        """Return the recorded outcome of a step with this input, or raise.

        A sleep of a rehearsal passes its input on at once.
        """
        outcome = self.recording.outcome(path)
        if step.kind == "sleep" and not self.present.follows and not failed(outcome):
            return Success(step_result=StepResult(name=last_name(path), output=data))
        if outcome is None:
            raise self.unrecorded(path, step)
        if is_aside(path):
            return outcome
        if not self.present.follows and self.is_changed_at(path):
            raise self.diverged(path, "status", self._not_executed(path, step, "is changed"))
        if not self._has_same_input(path, step, data, sees_context=sees_context):
            raise self.diverged(path, "status", self._not_executed(path, step, "got another input"))
        return outcome

    def _not_executed(self, path: StepPath, step: AnyStep | None, why: str) -> str:
        if isinstance(step, Step) and self._is_declared_live(path, step) and self._lacks_model(step):
            return _no_request(after=0)
        if isinstance(step, Step) and step.plan.shape == "model" and _dsl.has_tools(step.agent):
            return f"step {path!r} is atomic: its tools are not recorded; make it granular"
        return f"step {path!r} {why}; {_LIVE}"

    def _has_same_input(self, path: StepPath, step: AnyStep, data: object, *, sees_context: bool) -> bool:
        before, after = (self._expression(path, each) for each in (self.recording.steps, self.present.steps))
        if before != after and not (before and after and is_same(before, after)):
            return False
        recorded = self.recording.input_of(path)
        computed = not isinstance(step, Pipeline) and step.input is not None
        if self.is_changed and (recorded is UNKNOWN or computed or sees_context):
            return False
        return recorded is UNKNOWN or self.recording.is_same(recorded, data)

    def _expression(self, path: StepPath, steps: Mapping[StepPath, Facts]) -> str:
        """Return the text of a step's `input`, if it has one."""
        place = declared_at(path, steps)
        return "" if place is None else str(steps[place].get("input") or "")

    def unrecorded(self, path: StepPath, step: AnyStep | None = None) -> ControlError:
        """Return the error of a step without a record."""
        around = step_around(path)
        if around in self.recording.settled and self.present.follows:
            found = self._other_way(path, around)
            if found is not None:
                self.differences.append(found)
                return RecordEnds(str(found))
        if self._ends_before(path):
            return RecordEnds(f"nothing is recorded after step {path!r} began")
        return self.diverged(path, "status", self._not_executed(path, step, "is not recorded"))

    def _other_way(self, path: StepPath, around: StepPath) -> Difference | None:
        """Return the difference of a loop that continues, or another branch."""
        kind, seq = self._kind(around), self.recording.seq(around)
        if kind in ("loop", "map"):
            known = self.recording.items(around)
            return Difference(
                path=around, what="loops", recorded=known, now=max(self._items[around], known + 1), seq=seq
            )
        branches = [each for each in self.recording.begun if _is_branch(each, around)]
        if kind != "branch" or not branches:
            return None
        recorded, now = last_name(branches[-1]), last_name(path)
        return Difference(path=around, what="choice", recorded=recorded, now=now, seq=seq)

    def _kind(self, path: StepPath) -> str:
        place = declared_at(path, self.present.steps)
        return "" if place is None else str(self.present.steps[place].get("kind"))

    def _ends_before(self, path: StepPath) -> bool:
        """Return whether the recorded run stopped before this step settled."""
        if self.recording.status == "completed" or any(above in self.recording.settled for above in _around(path)):
            return False
        return not self.recording.has_ended or path in self.recording.begun

    # --- units ---

    def unit(self, path: StepPath) -> KeptUnit | None:
        """Return a recorded model turn or context; `None` for a live one."""
        if unit_name(path) == "context":
            return self._assembled(path)
        if is_model_turn(path) and self.present.models == "live":
            return None
        found = self._borrowed(path, path)
        if found is not None:
            return found
        if not is_model_turn(path):
            raise self.diverged(step_of(path), "tool call", f"operation {unit_name(path)!r} is not recorded")
        raise self._missing(path, "status", _no_request(after=_turn(path) - 1))

    def compare_request(self, path: StepPath, asked: str) -> None:
        """Note a model request whose hash differs from the recorded one.

        A redacted file has other texts than its hashes, and steering is not replayed.
        """
        recorded = None if self.recording.redacted else self.recording.asked(path)
        if recorded not in (None, asked) and self.present.follows:
            sentence = f"turn {_turn(path)} of {step_of(path)!r} was asked something else"
            self.asked_otherwise.append((self.recording.intents[path].seq, sentence))

    def _assembled(self, path: StepPath) -> KeptUnit | None:
        """Return the recorded context of an unchanged step that searches."""
        step, place = find_step(self.present.pipeline, step_of(path)), step_of(path)
        sources = step.context_sources if isinstance(step, Step) else None
        if sources is None or not any(isinstance(each, FromRetrieval) for each in sources.sources):
            return None
        changed = self.is_changed or (not self.present.follows and self.is_changed_at(place))
        if path not in self.recording.units or changed:
            raise self.diverged(place, "status", f"a search of step {place!r} is not recorded")
        return self.recording.unit(path)

    def called(self, path: StepPath, request: ToolRequest) -> KeptUnit | None:
        """Return a tool call's recorded result; `None` for a live one."""
        if path in self._given:
            return self._given[path]
        if path in self._failed:  # by an earlier attempt of the step
            raise AttemptFailedAgain(self._failed[path])
        step = find_step(self.present.pipeline, step_of(path))
        arguments = self.recording.arguments(request.arguments)
        live = request.rehearse == "live" or (step is not None and self._is_live(step_of(path), step))
        call = self._calls.next(path, request.tool, arguments, again=request.rehearse == "repeat", over=self._over)
        if live:
            return None
        if isinstance(call, str):
            raise self.diverged(step_of(path), "tool call", call, now={"tool": request.tool, "arguments": arguments})
        found = self._borrowed(path, call.path)
        if found is not None:
            return found
        sentence = f"tool {call.tool!r} was called with {arguments}, whose result is not recorded"
        error = self._missing(call.path, "tool call", sentence)
        if isinstance(error, AttemptFailedAgain):
            self._failed[path] = str(error)
        raise error

    def _borrowed(self, path: StepPath, recorded: StepPath) -> KeptUnit | None:
        found = self.recording.unit(recorded)
        if found is not None and not self.present.follows:
            found = attrs.evolve(found, borrowed=self.recording.intent(recorded))
        if found is not None:
            self._given[path] = found
        return found

    def _over(self) -> Collection[StepPath] | None:
        """Return the settled steps of a rehearsal; None in a replay."""
        return None if self.present.follows else {*self.checked, *self.taken}

    def _missing(self, path: StepPath, what: DifferenceKind, sentence: str) -> Exception:
        """Return the error of a unit without a result.

        If its step failed in the recorded run, that failure is the result. If only its attempt failed, as before a
        fallback, it fails again. If the run has no end, the record ends here.
        """
        step = step_of(path)
        error = self.diverged(step, what, sentence)
        if path in self.recording.intents and failed(self.recording.outcome(step)):
            return UnitFailed(sentence)
        if path in self.recording.intents and succeeded(self.recording.outcome(step)) and self.recording.tried(step):
            return AttemptFailedAgain(self.recording.tried(step))
        if is_model_turn(path) and self._ends_before(step) and self.present.follows:
            return RecordEnds(sentence)
        return error

    def choice(self, path: StepPath) -> str:
        """Return a recorded selection, or raise `Diverged`."""
        record = self.recording.chosen.get(path)
        if record is None:
            raise self.unrecorded(step_around(path))
        return str(self.recording.body(record)["choice"])

    # --- questions ---

    def question(self, path: StepPath, asked: Mapping[str, object]) -> str | None:
        """Return the body of the recorded answer; `None` without one.

        Raise `Diverged` if the question is another.
        """
        known = self._questions_at(path)
        if self._asked[path] >= len(known):
            if self._ends_before(step_of(path)):
                return None
            raise self._another(path, asked)
        recorded = known[self._asked[path]]
        if not self._is_same_question(self.recording.body(recorded.asked), asked):
            raise self._another(path, asked)
        self._asked[path] += 1
        return None if recorded.answered is None else recorded.answered.body

    def _questions_at(self, path: StepPath) -> Sequence[RecordedQuestion]:
        """Return the recorded questions at a path, or about a call."""
        known = self.recording.questions.get(path)
        if known is not None or step_of(path) == path:
            return known or ()
        others = self.recording.questions.items()
        call = path.rpartition("~")[2]
        return next((found for each, found in others if step_of(each) == step_of(path) and each.endswith(call)), ())

    def _is_same_question(self, recorded: Mapping[str, object], asked: Mapping[str, object]) -> bool:
        same = recorded.get("schema") == asked.get("schema") and _question_facts(recorded) == _question_facts(asked)
        text = self.recording.text(str(asked.get("message")))
        return same and recorded.get("message") == text and (self.recording.redacted or _hash(recorded) == _hash(asked))

    def _another(self, path: StepPath, asked: Mapping[str, object]) -> Diverged:
        step, known = step_of(path), self._questions_at(path)
        recorded = self.recording.body(known[-1].asked).get("message") if known else None
        sentence = f"the question at {step!r} is another"
        return self.diverged(step, "question", sentence, now=asked.get("message"), recorded=recorded)

    # --- comparison ---

    def diverged(
        self, path: StepPath, what: DifferenceKind, sentence: str, *, now: object = "diverged", recorded: object = None
    ) -> Diverged:
        """Return the error of a step that cannot continue, and note it."""
        known = self.recording.outcome(path)
        if recorded is None and known is not None and what == "status":
            recorded = status_of(known)
        error = Diverged(sentence)
        error.difference = Difference(
            path=path, what=what, recorded=recorded, now=now, seq=self.recording.seq(path), sentence=sentence
        )
        return error

    def compare(self, path: StepPath, outcome: TerminalOutcome, context: object, given: object) -> Difference | None:
        """Return the first difference of a settled step from its record."""
        recorded = self.recording.outcome(path)
        assert recorded is not None
        seq, now = self.recording.seq(path), self._items[path]
        if self._kind(path) in ("loop", "map") and now != self.recording.items(path):
            return Difference(path=path, what="loops", recorded=self.recording.items(path), now=now, seq=seq)
        uncalled = self._calls.uncalled(path) if self.present.follows else None
        if uncalled is not None:
            return _not_called(path, uncalled)
        return self._compare_outcomes(path, recorded, outcome, seq) or self._compare_contexts(path, context, given)

    def _compare_outcomes(
        self, path: StepPath, recorded: TerminalOutcome, now: TerminalOutcome, seq: int
    ) -> Difference | None:
        if type(recorded) is not type(now):
            return Difference(path=path, what="status", recorded=status_of(recorded), now=status_of(now), seq=seq)
        if isinstance(recorded, Failure) and isinstance(now, Failure):
            old, new = error_text(recorded), self.recording.text(error_text(now))
            return None if old == new else Difference(path=path, what="error", recorded=old, now=new, seq=seq)
        output = output_of(now)
        if self.recording.is_same(self.recording.output_data(path), output):
            return None
        return Difference(path=path, what="output", recorded=output_of(recorded), now=output, seq=seq)

    def _compare_contexts(self, path: StepPath, context: object, given: object) -> Difference | None:
        recorded = self.recording.context_data(path)
        if recorded is UNKNOWN:
            same = context is given or stored_form(context) == stored_form(given)
            old = given
        else:
            same, old = self.recording.is_same(recorded, context), recorded
        seq = self.recording.seq(path)
        return None if same else Difference(path=path, what="context", recorded=old, now=context, seq=seq)

    def unvisited(self) -> Difference | None:
        """Return the difference of a recorded step that did not run."""
        visited = {*self.checked, *self.taken}
        for path, record in self.recording.settled.items():
            known = any(each in visited for each in (path, *_taken_around(path, self.taken)))
            if not known and not is_aside(path):
                outcome = status_of(self.recording.outcome(path))
                sentence = f"step {path!r} did not run, recorded {outcome} (record {record.seq})"
                return Difference(
                    path=path, what="status", recorded=outcome, now=None, seq=record.seq, sentence=sentence
                )
        return None


class UnitFailed(ControlError):
    """A unit failed in the recorded run, and with it its step."""


class AttemptFailedAgain(Exception):
    """A unit failed an attempt of its step in the recorded run."""


def _turn(path: StepPath) -> int:
    return int(unit_name(path).partition("#")[0])


def _no_request(*, after: int) -> str:
    return f'a model request was needed after turn {after}; models="recorded"'


class _Calls:
    """Recorded tool calls, each used once (rule 2)."""

    def __init__(self, recording: RecordedRun, fork_seq: int) -> None:
        self._units = recording.units
        self._by_key: dict[tuple[str, str], list[RecordedToolCall]] = {}
        self._by_path = {call.path: call for call in recording.calls}
        self._used = {call.path for call in recording.calls if _is_before(recording, call, fork_seq)}
        for call in recording.calls:
            self._by_key.setdefault((call.tool, call.arguments), []).append(call)

    def next(
        self,
        path: StepPath,
        tool: str,
        arguments: str,
        *,
        again: bool,
        over: Callable[[], Collection[StepPath] | None],
    ) -> RecordedToolCall | str:
        """Return the record of a call, or the reason without one."""
        known = self._by_key.get((tool, arguments), [])
        if not known:
            return f"tool {tool!r} was called with {arguments}, which is not recorded"
        unused = [call for call in known if call.path not in self._used]
        found = _chosen(self._by_path.get(path), unused, over()) or (known[-1] if again else None)
        if found is None:
            times = "1 time" if len(known) == 1 else f"{len(known)} times"
            return f"tool {tool!r} was called {len(known) + 1} times with {arguments}, recorded {times}"
        self._used.add(found.path)
        return found

    def uncalled(self, step: StepPath) -> RecordedToolCall | None:
        """Return a recorded call of a step that was not made."""
        calls = (call for path, call in self._by_path.items() if step_of(path) == step)
        return next((call for call in calls if call.path not in self._used and call.path in self._units), None)


def _chosen(
    own: RecordedToolCall | None, unused: Sequence[RecordedToolCall], over: Collection[StepPath] | None
) -> RecordedToolCall | None:
    """Return the record that answers a call (rule 2).

    `over` has the settled steps of a rehearsal.
    """
    if own not in unused or own is None:
        return next(iter(unused), None)
    if over is None:
        return own
    free = (call for call in unused if step_of(call.path) == step_of(own.path) or step_of(call.path) in over)
    return next(free, own)


def _is_before(recording: RecordedRun, call: RecordedToolCall, fork_seq: int) -> bool:
    unit = recording.units.get(call.path)
    return unit is not None and unit.seq <= fork_seq


def _not_called(path: StepPath, call: RecordedToolCall) -> Difference:
    sentence = f"step {path!r} did not call tool {call.tool!r} with {call.arguments} (record {call.seq})"
    recorded = {"tool": call.tool, "arguments": call.arguments}
    return Difference(path=path, what="tool call", recorded=recorded, now=None, seq=call.seq, sentence=sentence)


def status_of(outcome: object) -> str:
    """Return the status of an outcome, for people."""
    return "completed" if succeeded(outcome) else "failed" if failed(outcome) else type(outcome).__name__.lower()


def output_of(outcome: object) -> object:
    """Return the output of an outcome, if any."""
    result: StepResult | None = getattr(outcome, "step_result", None)
    return result.output if isinstance(outcome, Success) and result is not None else None


def error_text(failure: Failure) -> str:
    """Return type and message of a failure, as it is recorded."""
    error = failure.error
    if error is None:
        return failure.feedback or ""
    info = describe_error(error) if isinstance(error, BaseException) else error
    return f"{info.type_name}: {info.message}"


def is_aside(path: StepPath) -> bool:
    """Return whether this is a compensation or a failure handler."""
    return is_undoing(path) or (
        "~h" in path and any(isinstance(known_segment(each), Handler) for each in path.split("/"))
    )


def _names(path: StepPath) -> list[str]:
    """Return the names in a path, without items and attempts."""
    try:
        return [each.name for each in parse(path) if isinstance(each, Named)]
    except ValueError:
        return []


def names_around(path: StepPath) -> list[str]:
    """Return the names of a step and of the steps around it."""
    names = _names(path)
    return ["/".join(names[:count]) for count in range(1, len(names) + 1)]


def _around(path: StepPath) -> list[StepPath]:
    found = []
    while path != ROOT:
        path = step_around(path)
        found.append(path)
    return found


def _taken_around(path: StepPath, taken: Mapping[StepPath, None]) -> list[StepPath]:
    return [each for each in _around(path) if each in taken]


def _is_branch(path: StepPath, around: StepPath) -> bool:
    return path != around and step_around(path) == around and isinstance(last_segment(path), Named)


def _question_facts(asked: Mapping[str, Any]) -> object:
    """Return kind, schema and options of a question."""
    found = asked.get("question") or {}
    return found.get("kind"), found.get("schema"), (found.get("facts") or {}).get("options")


def _hash(asked: Mapping[str, object]) -> str:
    """Return the content hash in the token of a question."""
    parts = str(asked.get("token", "")).split(":", 2)
    return parts[1] if len(parts) == 3 else ""


class RecordedJournal:
    """Journal with units and choices of the recorded run."""

    __slots__ = ("_inner", "_oracle")

    def __init__(self, inner: Journal, oracle: Oracle) -> None:
        self._inner, self._oracle = inner, oracle

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def unit(self, path: StepPath) -> KeptUnit | None:
        """Return a model turn or context, of this run or recorded."""
        return self._inner.unit(path) or self._oracle.unit(path)

    def called(self, path: StepPath, request: ToolRequest) -> KeptUnit | None:
        """Return a tool call, of this run or recorded; else None."""
        return self._inner.unit(path) or self._oracle.called(path, request)

    def compare_request(self, path: StepPath, asked: str) -> None:
        """Compare the hash of a model request with the recorded one."""
        self._oracle.compare_request(path, asked)

    def chosen(self, path: StepPath) -> str | None:
        """Return a choice of this run or the recorded one."""
        return self._inner.chosen(path) or self._oracle.choice(path)
