"""Agents that are connected, by real clients and sockets, to a local provider."""

from __future__ import annotations

import pytest
from pydantic_ai.settings import ModelSettings

from flujo_actors import make_agent_async
from flujo_actors.testing.wire import ProviderStub

NAMES = {
    "openai chat": "openai-chat:gpt-4o",
    "openai responses": "openai-responses:gpt-4o",
    "anthropic": "anthropic:claude-sonnet-5",
}
SHORT = ModelSettings(max_tokens=1000)
"""Below this limit pydantic-ai asks Anthropic for a plain answer; without one it streams every request."""

each_protocol = pytest.mark.parametrize("model", NAMES.values(), ids=NAMES)


@pytest.fixture
def connected(monkeypatch):
    """A function that makes models by name speak to a stub."""

    def connect(stub: ProviderStub) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", stub.openai_url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", stub.anthropic_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key-of-no-value")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-key-of-no-value")

    return connect


def agent_of(model, prompt="Be brief.", output_type=str, **config):
    """An agent with a model of that name."""
    return make_agent_async(model, prompt, output_type, model_settings=SHORT, **config)
