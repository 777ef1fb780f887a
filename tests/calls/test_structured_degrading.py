"""Plain text as the last resort: who asks for it, who never gets it, and what it becomes on its way."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping
from typing import Any, Optional

import pytest
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from said_by_models import CITY_SCHEMA, LIMA, LIMA_JSON, PROSE, City, CityData, Played, both, noted, run, says

from flujo_actors import Backoff, DeclarationError, Flujo, Pipeline, Step, make_agent_async


def aros(**settings):
    return {"settings": {"aros": settings}}


def chat(**switches):
    """A step whose agent returns text where a schema asks for more."""
    return Step("city", Agent(Played(PROSE).model), processing={"schema": City, **switches})


# --- a typed answer is never a text -------------------------------------------------------------------------

TYPED = {
    "tool": lambda model: Agent(model, output_type=City),
    "native": lambda model: Agent(model, output_type=NativeOutput(City)),
    "prompted": lambda model: Agent(model, output_type=PromptedOutput(City)),
    "named tool": lambda model: Agent(model, output_type=ToolOutput(City, name="city")),
    "list": lambda model: Agent(model, output_type=list[City]),
    "union": lambda model: Agent(model, output_type=[City, CityData]),
    "scalar": lambda model: Agent(model, output_type=int),
    "made": lambda model: make_agent_async(model, "You know cities.", City),
}
each_typed = pytest.mark.parametrize("make_agent", TYPED.values(), ids=list(TYPED))
each_mode = pytest.mark.parametrize("make", [Step, Step.granular], ids=["atomic", "granular"])


@pytest.mark.trio
@each_mode
@each_typed
async def test_an_agent_that_declares_a_type_never_answers_with_text(make_agent, make):
    """The step ends in a failure that names the stage, watched or not; the text is its partial output."""
    for result in await both(make("say", make_agent(Played(PROSE).model))):
        assert (result.status, result.output) == ("failed", None)
        assert "Structured output failed at stage 'extractor'" in result.feedback
        assert result.step_history[-1].output == PROSE
        assert "degraded" not in noted(result)


@pytest.mark.trio
@pytest.mark.parametrize(
    "switches", [{"structured_output": "openai_json"}, {"enforcement": "repair"}, {"schema": City}, {"degrade": False}]
)
async def test_other_switches_do_not_make_a_typed_answer_a_text(switches):
    """Only the switch that is about it does; a schema of the step's does for agents that return text."""
    step = Step("say", Agent(Played(PROSE).model, output_type=City), processing=switches)
    for result in await both(step):
        assert result.status == "failed"
        assert "at stage" in result.feedback


@pytest.mark.trio
async def test_a_typed_answer_that_the_provider_refused_is_a_failure():
    """Whatever the provider wrote instead of an answer."""
    error = UnexpectedModelBehavior("no", body=PROSE)
    for result in await both(Step("say", Agent(Played(error).model, output_type=City))):
        assert result.status == "failed"
        assert "at stage 'extractor'" in result.feedback


@pytest.mark.trio
async def test_the_step_behind_a_typed_agent_is_not_reached_by_text():
    """Nobody sends a mail because a text has no attribute `risk`."""
    reached = []
    pipeline = Step("say", Agent(Played(PROSE).model, output_type=City)) >> Step("mail", reached.append)
    assert (await run(pipeline)).status == "failed"
    assert reached == []


# --- who asks for it gets it --------------------------------------------------------------------------------


@pytest.mark.trio
@each_mode
async def test_a_typed_agents_step_may_ask_for_text(make):
    """`processing={"degrade": True}`, unless the settings say that nothing degrades."""
    step = make("say", Agent(Played(PROSE).model, output_type=City), processing={"degrade": True})
    for result in await both(step):
        assert (result.status, result.output) == ("completed", PROSE)
        assert noted(result)["degraded"] is True
    strict = await run(step, **aros(fallback={"degrade_to_string": False}))
    assert strict.status == "failed"


