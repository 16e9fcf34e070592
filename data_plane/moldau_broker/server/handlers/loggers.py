"""Levels of this broker's loggers (KIP-412); the broker changes them itself and keeps them until it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_configs import DescribeConfigsResourceResult
from moldau.protocol.messages.incremental_alter_configs import AlterConfigsResourceResponse
from moldau.runtime.config import ConfigSource
from moldau.runtime.telemetry.log_levels import LEVELS, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource
    from moldau.runtime.telemetry.log_levels import LogLevels

_SET, _DELETE = 0, 1


class LoggersContext(Protocol):
    """The parts of a broker needed for reading and setting levels of loggers."""

    @property
    def broker_id(self) -> int: ...
    @property
    def log_levels(self) -> LogLevels: ...


def describe_loggers(
    context: LoggersContext, broker: str, wanted: Sequence[str] | None
) -> list[DescribeConfigsResourceResult]:
    """Returns the level in force of each logger.

    Raises:
        KafkaError: the request names another broker.
    """
    _check_broker(context, broker)
    names = context.log_levels.names()
    if wanted is not None:
        asked = frozenset(wanted)
        names = [name for name in names if name in asked]
    return [
        DescribeConfigsResourceResult(
            name=name, value=context.log_levels.level(name), config_source=ConfigSource.DYNAMIC_BROKER_LOGGER
        )
        for name in names
    ]


def alter_loggers(
    context: LoggersContext, resource: AlterConfigsResource, *, validate_only: bool, repeated: bool
) -> AlterConfigsResourceResponse:
    """Sets or resets levels: all of the resource or none, and none if the request names it twice (``repeated``)."""
    response = AlterConfigsResourceResponse(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        if repeated:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource appears twice in the request")
        _check_broker(context, resource.resource_name)
        _check_changes(context, resource.configs)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
        return response
    for change in () if validate_only else resource.configs:
        if change.config_operation == _DELETE or change.value is None:
            context.log_levels.reset(change.name)
        else:
            context.log_levels.set(change.name, change.value)
    return response


def _check_broker(context: LoggersContext, broker: str) -> None:
    if broker != str(context.broker_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"this is broker {context.broker_id}: ask broker {broker!r} for its loggers"
        )


def _check_changes(context: LoggersContext, changes: Sequence[AlterableConfig]) -> None:
    known = frozenset(context.log_levels.names())
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
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} = {change.value!r}: must be one of {', '.join(LEVELS)}")
