"""Every setting of the library, as one frozen value with its defaults.

Where the values come from (the constructor, `flujo.toml`, the environment) is decided in
`flujo_actors._api.settings_loader`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import attrs

from ..errors import DeclarationError
from .default_settings import BACKEND, SYNC_STEP_THREADS, UNDO_GRACE_S, Backend
from .labels import checked_labels, checked_names
from .policies.rate_limits import RateLimit
from .validators import is_number, nearest, span_seconds, suggests_options

if TYPE_CHECKING:
    from .validators import AttrsField, V


def _at_least(least: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
        whole = attribute.type in (int, "int")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise DeclarationError(f"setting {attribute.name} must be a {'whole ' * whole}number, not {value!r}")
        if not is_number(value):
            raise DeclarationError(f"setting {attribute.name} must be a finite number, not {value!r:.100}")
        if value < least:
            raise DeclarationError(f"setting {attribute.name} must be a number of at least {least:g}, not {value!r}")

    return check


def _is_switch(_: object, attribute: AttrsField, value: V) -> None:
    if not isinstance(value, bool):
        raise DeclarationError(f"setting {attribute.name} must be True or False, not {value!r}")


def _switch(default: bool) -> Any:
    return attrs.field(default=default, validator=_is_switch)


def unknown_setting(key: str, known: Sequence[str]) -> DeclarationError:
    """Return the error for an unknown key, with the nearest known one."""
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
    """Return a dict as its section; any other type is refused."""
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


@suggests_options
@attrs.frozen(kw_only=True)
class RepairSettings:
    """`aros.repair`: repairs of unreadable answers."""

    max_attempts: int = attrs.field(default=2, validator=_at_least(0))
    """Maximum number of repairs by a model."""
    enable_llm: bool = _switch(True)
    """Whether there are any."""


@suggests_options
@attrs.frozen(kw_only=True)
class FallbackSettings:
    """`aros.fallback`: stages after a failed repair."""

    max_stages: int = attrs.field(default=3, validator=_at_least(0))
    """Number of available stages, in the order retry, extractor, degrade."""
    enable_extractor: bool = _switch(True)
    """Whether the text is searched for labelled values."""
    degrade_to_string: bool = _switch(True)
    """Whether a consenting step may fall back to plain text."""


@suggests_options
@attrs.frozen(kw_only=True)
class StreamingSettings:
    """`aros.streaming`: the aggregator of structured streams and its bounds."""

    aggregate_structured: bool = _switch(True)
    """Whether structured streams use the aggregator, with bounds and previews."""
    max_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=_at_least(1))
    """Maximum length of a structured stream."""
    max_chunks: int = attrs.field(default=1_000_000, validator=_at_least(1))
    """Maximum number of chunks."""
    max_seconds: float = attrs.field(default=600.0, validator=_at_least(0))
    """Timeout of a structured stream."""


@suggests_options
@attrs.frozen(kw_only=True)
class ArosTelemetrySettings:
    """`aros.telemetry`: events of repairs."""

    verbose: bool = _switch(False)
    """Whether repair events list the changes to the text."""


@suggests_options
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
    """Whether an answer refused by the provider enters the fallback stages."""
    schema_simplify: bool = _switch(False)
    """Whether a flat object is requested after repeated failures."""


@suggests_options
@attrs.frozen(kw_only=True)
class Price:
    """Price of a model in dollars per million tokens.

    Example:
        ```python
        prices = {"scripted": Price(input_usd=1.0, output_usd=4.0)}
        flujo = Flujo(Step("ask", make_agent_async(scripted_model("Tea."))), settings={"usage": {"prices": prices}})
        assert flujo.run("?").total_cost_usd > 0
        ```
    """

    input_usd: float = attrs.field(validator=_at_least(0))
    """For input tokens."""
    output_usd: float = attrs.field(validator=_at_least(0))
    """For output tokens."""
    cached_usd: float | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least(0)))
    """Price of cached input tokens; by default as other input."""


def _prices(value: Mapping[str, object]) -> Mapping[str, Price]:
    if not isinstance(value, Mapping):
        raise DeclarationError(f"setting usage.prices must be a table of prices by model name, not {value!r}")
    return {name: _as_section(Price, price) for name, price in value.items()}


@suggests_options
@attrs.frozen(kw_only=True)
class UsageSettings:
    """`usage`: prices and limits."""

    strict_pricing: bool = _switch(False)
    """Refuse a call to an unpriced model, even without a cost limit."""
    prices: Mapping[str, Price] = attrs.field(factory=dict, converter=_prices)
    """Prices by model name, instead of those of `genai-prices`."""
    first_call_tokens: int = attrs.field(default=2_000, validator=_at_least(0))
    """Reservation for the first call of a step under a token limit."""
    first_call_usd: float = attrs.field(default=0.02, validator=_at_least(0))
    """The same for a cost limit."""


def _sinks(value: object) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DeclarationError(f"setting telemetry.sinks must be a list of sinks, made in code, not {value!r}")
    return tuple(value)


def _label_names(value: object) -> tuple[str, ...]:
    """Return label names from a list or a comma-separated text."""
    named = [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value
    if not isinstance(named, Iterable):
        raise DeclarationError(f"setting telemetry.metric_labels must be a list of names, not {value!r}")
    return checked_names(named, subject="telemetry.metric_labels")


def _can_emit(_: object, attribute: AttrsField, value: tuple[object, ...]) -> None:
    for sink in value:
        if not callable(getattr(sink, "emit", None)):
            raise DeclarationError(f"setting {attribute.name} must hold sinks, objects with `emit`, not {sink!r}")


@suggests_options
@attrs.frozen(kw_only=True)
class TelemetrySettings:
    """`telemetry`: sinks and content of events."""

    content: bool = _switch(False)
    """Whether events contain prompts, inputs and outputs."""
    log: bool = _switch(False)
    """Whether events go to the log."""
    sinks: tuple[Any, ...] = attrs.field(default=(), converter=_sinks, validator=_can_emit)
    """Additional sinks; only in code."""
    metric_labels: tuple[str, ...] = attrs.field(default=(), converter=_label_names)
    """Names of labels that metrics carry; each value is a time series."""


@suggests_options
@attrs.frozen(kw_only=True)
class DurabilitySettings:
    """`durability`: runs that survive their process."""

    lease_s: float = attrs.field(default=30.0, validator=_at_least(0.1))
    """Lease duration in seconds; renewed three times in that time."""
    recover_at_once: int = attrs.field(default=32, validator=_at_least(1))
    """Maximum number of concurrent runs in `recover()`."""
    inline_wait_s: float = attrs.field(default=1.0, validator=_at_least(0))
    """Seconds up to which a stored run waits in process."""
    cold: bool = _switch(False)
    """Reload the run after every step: slow, for resumability tests."""


def _rate_limits(value: Mapping[str, object]) -> Mapping[str, RateLimit]:
    if not isinstance(value, Mapping):
        raise DeclarationError(f"setting rate_limits must be a table of rate limits by model, not {value!r}")
    return {glob: _rate_limit(glob, each) for glob, each in value.items()}


def _rate_limit(glob: str, value: object) -> RateLimit:
    if isinstance(value, RateLimit):
        return value
    if not isinstance(value, Mapping):
        raise DeclarationError(f"setting rate_limits.{glob} must be a table of a RateLimit's options, not {value!r}")
    return RateLimit(**{"name": glob, **value})


@suggests_options
@attrs.frozen(kw_only=True)
class FleetSettings:
    """`fleet`: runs and steps executed by workers on any machine."""

    max_deliveries: int = attrs.field(default=5, validator=_at_least(1))
    """Number of workers that may die on a run before it fails."""
    look_s: float = attrs.field(default=1.0, validator=_at_least(0.01))
    """Poll interval for abandoned runs, answers and lost tickets."""
    poll_s: float = attrs.field(default=0.25, validator=_at_least(0.01))
    """Poll interval without an engine that notifies."""
    unclaimed_s: float = attrs.field(default=10.0, validator=_at_least(0))
    """Delay after which a run is started without waiting for its ticket."""
    provider_retries: int = attrs.field(default=5, validator=_at_least(0))
    """Repetitions of a request under a rate limit that a provider refused with 429."""


@suggests_options
@attrs.frozen(kw_only=True)
class EventSettings:
    """`events`: events that clients send to waiting runs."""

    retain_s: float = attrs.field(default=604_800.0, validator=_at_least(0))
    """Seconds in which a later wait may consume an event."""
    dedupe_s: float = attrs.field(default=604_800.0, validator=_at_least(0))
    """Seconds in which the id of an event is not accepted again."""
    max_bytes: int = attrs.field(default=1_048_576, validator=_at_least(1))
    """Maximum size of an event's data as JSON, in bytes."""


