"""Levels of a node's loggers (KIP-412, KIP-919): the node changes them itself and keeps them until it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_configs import DescribeConfigsResourceResult
from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResourceResponse
from moldau.runtime.config import ConfigSource
from moldau.runtime.telemetry.log_levels import LEVELS, ROOT
from moldau_quorum.metadata.image import RESOURCE_BROKER_LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource
    from moldau.runtime.telemetry.log_levels import LogLevels

_SET, _DELETE = 0, 1


class NodeLoggers:
    """The loggers of one node."""

    def __init__(self, node: str, node_id: int, levels: LogLevels) -> None:
        """``node`` says what the node is, ``broker`` or ``controller``, for errors."""
        self._node = node
        self._node_id = node_id
        self._levels = levels

    def describe(self, name: str, wanted: Sequence[str] | None) -> list[DescribeConfigsResourceResult]:
        """Returns the level in force of each logger, or of those ``wanted``, of the node that a resource names.

        Raises:
            KafkaError: the resource names another node.
        """
        self._check_node(name)
        names = self._levels.names()
        if wanted is not None:
            asked = frozenset(wanted)
            names = [each for each in names if each in asked]
        return [
            DescribeConfigsResourceResult(
                name=each, value=self._levels.level(each), config_source=ConfigSource.DYNAMIC_BROKER_LOGGER
            )
            for each in names
        ]

    def alter(
        self, resources: Iterable[AlterConfigsResource], *, validate_only: bool
    ) -> list[AlterConfigsResourceResponse]:
        """Sets or resets levels: all of a resource or none, and none if the request names it twice."""
        wanted = list(resources)
        is_repeated = len({each.resource_name for each in wanted}) < len(wanted)
        return [self._altered(each, validate_only=validate_only, is_repeated=is_repeated) for each in wanted]

    def _altered(
        self, resource: AlterConfigsResource, *, validate_only: bool, is_repeated: bool
    ) -> AlterConfigsResourceResponse:
        response = AlterConfigsResourceResponse(
            error_message=None, resource_type=RESOURCE_BROKER_LOGGER, resource_name=resource.resource_name
        )
        try:
            if is_repeated:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource appears twice in the request")
            self._check_node(resource.resource_name)
            self._check_changes(resource.configs)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
            return response
        for change in () if validate_only else resource.configs:
            if change.config_operation == _DELETE or change.value is None:
                self._levels.reset(change.name)
            else:
                self._levels.set(change.name, change.value)
        return response

    def _check_node(self, name: str) -> None:
        if name != str(self._node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this is {self._node} {self._node_id}: ask {self._node} {name!r} for its loggers",
            )

    def _check_changes(self, changes: Sequence[AlterableConfig]) -> None:
        known = frozenset(self._levels.names())
        seen: set[str] = set()
        for change in changes:
            name = change.name
            if name in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"logger {name!r} appears twice")
            seen.add(name)
            if name not in known:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"there is no logger {name!r}; {ROOT!r} is the root logger")
            if change.config_operation not in (_SET, _DELETE):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "levels of loggers can only be set or deleted")
            if change.config_operation == _DELETE and name == ROOT:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the root logger needs a level: set another one")
            if change.config_operation == _SET and change.value not in LEVELS:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"{name} = {change.value!r}: must be one of {', '.join(LEVELS)}"
                )
