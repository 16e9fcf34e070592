"""The parts of a consumer that make it a member of a group, chosen by ``group.protocol``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from moldau.cluster.group_metadata import GroupMetadata
from moldau.consumer.core.assignors import assignors_of
from moldau.consumer.core.membership import GroupIdentity, Membership
from moldau.consumer.group import GroupClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import TopicPartition
    from moldau.runtime.config import Config


def membership_of(
    client: ClusterClient, config: Config, group_id: str, assignment: Callable[[], list[TopicPartition]]
) -> tuple[Membership, GroupClient]:
    """Returns a member of ``group_id`` that has not joined yet, and what sends its requests.

    ``assignment`` returns the partitions that the consumer reads now.
    """
    identity = GroupIdentity(
        group_id=group_id,
        instance_id=config.get_str_or_none("group.instance.id"),
        session_timeout_ms=config.get_int("session.timeout.ms"),
        rebalance_timeout_ms=config.get_int("max.poll.interval.ms"),
        rack=config.get_str("client.rack") or None,
    )
    if config.get_str("group.protocol") == "classic":
        membership = Membership(identity, assignors_of(config.get_list("partition.assignment.strategy")))
        return membership, GroupClient(client, group_id, config, membership)
    from moldau.consumer.core.epoch_membership import EpochMembership  # not loaded by members of classic groups
    from moldau.consumer.epoch_group import EpochGroupClient

    member_id = str(UUID(int=client.environment.random.getrandbits(128), version=4))
    epochs = EpochMembership(identity, member_id, config.get_str_or_none("group.remote.assignor"))
    return epochs, EpochGroupClient(client, group_id, config, epochs, assignment)


def metadata_of(group_id: str, membership: Membership | None) -> GroupMetadata:
    """Returns the metadata of a member as of its assignment, or of the group alone without a membership."""
    if membership is None:
        return GroupMetadata(group_id=group_id)
    generation, member_id = membership.assigned_as
    return GroupMetadata(
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=membership.identity.instance_id,
    )
