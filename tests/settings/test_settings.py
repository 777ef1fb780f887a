"""Settings: from the constructor, `flujo.toml` and the environment, in that order of weight."""

from __future__ import annotations

import pytest

from flujo_actors import DeclarationError, Flujo, Price, Settings, Step, load_settings
from flujo_actors.core.settings import ArosSettings, RepairSettings, UsageSettings
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
    """A typing error in a variable or in the file does not pass unnoticed."""
    with pytest.raises(DeclarationError, match=r"unknown setting 'aros.repair.max_atempts'"):
        load_settings(environ={"FLUJO_AROS__REPAIR__MAX_ATEMPTS": "1"})
    with pytest.raises(DeclarationError, match="inside a setting that another variable gives a value to"):
        load_settings(environ={"FLUJO_AROS": "1", "FLUJO_AROS__ENABLED": "1"})
    (tmp_path / "flujo.toml").write_text("aros = [[[\n")
    with pytest.raises(DeclarationError, match="cannot be read as TOML"):
        load_settings(environ={})


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