def _is_backend(_: object, attribute: AttrsField, value: V) -> None:
    if value not in get_args(Backend):
        known = " or ".join(map(repr, get_args(Backend)))
        raise DeclarationError(f"setting run.{attribute.name} must be {known}, not {value!r}")


@suggests_options
@attrs.frozen(kw_only=True)
class RunSettings:
    """`run`: `run()`, `resume()` and `recover()` in a program without an event loop."""

    backend: Backend = attrs.field(default=BACKEND, validator=_is_backend)
    """The library that the steps are written for."""
    undo_grace_s: float = attrs.field(default=UNDO_GRACE_S, validator=_at_least(0))
    """Timeout of compensation after the caller left an unresumable run."""


def _is_text(_: object, attribute: AttrsField, value: V) -> None:
    if value is not None and not isinstance(value, str):
        raise DeclarationError(f"setting {attribute.name} must be a text, not {value!r}")


def _is_migrate(_: object, attribute: AttrsField, value: V) -> None:
    if value not in ("auto", "never"):
        raise DeclarationError(f"setting {attribute.name} must be 'auto' or 'never', not {value!r}")


def _is_span(_: object, attribute: AttrsField, value: V) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise DeclarationError(f"setting retention.{attribute.name} must be a span such as '30d', not {value!r}")
    try:
        span_seconds(value)
    except DeclarationError as error:
        raise DeclarationError(f"setting retention.{attribute.name}: {error}") from None


