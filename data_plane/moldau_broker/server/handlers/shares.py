"""The requests to the share coordinator, which only brokers may send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau_broker.coordinator.runtime.completion import Completion
    from moldau_broker.coordinator.share.coordinator import ShareCoordinator
    from moldau_broker.coordinator.share.core.requests import ShareStateRequest
    from moldau_broker.server.handlers.context import Call


class SharesContext(Protocol):
    """The parts of a broker needed for the requests to the share coordinator."""

    @property
    def shares(self) -> ShareCoordinator: ...


def handle_share_state(context: SharesContext, request: ShareStateRequest, call: Call) -> Completion:
    """Submits the request to the coordinator at once, so that requests keep their order; it may answer later."""
    return context.shares.submit(request)
