"""Rate limits: one bucket for all processes, refunds, slots under leases, and refusals of a provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai.exceptions import ModelHTTPError, ModelQuotaExceededError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_actors import (
    DeclarationError,
    Flujo,
    MemoryStore,
    RateLimit,
    RateLimited,
    RunClient,
    SqliteStore,
    Step,
    load_blueprint,
    load_settings,
    make_agent_async,
)
from flujo_actors._api.cli.entry import main
from flujo_actors._core.policies.rate_limits import RateBucket, RateReservation
from flujo_actors._core.telemetry_events import RateBlocked, RateWaited
from flujo_actors.telemetry import MemorySink
from flujo_actors.testing import JumpingClock


class Provider:
    """A model of calls with a known size, which notes their times."""

    def __init__(self, tokens: int = 100, errors: tuple[Exception, ...] = ()) -> None:
        self.tokens, self.errors = tokens, list(errors)
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0
        self.model = FunctionModel(self._answer, model_name="m")

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.times.append(_now())
        if self.errors:
            raise self.errors.pop(0)
        half = self.tokens // 2
        return ModelResponse(
            parts=[TextPart("hi")], usage=RequestUsage(input_tokens=half, output_tokens=self.tokens - half)
        )


_clock: list[Any] = []


def _now() -> float:
    return float(_clock[-1]()) if _clock else 0.0


@pytest.fixture(params=["none", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """No store, and two kinds of them, on the clock of the run."""
    wall = lambda: 1_000_000.0 + _now()  # noqa: E731
    if request.param == "sqlite":
        yield SqliteStore(tmp_path / "runs.db", wall=wall)
    else:
        yield MemoryStore(wall=wall) if request.param == "memory" else None


def run(flujo: Flujo[Any, Any, Any], data: object = "x") -> Any:
    """Run on a clock that skips every wait."""

    async def main() -> Any:
        began = trio.current_time()
        _clock.append(lambda: clock.current_time() - began)
        try:
            return await flujo.run_async(data)
        finally:
            _clock.pop()

    clock = JumpingClock()
    return trio.run(main, clock=clock)


def many(agent: Any, count: int, **options: Any) -> Any:
    """A map over so many requests."""
    return Step.map_over("m", Step("s", agent, **options), items=lambda data, context: range(count))


def test_requests_start_at_their_rate(store: Any) -> None:
    """Sixty a minute with a burst of two seconds: three at once, then one a second."""
    provider = Provider()
    agent = make_agent_async(provider.model, rate_limit=RateLimit("r", requests_per_min=60, burst_s=2))
    result = run(Flujo(many(agent, 8), store=store))
    assert result.status == "completed"
    gaps = [round(each) for each in provider.times]
    assert gaps == [0, 0, 0, 1, 2, 3, 4, 5]


def test_unused_tokens_are_refunded(store: Any) -> None:
    """The first calls reserve too much, and nothing of the rate is lost."""
    provider = Provider(tokens=1000)
    agent = make_agent_async(provider.model)
    limit = RateLimit("r", tokens_per_min=60_000, burst_s=1)
    result = run(Flujo(many(agent, 12, rate_limit=limit), store=store))
    assert result.status == "completed"
    assert 9.5 <= provider.times[-1] <= 14.0  # twelve seconds of the rate, less the burst
    for begin in provider.times:
        used = sum(begin <= each < begin + 6 for each in provider.times) * 1000
        assert used <= 1000 * (6 + 1) + 1000


def test_slots_bound_the_requests_at_once(store: Any) -> None:
    """They are free after the run."""
    provider = Provider()
    busy: list[int] = []

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        provider.at_once += 1
        busy.append(provider.at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        provider.at_once -= 1
        return ModelResponse(parts=[TextPart("hi")], usage=RequestUsage(input_tokens=1, output_tokens=1))

    limits = {"function:*": RateLimit("r", at_once=2)}
    result = run(Flujo(many(make_agent_async(FunctionModel(slow)), 6), store=store, rate_limits=limits))
    assert result.status == "completed"
    assert max(busy) <= 2
    if store is not None:
        assert all(each.in_use == 0 for each in RunClient(store).rates())


def test_a_wait_beyond_the_limit_fails_the_step() -> None:
    """Nothing is reserved then, and the message has the numbers."""
    provider = Provider(tokens=1000)
    limit = RateLimit("openai", tokens_per_min=60, max_wait_s=600)
    store = MemoryStore(wall=lambda: 0.0)
    agent = make_agent_async(provider.model, rate_limit=limit)
    flujo = Flujo(Step("a", agent) >> Step("b", agent, input="y"), store=store)
    result = run(flujo)
    assert isinstance(result.error, RateLimited)
    assert str(result.error) == "rate limit 'openai': 1000 s until 1,000 tokens are free, and max_wait_s is 600"
    assert store.rates()[0].free_at == 1005.0  # a new bucket has no burst


def test_a_refusal_of_the_provider_blocks_the_bucket(store: Any) -> None:
    """No request starts before `Retry-After` is over; the attempt goes on, and events tell of it."""
    sink = MemorySink()
    provider = Provider(errors=(ModelHTTPError(429, "m", retry_after=2.0),))
    agent = make_agent_async(provider.model, rate_limit=RateLimit("r", requests_per_min=6000))
    result = run(Flujo(Step("s", agent), store=store, settings={"telemetry": {"sinks": [sink]}}))
    assert (result.output, result.step_history[0].attempts) == ("hi", 1)
    assert [round(each) for each in provider.times] == [0, 2]
    assert [(event.name, event.for_s) for event in sink.events if isinstance(event, RateBlocked)] == [("r", 2.0)]
    assert [event.name for event in sink.events if isinstance(event, RateWaited)] == ["r"]


def test_refusals_in_a_row_double_the_block() -> None:
    """One, two, four seconds; after five repetitions the attempt fails."""
    provider = Provider(errors=tuple(ModelHTTPError(429, "m") for _ in range(9)))
    agent = make_agent_async(provider.model, rate_limit=RateLimit("r", requests_per_min=6000))
    result = run(Flujo(Step("s", agent)))
    assert isinstance(result.error, ModelHTTPError)
    assert [round(each) for each in provider.times] == [0, 1, 3, 7, 15, 31]


def test_an_exhausted_quota_is_never_repeated() -> None:
    """Waiting does not help there."""
    error = ModelHTTPError.for_category(ModelQuotaExceededError, status_code=429, model_name="m")
    provider = Provider(errors=(error,))
    agent = make_agent_async(provider.model, rate_limit=RateLimit("r", requests_per_min=6000))
    assert run(Flujo(Step("s", agent))).status == "failed"
    assert len(provider.times) == 1


def test_waiting_does_not_count_for_the_timeout() -> None:
    """A request waits for thirty seconds in a step with a timeout of five."""
    provider = Provider()
    limit = RateLimit("r", requests_per_min=2, burst_s=0)
    agent = make_agent_async(provider.model, rate_limit=limit)
    result = run(Flujo(Step("a", agent, timeout_s=5) >> Step("b", agent, timeout_s=5)))
    assert result.status == "completed"
    assert [round(each) for each in provider.times] == [0, 30]


def test_a_bucket_is_one_for_all_its_runs(tmp_path: Path) -> None:
    """Two stores on one file share the virtual clock."""
    stores = [SqliteStore(tmp_path / "runs.db", wall=lambda: 100.0) for _ in range(2)]
    wanted = RateReservation(name="r", resource="tokens", seconds=10, burst_s=5, max_wait_s=8)
    first, second, third = (stores[place % 2].reserve(wanted) for place in range(3))
    assert [(each.granted, each.starts_at) for each in (first, second, third)] == [
        (True, 100),
        (True, 105),
        (False, 115),
    ]
    stores[0].settle("r", "tokens", 10)
    assert stores[1].reserve(wanted).starts_at == 105


def test_the_bound_of_a_window_holds_for_random_reservations() -> None:
    """In any window, at most its rate, the burst and one request start."""
    bucket, starts = RateBucket(), []
    for now in range(100):
        wanted = RateReservation(name="r", resource="requests", seconds=0.7, burst_s=3, max_wait_s=1e9)
        starts.append(bucket.reserve(wanted, now / 3, 0.0).starts_at)
    for begin in starts:
        assert sum(begin <= each < begin + 10 for each in starts) <= (10 + 3) / 0.7 + 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tokens_per_min": 0}, r"RateLimit\('openai'\): tokens_per_min must be a finite number > 0, not 0"),
        ({"requests_per_min": float("nan")}, "requests_per_min must be a finite number > 0, not nan"),
        ({"at_once": 0}, "at_once must be a whole number >= 1, not 0"),
        ({"requests_per_min": 1, "burst_s": -1}, "burst_s must be a finite number >= 0, not -1"),
        ({}, "give requests_per_min, tokens_per_min or at_once"),
    ],
)
def test_an_impossible_limit_is_refused(options: dict[str, Any], text: str) -> None:
    """The message names the limit and the option."""
    with pytest.raises(DeclarationError, match=text):
        RateLimit("openai", **options)


def test_a_store_without_rates_is_refused() -> None:
    """The message names the missing method."""

    class MyStore(MemoryStore):
        reserve: Any = property()

    agent = make_agent_async("test", rate_limit=RateLimit("r", at_once=1))
    with pytest.raises(DeclarationError, match="store MyStore has no 'reserve': RateLimit needs it"):
        Flujo(Step("s", agent), store=MyStore())


def test_limits_come_from_a_configuration_file(tmp_path: Path) -> None:
    """The key is a pattern of the model, and the name of the bucket by default."""
    file = tmp_path / "flujo.toml"
    file.write_text(
        '[rate_limits."openai:*"]\nname = "openai"\ntokens_per_min = 100\n[rate_limits."test:*"]\nat_once = 1\n'
    )
    found = load_settings(file=file).rate_limits
    assert [(glob, limit.name) for glob, limit in found.items()] == [("openai:*", "openai"), ("test:*", "test:*")]


def test_a_blueprint_names_its_limits(tmp_path: Path) -> None:
    """`rate_limit` of a step names an entry of `rate_limits`."""
    path = tmp_path / "p.yaml"
    path.write_text(
        "version: '1'\nname: p\nrate_limits: {openai: {tokens_per_min: 1000}}\n"
        "agents: {writer: {model: test}}\nsteps:\n- {name: s, uses: agents.writer, rate_limit: openai}\n"
    )
    [step] = load_blueprint(path).steps
    assert step.rate_limit == (RateLimit("openai", tokens_per_min=1000),)  # type: ignore[union-attr]
    path.write_text(path.read_text().replace("rate_limit: openai}", "rate_limit: opnai}"))
    with pytest.raises(DeclarationError, match="did you mean `openai`"):
        load_blueprint(path)


def test_the_command_lists_rate_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the time that is reserved, and as JSON."""
    url = f"sqlite:///{tmp_path}/runs.db"
    SqliteStore(tmp_path / "runs.db").reserve(
        RateReservation(name="openai", resource="tokens", seconds=1e6, burst_s=5, max_wait_s=8)
    )
    assert main(["limits", "--store", url]) == 0
    assert "openai" in capsys.readouterr().out
    assert main(["limits", "--json", "--store", url]) == 0
    [found] = json.loads(capsys.readouterr().out)["rates"]
    assert (found["name"], found["resource"], "refunded" in found) == ("openai", "tokens", False)


def test_the_limit_of_a_step_that_sends_no_requests_is_refused() -> None:
    """A function is not limited by it: the declaration would have no effect."""

    async def work(data: str) -> str:
        return data

    with pytest.raises(DeclarationError, match="step 's': rate_limit is for the requests of a pydantic-ai agent"):
        Step("s", work, rate_limit=RateLimit("openai", requests_per_min=1))
