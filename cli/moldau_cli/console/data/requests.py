"""Requests that the admin client has no call for: eligible leader replicas of partitions, and client quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from moldau.runtime.net.served_versions import UnsupportedApiError
from moldau_cli.console.data.asking import ROWS_MAX

if TYPE_CHECKING:
    from moldau.admin.requester import Requester
    from moldau_cli.output import Json


async def eligible_replicas(requester: Requester, topic: str) -> dict[int, tuple[list[int], list[int]]]:
    """Returns the eligible leader replicas and the last known ones (KIP-966) of a topic's first partitions.

    Raises:
        KafkaError: there is no such topic, or it may not be described.
    """
    response = await requester.ask(
        DescribeTopicPartitionsResponse,
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic)], response_partition_limit=ROWS_MAX),
    )
    found: dict[int, tuple[list[int], list[int]]] = {}
    for each in response.topics:
        if each.error_code:
            raise KafkaError(ErrorCode.of(each.error_code), f"topic {topic}: {ErrorCode.of(each.error_code).message}")
        for part in each.partitions:
            eligible, last_known = part.eligible_leader_replicas, part.last_known_elr
            found[part.partition_index] = (list(eligible or ()), list(last_known or ()))
    return found


async def quotas(requester: Requester, wanted: str = "") -> dict[str, Json]:
    """Returns the quotas (KIP-546) of entities whose text contains ``wanted``.

    Raises:
        KafkaError: the quotas may not be described.
    """
    try:
        response = await requester.ask(
            DescribeClientQuotasResponse,
            DescribeClientQuotasRequest(components=[], strict=False),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
    except UnsupportedApiError:
        return {"rows": [], "total": 0, "notes": ["The brokers do not serve DescribeClientQuotas."]}
    if response.error_code:
        raise KafkaError(ErrorCode.of(response.error_code), response.error_message)
    kept: list[dict[str, Json]] = []
    for entry in response.entries or ():
        entity = ", ".join(f"{one.entity_type} {one.entity_name or '(default)'}" for one in entry.entity)
        if wanted in entity:
            kept += [{"entity": entity, "key": value.key, "value": value.value} for value in entry.values]
    kept.sort(key=lambda row: (str(row["entity"]), str(row["key"])))
    return {"rows": list(kept[:ROWS_MAX]), "total": len(kept), "notes": []}