@pytest.mark.trio
@pytest.mark.parametrize("schema", [City, CITY_SCHEMA, CityData], ids=["class", "JSON schema", "dataclass"])
async def test_a_schema_of_the_step_asks_for_text_where_agents_return_it(schema):
    """Model agents and functions alike; `degrade=False` takes it back."""
    agent = Agent(Played(PROSE).model)
    for result in await both(Step("say", agent, processing={"schema": schema})):
        assert (result.output, noted(result)["degraded"]) == (PROSE, True)
    for result in await both(Step("say", agent, processing={"schema": schema, "degrade": False})):
        assert "at stage 'extractor'" in result.feedback
    assert (await run(says(PROSE))).output == PROSE
    assert (await run(says(PROSE, degrade=False))).status == "failed"


def test_the_switch_is_true_false_or_nothing():
    """Anything else is a mistake in the declaration."""
    with pytest.raises(DeclarationError, match=r"processing\.degrade must be True, False or None, not 'yes'"):
        Step("say", lambda data: data, processing={"degrade": "yes"})


@pytest.mark.trio
async def test_plain_text_is_the_last_resort(autojump_clock):
    """A step that has retries or a fallback left uses them before it degrades."""
    retried = await run(says(PROSE, PROSE, LIMA_JSON, max_retries=1, backoff=Backoff.none()))
    assert retried.output == City(**LIMA)
    assert retried.step_history[-1].attempts == 2
    fell_back = await run(says(PROSE, fallback=says(LIMA_JSON)))
    assert fell_back.output == City(**LIMA)
    assert noted(fell_back)["fallback_triggered"]
    degraded = await run(says(PROSE, max_retries=1, backoff=Backoff.none()))
    assert noted(degraded)["degraded"]
    assert degraded.step_history[-1].attempts == 2


@pytest.mark.trio
async def test_no_object_is_made_where_degrading_is_not_allowed():
    """The settings decide first."""
    result = await run(says(PROSE) >> Step("next", wants), **aros(fallback={"degrade_to_string": False}))
    assert result.status == "failed"
    assert len(result.step_history) == 1


# --- an object for whoever asks for a dict ------------------------------------------------------------------

OBJECT = {"value": PROSE}


async def interrupt(data: object) -> None:
    """What happens before data is used: nothing, unless a test says otherwise."""


async def wants(data: dict) -> Any:
    """A step that asks for a dict."""
    await interrupt(data)
    return {"got": data}


async def takes(data: str) -> Any:
    """A step that asks for text."""
    await interrupt(data)
    return {"got": data}


def use(name="use"):
    return Step(name, wants)


def named(*steps, name="inner"):
    return Pipeline(steps, name=name)


def once(body):
    return Step.loop_until("loop", body, lambda output, context: True)


def branch(step, **others):
    return Step.branch_on("branch", lambda data, context: "a", {"a": step, **others})


def fan(**branches):
    return Step.parallel("fan", branches)


GOT = {"got": OBJECT}
TEXT = {"got": PROSE}
FLOWS = {
    "neighbor": (lambda: chat() >> use(), GOT),
    "out of a pipeline": (lambda: named(chat()) >> use(), GOT),
    "into a pipeline": (lambda: chat() >> named(use()), GOT),
    "from pipeline to pipeline": (lambda: named(chat()) >> named(named(use()), name="second"), GOT),
    "out of a branch": (lambda: branch(chat()) >> use(), GOT),
    "into a branch": (lambda: chat() >> branch(use(), b=Step("other", takes)), GOT),
    "into a branch for text": (lambda: chat() >> branch(Step("other", takes), b=use()), TEXT),
    "into the default branch": (
        lambda: chat() >> Step.branch_on("branch", lambda *_: "z", {"a": Step("other", takes)}, default=use()),
        GOT,
    ),
    "out of a loop": (lambda: once(chat()) >> use(), GOT),
    "into a loop": (lambda: chat() >> once(use()), GOT),
    "from turn to turn": (
        lambda: Step.loop_until("loop", branching_turn(), lambda output, context: isinstance(output, dict)),
        GOT,
    ),
    "into parallel": (lambda: chat() >> fan(a=use(), b=Step("other", takes)), {"a": GOT, "b": TEXT}),
    "inside parallel": (lambda: fan(a=chat() >> use()), {"a": GOT}),
    "out of parallel, by input": (
        lambda: fan(a=chat()) >> Step("use", wants, input=lambda previous, context: previous["a"]),
        GOT,
    ),
    "inside a map": (lambda: Step.map_over("map", chat() >> use(), items=[1, 2]), [GOT, GOT]),
    "from map to map": (
        lambda: Step.map_over("ask", chat(), items=[1, 2]) >> Step.map_over("all", use()),
        [GOT, GOT],
    ),
    "into a map, by items": (
        lambda: chat() >> Step.map_over("all", use(), items=lambda previous, context: [previous, {"a": 1}]),
        [GOT, {"got": {"a": 1}}],
    ),
    "through a deep one": (
        lambda: named(branch(once(named(chat(), name="core")))) >> fan(a=branch(once(use()))),
        {"a": GOT},
    ),
    "by a fallback": (
        lambda: Step("first", failing, fallback=chat()) >> use(),
        GOT,
    ),
    "into a fallback": (
        lambda: chat() >> Step("first", failing, fallback=use()),
        GOT,
    ),
    "into a processor": (
        lambda: chat() >> Step("use", wants, processors={"before": only_dicts}),
        GOT,
    ),
    "into an input": (
        lambda: chat() >> Step("use", wants, input=from_dict),
        {"got": {"inside": OBJECT}},
    ),
}


