"""What a response costs: the price of the settings, or the one `genai-prices` knows."""

from __future__ import annotations

import attrs
from genai_prices import Usage as PricedUsage
from genai_prices import calc_price
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from ..core.settings import Price, UsageSettings
from ..errors import PricingNotConfiguredError

_MILLION = 1_000_000


@attrs.frozen
class Pricing:
    """Prices under one set of settings."""

    settings: UsageSettings

    def require(self, model: Model, *, why: str) -> None:
        """Raise `PricingNotConfiguredError` if a call to `model` could not be priced."""
        if self._configured(model.model_name) is not None or _is_listed(model):
            return
        raise PricingNotConfiguredError(
            f"no price is known for model {model.model_name!r} of {model.system!r}, but {why}; "
            f"set one: Settings(usage={{'prices': {{{model.model_name!r}: "
            "{'input_usd': …, 'output_usd': …}}}) in dollars per million tokens"
        )

    def cost_of(self, response: ModelResponse, model: Model) -> float | None:
        """Dollars for a response; `None` if no price is known."""
        price = self._configured(response.model_name or "") or self._configured(model.model_name)
        if price is not None:
            return _cost(price, response.usage)
        if response.usage.cost is not None:
            return float(response.usage.cost)
        try:
            return float(response.cost().total_price)
        except (LookupError, ValueError, AssertionError):
            return None

    def _configured(self, model_name: str) -> Price | None:
        return self.settings.prices.get(model_name)


def _cost(price: Price, usage: RequestUsage) -> float:
    cached = price.input_usd if price.cached_usd is None else price.cached_usd
    fresh = usage.input_tokens - usage.cache_read_tokens
    total = fresh * price.input_usd + usage.cache_read_tokens * cached + usage.output_tokens * price.output_usd
    return total / _MILLION


def _is_listed(model: Model) -> bool:
    try:
        calc_price(PricedUsage(input_tokens=1, output_tokens=1), model.model_name, provider_id=model.system)
    except (LookupError, ValueError):
        return False
    return True
