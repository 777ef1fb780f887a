"""Prices are looked up once for each model, and what they come to is what `genai-prices` says, to the last digit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import calc_price
from genai_prices.data_snapshot import DataSnapshot, get_snapshot, set_custom_snapshot
from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, Provider, Tier, TieredPrices
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_actors import Flujo, Settings, Step, UsageLimits
from flujo_actors._agents.prices import PriceCache, estimated_cost
from flujo_actors._core.settings_model import Price, UsageSettings

LISTED = [(provider, model) for provider in get_snapshot().providers for model in provider.models]
TIERED = [
    (provider, model)
    for provider, model in LISTED
    if isinstance(model.prices, ModelPrice)
    and any(isinstance(each, TieredPrices) for each in vars(model.prices).values())
]
THRESHOLDS = [0, 1, 128_000, 200_000, 256_000, 272_000]

counts = st.one_of(
    st.just(0),
    st.integers(0, 400_000),
    st.sampled_from(THRESHOLDS).flatmap(lambda start: st.integers(max(0, start - 2), start + 2)),
)
usages = st.builds(
    RequestUsage,
    input_tokens=counts,
    output_tokens=counts,
    cache_read_tokens=st.one_of(st.just(0), counts),
    cache_write_tokens=st.one_of(st.just(0), counts),
    output_reasoning_tokens=st.one_of(st.just(0), counts),
    input_audio_tokens=st.one_of(st.just(0), st.just(0), counts),
    details=st.dictionaries(st.sampled_from(["reasoning_tokens", "audio_tokens"]), counts),
)
moments = st.datetimes(datetime(2023, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))
contexts = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"finish_reason": st.just("stop")},
        optional={
            "processing": st.sampled_from(["batch", "other"]),
            "service_tier": st.sampled_from(["default", "flex", "priority"]),
        },
    ),
)


def asked_twice(tariffs: PriceCache, usage: RequestUsage, when: datetime, context: Any, look: Any) -> list[Any]:
    """What a cost comes to when it is new, and when it is known; an error is what it says."""
    return [said(lambda: tariffs.cost(("it",), usage, look, when=when, details=context)) for _ in range(2)]


def said(cost: Any) -> Any:
    try:
        return cost()
    except (LookupError, ValueError) as error:
        return str(error)


@given(st.one_of(st.sampled_from(LISTED), st.sampled_from(TIERED)), usages, moments, contexts)
def test_a_kept_price_is_the_listed_one(
    model: tuple[Provider, ModelInfo], usage: RequestUsage, when: datetime, context: Any
) -> None:
    """For any model on the list, at any time, below and above its thresholds, and in a batch."""
    provider, info = model

    def look() -> Any:
        return info.calc_price(usage, provider, genai_request_timestamp=when, price_context=context)

    listed = said(lambda: look().total_price)
    assert asked_twice(PriceCache(), usage, when, context, look) == [listed, listed]


@given(st.sampled_from(LISTED), st.lists(usages, min_size=2, max_size=4), st.lists(moments, min_size=2, max_size=4))
def test_what_was_learned_from_one_response_holds_for_others(
    model: tuple[Provider, ModelInfo], used: list[RequestUsage], times: list[datetime]
) -> None:
    """Whatever it was that came first, and whichever price was in force then."""
    provider, info = model
    tariffs = PriceCache()
    for usage in used:
        for when in times:

            def look(usage: RequestUsage = usage, when: datetime = when) -> Any:
                return info.calc_price(usage, provider, genai_request_timestamp=when)

            assert asked_twice(tariffs, usage, when, None, look)[1] == said(lambda look=look: look().total_price)


# --- what is asked again, and what is not -------------------------------------------------------------------


def listing(price: ModelPrice) -> DataSnapshot:
    model = ModelInfo(id="mine", match=ClauseEquals(equals="mine"), prices=price)
    return DataSnapshot([Provider(id="shop", name="Shop", api_pattern="x", models=[model])], from_auto_update=False)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The models whose prices were worked out by `genai-prices`."""
    asked: list[str] = []
    calc = DataSnapshot.calc
    monkeypatch.setattr(
        DataSnapshot, "calc", lambda self, usage, name, *more: (asked.append(name), calc(self, usage, name, *more))[1]
    )
    yield asked
    set_custom_snapshot(None)


