"""The table of all APIs of a controller listener: those that it decides, and those that its node answers itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.access import AclOperation, AclResource, ApiRules, Cost, Listeners, Need
from moldau.protocol.api import ApiKey
from moldau_quorum.authorization.checks import SPECIAL_CONTROLLER_CHECKS, Check, checks_of
from moldau_quorum.controller.dispatch import DECIDED_APIS

if TYPE_CHECKING:
    from moldau.protocol.schema import Response
    from moldau_quorum.node.voters.quorum_admin import QuorumAdmin

Answer = Callable[["QuorumAdmin", Any], Callable[[], Awaitable["Response"]]]
"""Takes the request of its API; the function returned waits for the response."""

_DESCRIBE = AclOperation.DESCRIBE.on(AclResource.CLUSTER)
_ALTER = AclOperation.ALTER.on(AclResource.CLUSTER)
_BETWEEN_NODES = AclOperation.CLUSTER_ACTION.on(AclResource.CLUSTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerApi:
    """One API of a controller listener."""

    key: ApiKey
    rules: ApiRules
    answer: Answer | None = None
    """None where a decision or the connection answers."""


def _row(
    key: ApiKey, answer: Answer | None, listeners: Listeners, *needs: Need, cost: Cost = Cost.REQUEST
) -> ControllerApi:
    return ControllerApi(key=key, rules=ApiRules(listeners=listeners, needs=needs, cost=cost), answer=answer)


def _at_once(response: Response) -> Callable[[], Awaitable[Response]]:
    async def wait() -> Response:
        return response

    return wait


QUORUM_APIS: Final[tuple[ControllerApi, ...]] = (
    _row(ApiKey.API_VERSIONS, None, Listeners.CONTROLLER, cost=Cost.NONE),
    _row(ApiKey.SASL_HANDSHAKE, None, Listeners.CONTROLLER, cost=Cost.NONE),
    _row(ApiKey.SASL_AUTHENTICATE, None, Listeners.CONTROLLER, cost=Cost.NONE),
    _row(ApiKey.ENVELOPE, None, Listeners.CONTROLLER, _BETWEEN_NODES, cost=Cost.NONE),
    _row(
        ApiKey.DESCRIBE_CLUSTER,
        lambda quorum, request: _at_once(quorum.describe_cluster(request)),
        Listeners.CONTROLLER,
        _ALTER,
        _DESCRIBE,
    ),
    _row(
        ApiKey.DESCRIBE_QUORUM,
        lambda quorum, request: _at_once(quorum.describe_quorum(request)),
        Listeners.ANY,
        _DESCRIBE,
    ),
    _row(ApiKey.ADD_RAFT_VOTER, lambda quorum, request: lambda: quorum.add_voter(request), Listeners.ANY, _ALTER),
    _row(ApiKey.REMOVE_RAFT_VOTER, lambda quorum, request: lambda: quorum.remove_voter(request), Listeners.ANY, _ALTER),
    _row(
        ApiKey.UPDATE_RAFT_VOTER,
        lambda quorum, request: lambda: quorum.update_voter(request),
        Listeners.CONTROLLER,
        _BETWEEN_NODES,
        cost=Cost.NONE,
    ),
)
"""The APIs that a controller answers without a decision."""

CONTROLLER_APIS: Final[tuple[ControllerApi, ...]] = tuple(
    sorted(
        (*QUORUM_APIS, *(ControllerApi(key=api.key, rules=api.rules) for api in DECIDED_APIS)),
        key=lambda api: api.key,
    )
)
"""All APIs that ApiVersions names, by key; it does not name the private ones."""

CONTROLLER_CHECKS: Final[Mapping[int, Check]] = checks_of(
    ((api.key, api.rules) for api in CONTROLLER_APIS), SPECIAL_CONTROLLER_CHECKS
)
"""The check of each API on a controller's own listener."""

SERVED_APIS: Final[tuple[int, ...]] = tuple(api.key for api in CONTROLLER_APIS)
ANSWERS: Final[Mapping[int, Answer]] = {api.key: api.answer for api in QUORUM_APIS if api.answer is not None}
