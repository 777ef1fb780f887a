"""A local provider that speaks the wire formats of OpenAI and Anthropic, for tests without a key.

    with ProviderStub([ToolCall("weather", {"city": "Lima"}), Text("Sunny.")]) as stub:
        client = AsyncOpenAI(base_url=stub.openai_url, api_key="test")

`stub.requests` then holds what the client sent. `flaky` writes scripts of noisy answers around a value.
"""

from __future__ import annotations

from ._replies import Hang as Hang
from ._replies import Json as Json
from ._replies import Malformed as Malformed
from ._replies import RateLimited as RateLimited
from ._replies import Refusal as Refusal
from ._replies import Reply as Reply
from ._replies import ServerError as ServerError
from ._replies import SlowBytes as SlowBytes
from ._replies import Text as Text
from ._replies import ToolCall as ToolCall
from ._replies import ToolCalls as ToolCalls
from ._replies import TruncatedStream as TruncatedStream
from ._replies import Usage as Usage
from ._requests import Called as Called
from ._requests import Message as Message
from ._requests import Request as Request
from ._requests import Tool as Tool
from ._stub import ProviderStub as ProviderStub
from ._stub import Script as Script
