"""Requests about loggers of a controller (KIP-919). The controller answers them itself, whether it is active or not."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, TypeVar

from moldau.protocol.errors import KafkaError
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau_quorum.controller.entities.configs import merged_resources
from moldau_quorum.metadata.image import RESOURCE_BROKER_LOGGER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from moldau.protocol.messages.describe_configs import DescribeConfigsResource
    from moldau.protocol.schema import Request, Response
    from moldau_quorum.controller.entities.loggers import NodeLoggers

    Wait = Callable[[], Awaitable[Response]]
    Begin = Callable[[Request], Wait]


Q = TypeVar("Q", DescribeConfigsRequest, IncrementalAlterConfigsRequest)


def begin_with_loggers(request: Request, loggers: NodeLoggers, begin: Begin) -> Wait | None:
    """Begins a request that names loggers, and returns what waits for its response; None if it names none.

    ``begin`` takes the same request about the other resources. If that fails, no level changes.
    """
    if isinstance(request, DescribeConfigsRequest):
        return _begin_description(request, loggers, begin)
    if isinstance(request, IncrementalAlterConfigsRequest):
        return _begin_alteration(request, loggers, begin)
    return None


def _begin_description(request: DescribeConfigsRequest, loggers: NodeLoggers, begin: Begin) -> Wait | None:
    own = [each for each in request.resources if each.resource_type == RESOURCE_BROKER_LOGGER]
    others = [each for each in request.resources if each.resource_type != RESOURCE_BROKER_LOGGER]
    if not own:
        return None
    wait = begin(_about(request, others)) if others else None

    async def answer() -> Response:
        response = DescribeConfigsResponse(results=[]) if wait is None else await wait()
        assert isinstance(response, DescribeConfigsResponse), "the dispatcher guarantees the type"
        response.results = [*response.results, *_described(loggers, own)]
        return response

    return answer


def _begin_alteration(request: IncrementalAlterConfigsRequest, loggers: NodeLoggers, begin: Begin) -> Wait | None:
    own = [each for each in request.resources if each.resource_type == RESOURCE_BROKER_LOGGER]
    others = [each for each in request.resources if each.resource_type != RESOURCE_BROKER_LOGGER]
    if not own:
        return None
    wait = begin(_about(request, others)) if others else None

    async def answer() -> Response:
        response = IncrementalAlterConfigsResponse(responses=[]) if wait is None else await wait()
        assert isinstance(response, IncrementalAlterConfigsResponse), "the dispatcher guarantees the type"
        response.responses = [*response.responses, *loggers.alter(own, validate_only=request.validate_only)]
        return response

    return answer


def _about(request: Q, resources: Sequence[object]) -> Q:
    rest = copy(request)
    rest.resources = resources  # type: ignore[assignment]
    return rest


def _described(loggers: NodeLoggers, resources: Iterable[DescribeConfigsResource]) -> list[DescribeConfigsResult]:
    results: list[DescribeConfigsResult] = []
    for resource in merged_resources(resources):
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            result.configs = loggers.describe(resource.resource_name, resource.configuration_keys)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
    return results
