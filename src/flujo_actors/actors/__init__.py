"""Actors: async functions with a mailbox, reached through typed refs, kept alive by supervisors.

A run has its own, simpler kind of supervision, so its actors do without most of this: see `late_names`.
"""

from typing import TYPE_CHECKING

from flujo_actors.late_names import late_names as _late_names

if TYPE_CHECKING:
    from flujo_actors.actors.ask import Ask as Ask
    from flujo_actors.actors.dead_letters import DeadLetter as DeadLetter
    from flujo_actors.actors.dead_letters import DeadLetters as DeadLetters
    from flujo_actors.actors.mailbox import Mailbox as Mailbox
    from flujo_actors.actors.ref import ActorRef as ActorRef
    from flujo_actors.actors.ref import Addressee as Addressee
    from flujo_actors.actors.ref import Traffic as Traffic
    from flujo_actors.actors.supervisor import ChildExit as ChildExit
    from flujo_actors.actors.supervisor import Supervisor as Supervisor
    from flujo_actors.actors.supervisor import open_supervisor as open_supervisor
    from flujo_actors.core.backoff import Backoff as Backoff
    from flujo_actors.core.supervision import ChildSpec as ChildSpec
    from flujo_actors.core.supervision import Intensity as Intensity
    from flujo_actors.core.supervision import RestartType as RestartType
    from flujo_actors.core.supervision import Strategy as Strategy
else:
    __getattr__, __dir__ = _late_names(
        __name__,
        {
            "ActorRef": ".ref",
            "Addressee": ".ref",
            "Ask": ".ask",
            "Backoff": "..core.backoff",
            "ChildExit": ".supervisor",
            "ChildSpec": "..core.supervision",
            "DeadLetter": ".dead_letters",
            "DeadLetters": ".dead_letters",
            "Intensity": "..core.supervision",
            "Mailbox": ".mailbox",
            "RestartType": "..core.supervision",
            "Strategy": "..core.supervision",
            "Supervisor": ".supervisor",
            "Traffic": ".ref",
            "open_supervisor": ".supervisor",
        },
    )
