"""Settings: from the constructor, `flujo.toml` and the environment, in that order of weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flujo_actors import (
    Backoff,
    DeclarationError,
    Flujo,
    PostgresStore,
    Price,
    RunClient,
    Settings,
    SqliteStore,
    Step,
    UsageLimits,
    load_settings,
    make_agent_async,
)
from flujo_actors._core.settings_model import ArosSettings, RepairSettings, UsageSettings
from flujo_actors.testing import MemorySink

AROS = {
    "aros.enabled": (True, False),
    "aros.repair.max_attempts": (2, 5),
    "aros.repair.enable_llm": (True, False),
    "aros.fallback.max_stages": (3, 1),
    "aros.fallback.enable_extractor": (True, False),
    "aros.fallback.degrade_to_string": (True, False),
    "aros.degrade_on_unexpected_behavior": (True, False),
    "aros.streaming.aggregate_structured": (True, False),
    "aros.schema_simplify": (False, True),
    "aros.telemetry.verbose": (False, True),
}
"""Every documented key: its default, and another value."""


def found(settings, key):
    """The value at a dotted key."""
    for name in key.split("."):
        settings = getattr(settings, name)
    return settings


def nested(key, value):
    """`{"a": {"b": value}}` for `a.b`."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """No file and no variable of the machine's plays a part."""
    monkeypatch.chdir(tmp_path)
    for name in ("FLUJO_CONFIG", "FLUJO_AROS__ENABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("key", "values"), AROS.items(), ids=AROS)
def test_every_documented_key_can_be_set_everywhere(key, values, tmp_path):
    """By the constructor, the file and the environment; and the default is the documented one."""
    default, other = values
    assert found(Settings(), key) == default
    assert found(load_settings(environ={}, overrides=nested(key, other)), key) == other
    table, _, name = key.rpartition(".")
    (tmp_path / "flujo.toml").write_text(f"[{table}]\n{name} = {str(other).lower()}\n")
    assert found(load_settings(environ={}), key) == other
    (tmp_path / "flujo.toml").unlink()
    variable = "FLUJO_" + key.upper().replace(".", "__")
    assert found(load_settings(environ={variable: str(other)}), key) == other


def test_the_code_overrides_the_environment_which_overrides_the_file(tmp_path):
    """Key by key: what a higher source does not say, a lower one may."""
    (tmp_path / "flujo.toml").write_text(
        "sync_step_threads = 1\n[aros.repair]\nmax_attempts = 1\n"
        "[aros.fallback]\nmax_stages = 1\n[usage]\nfirst_call_tokens = 1\n"
    )
    environ = {"FLUJO_AROS__REPAIR__MAX_ATTEMPTS": "2", "FLUJO_AROS__FALLBACK__MAX_STAGES": "2"}
    settings = load_settings(environ=environ, overrides={"aros": {"repair": {"max_attempts": 3}}})
    assert settings.aros.repair.max_attempts == 3
    assert settings.aros.fallback.max_stages == 2
    assert settings.usage.first_call_tokens == 1
    assert settings.sync_step_threads == 1
    assert settings.aros.streaming.max_bytes == Settings().aros.streaming.max_bytes


def test_a_flujo_reads_them_when_it_is_made(tmp_path, monkeypatch):
    """A dict stands on top of file and environment; a finished `Settings` stands alone."""
    (tmp_path / "flujo.toml").write_text("[aros]\nenabled = false\n")
    monkeypatch.setenv("FLUJO_AROS__REPAIR__MAX_ATTEMPTS", "7")
    step = Step("x", lambda data: data)
    mixed = Flujo(step, settings={"aros": {"schema_simplify": True}})._settings.aros
    assert (mixed.enabled, mixed.repair.max_attempts, mixed.schema_simplify) == (False, 7, True)
    alone = Flujo(step, settings=Settings(aros=ArosSettings(repair=RepairSettings(max_attempts=1))))._settings.aros
    assert (alone.enabled, alone.repair.max_attempts) == (True, 1)


def test_another_file_can_be_named(tmp_path):
    """By `FLUJO_CONFIG` or in code; one that is named must be there, the usual one need not be."""
    other = tmp_path / "other.toml"
    other.write_text("sync_step_threads = 3\n")
    assert load_settings(environ={"FLUJO_CONFIG": str(other)}).sync_step_threads == 3
    assert load_settings(environ={}, file=other).sync_step_threads == 3
    assert load_settings(environ={}) == Settings()
    with pytest.raises(DeclarationError, match="there is no configuration file"):
        load_settings(environ={"FLUJO_CONFIG": str(tmp_path / "missing.toml")})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"aros": {"repair": {"max_attemps": 1}}},
            "unknown setting 'aros.repair.max_attemps': did you mean 'aros.repair.max_attempts'?",
        ),
        ({"arros": {}}, "unknown setting 'arros': did you mean 'aros'?"),
        ({"zzz": 1}, "unknown setting 'zzz': known here: aros"),
        ({"aros": 1}, "setting aros must be a table of settings, not 1"),
        ({"aros": {"enabled": "perhaps"}}, "setting aros.enabled must be a bool, not 'perhaps'"),
        ({"aros": {"repair": {"max_attempts": "many"}}}, "setting aros.repair.max_attempts must be a int, not 'many'"),
        ({"aros": {"repair": {"max_attempts": 1.5}}}, "setting aros.repair.max_attempts must be a int, not 1.5"),
        ({"aros": {"repair": {"max_attempts": -1}}}, "max_attempts must be a number of at least 0, not -1"),
        (
            {"usage": {"prices": {"m": {"input": 1}}}},
            "unknown setting 'usage.prices.m.input': did you mean 'usage.prices.m.input_usd'?",
        ),
        ({"usage": {"prices": {"m": {"input_usd": 1}}}}, "setting 'usage.prices.m.output_usd' is missing"),
        ({"usage": {"prices": {"m": 1}}}, "setting usage.prices.m must be a table of settings, not 1"),
        ({"telemetry": {"sinks": ["console"]}}, "must hold sinks"),
    ],
)
def test_what_is_wrong_is_refused_and_explained(given, message):
    """Unknown keys get the nearest known one, values their place."""
    with pytest.raises(DeclarationError) as caught:
        load_settings(environ={}, overrides=given)
    assert message in str(caught.value)


