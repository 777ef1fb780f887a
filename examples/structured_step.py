"""A structured step returns a value, or a failure with its reason. Run it: `python examples/structured_step.py`.

The model here is a stand-in that gives four malformed answers; with a real one, only `MODEL` would change.
"""

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import Flujo, PipelineResult, Step


class Recipe(BaseModel):
    dish: str
    minutes: int
    steps: list[str]


FENCED = 'Here you are:\n```json\n{"dish": "Dal", "minutes": 40, "steps": ["soak", "boil",]}\n```\nEnjoy!'
ODD = "{dish: 'Dal', Minutes: '40', steps: “boil”}"
CUT = '{"dish": "Dal", "minutes": 40, "steps": ["soak", "bo'
CHAT = "Dal is a wonderful dish. Which one would you like?"


def answering(*answers: str) -> FunctionModel:
    """A model that gives these answers, the last one for ever."""
    left = list(answers)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(left.pop(0) if len(left) > 1 else left[0])])

    return FunctionModel(answer, model_name="stand-in")


def cook(*answers: str) -> PipelineResult:
    """One run of the step with a model that gives these answers."""
    agent = Agent(answering(*answers), output_type=Recipe, system_prompt="You write recipes.")
    return Flujo(Step("recipe", agent)).run("Dal, please.")


def summary(result: PipelineResult) -> str:
    """Output and stage of a result, in one line."""
    (step,) = result.step_history
    if not step.success:
        return f"no recipe ({step.usage.requests} requests): {step.feedback}"
    stage = step.metadata["structured"]["stage"]
    return f"{step.output.dish}, {step.output.minutes} minutes, {step.output.steps} (by {stage})"


def main() -> None:
    print("in a fence:     ", summary(cook(FENCED)))
    print("odd quotes:     ", summary(cook(ODD)))
    print("cut off, again: ", summary(cook(CUT, FENCED)))
    print("never a recipe: ", summary(cook(CHAT)))


if __name__ == "__main__":
    main()