def _span() -> Any:
    return attrs.field(default=None, validator=_is_span)


def _retention_rules(value: object) -> Any:
    if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
        raise DeclarationError(f"setting retention.rules must be a list of rules, not {value!r}")
    return tuple(_as_section(RetentionRule, rule) for rule in value)


@suggests_options
@attrs.frozen(kw_only=True)
class RetentionRule:
    """`retention.rules`: runs of some labels or of a pipeline."""

    labels: Mapping[str, str] = attrs.field(factory=dict, converter=checked_labels)
    """Labels that a run of this rule has."""
    pipeline: str | None = attrs.field(default=None, validator=_is_text)
    """Pipeline of the runs of this rule."""
    completed: str | None = _span()
    failed: str | None = _span()
    aborted: str | None = _span()
    keep_last: int = attrs.field(default=0, validator=_at_least(0))


@suggests_options
@attrs.frozen(kw_only=True)
class RetentionSettings:
    """`retention`: deletion of ended runs by workers."""

    completed: str | None = _span()
    """Age at which completed runs are deleted (`30d`, `12h`); by default they are kept."""
    failed: str | None = _span()
    """Age at which failed runs are deleted."""
    aborted: str | None = _span()
    """Age at which aborted runs are deleted."""
    keep_last: int = attrs.field(default=0, validator=_at_least(0))
    """Number of ended runs of each pipeline that are kept at any age."""
    every_s: float = attrs.field(default=3600.0, validator=_at_least(0.01))
    """Interval of the deletion."""
    batch: int = attrs.field(default=500, validator=_at_least(1))
    """Number of runs deleted in one transaction."""
    rules: tuple[RetentionRule, ...] = attrs.field(default=(), converter=_retention_rules)
    """Rules by labels and pipeline; the first that matches a run decides. Only in `flujo.toml` or code."""