def test_the_environment_and_the_file_are_checked_the_same_way(tmp_path):
    """A wrong value in a variable or in the file does not pass unnoticed."""
    with pytest.raises(DeclarationError, match=r"setting aros.enabled must be a bool, not 'perhaps'"):
        load_settings(environ={"FLUJO_AROS__ENABLED": "perhaps"})
    with pytest.raises(DeclarationError, match="inside a setting that another variable gives a value to"):
        load_settings(environ={"FLUJO_USAGE__PRICES": "1", "FLUJO_USAGE__PRICES__M__INPUT_USD": "1"})
    (tmp_path / "flujo.toml").write_text("[aros.repair]\nmax_atempts = 1\n")
    with pytest.raises(DeclarationError, match=r"unknown setting 'aros.repair.max_atempts'"):
        load_settings(environ={})
    (tmp_path / "flujo.toml").write_text("aros = [[[\n")
    with pytest.raises(DeclarationError, match="cannot be read as TOML"):
        load_settings(environ={})


OF_SERVICES = [
    *("FLUJO_PORT", "FLUJO_SERVICE_HOST", "FLUJO_SERVICE_PORT", "FLUJO_SERVICE_PORT_HTTP", "FLUJO_PORT_80_TCP"),
    *("FLUJO_PORT_80_TCP_ADDR", "FLUJO_PORT_80_TCP_PORT", "FLUJO_PORT_80_TCP_PROTO", "FLUJO_PORT_53_UDP_ADDR"),
    *("FLUJO_WORKER_PORT", "FLUJO_WORKER_SERVICE_HOST", "FLUJO_RUN_PORT_443_TCP", "FLUJO_TELEMETRY_SERVICE_PORT"),
    *("FLUJO_NAME", "FLUJO_ENV_PATH"),
]
"""What Kubernetes and Docker put into the environment for services whose names begin with "flujo"."""


