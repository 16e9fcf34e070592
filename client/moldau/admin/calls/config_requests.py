"""Requests about configurations, and the broker that each must go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.admin.values import ConfigAlteration, ConfigOperation, ConfigResource, ResourceType
from moldau.cluster import arguments
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

OF_ONE_BROKER = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
"""Resources that only the broker itself can describe."""
OF_ONE_CONTROLLER = (ResourceType.BROKER_LOGGER,)
"""Resources that only the controller itself has, for a client of controllers (KIP-919)."""


def by_broker(
    resources: Iterable[ConfigResource], types: Collection[ResourceType] = OF_ONE_BROKER
) -> dict[int | None, list[ConfigResource]]:
    """Groups resources by the broker to ask; None means any broker.

    ``types`` are the types whose requests one broker must answer.

    Raises:
        ValueError: the name of a broker is not a number.
    """
    groups: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        is_one_broker = resource.type in types and resource.name
        if is_one_broker and not resource.name.isdecimal():
            raise arguments.ArgumentValueError(f"broker {resource.name!r} is no number")
        groups.setdefault(int(resource.name) if is_one_broker else None, []).append(resource)
    return groups


def alteration(
    changes: Mapping[ConfigResource, Sequence[ConfigAlteration]], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    """Returns the request that makes these changes."""
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    AlterableConfig(
                        name=change.name,
                        config_operation=change.operation,
                        value=None if change.operation is ConfigOperation.DELETE else change.value,
                    )
                    for change in alterations
                ],
            )
            for resource, alterations in changes.items()
        ],
        validate_only=validate_only,
    )
