"""`simulate`: histories, faults, checks, shrinking and determinism."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai import Agent, RunContext
from simulated_pipelines import CASES, Case

from flujo_actors import Flujo, MemoryStore, RateLimit, Step, UsageLimits
from flujo_actors.errors import DeclarationError
from flujo_actors.testing import CallTool, NotDeterministic, SimulationFailed, World, faults, simulate

SEEDS = int(os.environ.get("FLUJO_SIMULATION_SEEDS", "200"))
"""Seeds of each pipeline; `make simulate` takes more."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_kind_of_pipeline_keeps_its_promises_under_all_faults(case: Case) -> None:
    """Crashes, store faults, lost leases, cancellation and model faults break no rule of the library."""
    simulation = simulate(case.factory, case.input, seeds=SEEDS, answers=case.answers, check=case.promise)
    assert simulation.seeds == SEEDS
    assert simulation.failures == ()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["saga", "careful saga", "chain"])
def test_a_cancel_request_counts_beside_crashes_and_lost_leases(name: str) -> None:
    """Also one that meets the end of a resumed run: nothing is compensated twice, and the run does not complete."""

    def promise(world: World) -> object:
        cancelled = [place for place, event in enumerate(world.events) if event.kind == "cancel"]
        ended = [place for place, event in enumerate(world.events) if "ended ''" in event.text and not event.fault]
        if cancelled and world.result is not None and world.result.status != "aborted" and cancelled[0] < ended[0]:
            return f"the run was cancelled, and it is {world.result.status}"
        return case.promise(world)

    case, kinds = CASES[name], [faults.crash(p=0.06), faults.lease_lost(p=0.03), faults.cancel(p=0.06)]
    simulation = simulate(case.factory, case.input, seeds=100, faults=kinds, check=promise)
    assert simulation.injected["cancel"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["atomic agent", "granular"])
def test_an_aborted_run_has_the_tokens_of_its_result_in_its_records(name: str) -> None:
    """Also those of the interrupted attempt."""
    case, kinds = CASES[name], [faults.cancel(p=0.2), faults.model_fails(p=0.2)]
    simulation = simulate(case.factory, case.input, seeds=60, answers=case.answers, faults=kinds)
    assert simulation.injected["cancel"] > 10


async def twice(data: int) -> int:
    return data * 2


def chain(world: World) -> Flujo:
    async def pay(data: int, *, idempotency_key: str) -> int:
        world.effect("pay", key=idempotency_key, amount=data)
        return data

    return Flujo(Step("a", twice) >> Step("pay", pay) >> Step("c", twice), store=world.store)


def test_without_faults_a_history_is_one_life() -> None:
    """The run completes, effects and records are in the world, and no time is spent on waiting."""
    seen: list[World] = []
    simulation = simulate(chain, 1, seeds=[7], faults=faults.none(), check=lambda world: seen.append(world))
    assert (simulation.lives, simulation.crashes, simulation.injected) == (1, 0, {})
    assert seen[0].result is not None
    assert seen[0].result.output == 4
    assert [(effect.name, effect.life, effect.facts) for effect in seen[0].effects] == [("pay", 1, {"amount": 2})]
    assert [record.kind for record in seen[0].records()] == ["admitted", "settled", "settled", "settled", "ended"]


def test_crashes_end_lives_and_the_run_continues() -> None:
    """Committed steps are not called again in the next life."""
    simulation = simulate(chain, 1, seeds=40, faults=[faults.crash(p=0.2)])
    assert simulation.crashes > 10
    assert simulation.lives == simulation.seeds + simulation.crashes
    assert simulation.injected == {"crash": simulation.crashes}


def unpaid(world: World) -> str | None:
    """Return the broken promise of a payment that must happen once."""
    paid = [effect for effect in world.effects if effect.name == "pay"]
    return f"paid {len(paid)} times" if len(paid) > 1 else None


def test_a_payment_without_idempotency_key_is_found() -> None:
    """S2: a crash between the payment and its record pays twice, and shrinking leaves that crash only."""
    with pytest.raises(SimulationFailed, match="check: paid 2 times") as failed:
        simulate(chain, 1, seeds=1000, check=unpaid)
    assert len(failed.value.faults) == 1
    assert str(failed.value.faults[0]).startswith(("crash", "store_fails", "lease_lost", "ack_lost"))
    assert any("<<" in line for line in failed.value.timeline)
    assert f"simulate(chain, seeds=[{failed.value.seed}])" in str(failed.value)
    assert failed.value.world.effects[0].name == "pay"


