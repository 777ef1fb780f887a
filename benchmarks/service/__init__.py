"""One support desk three times, over the wire: this library, LangGraph with its OpenAI client, bare pydantic-ai."""