def checked_retention(value: RetentionSettings | Mapping[str, object]) -> RetentionSettings:
    """Return retention settings from a dict, or as they are."""
    settings: RetentionSettings = _as_section(RetentionSettings, value)
    return settings


def _texts(value: Any) -> tuple[str, ...]:
    """Return a list of texts; the environment has one text with commas."""
    parts = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    stripped = [part.strip() if isinstance(part, str) else part for part in parts]
    return tuple(part for part in stripped if part != "")


def _are_texts(_: object, attribute: AttrsField, value: tuple[object, ...]) -> None:
    if not all(isinstance(each, str) for each in value):
        raise DeclarationError(f"setting {attribute.name} must be a list of texts, not {list(value)!r:.100}")


def _read_limit(value: object) -> Any:
    """Return the environment has texts."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


@suggests_options
@attrs.frozen(kw_only=True)
class BlueprintSettings:
    """`blueprints`: allowed names and limits of YAML pipelines."""

    allow: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_are_texts)
    """Names that a blueprint may use: modules (`"shop"`) or objects (`"shop.agents:clerk"`)."""
    path: tuple[str, ...] = attrs.field(default=(".",), converter=_texts, validator=_are_texts)
    """Directories relative to `flujo.toml`, searched last for those modules."""
    total_cost_usd_limit: float | None = attrs.field(
        default=None, converter=_read_limit, validator=attrs.validators.optional(_at_least(0))
    )
    """Maximum cost of a blueprint run, regardless of the blueprint."""
    total_tokens_limit: float | None = attrs.field(
        default=None, converter=_read_limit, validator=attrs.validators.optional(_at_least(0))
    )
    """Maximum number of tokens."""


@suggests_options
@attrs.frozen(kw_only=True)
class LintSettings:
    """`lint`: lint rules by id (`V-A5`), family (`V-T`) or glob (`V-*`)."""

    ignore: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_are_texts)
    """Ignored rules; V-Y and V-X are always reported."""
    error: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_are_texts)
    """Rules that are errors here."""
    warning: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_are_texts)
    """Rules reported as warnings; a blueprint that cannot run stays an error."""


@suggests_options
@attrs.frozen(kw_only=True, field_transformer=_sections_from_dicts)
class Settings:
    """All settings of one `Flujo`."""

    aros: ArosSettings = attrs.field(factory=ArosSettings)
    """Repair of structured output."""
    usage: UsageSettings = attrs.field(factory=UsageSettings)
    """Prices and usage of models."""
    telemetry: TelemetrySettings = attrs.field(factory=TelemetrySettings)
    """Sinks and redaction."""
    durability: DurabilitySettings = attrs.field(factory=DurabilitySettings)
    """Commits and leases."""
    fleet: FleetSettings = attrs.field(factory=FleetSettings)
    """Workers and engines."""
    retention: RetentionSettings = attrs.field(factory=RetentionSettings)
    """Deletion of ended runs."""
    events: EventSettings = attrs.field(factory=EventSettings)
    """Events that wait for runs."""
    run: RunSettings = attrs.field(factory=RunSettings)
    """Limits of one run."""
    blueprints: BlueprintSettings = attrs.field(factory=BlueprintSettings)
    """Pipelines as text."""
    lint: LintSettings = attrs.field(factory=LintSettings)
    """Checks of blueprints."""
    rate_limits: Mapping[str, RateLimit] = attrs.field(factory=dict, converter=_rate_limits)
    """Rate limits by `provider:model`, with `*` for any text."""
    store: str | None = attrs.field(default=None, validator=_is_text)
    """Store URL of the command `flujo-actors`; a `Flujo` ignores it."""
    store_migrate: str = attrs.field(default="auto", validator=_is_migrate)
    """Whether a `Flujo` or worker migrates a store that it opens by URL: `auto` or `never`."""
    sync_step_threads: int = attrs.field(default=SYNC_STEP_THREADS, validator=_at_least(1))
    """Maximum number of concurrent sync steps."""