@pytest.mark.parametrize("name", [*OF_SERVICES, "FLUJO_HOME", "FLUJO_VERSION", "FLUJO_", "FLUJO_X__Y"])
def test_a_variable_of_somebody_elses_stops_nobody(name, monkeypatch, recwarn):
    """It is no setting, and looks like none: nothing is said about it."""
    monkeypatch.setenv(name, "tcp://10.0.0.1:80")
    assert Flujo(Step("x", lambda data: data))._settings == Settings()
    assert recwarn.list == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FLUJO_AROS__REPAIR__MAX_ATEMPTS", "FLUJO_AROS__REPAIR__MAX_ATTEMPTS"),
        ("FLUJO_DURABILITY_LEASE", "FLUJO_DURABILITY__LEASE_S"),
        ("FLUJO_LEASE_S", "FLUJO_DURABILITY__LEASE_S"),
        ("FLUJO_TELEMETRY", "FLUJO_TELEMETRY__LOG"),
        ("FLUJO_SYNC_STEP_THREAD", "FLUJO_SYNC_STEP_THREADS"),
    ],
)
def test_a_variable_that_is_near_a_setting_is_a_warning(name, meant, monkeypatch):
    """A typing error does not pass unnoticed, and does not stop the program either."""
    monkeypatch.setenv(name, "1")
    with pytest.warns(UserWarning, match=f"{name} is no setting, and is not read: did you mean {meant}?"):
        flujo = Flujo(Step("x", lambda data: data))
    assert flujo._settings == Settings()


NO_NUMBERS = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize(
    "key",
    [
        *("durability.lease_s", "usage.first_call_usd", "usage.first_call_tokens", "aros.streaming.max_seconds"),
        *("aros.streaming.max_bytes", "aros.repair.max_attempts", "sync_step_threads"),
        *("usage.prices.m.input_usd", "usage.prices.m.output_usd", "usage.prices.m.cached_usd"),
    ],
)
def test_no_setting_is_infinite_or_no_number_at_all(key, number, tmp_path):
    """A limit of that kind never holds; the same from code, the file and the environment."""
    table, _, name = key.rpartition(".")
    price = {"input_usd": 1.0, "output_usd": 1.0} if "prices" in key else {}
    with pytest.raises(DeclarationError, match="must be a"):
        load_settings(environ={}, overrides={table: price | {name: number}} if table else {name: number})
    lines = [f"{each} = {value}\n" for each, value in (price | {name: number}).items()]
    (tmp_path / "flujo.toml").write_text((f"[{table}]\n" if table else "") + "".join(lines))
    with pytest.raises(DeclarationError, match="must be a"):
        load_settings(environ={})
    (tmp_path / "flujo.toml").unlink()
    with pytest.raises(DeclarationError):
        load_settings(environ={"FLUJO_" + key.upper().replace(".", "__"): str(number)})


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda number: UsageLimits(total_cost_usd_limit=number),
        lambda number: UsageLimits(total_tokens_limit=number),
        lambda number: Price(input_usd=number, output_usd=0),
        lambda number: Price(input_usd=0, output_usd=0, cached_usd=number),
        lambda number: Backoff(first=number),
        lambda number: Backoff(factor=number),
        lambda number: Backoff(ceiling=number),
        lambda number: Backoff(jitter=number),
        lambda number: Step("s", print, timeout_s=number),
        lambda number: make_agent_async("test", timeout_s=number),
        lambda number: SqliteStore(":memory:", busy_timeout_s=number),
        lambda number: PostgresStore("postgresql://localhost/x", timeout_s=number),
        lambda number: RunClient(":memory:").forget(older_than_s=number),
        lambda number: Settings(durability={"lease_s": number}),
    ],
)
def test_no_limit_price_or_time_is_infinite_or_no_number_at_all(make, number):
    """`None` says that there is no limit; a number is one."""
    with pytest.raises(DeclarationError):
        make(number)


