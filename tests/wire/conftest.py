from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from flujo_actors.testing.wire import ProviderStub

# Below this limit pydantic-ai asks Anthropic for a plain answer; without one it streams every request.
SHORT = ModelSettings(max_tokens=1000)


@asynccontextmanager
async def openai_chat(stub: ProviderStub, name: str = "gpt-4o") -> AsyncIterator[Model]:
    async with AsyncOpenAI(base_url=stub.openai_url, api_key="test", max_retries=0) as client:
        yield OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client), settings=SHORT)


@asynccontextmanager
async def openai_responses(stub: ProviderStub, name: str = "gpt-4o") -> AsyncIterator[Model]:
    async with AsyncOpenAI(base_url=stub.openai_url, api_key="test", max_retries=0) as client:
        yield OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=client), settings=SHORT)


@asynccontextmanager
async def anthropic(stub: ProviderStub, name: str = "claude-sonnet-5") -> AsyncIterator[Model]:
    async with AsyncAnthropic(base_url=stub.anthropic_url, api_key="test", max_retries=0) as client:
        yield AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client), settings=SHORT)


@pytest.fixture
def anyio_backend() -> str:
    """The clients' SDKs run on asyncio."""
    return "asyncio"


@pytest.fixture(params=[openai_chat, openai_responses, anthropic], ids=lambda connect: connect.__name__)
def connect(request: pytest.FixtureRequest) -> Callable[[ProviderStub], AbstractAsyncContextManager[Model]]:
    """Opens a real client of each kind on a stub and closes it again."""
    return request.param
