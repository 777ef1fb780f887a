"""The redactor: planted secrets never survive, ordinary texts come back as they were."""

from __future__ import annotations

import dataclasses
import json
import string
import time
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors.telemetry._redaction.credential_shapes import is_secret_name
from flujo_actors.telemetry._redaction.redactor import LONGEST_ERROR_TEXT, REPLACEMENT, Redactor

LETTERS = string.ascii_letters + string.digits


def _tail(length: int) -> st.SearchStrategy[str]:
    return st.text(LETTERS, min_size=length, max_size=length)


CREDENTIALS = st.one_of(
    *(
        _tail(length).map(prefix.__add__)
        for prefix, length in (
            ("sk-", 32), ("sk-proj-", 40), ("sk-ant-api03-", 40), ("sk-or-v1-", 40), ("sk_live_", 24),
            ("ghp_", 36), ("gho_", 36), ("ghs_", 36), ("github_pat_", 60), ("glpat-", 20), ("AIza", 35),
            ("xoxb-", 30), ("xoxp-", 30), ("hf_", 34), ("gsk_", 40), ("npm_", 36), ("pypi-", 60),
        )
    ),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map("AKIA".__add__),
    st.builds("eyJ{}.{}.{}".format, _tail(20), _tail(40), _tail(20)),
)  # fmt: skip

# Digits and punctuation may stand next to a credential, letters may not: no credential is found inside a word.
SURROUNDINGS = st.text(" \n\t.,;:!?()<>{}'\"=&äß中🙂", max_size=20)

ORDINARY = [
    "",
    "hello world",
    "Agent execution failed with ValueError: expected an int, got 'abc'",
    "unexpected token: '}' at line 3",
    "Invalid token: 'function'",
    "password: field required",
    "1 validation error for User\npassword\n  Field required [type=missing]",
    "Bearer authentication required",
    "authorization: you must sign in first",
    "the secret = persistence",
    '{"input_tokens": 12, "total_tokens": "34", "token_counts": 99, "max_tokens": 4096}',
    '{"cache_key": "a1b2c3d4e5", "sort_key": "name", "primary_key": "id"}',
    "sort_key=created_at&page_token=abcdef123456&next_token=abcdef",
    "api_key=None, token=null, password=True",
    "token = parser.advance() and key=environ['HOME']",
    "connect(password=password, token=self.token)",
    "prompt='Password: ', stream=None",
    "child.expect('Password:')",
    "AccessToken: https://example.org/v1/tokens",
    "task-force-recommendations, risk-assessment-of-projects, a desk-reservation-system",
    "http://localhost:8080?mail=a@b.com",
    "https://example.org:443/path/to@thing",
    "git@github.com:owner/repo.git",
    "cost_per_token: 0.00001 at 1700000000",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    "the cookie: a small treat",
    "密码：必填项",
]

ANNOUNCED = [
    ('{"api_key": "%s"}', '{"api_key": "[redacted]"}'),
    ("{'password': '%s', 'user': 'bob'}", "{'password': '[redacted]', 'user': 'bob'}"),
    ('"{\\"client_secret\\": \\"%s\\"}"', '"{\\"client_secret\\": \\"[redacted]\\"}"'),
    ("Settings(openai_api_key='%s', n=1)", "Settings(openai_api_key='[redacted]', n=1)"),
    ("GET /v1?access_token=%s&n=1", "GET /v1?access_token=[redacted]&n=1"),
    ("OPENAI_API_KEY=%s python", "OPENAI_API_KEY=[redacted] python"),
    ("openaiApiKey: %s", "openaiApiKey: [redacted]"),
    ("X-Api-Key: %s\r\nHost: x", "X-Api-Key: [redacted]\r\nHost: x"),
    ("Authorization: Basic %s\nHost: x", "Authorization: [redacted]\nHost: x"),
    ("Cookie: session=%s; theme=dark\nHost: x", "Cookie: [redacted]\nHost: x"),
    ("curl -H 'Authorization: Bearer %s' x", "curl -H 'Authorization: [redacted]' x"),
    ("Bearer %s rejected", "Bearer [redacted] rejected"),
    ("postgres://bob:%s@db/main", "postgres://bob:[redacted]@db/main"),
    ("redis://:%s@cache", "redis://:[redacted]@cache"),
    ("input_value={'password': '%s", "input_value={'password': '[redacted]"),
    ('"api_keys": ["%s", "x"], "n": 1', '"api_keys": [[redacted]], "n": 1'),
]


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_text_comes_back_as_the_same_object(text: str) -> None:
    """What says nothing secret is not touched, not even copied."""
    assert Redactor().text(text) is text


