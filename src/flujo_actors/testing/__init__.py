"""What you need to test your own pipelines, without a network and without waiting.

- `ScriptedAgent` and `scripted_model` answer by a script and keep what they were asked;
- `Recorder` keeps what a run said, by step and by moment;
- `run_on_mock_clock`, `JumpingClock` and, on asyncio, `JumpingLoop` pass over every wait;
- `MemorySink` keeps telemetry;
- `ScriptedRetriever` finds what its script says, `HashingEmbedder` makes vectors without a model, and
  `retriever_conformance` checks a retriever of your own;
- `flujo_actors.testing.fixtures` holds the pytest fixtures, and `flujo_actors.testing.wire` a provider to connect to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy_names import lazy_names as _lazy_names
from ..telemetry._sinks import MemorySink as MemorySink
from ._clock import JumpingClock as JumpingClock
from ._jumping_loop import JumpingLoop as JumpingLoop
from ._model_script import Billed as Billed
from ._model_script import CallTool as CallTool
from ._model_script import scripted_model as scripted_model
from ._recorder import Recorder as Recorder
from ._recorder import run_on_mock_clock as run_on_mock_clock
from ._retriever_conformance import retriever_conformance as retriever_conformance
from ._scripted import Call as Call
from ._scripted import Delayed as Delayed
from ._scripted import ScriptedAgent as ScriptedAgent
from ._scripted import Streamed as Streamed
from ._scripted_retriever import ScriptedRetriever as ScriptedRetriever

if TYPE_CHECKING:
    from ._hashing_embedder import HashingEmbedder as HashingEmbedder
else:  # it loads pydantic-ai, which only those who search by meaning need
    __getattr__, __dir__ = _lazy_names(__name__, {"HashingEmbedder": "._hashing_embedder"})