async def failing(data: object) -> None:
    raise ValueError("no")


def only_dicts(data: dict) -> dict:
    return data if isinstance(data, dict) else {"this": "was no dict"}


def from_dict(previous: dict, context: object) -> dict:
    return {"inside": previous}


def branching_turn():
    """A loop's body that asks for a city in its first turn, and uses a dict in its second."""

    def select(data: object, context: object) -> str:
        return "ask" if data == "Go on." else "use"

    return Step.branch_on("turn", select, {"ask": chat(), "use": use()})


@pytest.mark.trio
@pytest.mark.parametrize(("make", "output"), FLOWS.values(), ids=list(FLOWS))
async def test_a_degraded_text_is_an_object_for_the_next_step_that_asks_for_a_dict(make, output):
    """Wherever the flow leads it; who asks for text gets the text."""
    assert (await run(make())).unwrap() == output


@pytest.mark.parametrize(("make", "output"), FLOWS.values(), ids=list(FLOWS))
def test_a_degraded_text_is_known_as_one_after_the_run_was_stored(make, output, tmp_path, monkeypatch):
    """The process is told to stop where the object is used; the next one goes on from the store."""
    flow, interrupts = make(), iter([KeyboardInterrupt])

    async def interrupted(data: object) -> None:
        for error in interrupts:
            raise error

    monkeypatch.setattr(sys.modules[__name__], "interrupt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Flujo(flow, store=f"sqlite:///{tmp_path}/runs.db").run("Go on.", run_id="run")
    assert Flujo(flow, store=f"sqlite:///{tmp_path}/runs.db").resume("run").unwrap() == output


@pytest.mark.trio
@pytest.mark.parametrize(
    ("asked", "output"),
    [
        (dict[str, Any], OBJECT),
        (typing.Dict[str, str], OBJECT),  # noqa: UP006
        (Mapping, OBJECT),
        (Mapping[str, Any], OBJECT),
        (typing.MutableMapping, OBJECT),
        (dict | None, OBJECT),
        (Optional[dict[str, int]], OBJECT),  # noqa: UP045
        (typing.Annotated[dict, "a note"], OBJECT),
        ("dict[str, list[int]] | None", OBJECT),
        ("typing.Optional[typing.Dict[str, Any]]", OBJECT),
        ("collections.abc.Mapping[str, Any]", OBJECT),
        ("Annotated[dict, 'a note']", OBJECT),
        (dict | str, PROSE),
        ("dict[str, Any] | str", PROSE),
        (Any, PROSE),
        ("Any", PROSE),
        (object, PROSE),
        (str, PROSE),
        (list[dict], PROSE),
        ("list[dict]", PROSE),
    ],
    ids=str,
)
async def test_the_annotation_of_the_data_says_what_is_asked_for(asked, output):
    """As a type or as its text; whoever takes text too gets text."""

    async def following(data, *, context):
        return data

    following.__annotations__["data"] = asked
    assert (await run(chat() >> Step("next", following))).unwrap() == output
    assert (await run(chat() >> Step("next", following))).step_history[0].output == PROSE
