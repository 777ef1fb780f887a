"""The application that the workers of this directory execute: a step of it runs on the workers of the queue `gpu`."""

import os

from flujo_actors import Flujo, Pipeline, Step


async def draft(topic: str) -> str:
    return f"A letter about {topic}."


def illustrate(letter: str) -> str:
    return f"{letter} (with a picture)"


flujo = Flujo(
    Pipeline([Step("draft", draft), Step("illustrate", illustrate, runs_on="gpu")], name="letters"),
    store=os.environ["FLUJO_STORE"],
    engine="postgres",
)