@pytest.mark.parametrize(("written", "expected"), ANNOUNCED)
def test_a_secret_announced_by_its_surroundings_is_hidden(written: str, expected: str) -> None:
    """Names, headers and URLs tell where the secret is; only the secret goes."""
    assert Redactor().text(written % "hunter2horse9battery") == expected


@pytest.mark.slow
@given(CREDENTIALS, SURROUNDINGS, SURROUNDINGS)
def test_a_credential_of_a_known_shape_never_survives(secret: str, before: str, after: str) -> None:
    """Whatever stands around it, the shape is enough."""
    assert secret not in Redactor().text(before + secret + after)


@pytest.mark.slow
@given(st.text(min_size=8, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_a_known_secret_never_survives_anywhere(secret: str, before: str, after: str) -> None:
    """A value given as secret is hidden inside words, too, and however odd it is."""
    if secret not in REPLACEMENT:
        assert secret not in Redactor(secrets=[secret]).text(before + secret + after)


@pytest.mark.slow
@given(st.lists(st.text("ab[]redct", min_size=1, max_size=6)), st.text("ab[]redct", max_size=60))
def test_redacting_twice_is_redacting_once(secrets: list[str], text: str) -> None:
    """Even secrets made of the replacement's own letters come to rest."""
    redactor = Redactor(secrets=secrets)
    once = redactor.text(text)
    assert redactor.text(once) is once


@given(st.text("pasword=:\"'{}[] 1\\", max_size=80))
def test_announced_secrets_come_to_rest_as_well(text: str) -> None:
    """Half-written assignments are the hard case of redacting twice."""
    once = Redactor().text(text)
    assert Redactor().text(once) is once


@given(st.text())
def test_text_without_marks_is_never_changed(text: str) -> None:
    """No mark, no secret: letters, spaces and digits of any script pass."""
    plain = "".join(character for character in text if character.isalpha() or character == " ")
    assert Redactor().text(plain) is plain


def test_overlapping_secrets_are_hidden_as_one() -> None:
    """No rest of the second secret shows behind the first."""
    assert Redactor(secrets=["abcdefgh", "efghijkl"]).text("x abcdefghijkl y") == "x [redacted] y"


@pytest.mark.parametrize("secret", ['pa"ss\\word 1', "p@ss/w:rd+ü9", "line one\nline two"])
@pytest.mark.parametrize("write", [json.dumps, repr, str], ids=["json", "repr", "plain"])
def test_a_secret_is_found_in_the_spelling_of_other_texts(secret: str, write: Any) -> None:
    """JSON, repr and URLs escape; a secret is one all the same."""
    written = write(secret)
    hidden = Redactor(secrets=[secret]).text(f"got {written} there")
    assert REPLACEMENT in hidden
    assert written.strip("\"'") not in hidden


def test_a_secret_is_found_in_a_url() -> None:
    """Percent-encoding does not carry a secret past the redactor."""
    assert Redactor(secrets=["p@ss w/rd 1"]).text("?q=p%40ss%20w%2Frd%201&r=p%40ss+w%2Frd+1") == (
        "?q=[redacted]&r=[redacted]"
    )


def test_patterns_and_names_of_ones_own_are_hidden() -> None:
    """What only the user can know is given to the constructor."""
    redactor = Redactor(patterns=[r"ACME-\d+"], names=["license", "customer number"])
    assert redactor.text("ACME-123 license=abcdef customer_number='77'") == (
        "[redacted] license=[redacted] customer_number='[redacted]'"
    )
    assert redactor.value({"customerNumber": 7, "license": "x"}) == {
        "customerNumber": "[redacted]",
        "license": "[redacted]",
    }


def test_a_single_secret_given_as_text_is_one_secret() -> None:
    """A string is not taken apart into letters."""
    assert Redactor(secrets="hunter22").text("hunter22 hunt") == "[redacted] hunt"


def test_the_repr_of_a_redactor_tells_no_secret() -> None:
    """The one who keeps the secrets keeps them in a traceback, too."""
    assert "hunter22" not in repr(Redactor(secrets=["hunter22"]))


# --- names ---


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "OPENAI_API_KEY",
        "x-api-key",
        "password",
        "DB_PASSWORD",
        "passwd",
        "user_pwd",
        "secret",
        "client_secret",
        "clientSecret",
        "token",
        "access_token",
        "authToken",
        "GITHUB_TOKEN",
        "refresh_tokens",
        "authorization",
        "Proxy-Authorization",
        "cookie",
        "Set-Cookie",
        "credentials",
        "private_key",
        "AWS_SECRET_ACCESS_KEY",
        "aws_session_token",
        "secret_value",
        "passphrase",
        "jwt",
        "APIKey",
        "apikey",
    ],
)
def test_a_name_that_announces_a_secret_is_known(name: str) -> None:
    """In every spelling that settings, headers and languages use."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "token_counts",
        "total_tokens",
        "input_tokens",
        "output_tokens",
        "max_tokens",
        "tokens",
        "tokenizer",
        "token_type",
        "page_token",
        "next_token",
        "stop_token",
        "key",
        "keys",
        "sort_key",
        "cache_key",
        "primary_key",
        "keyboard",
        "monkey",
        "author",
        "authority",
        "secretary",
        "password_length",
        "secret_name",
        "cookie_policy",
        "zero_tokens",
        "cached_tokens",
        "cost_per_token",
        "idempotency_key",
        "passenger",
    ],
)
def test_a_name_that_only_sounds_like_a_secret_is_not(name: str) -> None:
    """Usage and paging keep their numbers."""
    assert not is_secret_name(name)


# --- environment and deps ---


def test_the_environment_tells_what_is_secret() -> None:
    """Values under secret-like names and passwords in URLs; not the rest, and nothing too short."""
    redactor = Redactor.from_environment(
        {
            "ACME_API_KEY": "canary-in-env",
            "STRIPE_KEY": "plain-stripe-value",
            "DATABASE_URL": "postgres://u:canary-in-url@h/db",
            "HOME": "/home/someone",
            "PWD": "/home/someone/project",
            "DB_PASSWORD": "postgres",
            "PIN_SECRET": "1234",
        }
    )
    text = "canary-in-env plain-stripe-value canary-in-url"
    assert redactor.text(text) == "[redacted] [redacted] [redacted]"
    harmless = "/home/someone/project uses postgres, 1234 times"
    assert redactor.text(harmless) is harmless


class Client:
    def __init__(self) -> None:
        self._token = "canary-in-attribute"


class Slotted:
    __slots__ = ("password", "unset")

    def __init__(self) -> None:
        self.password = "canary-in-slot"


@attrs.define
class Deps:
    client: Client = attrs.field(factory=Client)
    slotted: Slotted = attrs.field(factory=Slotted)
    config: dict[str, Any] = attrs.field(
        factory=lambda: {"services": [{"api_key": b"canary-in-bytes"}], "credentials": {"user": "canary-below-name"}}
    )
    secret: pydantic.SecretStr = attrs.field(factory=lambda: pydantic.SecretStr("canary-in-secretstr"))
    wrapped: pydantic.SecretStr = attrs.field(factory=lambda: pydantic.SecretStr("canary-in-wrapper"))
    name: str = "an ordinary name"
    itself: Any = None


def test_deps_tell_what_is_secret_at_any_depth() -> None:
    """Attributes, slots, dicts, lists and pydantic secrets are looked through; cycles end."""
    deps = Deps()
    deps.itself = deps
    redactor = Redactor.from_environment({}, deps=deps)
    for place in ("attribute", "slot", "bytes", "secretstr", "wrapper"):
        assert redactor.text(f"canary-in-{place}") == REPLACEMENT
    assert redactor.text("canary-below-name") == REPLACEMENT
    assert redactor.text("an ordinary name") == "an ordinary name"


def test_a_redactor_that_learns_nothing_stays_itself() -> None:
    """A run without secrets in its deps shares the redactor of its runner."""
    redactor = Redactor(names=["license"])
    assert redactor.with_deps({"n": 1, "license": "short"}) is redactor
    learned = redactor.with_deps({"license": "canary-license"})
    assert learned.text("canary-license license='x'") == "[redacted] license='[redacted]'"


def test_gathering_reads_no_property() -> None:
    """Looking for secrets has no effects on what is looked at."""

    class Trap:
        @property
        def password(self) -> str:
            raise AssertionError("a property was read")

    assert Redactor().with_deps(Trap()) == Redactor()


# --- values ---


@dataclasses.dataclass
class Account:
    user: str
    password: str
    notes: str = dataclasses.field(default="kept out", repr=False)


class Model(pydantic.BaseModel):
    api_key: str
    total_tokens: int
    internal: str = pydantic.Field(default="kept out", repr=False)


Pair = namedtuple("Pair", "name token")


@attrs.frozen
class Order:
    token: str
    items: tuple[str, ...]


def test_values_are_copied_as_plain_data_without_secrets() -> None:
    """Every kind of record gives up its fields by name; nothing else is lost."""
    given_value = {
        "account": Account("bob", "x"),
        "model": Model(api_key="x", total_tokens=3),
        "pair": Pair("n", "x"),
        "order": Order("x", ("ghp_" + "a" * 36, "fine")),
        "bytes": b"\xff password='x'",
        "password": None,
        "secret": False,
        1: [1.5, {"cookie": ["a", "b"]}],
        "opaque": object(),
    }
    assert Redactor().value(given_value) == {
        "account": {"user": "bob", "password": "[redacted]"},
        "model": {"api_key": "[redacted]", "total_tokens": 3},
        "pair": {"name": "n", "token": "[redacted]"},
        "order": {"token": "[redacted]", "items": ["[redacted]", "fine"]},
        "bytes": b"\xff password='[redacted]'",
        "password": None,
        "secret": False,
        1: [1.5, {"cookie": "[redacted]"}],
        "opaque": "<object>",
    }


def test_a_value_that_contains_itself_is_copied() -> None:
    """Neither cycles nor widely shared parts keep the redactor busy."""
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert Redactor().value(cycle) == [1, "[contains itself]"]
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    Redactor().value(shared)


def test_a_secret_in_the_key_of_a_dict_is_hidden() -> None:
    """Keys are texts as well."""
    assert Redactor(secrets=["hunter22"]).value({"hunter22": 1}) == {"[redacted]": 1}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(LETTERS + " "),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b", "token", "apiKey"]), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(JSON_VALUES, st.sampled_from(["password", "authToken", "API_KEY"]))
def test_a_secret_field_never_survives_in_a_value(value: Any, name: str) -> None:
    """However deep, and whatever its type."""
    planted = {"outer": [value, {name: {"deep": "canary-9000"}}]}
    assert "canary-9000" not in json.dumps(Redactor().value(planted))


# --- speed ---

MEGABYTE = 1_000_000


def _seconds(text: str) -> float:
    redactor = Redactor(secrets=[f"known-secret-{number}" for number in range(20)])
    begun = time.thread_time()
    redactor.text(text)
    return time.thread_time() - begun


def test_a_megabyte_without_secrets_is_read_quickly() -> None:
    """Far below what would block a loop (about 30 ms on a desktop; the bound is that of a very slow machine)."""
    prose = "The quick brown fox has no key: it jumps over the lazy dog, as a token of thanks; e.g. 3 times. "
    assert min(_seconds(prose * (MEGABYTE // len(prose))) for _ in range(3)) < 1


@pytest.mark.parametrize(
    "unit",
    ["sk-", "eyJ", "eyJa.", "://a:", "://a:b@", "-----BEGIN PRIVATE KEY-----", '"password": "', "token:", "token=a(",
     "authorization: ", "cookie: a ", 'token: "\\', "Bearer a", "SG." + "a" * 20, "\\", '"token": [', "xoxb-", "a.b-c",
     "AKIA", "AKIA" + "Z" * 16, "dop_v1_" + "a" * 32 + "AKIA" + "Z" * 16, "hf_" + "a" * 20],
)  # fmt: skip
def test_the_cost_of_hostile_text_grows_in_step_with_its_length(unit: str) -> None:
    """Four times the text may cost four times as much, with room for noise, not sixteen times."""
    small, large = (min(_seconds(unit * (size // len(unit))) for _ in range(3)) for size in (25_000, 100_000))
    assert large < 10 * small + 0.02


CHAIN = "dop_v1_" + "a" * 32 + "AKIA" + "Z" * 16
"""Two credentials of which each is found only when the one before it is hidden."""


def test_a_chain_of_credentials_is_hidden_within_a_fixed_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that uncovers one credential at a time is read as often as a short one, and its rest is hidden."""
    rounds: list[int] = []
    found = Redactor._found

    def counted(redactor: Redactor, text: str) -> Iterator[Any]:
        rounds.append(len(text))
        return found(redactor, text)

    monkeypatch.setattr(Redactor, "_found", counted)
    told = Redactor().text(f"before {CHAIN * 1_000} after")
    assert len(rounds) < 20
    assert told.startswith("before [redacted]")
    assert "aaaa" not in told
    assert "ZZZZ" not in told
    assert Redactor().text(told) is told


def test_a_long_run_that_begins_like_a_key_is_hidden_as_one() -> None:
    """No part of it stays visible because the key that it begins with would be shorter."""
    assert Redactor().text("key " + "AKIA" * 10 + " end") == "key [redacted] end"


@pytest.mark.parametrize("place", [-30, -8, 0, 8])
@pytest.mark.parametrize("cut", [LONGEST_ERROR_TEXT - 100_000, -100_000], ids=["beginning", "end"])
def test_the_text_of_an_error_is_bounded_and_never_cut_through_a_secret(cut: int, place: int) -> None:
    """A long one is cut to its beginning and its end, and half a credential is not shown."""
    secret, size = "known-secret-value", LONGEST_ERROR_TEXT + 500_000
    at = (cut if cut > 0 else size + cut) + place
    text = "a" * at + secret + "a" * (size - at - len(secret))
    told = Redactor(secrets=[secret]).error_text(text)
    assert len(told) < LONGEST_ERROR_TEXT + 100
    assert f"{size - LONGEST_ERROR_TEXT:,} characters left out" in told
    assert set(told.replace(f"… {size - LONGEST_ERROR_TEXT:,} characters left out …", "")) <= set("a []redacted ")
