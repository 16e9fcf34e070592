"""Configurations of topics, brokers and groups."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from moldau.admin.calls.config_requests import OF_ONE_BROKER, OF_ONE_CONTROLLER, alteration, by_broker
from moldau.admin.checks import checked_alterations, checked_resources
from moldau.admin.failures import ABSENT, error_of, first_retriable, raise_error, raise_failures
from moldau.admin.values import (
    ConfigAlteration,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from moldau.cluster import arguments
from moldau.protocol.answers import Judged, judge
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from moldau.runtime.config import ConfigSource
from moldau.runtime.net.served_versions import NeededVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from moldau.admin.requester import Requester


class Configurations:
    """Sends the requests about configurations."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Implements ``Admin.describe_configs``."""
        wanted = checked_resources("describe_configs", resources)
        groups, name_of = by_broker(wanted, self._of_one_node()), _names(wanted)

        async def describe(node_id: int | None) -> DescribeConfigsResponse:
            if node_id is not None:
                await self._requester.ensure_broker_known(node_id)
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=each.type, resource_name=each.name, configuration_keys=None)
                    for each in groups[node_id]
                ],
                include_documentation=include_documentation,
            )
            return await self._requester.ask(DescribeConfigsResponse, request, node_id=node_id)

        found: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        responses, unanswered = await self._requester.at_once({each: partial(describe, each) for each in groups})
        failures = {name_of(each): error for node_id, error in unanswered.items() for each in groups[node_id]}
        for node_id, response in responses.items():
            judged = _judged(groups[node_id], response.results)
            failures |= {name_of(resource): error for resource, error in judged.failures.items()}
            for resource, result in judged.done.items():
                found[ConfigResource(type=ResourceType(resource.type), name=resource.name)] = {
                    entry.name: ConfigEntry(
                        name=entry.name,
                        value=entry.value,
                        source=ConfigSource(entry.config_source)
                        if 0 <= entry.config_source <= max(ConfigSource)
                        else ConfigSource.UNKNOWN,
                        is_read_only=entry.read_only,
                        is_sensitive=entry.is_sensitive,
                        documentation=entry.documentation,
                    )
                    for entry in result.configs
                }
        raise_failures(failures, found)
        return found

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """Implements ``Admin.list_config_resources``."""
        wanted = arguments.instances("list_config_resources", "types", types, ResourceType, "ResourceType.TOPIC")
        response = await self._requester.ask(
            ListConfigResourcesResponse,
            ListConfigResourcesRequest(resource_types=[int(each) for each in wanted]),
            code_of=lambda each: ErrorCode.of(each.error_code),
            needed=None if set(wanted) == {ResourceType.CLIENT_METRICS} else NeededVersion(1, _listing_of(wanted)),
        )
        raise_error(response.error_code)
        known = set(ResourceType)
        return [
            ConfigResource(type=ResourceType(each.resource_type), name=each.resource_name)
            for each in response.config_resources
            if each.resource_type in known
        ]

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigAlteration]], *, validate_only: bool = False
    ) -> None:
        """Implements ``Admin.alter_configs``."""
        checked_alterations(changes)
        groups, name_of = by_broker(changes, self._of_one_node()), _names(changes)

        async def alter(wanted_id: int | None) -> IncrementalAlterConfigsResponse:
            resources = groups[wanted_id]
            return await self._requester.ask(
                IncrementalAlterConfigsResponse,
                alteration({resource: changes[resource] for resource in resources}, validate_only=validate_only),
                node_id=await self._broker_for(wanted_id, resources),
                code_of=lambda each: first_retriable((r.error_code for r in each.responses), final=ABSENT),
            )

        responses, unanswered = await self._requester.at_once({each: partial(alter, each) for each in groups})
        failures = {name_of(each): error for wanted_id, error in unanswered.items() for each in groups[wanted_id]}
        for wanted_id, response in responses.items():
            for resource, error in _judged(groups[wanted_id], response.responses).failures.items():
                failures[name_of(resource)] = error
        raise_failures(failures)

    def _of_one_node(self) -> tuple[ResourceType, ...]:
        return OF_ONE_CONTROLLER if self._requester.client.asks_controllers else OF_ONE_BROKER

    async def _broker_for(self, node_id: int | None, resources: Iterable[ConfigResource]) -> int | None:
        """Returns the broker that changes configurations of broker ``node_id``; None means any.

        It is the broker itself: only it can check values that depend on its own file, and Kafka's brokers refuse those
        of others. Another one forwards the values of a broker that is down.
        """
        if node_id is None:
            return None
        if any(each.type is ResourceType.BROKER_LOGGER for each in resources):
            await self._requester.ensure_broker_known(node_id)
            return node_id
        return node_id if node_id in await self._requester.fetch_brokers() else None


class _Answer(Protocol):
    """The fields of an answer that say what it is about, and whether it is an error."""

    resource_type: int
    resource_name: str
    error_code: int
    error_message: str | None


R = TypeVar("R", bound=_Answer)


class _Resource(NamedTuple):
    """A resource of a request or an answer, which may be of a type that this client does not know."""

    type: int
    name: str

    def __str__(self) -> str:
        known = {int(each): each.name.lower().replace("_", " ") for each in ResourceType}
        return f"{known.get(self.type, f'type {self.type}')} {self.name or 'default'}"


def _names(wanted: Iterable[ConfigResource]) -> Callable[[ConfigResource | _Resource], str]:
    """Returns how failures are named: by the resource's name, with its type if another of them has the same name."""
    counts = Counter(each.name for each in set(wanted))

    def name_of(resource: ConfigResource | _Resource) -> str:
        is_alone = counts[resource.name] <= 1
        return resource.name if is_alone else str(_Resource(int(resource.type), resource.name))

    return name_of


def _judged(wanted: Iterable[ConfigResource], results: Iterable[R]) -> Judged[_Resource, R]:
    return judge(
        "the configuration of",
        (_Resource(int(each.type), each.name) for each in wanted),
        (
            (_Resource(each.resource_type, each.resource_name), error_of(each.error_code, each.error_message), each)
            for each in results
        ),
    )


def _listing_of(types: Iterable[ResourceType]) -> str:
    """Names a listing of resources; version 0 of its request has no types and lists client metrics only (KIP-714)."""
    others = ", ".join(each.name for each in types if each is not ResourceType.CLIENT_METRICS)
    return f"a listing of {others or 'all types'} (KIP-1142)"
