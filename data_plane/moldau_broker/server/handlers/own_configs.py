"""Checks of requests that change the configuration of this broker: of its cordons (KIP-1066), TLS and SASL.

The controller does not know the paths of a broker's log directories, nor its files. Each broker therefore checks
changes of its own configuration before it forwards them, and refuses cordons of other brokers: clients send a change to
the broker that it concerns, and to another one only if that is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_configs import AlterableConfig as FullConfig
from moldau.protocol.messages.alter_configs import AlterConfigsResource as FullResource
from moldau.protocol.messages.alter_configs import AlterConfigsResourceResponse as FullAnswer
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
)
from moldau.runtime.config import BROKER_CONFIG, CORDONED_LOG_DIRS, cordon_problem
from moldau_broker.server.handlers.own_security import SecurityContext, security_problem
from moldau_quorum.controller.entities.configs import APPEND, SET
from moldau_quorum.metadata.image import RESOURCE_BROKER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.config import Config

Resource = TypeVar("Resource", FullResource, AlterConfigsResource)
Answer = TypeVar("Answer", FullAnswer, AlterConfigsResourceResponse)


class OwnConfigsContext(SecurityContext, Protocol):
    """The parts of a broker needed for checking changes of its configuration."""

    @property
    def broker_id(self) -> int: ...
    @property
    def config(self) -> Config: ...


def without_refused(
    context: OwnConfigsContext, resources: Sequence[Resource], answer: type[Answer]
) -> tuple[list[Resource], list[Answer]]:
    """Returns the resources to forward, and the answers for those whose change this broker refuses."""
    forwarded: list[Resource] = []
    refused: list[Answer] = []
    for resource in resources:
        refusal = _refusal(context, resource)
        if refusal is None:
            forwarded.append(resource)
        else:
            code, message = refusal
            refused.append(
                answer(
                    error_code=code,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
    return forwarded, refused


def _refusal(context: OwnConfigsContext, resource: FullResource | AlterConfigsResource) -> tuple[ErrorCode, str] | None:
    if resource.resource_type != RESOURCE_BROKER or not resource.resource_name:
        return None  # the controller refuses a value for all brokers
    named = [path for config in resource.configs for path in _cordoned(config)]
    if resource.resource_name != str(context.broker_id):
        if not named:
            return None
        return (
            ErrorCode.INVALID_REQUEST,
            f"this is broker {context.broker_id}: ask broker {resource.resource_name} to cordon its log directories",
        )
    problem = cordon_problem(context.config, named) if named else None
    problem = problem or security_problem(context, resource)
    return None if problem is None else (ErrorCode.INVALID_CONFIG, problem)


def _cordoned(config: FullConfig | AlterableConfig) -> tuple[str, ...]:
    """Returns the directories that a change of one key cordons."""
    adds = not isinstance(config, AlterableConfig) or config.config_operation in (SET, APPEND)
    if config.name != CORDONED_LOG_DIRS or config.value is None or not adds:
        return ()
    named = BROKER_CONFIG.key(CORDONED_LOG_DIRS).parse(config.value)
    assert isinstance(named, tuple)
    return tuple(str(path) for path in named)
