"""Prices that were looked up once: what the tokens of a model cost, learned from `genai-prices` and kept.

`genai-prices` works a price out anew for every response: the model is searched, the units of its price are sorted, and
all of it is checked. Here that is done once for each price. Rules:

1. A tariff is learned by asking for the prices of a few tokens, and kept only if a further answer is what it foretells.
2. It holds for one price of one model on one list, and between two of its thresholds. A model has several prices where
   they change with the date or the hour, and `genai-prices` says which one is in force; with a new list everything is
   forgotten.
3. `genai-prices` is asked as ever where a tariff would not do: for prices and lists of somebody else's class, for
   responses that have a price of their own, such as those of a batch, and for usages of more than text.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, PriceCalculation, Provider, TieredPrices
from pydantic_ai.usage import RequestUsage

Name = tuple[str | None, ...]
"""What a model is looked up by."""

_PARTS = ("cache_read_tokens", "cache_write_tokens", "output_reasoning_tokens")
_COUNTED = frozenset({"input_tokens", "output_tokens", *_PARTS})
_WITHOUT_PRICE = frozenset({"details", "cost", "unmeasured_requests"})
_FEWEST = 10
"""Sizes of input that must lie between two thresholds for a tariff to be learned there."""
_MOST_NAMES = 1000
"""Providers say the names of what answered: who makes up new ones for ever shall not fill the memory."""


@attrs.frozen
class Tariff:
    """What a response costs: so much by itself, and so much for each token."""

    fixed: Decimal
    input: Decimal
    output: Decimal
    parts: tuple[tuple[str, Decimal], ...]
    """What a token of such a part costs beside what it costs as one of the input or of the output."""

    def cost(self, usage: RequestUsage) -> Decimal:
        """Dollars for a usage of text."""
        total = self.fixed + self.input * usage.input_tokens + self.output * usage.output_tokens
        for name, price in self.parts:
            if count := getattr(usage, name):
                total += price * count
        return total


def learned(cost: Callable[[RequestUsage], Decimal], *, above: int = 0, up_to: int | None = None) -> Tariff | None:
    """The tariff behind the prices that `cost` tells for inputs of such a size; `None` if there is none (rule 1)."""
    least, most = above + 1, above + 1_000_003 if up_to is None else up_to
    if most - above < _FEWEST:
        return None
    try:
        once = cost(_tokens(least, 1))
        each, said = cost(_tokens(least + 1, 1)) - once, cost(_tokens(least, 2)) - once
        parts = tuple((name, cost(_tokens(least, 1, **{name: 1})) - once) for name in _PARTS)
        tariff = Tariff(once - each * least - said, each, said, parts)
        test = _tokens(most, 70_001, **{name: 2 + place for place, name in enumerate(_PARTS)})
        return tariff if cost(test) == tariff.cost(test) else None
    except ValueError:
        return None


def _tokens(given: int, said: int, **parts: Any) -> RequestUsage:
    return RequestUsage(input_tokens=given, output_tokens=said, **parts)


def is_of_text(usage: RequestUsage) -> bool:
    """Whether a tariff knows all that was used, and would not be misled: parts are never more than the whole."""
    if type(usage) is not RequestUsage:
        return False
    for name, value in vars(usage).items():
        if name in _COUNTED:
            if type(value) is not int or value < 0:
                return False
        elif value and name not in _WITHOUT_PRICE:
            return False
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return cached <= usage.input_tokens and usage.output_reasoning_tokens <= usage.output_tokens


class _Price:
    """A price, with its tariffs: one for all inputs, or one for each size between two of its thresholds."""

    def __init__(self, price: ModelPrice) -> None:
        self._price, self._values = price, dict(vars(price))
        thresholds = {
            tier.start for each in self._values.values() if isinstance(each, TieredPrices) for tier in each.tiers
        }
        self._thresholds = sorted(thresholds)
        self._tariffs: dict[int, Tariff | None] = {}

    def holds(self) -> bool:
        """Whether nobody has changed the price since."""
        return vars(self._price) == self._values

    def tariff(self, size: int, cost: Callable[[RequestUsage], Decimal]) -> Tariff | None:
        """The tariff for an input of that size."""
        place = bisect_left(self._thresholds, size)
        if place not in self._tariffs:
            self._tariffs[place] = self._learn(place, cost)
        return self._tariffs[place]

    def _learn(self, place: int, cost: Callable[[RequestUsage], Decimal]) -> Tariff | None:
        if type(self._price) is not ModelPrice:
            return None
        sizes = [0, *self._thresholds]
        return learned(cost, above=sizes[place], up_to=sizes[place + 1] if place + 1 < len(sizes) else None)


@attrs.frozen(eq=False)
class _Listed:
    """A model on the list, with the prices that were in force when it was used."""

    _model: ModelInfo
    _provider: Provider
    _prices: dict[int, _Price] = attrs.field(factory=dict)
    """By the price itself, which is kept along: its place in memory is no other's meanwhile."""

    def tariff(self, usage: RequestUsage, when: datetime | None, details: object) -> Tariff | None:
        """The tariff in force then for such a response, if there is one."""
        if details and self._has_price_of_its_own(details):
            return None
        when = when or datetime.now(tz=UTC)
        price = self._model.get_prices(when)
        kept = self._prices.get(id(price))
        if kept is None or not kept.holds():
            kept = self._prices[id(price)] = _Price(price)
        return kept.tariff(usage.input_tokens, functools.partial(self._asked, when))

    def _has_price_of_its_own(self, details: object) -> bool:
        if not isinstance(details, Mapping):
            return True
        for variant in self._model.price_variants or ():
            for key, value in variant.when.items():  # by loops, for every response comes here
                if details.get(key) != value:
                    break
            else:
                return True
        return False

    def _asked(self, when: datetime, usage: RequestUsage) -> Decimal:
        return self._model.calc_price(usage, self._provider, genai_request_timestamp=when).total_price


class Tariffs:
    """The tariffs of the list of prices in force."""

    def __init__(self) -> None:
        self._prices: DataSnapshot | None = None
        self._listed: dict[Name, _Listed] = {}

    def cost(
        self,
        name: Name,
        usage: RequestUsage,
        look: Callable[[], PriceCalculation],
        *,
        when: datetime | None = None,
        details: object = None,
    ) -> Decimal:
        """Dollars for a usage, as `look` finds them, which is asked only where no tariff is known; it may raise."""
        listed = self._in_force()
        known = listed.get(name)
        if known is not None and is_of_text(usage):
            tariff = known.tariff(usage, when, details)
            if tariff is not None:
                return tariff.cost(usage)
        found = look()
        if known is None and type(found.model) is ModelInfo:
            if len(listed) >= _MOST_NAMES:
                listed.clear()
            listed[name] = _Listed(found.model, found.provider)
        return found.total_price

    def _in_force(self) -> dict[Name, _Listed]:
        prices = get_snapshot()
        if prices is not self._prices:
            self._prices, self._listed = prices, {}
        # A list of somebody else's class may reckon in its own way, so nothing is kept of it.
        return self._listed if type(prices) is DataSnapshot else {}

    def __len__(self) -> int:
        return len(self._listed)
