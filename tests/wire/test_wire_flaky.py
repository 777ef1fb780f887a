"""The flaky provider: noise that is seeded, honest about what is lost, and over in the end."""

from __future__ import annotations

import ast
import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_ai import Agent, ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest

from flujo_actors.testing.wire import Json, ProviderStub, Request, Text, Tool, ToolCall, TruncatedStream
from flujo_actors.testing.wire.flaky import (
    LOSSY,
    ByModel,
    FlakyProvider,
    Language,
    Noise,
    applies,
    noisy,
    noisy_text,
)

VALUE = {
    "title": "O'Neil said: yes, {really}",
    "city": "北京",
    "tags": ["a", "ب", "क"],
    "n": 1.5,
    "ok": True,
    "no": None,
}

TOOL = Tool(name="final_result")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict | list))


def asked(*, tool=False, index=0, model="m"):
    return Request(
        index=index,
        dialect="openai-chat",
        model=model,
        messages=(),
        tools=(TOOL,) if tool else (),
        stream=True,
        response_format="text",
        body={},
        headers={},
    )


@settings(max_examples=50, deadline=None)
@given(VALUES, st.integers(), st.booleans())
def test_the_same_seed_gives_the_same_replies(value, seed, tool):
    """Two providers of one seed answer alike, call by call."""
    one, two = FlakyProvider(seed, value), FlakyProvider(seed, value)
    for _ in range(6):
        assert one(asked(tool=tool)) == two(asked(tool=tool))
    assert one.history == two.history


def test_seeds_differ_and_every_noise_and_language_comes_up():
    """A thousand seeds show every kind of noise in every language."""
    shown = set()
    for seed in range(1000):
        provider = FlakyProvider(seed, VALUE)
        provider(asked(tool=True))
        shown.add((provider.history[0].kind, provider.history[0].language))
    assert shown == {(kind, language) for kind in Noise for language in Language}


@settings(max_examples=50, deadline=None)
@given(VALUES, st.integers(), st.booleans())
def test_losses_are_limited_and_the_end_is_clean(value, seed, tool):
    """At most `max_lossy` replies lose the value; after `clean_after` each one is plain."""
    provider = FlakyProvider(seed, value, max_lossy=2, clean_after=5)
    replies = [provider(asked(tool=tool)) for _ in range(8)]
    assert sum(not answer.lossless for answer in provider.history) <= 2
    assert replies[5:] == [Json(value)] * 3


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("kind", sorted(set(Noise) - LOSSY))
def test_lossless_noise_holds_the_whole_value(kind, language):
    """The value stands in the text, from its first bracket to its last."""
    value = {"city": "Lima", "n": 2}
    text = noisy_text(value, kind, language, Random(1))
    written = text[text.rindex("{") : text.rindex("}") + 1]
    assert read_leniently(written) == value


@given(VALUES)
def test_a_truncated_value_is_never_a_whole_one(value):
    """What is cut off at the token limit does not parse."""
    reply = noisy(value, Noise.TRUNCATED, Language.HINDI, Random(3)).reply
    assert reply.finish == "length"
    with pytest.raises(ValueError):
        json.loads(reply.text)


def test_noise_that_would_leave_doubt_is_not_chosen():
    """Curly quotes around curly quotes, and bad arguments without a tool, do not apply."""
    assert not applies(Noise.CURLY_QUOTES, {"said": "“hello”"}, tool=None)
    assert applies(Noise.CURLY_QUOTES, {"said": "hello"}, tool=None)
    assert not applies(Noise.BAD_ARGUMENTS, {}, tool=None)


def test_an_output_tool_gets_arguments_or_text():
    """Where an output tool is asked for, noise comes either way, by the seed."""
    kinds = {type(noisy(VALUE, Noise.FENCED, Language.ARABIC, Random(n), tool="t").reply) for n in range(20)}
    assert kinds == {Text, ToolCall}
    assert isinstance(noisy(VALUE, Noise.HALF_STREAM, Language.ARABIC, Random(1), tool="t").reply, TruncatedStream)


def test_each_model_name_has_its_own_case():
    """One script serves many cases, told apart by the model."""
    cases: dict[str, FlakyProvider] = {}

    def make(model):
        return cases.setdefault(model, FlakyProvider(int(model), [int(model)], kinds=[Noise.NONE]))

    script = ByModel(make)
    replies = [script(asked(model=model)) for model in ("1", "2", "1")]
    assert replies == [Json([1]), Json([2]), Json([1])]
    assert [len(case.history) for case in cases.values()] == [2, 1]


class Note(BaseModel):
    title: str
    tags: list[str]


NOTE = {"title": "O'Neil's 笔记", "tags": ["أ", "ब"]}


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(12))
async def test_a_patient_client_gets_the_value_over_the_wire(connect, seed):
    """Asked often enough, the provider ends in a value that validates and is the intended one."""
    provider = FlakyProvider(seed, NOTE)
    with ProviderStub(provider) as stub:
        async with connect(stub) as model:
            agent = Agent(model, output_type=Note, retries=0)
            assert await until_valid(agent) == Note(**NOTE)
    assert provider.history[-1].intended == NOTE


@pytest.mark.anyio
@pytest.mark.parametrize("kind", sorted(set(Noise) - LOSSY - {Noise.NONE, Noise.THINKING}))
async def test_noise_is_the_same_text_at_the_client(connect, kind):
    """No format changes a character of a noisy text (thinking aside, which pydantic-ai may take out)."""
    provider = FlakyProvider(5, NOTE, kinds=[kind])
    with ProviderStub(provider) as stub:
        async with connect(stub) as model:
            response = await model_request(model, [ModelRequest.user_text_prompt("x")])
    assert response.parts[0].content == provider.history[0].reply.text


async def until_valid(agent):
    for _ in range(6):
        try:
            return (await agent.run("x")).output
        except (ModelAPIError, UnexpectedModelBehavior):
            continue
    return None


def read_leniently(text):
    """Read what is JSON but for one habit of writing."""
    lines = (line.partition(" // ")[0] for line in text.splitlines())
    text = "".join(lines).replace("“", '"').replace("”", '"').replace("：", ":").replace("，", ",")
    for key in ("city", "n"):
        text = text.replace(f" {key}:", f'"{key}":')
    return ast.literal_eval(text)