def test_a_timeline_has_one_line_per_event() -> None:
    """A line has life, time, kind and text, and the fault at that place."""
    with pytest.raises(SimulationFailed) as failed:
        simulate(chain, 1, seeds=200, faults=faults.only("crash"), check=unpaid)
    assert list(failed.value.timeline) == list(map(str, failed.value.world.events))
    crash = next(line for line in failed.value.timeline if "<<" in line)
    assert crash.startswith("life 1  0.000 s  ")
    assert crash.endswith(("<< crash before", "<< crash after"))


def test_failures_can_be_collected() -> None:
    """With `raises=False` a simulation continues after a failure."""
    simulation = simulate(chain, 1, seeds=60, faults=[faults.crash(p=0.2)], check=unpaid, raises=False, shrink=False)
    assert simulation.seeds == 60
    assert len(simulation.failures) > 1


def test_state_outside_the_world_is_reported() -> None:
    """S1: a step that adds to a list outside the world has another history when it is repeated."""
    outside: list[int] = []

    def app(world: World) -> Flujo:
        async def add(data: int) -> list[int]:
            outside.append(data)
            return list(outside)

        return Flujo(Step("add", add), store=world.store)

    with pytest.raises(NotDeterministic, match="state outside the world"):
        simulate(app, 1, seeds=3)


def test_a_check_may_raise_or_return_a_sentence() -> None:
    """Both are failures, with the text as the reason."""

    def refuse(world: World) -> None:
        raise AssertionError("no")

    with pytest.raises(SimulationFailed, match="seed 0: check: no"):
        simulate(chain, 1, seeds=1, faults=faults.none(), check=refuse)
    with pytest.raises(SimulationFailed, match="seed 0: check: never"):
        simulate(chain, 1, seeds=1, faults=faults.none(), check=lambda world: "never")


def test_a_life_that_waits_forever_fails_at_once() -> None:
    """Nothing can happen any more: the open step is named."""

    def app(world: World) -> Flujo:
        async def wait(data: int) -> int:
            await trio.sleep_forever()
            return data

        return Flujo(Step("wait", wait), store=world.store)

    with pytest.raises(SimulationFailed, match=r"life 1 is stuck: .*open steps: 'wait'"):
        simulate(app, 1, seeds=1, faults=faults.none())


def test_a_drive_replaces_the_default_one() -> None:
    """A life runs the drive, which may start several runs."""

    async def drive(world: World, flujo: Flujo) -> Any:
        for name in ("one", "two"):
            if not world.records(name):
                await flujo.run_async(1, run_id=name)
        return None

    seen: list[World] = []
    simulate(chain, seeds=[1], faults=faults.none(), drive=drive, check=lambda world: seen.append(world))
    assert len(seen[0].effects) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_history_is_the_same_with_another_hash_seed(tmp_path: Path) -> None:
    """S3: the trace of a seed is the same in new processes, whatever their hash seed."""
    script = tmp_path / "script.py"
    script.write_text(
        "from simulated_pipelines import CASES\n"
        "from flujo_actors.testing import simulate\n"
        "for name in ('nested', 'granular'):\n"
        "    case = CASES[name]\n"
        "    simulation = simulate(case.factory, case.input, seeds=1, answers=case.answers, raises=False)\n"
        "    print(*(simulation.trace(seed) for seed in range(4)), sep='\\n')\n"
    )
    traces = [_output(script, hash_seed) for hash_seed in ("1", "2")]
    assert traces[0] == traces[1]
    assert "append" in traces[0]


def queued(world: World) -> Flujo:
    """Requests that wait for a rate limit: crashes meet several waiting tasks."""
    limit = RateLimit("few", requests_per_min=2, burst_s=60, at_once=1)
    asked = Step("ask", Agent(world.model("a"), name="asker"), max_retries=2, rate_limit=limit)
    return Flujo(Step.map_over("all", asked), store=world.store)


