"""Decides between which machines packets may be delayed beyond their sender's timeout.

Moldau promises everything whatever arrives late, with two exceptions, and a fault must not ask for more:

- At level 1 of ``transaction.version`` all transactions of a producer have one epoch. A late EndTxn, or a late marker,
  of a former transaction ends the open one (KAFKA-17754); level 2 exists for that.
- The clients that change rights and quotas take a change that was not answered for one that does not come any more, and
  judge by that. Brokers forward such changes to the controller.

Only the links that carry these requests are left alone, and where single requests are held, only these requests.
Answers may always be late: their requests have taken effect in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLinks:
    """The links whose packets are never held back."""

    clients: Collection[str] = ()
    """Machines of clients whose requests must not be late."""
    between_brokers: bool = False
    """Links between brokers, which carry markers of transactions."""
    to_controllers: bool = False
    """Links from brokers to controllers, which carry forwarded requests."""

    def may_be_late(self, source: str, target: str) -> bool:
        """Returns whether packets from one machine to another may be held back."""
        if source in self.clients:
            return False
        from_broker = source.startswith("broker-")
        if self.between_brokers and from_broker and target.startswith("broker-"):
            return False
        return not (self.to_controllers and from_broker and target.startswith("controller-"))

    def request_may_be_late(self, source: str, target: str, api_key: int) -> bool:
        """Returns whether one request, and what follows on its connection, may be held.

        Brokers send markers on connections that carry nothing else.
        """
        between_brokers = source.startswith("broker-") and target.startswith("broker-")
        return self.may_be_late(source, target) or (between_brokers and api_key != ApiKey.WRITE_TXN_MARKERS)


ALL_MAY_BE_LATE = PromptLinks()
