"""Every setting of the library, as one frozen value with its defaults.

Where the values come from (the constructor, `flujo.toml`, the environment) is decided in `flujo_actors._settings`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import attrs

from ..errors import DeclarationError
from .default_settings import BACKEND, SYNC_STEP_THREADS, UNDO_GRACE_S, Backend
from .near_names import nearest

if TYPE_CHECKING:
    from .fields import Field, V


def _at_least(least: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
        whole = attribute.type in (int, "int")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise DeclarationError(f"setting {attribute.name} must be a {'whole ' * whole}number, not {value!r}")
        if not -math.inf < value < math.inf:
            raise DeclarationError(f"setting {attribute.name} must be a finite number, not {value!r}")
        if value < least:
            raise DeclarationError(f"setting {attribute.name} must be a number of at least {least:g}, not {value!r}")

    return check


def _is_switch(_: object, attribute: Field, value: V) -> None:
    if not isinstance(value, bool):
        raise DeclarationError(f"setting {attribute.name} must be True or False, not {value!r}")


def _switch(default: bool) -> Any:
    return attrs.field(default=default, validator=_is_switch)


def unknown_setting(key: str, known: Sequence[str]) -> DeclarationError:
    """The refusal of a key that no setting has, with the nearest one that is known."""
    near = nearest(key, known, cutoff=0.5)
    hint = f"did you mean {near!r}?" if near else f"known here: {', '.join(known)}"
    return DeclarationError(f"unknown setting {key!r}: {hint}")


def _sections_from_dicts(_: type[object], fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    return [_taking_a_dict(field) for field in fields]


def _taking_a_dict(field: attrs.Attribute[Any]) -> attrs.Attribute[Any]:
    section = getattr(field.default, "factory", None)
    if section is None or not attrs.has(section):
        return field
    return field.evolve(converter=functools.partial(_as_section, section))


def _as_section(cls: type[Any], value: object) -> Any:
    """A dict becomes the section it describes; anything else that is not one is refused while it is built."""
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise DeclarationError(f"settings of {cls.__name__} must be {cls.__name__}(…) or a dict, not {value!r}")
    known = [field.name for field in attrs.fields(cls)]
    for key in value:
        if key not in known:
            raise unknown_setting(str(key), known)
    for field in attrs.fields(cls):
        if field.default is attrs.NOTHING and field.name not in value:
            raise DeclarationError(f"settings of {cls.__name__} need {field.name!r}, and {value!r} has none")
    return cls(**value)


@attrs.frozen(kw_only=True)
class RepairSettings:
    """`aros.repair`: what is tried when an answer cannot be read."""

    max_attempts: int = attrs.field(default=2, validator=_at_least(0))
    """How many repairs by a model are tried."""
    enable_llm: bool = _switch(True)
    """Whether there are any."""


@attrs.frozen(kw_only=True)
class FallbackSettings:
    """`aros.fallback`: what is tried when repairing did not help."""

    max_stages: int = attrs.field(default=3, validator=_at_least(0))
    """How many of retry, extractor and degrade may be used, in this order."""
    enable_extractor: bool = _switch(True)
    """Whether the text is searched for labelled values."""
    degrade_to_string: bool = _switch(True)
    """Whether a step that asks for it may end in the plain text when everything else failed."""


@attrs.frozen(kw_only=True)
class StreamingSettings:
    """`aros.streaming`: the aggregator of structured streams and its bounds."""

    aggregate_structured: bool = _switch(True)
    """Whether structured streams go through the aggregator; without it there are no bounds and no previews."""
    max_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=_at_least(1))
    """How long a structured stream may be."""
    max_chunks: int = attrs.field(default=1_000_000, validator=_at_least(1))
    """In how many pieces it may come."""
    max_seconds: float = attrs.field(default=600.0, validator=_at_least(0))
    """How long it may take."""


@attrs.frozen(kw_only=True)
class ArosTelemetrySettings:
    """`aros.telemetry`: what is told of repairs."""

    verbose: bool = _switch(False)
    """Whether events of repairs list what was done to the text."""


@attrs.frozen(kw_only=True, field_transformer=_sections_from_dicts)
class ArosSettings:
    """`aros`: robust structured output."""

    enabled: bool = _switch(True)
    """Whether outputs are read as values at all."""
    repair: RepairSettings = attrs.field(factory=RepairSettings)
    fallback: FallbackSettings = attrs.field(factory=FallbackSettings)
    streaming: StreamingSettings = attrs.field(factory=StreamingSettings)
    telemetry: ArosTelemetrySettings = attrs.field(factory=ArosTelemetrySettings)
    degrade_on_unexpected_behavior: bool = _switch(True)
    """Whether an answer that the provider itself refused goes to the fallback stages."""
    schema_simplify: bool = _switch(False)
    """Whether a flat object is asked for after repeated failures."""


@attrs.frozen(kw_only=True)
class Price:
    """What a model costs, in dollars per million tokens."""

    input_usd: float = attrs.field(validator=_at_least(0))
    """For input tokens."""
    output_usd: float = attrs.field(validator=_at_least(0))
    """For output tokens."""
    cached_usd: float | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(0)))
    """For input tokens from the provider's cache; by default the same as other input."""