def expiring(world: World) -> Flujo:
    """Steps whose timeouts expire at the same time, on asyncio."""

    async def wait(data: str) -> str:
        try:
            await world.sleep(10)
        finally:
            world.effect("left", which=data)
        return data

    waits = Step.map_over("all", Step("wait", wait, timeout_s=8))
    return Flujo(waits, store=world.store, settings={"run": {"backend": "asyncio"}})


@pytest.mark.slow
@pytest.mark.parametrize("app", [queued, expiring])
def test_the_order_of_addresses_does_not_change_a_history(app: Callable[[World], Flujo]) -> None:
    """Tasks of a crashed process, and tasks of one deadline, are cancelled in the order of their creation."""
    kinds = [faults.crash(p=0.1), faults.store_slow(p=0.05), faults.lease_lost(p=0.03), faults.store_fails(p=0.05)]
    simulation = simulate(app, ["1", "2", "3", "4"], seeds=1, faults=kinds)
    for seed in range(5):
        kept: list[object] = []
        traces = set()
        for turn in range(4):
            traces.add(simulation.trace(seed))
            kept.extend((None,) * (number % 24) for number in range(turn, 5000))  # objects of many sizes
            del kept[::3]  # leave gaps
        assert len(traces) == 1


@pytest.mark.slow
def test_a_factory_may_load_the_libraries_of_its_agents(tmp_path: Path) -> None:
    """Ids and times of a library that the first life imports are simulated, too."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from flujo_actors import Flujo, Step\n"
        "from flujo_actors.testing import simulate\n"
        "assert 'pydantic_ai' not in sys.modules\n"
        "def app(world):\n"
        "    from pydantic_ai import Agent\n"
        "    from flujo_actors.testing import CallTool\n"
        "    agent = Agent(world.model(CallTool('look', {}), 'hot'))\n"
        "    agent.tool_plain(look)\n"
        "    return Flujo(Step.granular('ask', agent), store=world.store)\n"
        "def look() -> str:\n"
        "    return 'tea'\n"
        "print(simulate(app, 'tea?', seeds=3).trace(0))\n"
    )
    assert _output(script, "1") == _output(script, "2")


def limited(world: World) -> Flujo:
    agent = Agent(world.model("word " * 5), name="asker")
    repeated = Step.loop_until("loop", Step("ask", agent, max_retries=2), lambda data, context: False, max_loops=20)
    return Flujo(repeated, store=world.store, usage_limits=UsageLimits(request_limit=3))


def test_requests_beyond_a_limit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule (g): a limit binds each run, and a run of its own begins at zero."""

    async def two(world: World, flujo: Flujo) -> Any:
        return [await flujo.run_async("go", run_id=name) for name in ("one", "two") if not world.records(name)]

    simulate(limited, seeds=3, faults=faults.none(), drive=two)
    monkeypatch.setattr("flujo_actors._core.quota.allows", lambda limits, amount: True)
    with pytest.raises(SimulationFailed, match=r"\(g\) a model request begins after 3 of 3 requests were recorded"):
        simulate(limited, "go", seeds=3, faults=faults.none())


PRICES = {"usage": {"prices": {"simulated": {"input_usd": 1000, "output_usd": 1000}}}}


def talkative(kind: str, owner: str, limits: UsageLimits) -> Callable[[World], Flujo]:
    """A loop of an agent with three turns and two tool calls, 15 tokens and $0.015 a turn."""

    def app(world: World) -> Flujo:
        agent = Agent(
            world.model(CallTool("look", {"at": "tea"}), CallTool("look", {"at": "cup"}), "hot"), name="asker"
        )

        @agent.tool_plain
        async def look(at: str) -> str:
            await world.sleep(world.rng.random())
            return at

        given = {name: {"usage_limits": limits} if owner == name else {} for name in ("step", "loop", "run")}
        make = Step.granular if kind == "granular" else Step
        body = make("ask", agent, max_retries=3, **given["step"])
        loop = Step.loop_until("loop", body, lambda data, context: False, max_loops=5, **given["loop"])
        return Flujo(loop, store=world.store, settings=PRICES, **given["run"])

    return app