@pytest.mark.parametrize(
    "given",
    [
        {"usage": {"prices": 5}},
        {"usage": {"prices": [1]}},
        {"usage": {"prices": {"m": 5}}},
        {"usage": {"prices": {"m": {"input_usd": "free", "output_usd": 1}}}},
        {"usage": {"prices": {"m": {}}}},
        {"usage": 5},
        {"telemetry": {"sinks": 5}},
        {"telemetry": {"sinks": "console"}},
        {"telemetry": {"content": 5}},
        {"telemetry": {"log": None}},
        {"aros": {"repair": {"max_attempts": True}}},
        {"aros": {"streaming": {"max_seconds": [1]}}},
        {"durability": {"lease_s": None}},
        {"sync_step_threads": "4.5"},
        {"run": {"backend": 5}},
    ],
)
@pytest.mark.parametrize(
    "make", [lambda given: load_settings(environ={}, overrides=given), lambda given: Settings(**given)]
)
def test_a_value_of_the_wrong_kind_is_refused(make, given):
    """As a `DeclarationError`, whichever way it comes in."""
    with pytest.raises(DeclarationError):
        make(given)


def test_variables_of_others_do_not_matter():
    """Only those that begin with `FLUJO_` are settings."""
    assert load_settings(environ={"AROS__ENABLED": "0", "FLUJOX": "1", "PATH": "/bin"}) == Settings()


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("yes", True), ("ON", True), ("0", False), ("no", False), (" off ", False)]
)
def test_truth_has_many_spellings(text, value):
    """In the environment everything is text."""
    assert load_settings(environ={"FLUJO_AROS__ENABLED": text}).aros.enabled is value


def test_prices_may_be_written_in_the_file(tmp_path):
    """In dollars per million tokens, by model name."""
    (tmp_path / "flujo.toml").write_text(
        '[usage.prices."my-model"]\ninput_usd = 1.5\noutput_usd = 3\ncached_usd = 0.5\n'
    )
    settings = load_settings(environ={})
    assert settings.usage.prices == {"my-model": Price(input_usd=1.5, output_usd=3, cached_usd=0.5)}
    assert load_settings(environ={}, overrides={"usage": UsageSettings(strict_pricing=True)}).usage.strict_pricing


def test_sinks_are_given_in_code():
    """Everything else can come from anywhere."""
    sink = MemorySink()
    settings = load_settings(environ={"FLUJO_TELEMETRY__CONTENT": "true"}, overrides={"telemetry": {"sinks": [sink]}})
    assert settings.telemetry.sinks == (sink,)
    assert settings.telemetry.content


def test_settings_must_be_settings():
    """Anything else is refused when the Flujo is made."""
    with pytest.raises(DeclarationError, match="settings must be Settings"):
        Flujo(Step("x", lambda data: data), settings=42)


def test_the_tables_of_blueprints_and_of_their_linter_are_settings(tmp_path: Path) -> None:
    """Lists come from the file as lists and from the environment with commas; the store is a text."""
    file = tmp_path / "flujo.toml"
    file.write_text('store = "sqlite:///runs.db"\n[blueprints]\nallow = ["shop"]\n[lint]\nignore = ["V-A5"]\n')
    settings = load_settings(file=file, environ={"FLUJO_BLUEPRINTS__ALLOW": "shop, shop.agents:clerk"})
    assert settings.blueprints.allow == ("shop", "shop.agents:clerk")
    assert settings.lint.ignore == ("V-A5",)
    assert settings.store == "sqlite:///runs.db"


@pytest.mark.parametrize(
    "wrong", [{"blueprints": {"allow": [1]}}, {"store": 3}, {"blueprints": {"total_cost_usd_limit": "x"}}]
)
def test_settings_of_blueprints_are_checked_as_all_others(wrong: dict[str, Any]) -> None:
    """A list that holds no texts, a store that is none, a limit that is no number."""
    with pytest.raises(DeclarationError):
        load_settings(environ={}, overrides=wrong)