def _prices(value: Mapping[str, object]) -> Mapping[str, Price]:
    if not isinstance(value, Mapping):
        raise DeclarationError(f"setting usage.prices must be a table of prices by model name, not {value!r}")
    return {name: _as_section(Price, price) for name, price in value.items()}


@attrs.frozen(kw_only=True)
class UsageSettings:
    """`usage`: prices and how limits are kept."""

    strict_pricing: bool = _switch(False)
    """Refuse a call to a model whose price is unknown, also where no cost limit needs it."""
    prices: Mapping[str, Price] = attrs.field(factory=dict, converter=_prices)
    """Prices by model name, instead of those of `genai-prices`."""
    first_call_tokens: int = attrs.field(default=2_000, validator=_at_least(0))
    """What is set aside for a call of a step that has not called before, while a token limit holds."""
    first_call_usd: float = attrs.field(default=0.02, validator=_at_least(0))
    """The same for a cost limit."""


def _sinks(value: object) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DeclarationError(f"setting telemetry.sinks must be a list of sinks, made in code, not {value!r}")
    return tuple(value)


def _can_emit(_: object, attribute: Field, value: tuple[object, ...]) -> None:
    for sink in value:
        if not callable(getattr(sink, "emit", None)):
            raise DeclarationError(f"setting {attribute.name} must hold sinks, objects with `emit`, not {sink!r}")


@attrs.frozen(kw_only=True)
class TelemetrySettings:
    """`telemetry`: what is told, and to whom."""

    content: bool = _switch(False)
    """Whether prompts, inputs and outputs are part of what is told."""
    log: bool = _switch(False)
    """Whether events go to the log."""
    sinks: tuple[Any, ...] = attrs.field(default=(), converter=_sinks, validator=_can_emit)
    """Where else events go; only in code."""


@attrs.frozen(kw_only=True)
class DurabilitySettings:
    """`durability`: runs that survive their process."""

    lease_s: float = attrs.field(default=30.0, validator=_at_least(0.1))
    """How long a process owns a run without a sign of life; it renews three times in that time."""
    recover_at_once: int = attrs.field(default=32, validator=_at_least(1))
    """How many runs `recover()` works on at the same time."""
    cold: bool = _switch(False)
    """Go on from what the store says after every step, instead of from memory: slow, for tests of resumability."""