class Priced(FunctionModel):
    """A model that is on the list, and answers with a usage that differs every time."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(self._answer, model_name="mine")

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.calls += 1
        usage = RequestUsage(input_tokens=1_000_000 * self.calls, output_tokens=500_000)
        return ModelResponse(parts=[TextPart("done")], usage=usage, provider_name="shop")

    @property
    def system(self) -> str:
        return "shop"


DIMES = ModelPrice(input_mtok=Decimal("0.1"), output_mtok=Decimal("0.2"))


@pytest.mark.trio
@pytest.mark.parametrize("limits", [None, UsageLimits(total_cost_usd_limit=100.0)])
async def test_a_listed_price_is_worked_out_once_for_all_calls(searches: list[str], limits: UsageLimits | None) -> None:
    """Neither pydantic-ai nor a cost limit looks it up again, and every call is billed for what it used."""
    set_custom_snapshot(listing(DIMES))
    flujo = Flujo(Step("ask", Agent(Priced())), usage_limits=limits)
    costs = [(await flujo.run_async("Hello")).total_cost_usd for _ in range(3)]
    assert costs == pytest.approx([0.2, 0.3, 0.4])
    once = len(searches)
    assert (await flujo.run_async("Hello")).total_cost_usd == pytest.approx(0.5)
    assert (once, len(searches) - once) == (1 if limits is None else 2, 0)


@pytest.mark.trio
async def test_a_price_in_the_settings_spares_the_lookup_as_well(searches: list[str]) -> None:
    """pydantic-ai estimates costs in any case; it finds its estimate in the response."""
    set_custom_snapshot(listing(DIMES))
    settings = Settings(usage=UsageSettings(prices={"mine": Price(input_usd=1, output_usd=0)}))
    flujo = Flujo(Step("ask", Agent(Priced())), settings=settings)
    assert [(await flujo.run_async("Hello")).total_cost_usd for _ in range(3)] == pytest.approx([1, 2, 3])
    assert searches == ["mine"]


@pytest.mark.trio
async def test_a_new_list_counts_from_the_next_response_on(searches: list[str]) -> None:
    """So does a price that somebody changes on the list."""
    prices = ModelPrice(input_mtok=Decimal(2))
    flujo, model = Flujo(Step("ask", Agent(one := Priced()))), listing(prices)

    async def cost() -> float:
        one.calls = 0
        return (await flujo.run_async("Hello")).total_cost_usd

    set_custom_snapshot(listing(DIMES))
    assert [await cost(), await cost()] == pytest.approx([0.2, 0.2])
    set_custom_snapshot(model)
    assert [await cost(), await cost()] == pytest.approx([2, 2])
    prices.input_mtok = Decimal(3)  # type: ignore[attr-defined]
    assert await cost() == pytest.approx(3)


def test_the_cost_is_noted_where_pydantic_ai_looks_for_it() -> None:
    """As a number of the same kind, with the same value that it would have noted itself."""
    response = ModelResponse(
        parts=[], usage=RequestUsage(input_tokens=1000), model_name="gpt-4o", provider_name="openai"
    )
    listed = response.cost().total_price
    assert estimated_cost(response) == float(listed)
    assert (response.usage.cost, type(response.usage.cost)) == (listed, Decimal)


def test_a_response_that_was_not_measured_has_no_cost() -> None:
    """What it says it used may be less than what it used."""
    usage = RequestUsage(input_tokens=1000, unmeasured_requests=1)
    response = ModelResponse(parts=[], usage=usage, model_name="gpt-4o", provider_name="openai")
    assert estimated_cost(response) is None
    assert usage.cost is None


class Discount(ModelPrice):
    """A price that reckons in its own way."""

    def calc_price(self, usage: Any) -> Any:
        return {**super().calc_price(usage), "total_price": Decimal(usage.input_tokens % 7)}


@pytest.mark.parametrize(
    "price", [Discount(input_mtok=Decimal(1)), ModelPrice(input_mtok=TieredPrices(Decimal(1), [Tier(3, Decimal(2))]))]
)
def test_prices_without_a_tariff_are_asked_for_every_time(searches: list[str], price: ModelPrice) -> None:
    """Those of somebody else's class, and those with thresholds that lie too close to be learned."""
    set_custom_snapshot(listing(price))
    tariffs = PriceCache()
    for size in (1, 2, 3, 8, 9):
        usage = RequestUsage(input_tokens=size)
        look = lambda usage=usage: calc_price(usage, "mine", provider_id="shop")  # noqa: E731
        assert tariffs.cost(("mine",), usage, look) == look().total_price


def test_names_that_are_never_seen_again_do_not_fill_the_memory() -> None:
    """A provider may call every answer's model by a name of its own."""
    set_custom_snapshot(None)
    tariffs = PriceCache()
    usage = RequestUsage(input_tokens=1)
    for number in range(2500):
        tariffs.cost((str(number),), usage, lambda: calc_price(usage, "gpt-4o", provider_id="openai"))
    assert len(tariffs) <= 1000