LIMITS = {
    "dollars": (UsageLimits(total_cost_usd_limit=0.06), r"\$0\.09 of \$0\.06"),
    "tokens": (UsageLimits(total_tokens_limit=60), "90 of 60 tokens"),
    "requests": (UsageLimits(request_limit=4), "6 of 4 requests"),
    "tool calls": (UsageLimits(tool_calls_limit=3), r"\d+ tool calls, although the limit is 3"),
    "steps": (UsageLimits(step_limit=2), r"\d steps of agents, although the limit is 2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["run", "loop"])
@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_of_a_run_and_of_a_step_is_checked(name: str, owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule (g): limits hold under all faults, and a library that ignores them breaks the rule."""
    limits, said = LIMITS[name]
    simulate(talkative("atomic", owner, limits), "go", seeds=5)
    monkeypatch.setattr("flujo_actors._core.quota.allows", lambda limits, amount: True)
    monkeypatch.setattr("flujo_actors._core.quota.fits", lambda limits, amount: True)
    monkeypatch.setattr("flujo_actors._core.quota.is_reached", lambda limits, spent: False)
    with pytest.raises(SimulationFailed, match=rf"\(g\) .*{said}"):
        simulate(talkative("atomic", owner, limits), "go", seeds=3, faults=faults.none())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dollars", "tool calls"])
def test_limits_hold_for_the_turns_of_a_granular_step(name: str) -> None:
    """Rule (g): a resumed step counts the units of earlier processes."""
    limits = {"dollars": UsageLimits(total_cost_usd_limit=0.02), "tool calls": UsageLimits(tool_calls_limit=1)}
    simulate(talkative("granular", "step", limits[name]), "go", seeds=15, faults=[faults.crash(p=0.1)])


def judged(world: World) -> Flujo:
    """A function, a validator and a tool that call agents of their own."""
    judge, answers = Agent(world.model("good"), name="judge"), Agent(world.model(CallTool("look"), "hot"), name="asker")

    async def translate(data: str) -> str:
        return (await judge.run(data)).output

    async def is_good(output: str) -> bool:
        return (await judge.run(output)).output == "good"

    @answers.tool
    async def look(ctx: RunContext[Any]) -> str:
        return (await judge.run("tea", usage=ctx.usage)).output

    ask = Step("ask", answers, validators=[is_good], max_retries=4)
    return Flujo(Step("translate", translate, max_retries=4) >> ask, store=world.store)


@pytest.mark.slow
def test_agents_that_functions_and_validators_call_are_not_counted() -> None:
    """Rule (g) is about the usage that the library can record."""
    simulate(judged, "tea?", seeds=20)


def test_an_agent_in_a_tool_without_shared_usage_is_found() -> None:
    """Rule (g): the reason names the remedy."""

    def app(world: World) -> Flujo:
        helper = Agent(world.model("hot"), name="helper")
        agent = Agent(world.model(CallTool("look"), "hot"), name="asker")

        @agent.tool_plain
        async def look() -> str:
            return (await helper.run("tea")).output

        return Flujo(Step("ask", agent), store=world.store)

    with pytest.raises(SimulationFailed, match=r"\(g\) 30 tokens are recorded, .* used 45; .* with usage=ctx\.usage"):
        simulate(app, "tea?", seeds=1, faults=faults.none())


def test_an_error_of_the_library_in_a_nursery_of_the_drive_ends_the_life() -> None:
    """As it does outside of the nursery; other exceptions are failures with their own name."""

    async def drive(world: World, flujo: Flujo) -> Any:
        async with trio.open_nursery():
            return await (flujo.resume_async("r") if world.records() else flujo.run_async(1, run_id="r"))

    kinds = [faults.store_fails(p=0.1), faults.lease_lost(p=0.1)]
    assert simulate(chain, seeds=20, faults=kinds, drive=drive).lives > 25

    async def broken(world: World, flujo: Flujo) -> Any:
        async with trio.open_nursery():
            raise LookupError("nothing")

    with pytest.raises(SimulationFailed, match="life 1 raised LookupError: nothing"):
        simulate(chain, seeds=1, drive=broken)


def test_rules_hold_for_every_run_of_a_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap in the records of a run is found, although the drive returns another one."""
    read = MemoryStore.read

    def with_gap(store: MemoryStore, run_id: Any, *given: Any, **options: Any) -> Any:
        records = read(store, run_id, *given, **options)
        return [records[0], *records[2:]] if run_id == "one" else records

    async def two(world: World, flujo: Flujo) -> Any:
        return [await flujo.run_async(1, run_id=name) for name in ("one", "two")][-1]

    monkeypatch.setattr(MemoryStore, "read", with_gap)
    with pytest.raises(SimulationFailed, match=r"\(e\) record settled .* has number 3, not 2"):
        simulate(chain, seeds=1, faults=faults.none(), drive=two)


def _output(script: Path, hash_seed: str) -> str:
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *(each for each in sys.path if each)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=800, check=True
    )
    return done.stdout


def test_unknown_faults_and_chances_are_refused() -> None:
    """The error names the known faults."""
    with pytest.raises(DeclarationError, match="there is no fault 'fire'; known are crash, store_fails"):
        faults.only("fire")
    with pytest.raises(DeclarationError, match="p must be a number from 0 to 1"):
        faults.crash(p=2)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no function": (lambda: simulate(None, 1), "simulate: factory must be a function, not None"),  # type: ignore[arg-type]
    "async factory": (lambda: simulate(async_app, 1), "simulate: the factory must not be async"),  # type: ignore[arg-type]
    "seeds as text": (lambda: simulate(chain, 1, seeds="12"), "simulate: seeds must be a number of at least 0, or the"),
    "half a seed": (lambda: simulate(chain, 1, seeds=0.5), "or the seeds themselves, not 0.5"),  # type: ignore[arg-type]
    "one fault": (lambda: simulate(chain, 1, faults=faults.crash()), "faults must be a list such as"),  # type: ignore[arg-type]
    "names": (lambda: simulate(chain, 1, faults=["crash"]), "faults must be a list such as"),  # type: ignore[list-item]
    "no check": (lambda: simulate(chain, 1, check="paid"), "check must be a function, not 'paid'"),  # type: ignore[arg-type]
    "async check": (lambda: simulate(chain, 1, check=async_check, faults=[]), "simulate: check must not be async"),
    "answers": (lambda: simulate(chain, 1, answers=["yes"]), "answers must be a mapping from paths"),  # type: ignore[arg-type]
    "lives": (lambda: simulate(chain, 1, max_lives=1.5), "max_lives must be at least 1, not 1.5"),  # type: ignore[arg-type]
    "time": (lambda: simulate(chain, 1, for_s=-1), "for_s must be seconds of at least 0, not -1"),
    "chance": (lambda: faults.crash(p="often"), "p must be a number from 0 to 1, not 'often'"),  # type: ignore[arg-type]
    "one bound": (lambda: faults.store_slow(seconds=5), "store_slow: seconds must be two numbers of"),  # type: ignore[arg-type]
    "bounds": (lambda: faults.rate_limited(retry_after=(9, 1)), "rate_limited: retry_after must be two numbers of"),
    "a list of names": (lambda: faults.only(["crash"]), r"there is no fault \['crash'\]"),  # type: ignore[arg-type]
    "no reply": (lambda: simulate(lambda world: world.model(), 1), "world.model needs at least one reply"),  # type: ignore[arg-type,return-value]
}


async def async_app(world: World) -> Flujo:
    return chain(world)


async def async_check(world: World) -> str:
    return "never"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_with_a_sentence(name: str) -> None:
    """Before a history begins, or when the function is called."""
    call, sentence = WRONG[name]
    with pytest.raises(DeclarationError, match=sentence):
        call()


def test_a_clock_may_jump_back() -> None:
    """The bounds of other faults are not negative."""
    assert faults.clock_jump(seconds=(-5, 5)).seconds == (-5, 5)


@pytest.mark.trio
async def test_a_call_inside_a_trio_run_is_refused() -> None:
    """A life has an event loop of its own."""
    with pytest.raises(DeclarationError, match="call it in synchronous code, not in a coroutine"):
        simulate(chain, 1, seeds=1)


def test_a_call_inside_an_asyncio_program_is_refused_where_a_life_needs_asyncio() -> None:
    """Pipelines with model agents do. The loop is asyncio's own: trio warns of the signal handling of uvloop."""

    async def main() -> None:
        simulate(chain, 1, seeds=1)
        with pytest.raises(DeclarationError, match="call it in synchronous code, not in a coroutine"):
            simulate(CASES["atomic agent"].factory, "tea?", seeds=1)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


def test_more_seeds_run_for_a_time() -> None:
    """`for_s` continues after the given seeds, in CPU seconds."""
    simulation = simulate(chain, 1, seeds=1, for_s=0.2)
    assert simulation.seeds > 1
    assert simulation.cpu_s >= 0.2


def test_seeds_may_be_endless() -> None:
    """Seeds are taken one by one, until one fails."""
    with pytest.raises(SimulationFailed) as failed:
        simulate(chain, 1, seeds=itertools.count(5), faults=faults.none(), check=lambda world: seventh(world))
    assert failed.value.seed == 7


def seventh(world: World) -> str | None:
    return "seven" if world.seed == 7 else None


def test_the_last_ten_lives_have_no_faults() -> None:
    """A crash at every opportunity ends all other lives, at most twenty."""
    for lives, crashes in ((5, 0), (10, 0), (12, 2), (25, 15), (50, 20)):
        simulation = simulate(chain, 1, seeds=1, faults=[faults.crash(p=1)], max_lives=lives)
        assert (simulation.crashes, simulation.lives) == (crashes, crashes + 1)


def test_a_factory_may_have_effects() -> None:
    """A crash in the factory ends that life."""

    def app(world: World) -> Flujo:
        world.effect("boot")
        return chain(world)

    simulation = simulate(app, 1, seeds=20, faults=[faults.crash(p=0.3)])
    assert simulation.crashes > 10


def test_an_application_with_another_store_is_refused() -> None:
    """Nothing would be simulated: no store fault, no crash and no resume."""
    with pytest.raises(DeclarationError, match=r"must return a Flujo with store=world\.store"):
        simulate(lambda world: Flujo(Step("a", twice)), 1, seeds=1)


def test_errors_of_user_code_name_the_seed_and_keep_their_traceback() -> None:
    """An exception of a factory or a check is a failure, with that exception as its cause."""

    def broken(world: World) -> Flujo:
        raise KeyError("config")

    def check(world: World) -> None:
        raise LookupError("no such effect")

    with pytest.raises(SimulationFailed, match="seed 0: life 1 raised KeyError: 'config'") as failed:
        simulate(broken, 1, seeds=1)
    assert isinstance(failed.value.__cause__, KeyError)
    with pytest.raises(SimulationFailed, match="seed 0: check: LookupError: no such effect") as failed:
        simulate(chain, 1, seeds=1, check=check)
    assert isinstance(failed.value.__cause__, LookupError)


def asking(world: World) -> Flujo:
    asked = Step.human_in_the_loop("how many", "How many?", input_schema=int)
    return Flujo(Step.loop_until("ask", asked, lambda data, context: data > 5, max_loops=50), store=world.store)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["how many", "ask", "ask/how many", "ask/~i1"])