@attrs.frozen(kw_only=True)
class FleetSettings:
    """`fleet`: runs and steps that workers play, on any machine."""

    max_deliveries: int = attrs.field(default=5, validator=_at_least(1))
    """How many workers may die over a run, or over a remote step, that commits nothing meanwhile, before it fails."""
    look_s: float = attrs.field(default=1.0, validator=_at_least(0.01))
    """How often the store is looked at for what no ticket told of: runs of dead workers, answers, lost tickets."""
    poll_s: float = attrs.field(default=0.25, validator=_at_least(0.01))
    """The same where there is no engine to tell of anything."""
    unclaimed_s: float = attrs.field(default=10.0, validator=_at_least(0))
    """How long a ticket may be on its way before its run is begun, or asked for, without it."""


def _is_backend(_: object, attribute: Field, value: V) -> None:
    if value not in get_args(Backend):
        known = " or ".join(map(repr, get_args(Backend)))
        raise DeclarationError(f"setting run.{attribute.name} must be {known}, not {value!r}")


@attrs.frozen(kw_only=True)
class RunSettings:
    """`run`: how `run()`, `resume()` and `recover()` run in a program without a loop."""

    backend: Backend = attrs.field(default=BACKEND, validator=_is_backend)
    """The library that the steps are written for."""
    undo_grace_s: float = attrs.field(default=UNDO_GRACE_S, validator=_at_least(0))
    """How long undoing may take after the caller has left, where nobody could resume the run."""


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts; the environment has one text with commas."""
    parts = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(each, str) for each in parts):
        raise DeclarationError(f"a setting that is a list of texts cannot be {value!r}")
    return tuple(part.strip() for part in parts if part.strip())


def _is_text(_: object, attribute: Field, value: V) -> None:
    if value is not None and not isinstance(value, str):
        raise DeclarationError(f"setting {attribute.name} must be a text, not {value!r}")


def _read_limit(value: object) -> Any:
    """The environment has texts."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


@attrs.frozen(kw_only=True)
class BlueprintSettings:
    """`blueprints`: what pipelines written in YAML may name, and spend."""

    allow: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """What a blueprint may name: modules with all below them (`"shop"`), or one name (`"shop.agents:clerk"`)."""
    path: tuple[str, ...] = attrs.field(default=(".",), converter=_texts)
    """Directories, seen from `flujo.toml`, in which those modules are looked for after all others."""
    total_cost_usd_limit: float | None = attrs.field(
        default=None, converter=_read_limit, validator=attrs.validators.optional(_at_least(0))
    )
    """What a run of a blueprint may cost, whatever the blueprint says."""
    total_tokens_limit: float | None = attrs.field(
        default=None, converter=_read_limit, validator=attrs.validators.optional(_at_least(0))
    )
    """How many tokens it may take."""


@attrs.frozen(kw_only=True)
class LintSettings:
    """`lint`: which rules for blueprints are told, by id (`V-A5`), family (`V-T`) or glob (`V-*`)."""

    ignore: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Rules that are not told; those of V-Y and V-X always are."""
    error: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Rules that are errors here."""
    warning: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Rules that are warnings here; what cannot run stays an error."""


@attrs.frozen(kw_only=True, field_transformer=_sections_from_dicts)
class Settings:
    """All settings of one `Flujo`."""

    aros: ArosSettings = attrs.field(factory=ArosSettings)
    usage: UsageSettings = attrs.field(factory=UsageSettings)
    telemetry: TelemetrySettings = attrs.field(factory=TelemetrySettings)
    durability: DurabilitySettings = attrs.field(factory=DurabilitySettings)
    fleet: FleetSettings = attrs.field(factory=FleetSettings)
    run: RunSettings = attrs.field(factory=RunSettings)
    blueprints: BlueprintSettings = attrs.field(factory=BlueprintSettings)
    lint: LintSettings = attrs.field(factory=LintSettings)
    store: str | None = attrs.field(default=None, validator=_is_text)
    """Where the command `flujo-actors` keeps runs: a URL. A `Flujo` is given its store as an argument."""
    sync_step_threads: int = attrs.field(default=SYNC_STEP_THREADS, validator=_at_least(1))
    """How many synchronous steps run at once."""
