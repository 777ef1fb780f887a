"""Local provider with OpenAI's and Anthropic's wire formats, for tests.

    with ProviderStub([ToolCall("weather", {"city": "Lima"}), Text("Sunny.")]) as stub:
        client = AsyncOpenAI(base_url=stub.openai_url, api_key="test")

`stub.requests` then holds the client's requests. `flaky` writes scripts of noisy answers around a value.
"""

from __future__ import annotations

from ._reply_types import Called as Called
from ._reply_types import ChatMessage as ChatMessage
from ._reply_types import Hang as Hang
from ._reply_types import HttpRequest as HttpRequest
from ._reply_types import Json as Json
from ._reply_types import MalformedReply as MalformedReply
from ._reply_types import RateLimitReply as RateLimitReply
from ._reply_types import Refusal as Refusal
from ._reply_types import Reply as Reply
from ._reply_types import ReplyUsage as ReplyUsage
from ._reply_types import ServerError as ServerError
from ._reply_types import SlowBytes as SlowBytes
from ._reply_types import TextReply as TextReply
from ._reply_types import Tool as Tool
from ._reply_types import ToolCall as ToolCall
from ._reply_types import ToolCalls as ToolCalls
from ._reply_types import TruncatedStream as TruncatedStream
from ._stub import ProviderStub as ProviderStub
from ._stub import Script as Script

# Former names, kept as aliases.
Malformed = MalformedReply
Message = ChatMessage
Request = HttpRequest
Text = TextReply
Usage = ReplyUsage

RateLimited = RateLimitReply
"""Name of the reply in scripts."""