def test_a_question_is_answered_by_its_path_with_and_without_turns(name: str) -> None:
    """An answer may be a value, or a callable on the question and the seed's random numbers."""
    draws: list[int] = []

    def answer(question: Any, rng: Any) -> int:
        assert question.message == "How many?"
        draws.append(9 if name == "ask/~i1" else rng.randrange(8))
        return draws[-1]

    simulate(asking, seeds=30, faults=faults.only("crash"), answers={name: answer}, check=completed)
    assert max(draws) > 5


def completed(world: World) -> str | None:
    assert world.result is not None
    return None if world.result.status == "completed" else f"the run is {world.result.status}"


def test_an_answer_that_does_not_fit_fails_at_once() -> None:
    """Further lives would raise the same error."""
    with pytest.raises(SimulationFailed, match="life 1 raised InvalidAnswer: the answer to 'how many' does not fit"):
        simulate(asking, seeds=1, faults=faults.none(), answers={"how many": "many"})


def test_an_answer_to_a_step_that_does_not_exist_is_refused() -> None:
    """The run would rest without a word, or pass its deadline."""
    with pytest.raises(DeclarationError) as refused:
        simulate(asking, seeds=1, answers={"how mny": 7})
    expected = "simulate: answers has 'how mny', but there is no such step; did you mean 'how many'?"
    assert str(refused.value) == expected
    case = CASES["approval"]
    with pytest.raises(DeclarationError, match="answers has 'x/sur', but there is no such step"):
        simulate(case.factory, case.input, seeds=1, faults=faults.none(), answers={"x/sur": "approve"})


