"""What granular steps hand over: structured answers, streams, large results, short histories, tools of all kinds."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import trio
from bookings import SETTINGS, booker, booking_run, bookings, require_acceptable
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart

from flujo_actors import Backoff, Flujo, PipelineResult, Processing, Step, current_unit
from flujo_actors.testing import CallTool, Recorder, scripted_model
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, Points, in_another_process

NO_LLM = {"aros": {"repair": {"enable_llm": False}, "fallback": {"degrade_to_string": False}}}


class Bill(BaseModel):
    """What was spent."""

    total: int


def paying(effects: Effects, *last: Any, passing: Any = lambda point: None, **config: Any) -> Agent[Any, Any]:
    """An agent that pays once and then gives its answer: in each conversation the next one."""

    def answer(messages: list[ModelMessage]) -> Any:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        effects.add(f"asked {turn}")
        given = CallTool("pay", {"euros": 7}) if turn == 0 else next(answers)
        return given(messages) if callable(given) else given

    answers = iter(last)
    agent: Agent[Any, Any] = Agent(scripted_model(answer, forever=True), **config)

    @agent.tool_plain
    async def pay(euros: int) -> str:
        passing("to pay")
        effects.add("paid")
        passing("paid")
        return f"{euros} euros"

    return agent


def _died(flujo: Flujo, run_id: str = "run") -> None:
    assert in_another_process(lambda: flujo.run("go", run_id=run_id)) == KILLED


# --- structured answers ---


def test_a_structured_answer_is_the_same_in_both_modes(effects: Effects) -> None:
    """An agent's output type, a schema of the step, and text that must be mended."""
    for given in ({"total": 7}, '```json\n{"total": 7,}\n```'):
        for declare in (Step, Step.granular):
            own = Flujo(declare("pay", paying(effects, given, output_type=Bill))).run("go")
            assert own.output == Bill(total=7)
        step = Step.granular("pay", paying(effects, given), processing=Processing(schema=Bill))
        assert Flujo(step).run("go").output == Bill(total=7)


def test_a_strict_retry_goes_on_in_the_conversation_after_a_kill(place: Place, effects: Effects) -> None:
    """Killed in the strict retry, nothing before it is asked or paid again, and the tool runs once."""

    def flujo(store: Any, *answers: Any, passing: Any = lambda point: None) -> Flujo:
        def retried(messages: list[ModelMessage]) -> Any:
            passing("asked again")
            return {"total": 7}

        agent = paying(effects, *answers, retried, output_type=Bill, retries=0)
        return Flujo(Step.granular("pay", agent), store=store, settings=NO_LLM)

    _died(flujo(place.open(), "no idea", passing=Points(name="asked again")))
    assert effects.counted() == {"asked 0": 1, "asked 1": 1, "paid": 1, "asked 2": 1}
    result = flujo(place.open(AN_HOUR_LATER)).resume("run")
    assert result.output == Bill(total=7)
    assert effects.counted() == {"asked 0": 1, "asked 1": 1, "paid": 1, "asked 2": 2}


