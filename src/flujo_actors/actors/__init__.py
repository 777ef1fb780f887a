"""Actors: async functions with a mailbox, typed refs and supervisors.

Runs share the exit rule and the mailbox, not the supervisor: see `lazy_names`.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._core.retry_decisions import Backoff as Backoff
    from ._mailbox import Mailbox as Mailbox
    from ._ref import ActorAddress as ActorAddress
    from ._ref import ActorRef as ActorRef
    from ._ref import Ask as Ask
    from ._ref import DeadLetter as DeadLetter
    from ._ref import DeadLetters as DeadLetters
    from ._ref import Traffic as Traffic
    from ._supervision_rules import ChildSpec as ChildSpec
    from ._supervision_rules import Intensity as Intensity
    from ._supervision_rules import RestartType as RestartType
    from ._supervision_rules import Strategy as Strategy
    from ._supervisor import ChildExit as ChildExit
    from ._supervisor import Supervisor as Supervisor
    from ._supervisor import open_supervisor as open_supervisor

    Addressee = ActorAddress
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "ActorRef": "._ref",
            "ActorAddress": "._ref",
            "Addressee": "._ref:ActorAddress",
            "Ask": "._ref",
            "Backoff": ".._core.retry_decisions",
            "ChildExit": "._supervisor",
            "ChildSpec": "._supervision_rules",
            "DeadLetter": "._ref",
            "DeadLetters": "._ref",
            "Intensity": "._supervision_rules",
            "Mailbox": "._mailbox",
            "RestartType": "._supervision_rules",
            "Strategy": "._supervision_rules",
            "Supervisor": "._supervisor",
            "Traffic": "._ref",
            "open_supervisor": "._supervisor",
        },
    )