def test_an_answer_to_a_question_that_is_not_asked_is_permitted() -> None:
    """A branch may be left out, or the run may end before."""
    answers = {"how many": 7, "ask": 8, "ask/~i9": 9}
    simulate(asking, seeds=2, faults=faults.none(), answers=answers, check=completed)


def test_a_life_follows_until_the_run_has_ended() -> None:
    """A drive that gives up is called again, and one that finds an ended run is done."""

    async def drive(world: World, flujo: Flujo) -> Any:
        if world.life == 1:
            await flujo.submit(1, run_id="r")
            return None
        return await flujo.resume_async("r")

    simulation = simulate(chain, seeds=1, faults=faults.none(), drive=drive)
    assert simulation.lives == 2

    async def resume_always(world: World, flujo: Flujo) -> Any:
        return await (flujo.resume_async("r") if world.records() else flujo.run_async(1, run_id="r"))

    seen: list[World] = []
    simulate(chain, seeds=60, faults=[faults.crash(p=0.2)], drive=resume_always, check=seen.append)
    assert {world.result.status for world in seen if world.result is not None} == {"completed"}
    assert len(seen) >= 60


def test_async_services_are_called_with_crashes_around_them() -> None:
    """A crash after the call follows the end of the service."""
    called: list[int] = []

    def app(world: World) -> Flujo:
        async def service() -> int:
            await world.sleep(1)
            called.append(world.life)
            return 7

        async def use(data: int) -> int:
            return await world.call(service)

        return Flujo(Step("use", use), store=world.store)

    with pytest.raises(SimulationFailed, match="called twice"):
        simulate(
            app,
            1,
            seeds=200,
            faults=faults.only("crash"),
            check=lambda world: "called twice" if 2 in called and 1 in called else called.clear(),
        )


