"""1,000 documents become typed rows, with a budget and an error report: `python examples/bulk_extraction.py`."""

import os
import re
import tempfile

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import Flujo, Recovered, Step, StepFailure, UsageLimits, make_agent_async


class Row(BaseModel):
    number: int
    total: float


async def read(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as a model would: every 250th document is unreadable."""
    [prompt] = [str(part.content) for part in messages[0].parts if part.part_kind == "user-prompt"]
    number, total = re.findall(r"\d+", prompt)[:2]
    answer = f'{{"number": {number}, "total": {total}}}' if int(number) % 250 else "I cannot read this."
    return ModelResponse(parts=[TextPart(answer)])


# A real model: MODEL=openai:gpt-5 and OPENAI_API_KEY, with the extra `openai`.
model = os.environ.get("MODEL") or FunctionModel(read, model_name="stand-in")


async def skip(failure: StepFailure) -> Recovered:
    return Recovered(f"unreadable: {failure.input}")


extract = Step(
    "extract",
    make_agent_async(model, "Read number and total."),
    processing={"schema": Row, "enforcement": "validate"},
    on_failure=skip,
)


def main() -> None:
    documents = [f"Invoice {number}, total {number * 3} EUR" for number in range(1, 1001)]
    budget = UsageLimits(request_limit=600, when_reached="pause")
    rows = Step.map_over("rows", extract, max_concurrency=16)
    flujo = Flujo(rows, store=f"sqlite:///{tempfile.mkdtemp()}/runs.db", usage_limits=budget)

    paused = flujo.run(documents, run_id="invoices")
    print(paused.status, "-", paused.feedback)

    done = flujo.resume(paused.state_token, {"request_limit": 2_000})
    typed = [row for row in done.output if isinstance(row, Row)]
    print(done.status, "-", len(typed), "rows, total", sum(row.total for row in typed))
    print("\n".join(row for row in done.output if isinstance(row, str)))


if __name__ == "__main__":
    main()