def test_a_repair_by_the_model_is_a_unit_that_is_recalled(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """Killed after the repair was answered, neither the answer nor its repair is paid for again."""

    def answer(messages: list[ModelMessage]) -> str:
        asked = str(messages[-1].parts[-1].content)  # type: ignore[union-attr]
        effects.add("asked" if asked == "go" else "asked to repair")
        return "seven, I think" if asked == "go" else '{"total": 7}'

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        agent: Agent[Any, Bill] = Agent(scripted_model(answer, forever=True), output_type=Bill, retries=0)
        return Flujo(Step.granular("pay", agent, validators=[lambda bill: passing("judged")]), store=store)

    _died(flujo(sqlite_place.open(), Points(name="judged")))
    assert effects.counted() == {"asked": 1, "asked to repair": 1}
    result = flujo(sqlite_place.open(AN_HOUR_LATER)).resume("run")
    assert result.output == Bill(total=7)
    assert effects.counted() == {"asked": 1, "asked to repair": 1}
    [step] = result.step_history
    assert sum(turn.token_counts for turn in step.step_history) == step.token_counts == 30


@pytest.mark.parametrize("kind", ["schema", "agent"])
def test_an_answer_that_is_never_valid_is_asked_for_anew_by_the_retry(effects: Effects, kind: str) -> None:
    """A retry that recalled the refused conversation would only be refused again."""
    answers = ["no idea"] * 2 + [{"total": 7}]
    agent = paying(effects, *answers, **({"output_type": Bill, "retries": 0} if kind == "agent" else {}))
    config = {} if kind == "agent" else {"processing": Processing(schema=Bill)}
    step = Step.granular("pay", agent, max_retries=1, backoff=Backoff.none(), **config)
    result = Flujo(step, settings=NO_LLM).run("go")
    assert result.output == Bill(total=7)
    assert result.step_history[0].attempts == 2


def test_a_tool_that_uses_up_its_retries_is_tried_anew_by_the_steps(effects: Effects) -> None:
    """The agent gives up, the step begins another conversation."""
    agent: Agent[Any, str] = Agent(scripted_model(*[CallTool("fussy")] * 3, "fine"))
    calls: list[str] = []

    @agent.tool_plain
    async def fussy() -> str:
        unit = current_unit()
        assert unit is not None
        calls.append(unit.idempotency_key.rpartition(":")[0])
        if len(calls) < 3:
            raise ModelRetry("not like this")
        return "ok"

    result = Flujo(Step.granular("s", agent, max_retries=1, backoff=Backoff.none())).run("go", run_id="run")
    assert (result.status, result.output) == ("completed", "fine")
    assert calls == ["run:s:1", "run:s:2", "run:s/~g1.1:1"]


# --- streams ---


def _watched(flujo: Flujo, library: str, *token: str) -> Recorder:
    """A run, or the rest of one, watched to its end."""
    recorder = Recorder()

    async def main() -> PipelineResult:
        return await recorder.record(flujo.resume_async(*token) if token else flujo.run_async("go", run_id="run"))

    trio.run(main) if library == "trio" else asyncio.run(main())
    return recorder


@pytest.mark.parametrize("library", ["trio", "asyncio"])
def test_a_resumed_stream_repeats_recalled_turns_as_one_piece_each(
    sqlite_place: SqlitePlace, effects: Effects, library: str
) -> None:
    """What comes new comes live; all pieces together are the text of the uninterrupted run."""
    dying = booking_run(booker(effects, Points(name="2a is booked"), turns=2, sides="a"), sqlite_place.open())
    assert in_another_process(lambda: _watched(dying, library)) == KILLED
    resumed = booking_run(booker(effects, turns=2, sides="a"), sqlite_place.open(AN_HOUR_LATER))
    recorder = _watched(resumed, library, "run")
    assert recorder.chunks("book") == ["turn 1. ", "turn 2. ", "room ", "1a; ", "room ", "2a"]
    assert recorder.output("book") == "room 1a; room 2a"
    assert [chunk.seq for chunk in recorder.of("book")[:-1]] == list(range(6))
    assert [each.before for each in bookings(effects, "run")] == [False, False, True]


@pytest.mark.parametrize("library", ["trio", "asyncio"])
def test_a_granular_stream_is_that_of_an_atomic_step(effects: Effects, library: str) -> None:
    """The same pieces live, in order, over all turns."""
    pieces = [
        _watched(Flujo(declare("pay", paying(effects, "paid seven euros"))), library).chunks("pay")
        for declare in (Step, Step.granular)
    ]
    assert pieces[0] == pieces[1] == ["paid ", "seven ", "euros"]


def test_a_structured_granular_answer_streams(effects: Effects) -> None:
    """Its text is seen as it comes, and the value is the output."""
    step = Step.granular("pay", paying(effects, {"total": 7}, output_type=Bill))
    recorder = _watched(Flujo(step), "asyncio")
    assert recorder.output("pay") == Bill(total=7)
    assert "".join(map(str, recorder.chunks("pay"))) == '{"total":7}'


# --- results ---


def test_a_large_result_goes_through_a_blob(place: Place, effects: Effects) -> None:
    """A megabyte comes back as it was, in another process, and is kept outside of the records."""
    text = "ß" * 500_000

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        def answer(messages: list[ModelMessage]) -> Any:
            found = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
            passing(f"asked after {len(found)}")
            return str(found[0].content == text) if found else CallTool("read")

        async def read() -> str:
            effects.add("read")
            return text

        return Flujo(Step.granular("s", Agent(scripted_model(answer, forever=True), tools=[read])), store=store)

    _died(flujo(place.open(), Points(name="asked after 1")))
    assert flujo(place.open(AN_HOUR_LATER)).resume("run").output == "True"
    assert effects.counted() == {"read": 1}
    place.check()
    [(longest,)] = place.query("SELECT max(length(body)) FROM flujo_records")
    assert longest < 70_000


def test_a_result_without_a_json_form_is_a_failure_that_names_the_tool(place: Place) -> None:
    """It says what to return instead."""

    async def open_door() -> Any:
        return threading.Lock()

    agent: Agent[Any, str] = Agent(scripted_model(CallTool("open_door"), "done"), tools=[open_door])
    result = Flujo(Step.granular("s", agent), store=place.open()).run("go", run_id="run")
    assert result.status == "failed"
    assert "tool 'open_door' returned a value without a JSON form" in (result.feedback or "")


def test_a_shortened_history_is_acceptable_also_after_a_death(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """The model sees the first prompt and the last messages, pairs whole; what it does is not forgotten."""

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        async def note(number: int) -> int:
            effects.add(f"note {number}")
            passing(f"note {number}")
            return number

        def answer(messages: list[ModelMessage]) -> Any:
            require_acceptable(messages)
            effects.add(f"seen {len(messages)}")
            told = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
            last = told[0].content if told else 0
            return CallTool("note", {"number": last + 1}) if last < 5 else "done"

        agent: Agent[Any, str] = Agent(scripted_model(answer, forever=True), tools=[note])
        return Flujo(Step.granular("s", agent, keep_last=3), store=store)

    _died(flujo(sqlite_place.open(), Points(name="note 4")))
    assert flujo(sqlite_place.open(AN_HOUR_LATER)).resume("run").output == "done"
    assert effects.counted("note ") == {"1": 1, "2": 1, "3": 1, "4": 2, "5": 1}
    assert effects.counted("seen ") == {"1": 1, "3": 1, "5": 4}


# --- tools ---


def test_a_sync_tool_is_a_unit_of_its_own(place: Place, effects: Effects) -> None:
    """Killed in its thread, it is run again under the same key and told so."""

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        def blocking() -> str:
            unit = current_unit()
            assert unit is not None
            effects.add(f"{unit.idempotency_key.rpartition(':')[0]} {unit.may_have_run_before}")
            passing("blocked")
            return "ok"

        def answer(messages: list[ModelMessage]) -> Any:
            return CallTool("blocking") if len(messages) == 1 else "done"

        return Flujo(Step.granular("s", Agent(scripted_model(answer, forever=True), tools=[blocking])), store=store)

    _died(flujo(place.open(), Points(name="blocked")))
    assert flujo(place.open(AN_HOUR_LATER)).resume("run").output == "done"
    assert effects.counted() == {"run:s:1 False": 1, "run:s:1 True": 1}


def test_a_tool_that_asks_for_another_try_has_ended(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """Its refusal is committed: after a death the model is told of it again, and the tool is not asked."""

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        async def fussy(word: str) -> str:
            effects.add(word)
            passing(word)
            if word != "please":
                raise ModelRetry("say please")
            return "thanks"

        def answer(messages: list[ModelMessage]) -> Any:
            words = ["now", "please"]
            turn = sum(isinstance(message, ModelResponse) for message in messages)
            return CallTool("fussy", {"word": words[turn]}) if turn < 2 else "done"

        return Flujo(Step.granular("s", Agent(scripted_model(answer, forever=True), tools=[fussy])), store=store)

    _died(flujo(sqlite_place.open(), Points(name="please")))
    result = flujo(sqlite_place.open(AN_HOUR_LATER)).resume("run")
    assert result.output == "done"
    assert effects.counted() == {"now": 1, "please": 2}
    ended = [call["ended"] for turn in result.step_history[0].step_history for call in turn.metadata["tool_calls"]]
    assert ended == ["retry", "returned"]


def test_tools_of_a_dynamic_toolset_are_units(sqlite_place: SqlitePlace, effects: Effects) -> None:
    """Made anew for every run, they are known by their calls."""

    def flujo(store: Any, passing: Any = lambda point: None) -> Flujo:
        def answer(messages: list[ModelMessage]) -> Any:
            turn = sum(isinstance(message, ModelResponse) for message in messages)
            return CallTool("work", {"number": turn}) if turn < 2 else "done"

        agent: Agent[Any, str] = Agent(scripted_model(answer, forever=True))

        @agent.toolset
        def chosen(ctx: RunContext[Any]) -> FunctionToolset[Any]:
            async def work(number: int) -> int:
                effects.add(f"work {number}")
                passing(f"work {number}")
                return number

            return FunctionToolset([work])

        return Flujo(Step.granular("s", agent), store=store, settings=SETTINGS)

    _died(flujo(sqlite_place.open(), Points(name="work 1")))
    assert flujo(sqlite_place.open(AN_HOUR_LATER)).resume("run").output == "done"
    assert effects.counted() == {"work 0": 1, "work 1": 2}