@pytest.mark.slow
@pytest.mark.parametrize("names", [("nested", "chain"), ("granular",)])
def test_an_unknown_trio_is_named_and_its_tasks_keep_their_order(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Internals of a newer release are not replaced, and all rules are checked."""
    major, minor = trio.__version__.split(".")[:2]
    monkeypatch.setattr(trio, "__version__", f"{major}.{int(minor) + 90}.0")
    for name in names:
        case = CASES[name]
        simulation = simulate(case.factory, case.input, seeds=20, answers=case.answers, check=case.promise)
        assert simulation.crashes > 0
    assert f"trio {major}.{int(minor) + 90} is not known here: schedules are not seeded" in caplog.text


def careless(world: World) -> Flujo:
    return chain(world)


@pytest.mark.slow
def test_the_printed_lines_reproduce_a_failure_in_a_new_process(tmp_path: Path) -> None:
    """S3: the last line of the failure has all arguments; it is pasted below the application's code."""
    with pytest.raises(SimulationFailed) as failed:
        simulate(careless, 1, seeds=300, faults=[faults.crash(p=0.05)], check=unpaid, fresh=False)
    *_, short, line = str(failed.value).splitlines()
    assert short == f"reproduce it with: simulate(careless, seeds=[{failed.value.seed}]) and the same arguments:"
    script = tmp_path / "script.py"
    script.write_text(
        f"from test_simulate import *\ntry:\n    {line}\nexcept SimulationFailed as failed:\n    print(failed)\n"
    )
    assert _output(script, "3").strip() == str(failed.value)


def test_a_call_without_arguments_is_printed_as_one_line() -> None:
    """The line is the whole call."""

    def app(world: World) -> Flujo:
        async def wait(data: object) -> None:
            await trio.sleep_forever()

        return Flujo(Step("wait", wait), store=world.store)

    with pytest.raises(SimulationFailed) as failed:
        simulate(app)
    assert str(failed.value).splitlines()[-1] == "reproduce it with: simulate(app, seeds=[0])"
