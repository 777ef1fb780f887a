"""Actors: async functions with a mailbox, reached through typed refs, kept alive by supervisors.

A run has its own, simpler kind of supervision, so its actors do without most of this: see `lazy_names`.
"""

from typing import TYPE_CHECKING

from .._lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._core.backoff import Backoff as Backoff
    from ._ask import Ask as Ask
    from ._mailbox import Mailbox as Mailbox
    from ._ref import ActorRef as ActorRef
    from ._ref import Addressee as Addressee
    from ._ref import DeadLetter as DeadLetter
    from ._ref import DeadLetters as DeadLetters
    from ._ref import Traffic as Traffic
    from ._supervision import ChildSpec as ChildSpec
    from ._supervision import Intensity as Intensity
    from ._supervision import RestartType as RestartType
    from ._supervision import Strategy as Strategy
    from ._supervisor import ChildExit as ChildExit
    from ._supervisor import Supervisor as Supervisor
    from ._supervisor import open_supervisor as open_supervisor
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "ActorRef": "._ref",
            "Addressee": "._ref",
            "Ask": "._ask",
            "Backoff": ".._core.backoff",
            "ChildExit": "._supervisor",
            "ChildSpec": "._supervision",
            "DeadLetter": "._ref",
            "DeadLetters": "._ref",
            "Intensity": "._supervision",
            "Mailbox": "._mailbox",
            "RestartType": "._supervision",
            "Strategy": "._supervision",
            "Supervisor": "._supervisor",
            "Traffic": "._ref",
            "open_supervisor": "._supervisor",
        },
    )
