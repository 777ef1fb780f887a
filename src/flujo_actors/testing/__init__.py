"""Testing kit for pipelines, without a network and without waiting.

- `ScriptedAgent` and `scripted_model` answer by a script and record their calls;
- `Recorder` records the outcomes of a run, by step and by hook;
- `run_on_mock_clock`, `JumpingClock` and, on asyncio, `JumpingLoop` skip every wait;
- `MemorySink` records telemetry;
- `ScriptedRetriever` returns scripted passages, `HashingEmbedder` makes vectors without a model, and
  `retriever_conformance` checks a retriever of your own;
- `simulate` runs a pipeline under seeded crashes and faults: `World`, `faults`, `Simulation`, `SimulationFailed` and
  `NotDeterministic` belong to it;
- `test_from_run` and `tests_from_runs` make tests of exported runs;
- `flujo_actors.testing.fixtures` holds the pytest fixtures, and `flujo_actors.testing.wire` a local provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names
from ..telemetry._sinks import MemorySink as MemorySink
from ._recorder import JumpingClock as JumpingClock
from ._recorder import JumpingLoop as JumpingLoop
from ._recorder import Recorder as Recorder
from ._recorder import run_on_mock_clock as run_on_mock_clock
from ._retriever_conformance import retriever_conformance as retriever_conformance
from ._scripted_agent import Billed as Billed
from ._scripted_agent import CallTool as CallTool
from ._scripted_agent import Delayed as Delayed
from ._scripted_agent import RecordedCall as RecordedCall
from ._scripted_agent import ScriptedAgent as ScriptedAgent
from ._scripted_agent import ScriptedRetriever as ScriptedRetriever
from ._scripted_agent import Streamed as Streamed
from ._scripted_agent import scripted_model as scripted_model

# Former names, kept as aliases.
Call = RecordedCall

if TYPE_CHECKING:
    from . import faults as faults
    from ._scripted_model import HashingEmbedder as HashingEmbedder
    from ._simulated_world import World as World
    from ._simulation import NotDeterministic as NotDeterministic
    from ._simulation import Simulation as Simulation
    from ._simulation import SimulationFailed as SimulationFailed
    from ._simulation import simulate as simulate
    from .fixtures import test_from_run as test_from_run
    from .fixtures import tests_from_runs as tests_from_runs
else:  # loaded when needed: a model loads pydantic-ai, and most tests simulate nothing
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "HashingEmbedder": "._scripted_model",
            "NotDeterministic": "._simulation",
            "Simulation": "._simulation",
            "SimulationFailed": "._simulation",
            "World": "._simulated_world",
            "simulate": "._simulation",
            "test_from_run": ".fixtures",
            "tests_from_runs": ".fixtures",
        },
    )
