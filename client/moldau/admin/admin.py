"""The admin client: topics, configurations, groups, transactions, replicas and the metadata quorum.

    async with Admin({"bootstrap.servers": "127.0.0.1:9092"}) as admin:
        await admin.create_topics([NewTopic(name="flights", partitions=6, replication_factor=3)])

The client retries a call that fails with a retriable error, until ``default.api.timeout.ms`` is over. A call about
several topics, groups or partitions raises an ``AdminError`` that names each one that failed; the others succeeded.

``Admin`` passes each call to the part that knows its subject (``Calls``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from moldau.admin.calls.subjects import Calls
from moldau.admin.requester import Requester
from moldau.cluster import arguments
from moldau.cluster.background import Background
from moldau.cluster.bootstrap import environment_or_real
from moldau.cluster.caller import AsyncOnly, Caller
from moldau.cluster.client import ClusterClient
from moldau.runtime.config import ADMIN_CONFIG, Config
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from uuid import UUID

    from moldau.admin.calls.acls import Acl, AclFilter
    from moldau.admin.calls.quorum import ApiVersion, FeatureDescription
    from moldau.admin.calls.quotas import ClientQuota, QuotaAlteration, QuotaEntity
    from moldau.admin.calls.tokens import DelegationToken
    from moldau.admin.calls.transactions import (
        FencedProducer,
        ProducerDescription,
        TransactionDescription,
        TransactionListing,
    )
    from moldau.admin.calls.users import UserCredential
    from moldau.admin.values import (
        ClusterDescription,
        ConfigAlteration,
        ConfigEntry,
        ConfigResource,
        CreatedTopic,
        GroupDescription,
        GroupListing,
        LogDirDescription,
        NewTopic,
        PartitionReassignment,
        QuorumDescription,
        ReplicaLogDir,
        ResourceType,
        ShareOffset,
        StreamsGroupDescription,
        TopicDescription,
        TopicListing,
    )
    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.metadata import TopicPartition
    from moldau.producer import PreparedTransaction
    from moldau.runtime.ports.environment import Environment


class Admin(AsyncOnly):
    """The admin client.

    Use it as an async context manager. All methods belong to the trio thread that opened it. A change of metadata is
    committed by the quorum when the call returns; brokers apply it shortly after.
    """

    def __init__(self, config: Mapping[str, object] | Config, *, environment: Environment | None = None) -> None:
        """Takes Kafka's admin keys. With ``bootstrap.controllers`` the client asks the controllers (KIP-919).

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._config = arguments.configuration("Admin", config, ADMIN_CONFIG)
        self._environment = environment
        self._background = Background()
        self._caller = Caller("Admin")
        self._requester = Requester(
            self._caller,
            timeout_ms=self._config.get_int("default.api.timeout.ms"),
            retries=self._config.get_int("retries"),
        )
        self._calls = Calls(self._requester, self._config.get_list("bootstrap.servers"))

    async def __aenter__(self) -> Self:
        """Starts the background task. Does not wait for a broker."""
        self._caller.enter()
        client = ClusterClient(environment_or_real(self._environment), self._config, "admin")
        self._requester.cluster_client = client
        await self._background.open(client.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Closes the connections."""
        client = self._requester.cluster_client
        ended = None if client is None else client.close
        return await self._background.close(kind, error, traceback, ended=ended)

    def within(self, timeout_ms: int) -> Self:
        """Returns this client with less, or more, time: calls on the result end together, ``timeout_ms`` from now.

        A call that does not end in time raises REQUEST_TIMED_OUT, and may still take effect. The result shares this
        client's connections; use it for calls alone: ``await admin.within(5_000).list_topics()``.

        Raises:
            RuntimeError: the client is not open.
        """
        bounded = self._twin()
        bounded._requester = self._requester.within(arguments.at_least("within", "timeout_ms", timeout_ms, 1))
        bounded._calls = Calls(bounded._requester, self._config.get_list("bootstrap.servers"))
        return bounded

    # --- topics

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Creates topics and returns them once the metadata log has committed them.

        Raises:
            AdminError: a topic could not be created.
        """
        return await self._calls.topics.create_topics(topics, validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str | UUID]) -> None:
        """Deletes topics, by name or id, with their records.

        Raises:
            AdminError: a topic could not be deleted.
        """
        await self._calls.topics.delete_topics(names)

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Increases the numbers of partitions of topics to ``counts``, or only checks that it could.

        ``assignments`` holds a list of brokers for each new partition of a topic.

        Raises:
            AdminError: a topic could not get its partitions.
        """
        await self._calls.topics.create_partitions(counts, assignments=assignments, validate_only=validate_only)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """Returns all topics, by name."""
        return await self._calls.topics.list_topics(include_internal=include_internal)

    async def describe_topics(
        self, names: Iterable[str | UUID], *, node_id: int | None = None, include_authorized_operations: bool = False
    ) -> dict[str, TopicDescription]:
        """Returns topics with their partitions, as any broker (or ``node_id``) knows them; ``names`` may hold ids.

        ``include_authorized_operations`` asks what this client may do to each topic (KIP-430), here and in other calls.

        Raises:
            AdminError: a topic does not exist.
        """
        return await self._calls.topics.describe_topics(
            names, node_id=node_id, include_authorized_operations=include_authorized_operations
        )

    async def list_offsets(
        self, wanted: Mapping[tuple[str, int], int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of each partition at the time wanted.

        A time is EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED or Unix milliseconds.

        Raises:
            AdminError: offsets are missing, also with REQUEST_TIMED_OUT; ``results`` has those of the other partitions.
        """
        return await self._calls.topics.list_offsets(wanted, isolation_level=isolation_level)

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Deletes the records below the offsets and returns the new log start offsets.

        The offset -1 deletes all records below the high watermark.

        Raises:
            AdminError: a partition refused the deletion.
        """
        return await self._calls.topics.delete_records(before)

    # --- configurations

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Returns every key of the configurations.

        The request for the configuration of a broker goes to that broker.

        Raises:
            AdminError: a configuration could not be described. Resources of one name are named with their types.
        """
        return await self._calls.configurations.describe_configs(resources, include_documentation=include_documentation)

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """Returns the resources that have configurations, of all types or of the given ones (KIP-1142).

        Raises:
            KafkaError: the broker answered with an error; UNSUPPORTED_VERSION if the brokers list client metrics only,
                as those of Kafka before 4.1 do.
        """
        return await self._calls.configurations.list_config_resources(types)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigAlteration]], *, validate_only: bool = False
    ) -> None:
        """Changes single keys; all keys of a resource change together or not at all.

        A broker changes the levels of its loggers; the controller makes all other changes. Brokers are asked at the
        same time, so one that does not answer keeps no other from changing.

        Raises:
            AdminError: resources were not changed; the others were. Resources of one name are named with their types.
            KafkaError: no broker answers, or the only one that is asked does not.
        """
        await self._calls.configurations.alter_configs(changes, validate_only=validate_only)

    # --- quorum

    async def describe_cluster(
        self, *, include_fenced: bool = False, include_authorized_operations: bool = False
    ) -> ClusterDescription:
        """Returns the id, the controller and the live brokers of the cluster.

        With ``include_fenced``, brokers that are down or not ready yet are there too (KIP-1073, from Kafka 4.0 on).

        Raises:
            KafkaError: the broker answered with an error.
        """
        return await self._calls.quorum.describe_cluster(
            include_fenced=include_fenced, include_authorized_operations=include_authorized_operations
        )

    async def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns an id for this client, as KIP-714 has them; admin clients push no metrics, as in Kafka.

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: UNSUPPORTED_VERSION if brokers take no client metrics; REQUEST_TIMED_OUT, by default after
                ``default.api.timeout.ms``.
        """
        return await self._calls.quorum.client_instance_id(timeout_ms)

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes the registration of a broker that does not run any more; the change is committed on return.

        Raises:
            KafkaError: BROKER_ID_NOT_REGISTERED, among others.
        """
        await self._calls.quorum.unregister_broker(broker_id)

    async def describe_quorum(self) -> QuorumDescription:
        """Returns the state of the metadata quorum.

        Raises:
            KafkaError: the quorum answered with an error.
        """
        return await self._calls.quorum.describe_quorum()

    async def add_voter(
        self, voter_id: int, host: str, port: int, *, directory_id: UUID = ZERO_UUID, listener: str = "CONTROLLER"
    ) -> None:
        """Makes a running controller a voter (KIP-853); Kafka needs ``directory_id``, see ``describe_quorum``.

        Returns when it has caught up and the change is committed; ``request.timeout.ms`` bounds that too.

        Raises:
            KafkaError: DUPLICATE_VOTER, INVALID_REQUEST, or REQUEST_TIMED_OUT if it did not catch up.
        """
        await self._calls.quorum.add_voter(voter_id, host, port, directory_id=directory_id, listener=listener)

    async def remove_voter(self, voter_id: int, *, directory_id: UUID = ZERO_UUID) -> None:
        """Removes a voter; the change is committed on return. ``directory_id`` is as in ``add_voter``.

        Raises:
            KafkaError: VOTER_NOT_FOUND, among others.
        """
        await self._calls.quorum.remove_voter(voter_id, directory_id=directory_id)

    async def describe_features(self) -> list[FeatureDescription]:
        """Returns the features that a broker supports, by name.

        Raises:
            KafkaError: the broker answered with an error.
        """
        return await self._calls.quorum.describe_features()

    async def describe_api_versions(self, broker_ids: Iterable[int]) -> dict[int, list[ApiVersion]]:
        """Returns the APIs of brokers with the versions that they serve, by API key.

        Raises:
            KafkaError: a broker failed; if several were asked, an ``AdminError`` whose ``results`` has the others.
        """
        return await self._calls.quorum.describe_api_versions(broker_ids)

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        allow_downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Finalizes feature levels, all or none.

        ``allow_downgrade`` lowers them, and raises none, if no recorded state is lost. ``unsafe`` does so even if the
        lower level cannot represent recorded state.

        Raises:
            AdminError: a level was refused.
            KafkaError: the whole request was refused.
        """
        await self._calls.quorum.update_features(
            levels, allow_downgrade=allow_downgrade, unsafe=unsafe, validate_only=validate_only
        )

    # --- groups

    async def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Returns the groups of all coordinators, by id. All brokers are asked at the same time.

        Raises:
            AdminError: ``failures`` names brokers that did not answer, ``results`` has the groups of the others.
            KafkaError: no broker answered.
        """
        return await self._calls.groups.list_groups(states=states, types=types)

    async def describe_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Returns groups, of the classic or the consumer protocol, with their members.

        A group that does not exist is in state ``Dead``.

        Raises:
            AdminError: a group could not be described.
        """
        return await self._calls.groups.describe_groups(
            group_ids, include_authorized_operations=include_authorized_operations
        )

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes empty groups with their offsets.

        Raises:
            AdminError: a group could not be deleted.
        """
        await self._calls.groups.delete_groups(group_ids)

    async def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns every committed offset of a group.

        ``require_stable`` waits until no transaction with offsets of the group is open (KIP-447).

        Raises:
            KafkaError: the coordinator answered with an error.
        """
        return await self._calls.groups.list_group_offsets(group_id, require_stable=require_stable)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Deletes committed offsets of a group; its members must not be subscribed to the topics.

        Raises:
            AdminError: GROUP_SUBSCRIBED_TO_TOPIC for a partition, among others.
            KafkaError: the whole request was refused.
        """
        await self._calls.groups.delete_group_offsets(group_id, partitions)

    async def remove_group_members(
        self, group_id: str, instance_ids: Iterable[str] | None = None, *, reason: str | None = None
    ) -> list[str]:
        """Removes static members by their instance ids, or all members, and returns the names of those removed.

        A removed member that still runs joins again.

        Raises:
            AdminError: UNKNOWN_MEMBER_ID for a member, among others.
            KafkaError: the whole request was refused.
        """
        return await self._calls.groups.remove_group_members(group_id, instance_ids, reason=reason)

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        *,
        retention_ms: int | None = None,
    ) -> None:
        """Sets committed offsets of a group without members; ``retention_ms`` replaces ``offsets.retention.minutes``.

        Raises:
            CommitFailedError: the group has members.
            AdminError: the coordinator refused the offsets of some partitions; those of the others are set.
        """
        await self._calls.groups.alter_group_offsets(group_id, offsets, retention_ms=retention_ms)

    # --- share groups

    async def describe_share_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Returns share groups with their members.

        Raises:
            AdminError: GROUP_ID_NOT_FOUND for a group, among others.
        """
        return await self._calls.share_groups.describe_share_groups(
            group_ids, include_authorized_operations=include_authorized_operations
        )

    async def delete_share_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes share groups without members, with the states of their share-partitions.

        Raises:
            AdminError: a group could not be deleted, or is no share group; in the latter case none is deleted.
        """
        await self._calls.share_groups.delete_share_groups(group_ids)

    async def list_share_group_offsets(self, group_id: str) -> dict[TopicPartition, ShareOffset]:
        """Returns start offset and lag of each share-partition whose state has begun.

        Raises:
            AdminError: the offset of a partition could not be read.
            KafkaError: GROUP_ID_NOT_FOUND, among others.
        """
        return await self._calls.share_groups.list_share_group_offsets(group_id)

    async def alter_share_group_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Sets start offsets of a share group without members, which begins if it does not exist.

        The state of single deliveries is forgotten.

        Raises:
            AdminError: an offset was refused.
            KafkaError: NON_EMPTY_GROUP, among others.
        """
        await self._calls.share_groups.alter_share_group_offsets(group_id, offsets)

    async def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Deletes what a share group without members knows of topics.

        Raises:
            AdminError: UNKNOWN_TOPIC_OR_PARTITION for a topic of which the group knows nothing, among others.
            KafkaError: NON_EMPTY_GROUP, among others.
        """
        await self._calls.share_groups.delete_share_group_offsets(group_id, topics)

    # --- streams groups

    async def describe_streams_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, StreamsGroupDescription]:
        """Returns streams groups with their topology, members and tasks (KIP-1071).

        Raises:
            AdminError: GROUP_ID_NOT_FOUND for a group, among others.
        """
        return await self._calls.streams_groups.describe_streams_groups(
            group_ids, include_authorized_operations=include_authorized_operations
        )

    async def delete_streams_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes streams groups without members, with their committed offsets; their internal topics stay.

        Raises:
            AdminError: a group could not be deleted, or is no streams group; in the latter case none is deleted.
        """
        await self._calls.streams_groups.delete_streams_groups(group_ids)

    async def list_streams_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns the committed offsets of a streams group; with ``require_stable``, only those of ended transactions.

        Raises:
            KafkaError: the whole request was refused.
        """
        return await self._calls.streams_groups.list_streams_group_offsets(group_id, require_stable=require_stable)

    async def alter_streams_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int | CommittedOffset]
    ) -> None:
        """Sets committed offsets of a streams group without members.

        Raises:
            CommitFailedError: the group has members.
            AdminError: the coordinator refused the offsets of some partitions; those of the others are set.
        """
        await self._calls.streams_groups.alter_streams_group_offsets(group_id, offsets)

    async def delete_streams_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Deletes committed offsets of a streams group, of topics that no member reads.

        Raises:
            AdminError: GROUP_SUBSCRIBED_TO_TOPIC for a partition, among others.
        """
        await self._calls.streams_groups.delete_streams_group_offsets(group_id, partitions)

    # --- replicas

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[TopicPartition]:
        """Elects preferred leaders and returns the partitions whose leader changed.

        ``partitions`` is None for all partitions. ``unclean`` elects any live replica.

        Raises:
            AdminError: a partition got no leader.
            KafkaError: the whole request was refused.
        """
        return await self._calls.replicas.elect_leaders(partitions, unclean=unclean)

    async def alter_partition_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None], *, allow_replication_factor_change: bool = True
    ) -> None:
        """Moves replicas of partitions to the brokers given; None cancels a move.

        ``allow_replication_factor_change`` says whether a partition may get more or fewer replicas (KIP-860).

        Raises:
            AdminError: a move was refused.
            KafkaError: the whole request was refused.
        """
        await self._calls.replicas.alter_partition_reassignments(
            targets, allow_replication_factor_change=allow_replication_factor_change
        )

    async def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the moves of replicas that are in progress.

        Raises:
            KafkaError: the controller answered with an error.
        """
        return await self._calls.replicas.list_partition_reassignments()

    async def describe_log_dirs(
        self, broker_ids: Iterable[int], *, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        """Returns the log directories of brokers with the partitions in them, or those of ``partitions``.

        An empty list asks for the directories alone, which costs little where partitions are many.

        Raises:
            AdminError: brokers are not alive or answered with an error; ``results`` has the others.
            KafkaError: the only broker that is asked did so.
        """
        return await self._calls.replicas.describe_log_dirs(broker_ids, partitions=partitions)

    async def alter_replica_log_dirs(self, moves: Mapping[tuple[str, int, int], str]) -> None:
        """Moves replicas to other log directories of their brokers; returns when the brokers have begun.

        A replica is (topic, partition, broker), a directory one of the broker's ``log.dirs``.

        Raises:
            AdminError: LOG_DIR_NOT_FOUND, REPLICA_NOT_AVAILABLE, INVALID_REPLICA_ASSIGNMENT where the directory is
                cordoned, or BROKER_NOT_AVAILABLE, for replicas, among others. The others move.
            KafkaError: the only broker that is asked is not alive.
        """
        await self._calls.replicas.alter_replica_log_dirs(moves)

    async def describe_replica_log_dirs(
        self, replicas: Iterable[tuple[str, int, int]]
    ) -> dict[tuple[str, int, int], ReplicaLogDir]:
        """Returns the log directory of each replica, which is (topic, partition, broker).

        Raises:
            AdminError: a broker is not alive, or refused; ``results`` has the replicas of the others.
        """
        return await self._calls.replicas.describe_replica_log_dirs(replicas)

    # --- ACLs

    async def describe_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """Returns the ACLs that pass a filter, or all.

        Raises:
            KafkaError: the caller may not describe the cluster, or no authorizer is on (SECURITY_DISABLED).
        """
        return await self._calls.acls.describe_acls(wanted)

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Adds ACLs; one that exists is not an error.

        Raises:
            AdminError: the cluster refused some.
            ValueError: a kind, operation or permission is unknown.
        """
        await self._calls.acls.create_acls(acls)

    async def delete_acls(self, wanted: AclFilter | Iterable[AclFilter]) -> list[Acl]:
        """Deletes the ACLs that pass a filter, or one of several, in one request, and returns them.

        Raises:
            AdminError: the cluster refused some filters.
            KafkaError: the caller may not alter the cluster, or no authorizer is on (SECURITY_DISABLED).
        """
        return await self._calls.acls.delete_acls(wanted)

    # --- quotas

    async def describe_client_quotas(
        self, wanted: QuotaEntity | None = None, *, strict: bool = False
    ) -> list[ClientQuota]:
        """Returns the quotas of the entities that have the parts of ``wanted``, or all.

        ``strict`` leaves out entities that have further parts.

        Raises:
            KafkaError: the caller may not describe the cluster's configuration.
        """
        return await self._calls.quotas.describe_client_quotas(wanted, strict=strict)

    async def alter_client_quotas(self, alterations: Iterable[QuotaAlteration], *, validate_only: bool = False) -> None:
        """Sets and removes quotas, which brokers obey as soon as they know them.

        Raises:
            AdminError: the cluster refused some entities.
            ValueError: an entity is none to which a quota can belong.
        """
        await self._calls.quotas.alter_client_quotas(alterations, validate_only=validate_only)

    # --- users

    async def describe_users(self, names: Iterable[str] | None = None) -> list[UserCredential]:
        """Returns the SCRAM credentials of all users or of the named ones, without their secrets.

        Raises:
            AdminError: a named user has none.
        """
        return await self._calls.users.describe_users(names)

    async def set_user_password(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-256", iterations: int = 4096
    ) -> None:
        """Adds or replaces a SCRAM credential; the password itself does not leave this client.

        Raises:
            AdminError: the cluster refused it.
            ValueError: the mechanism or the number of iterations is not allowed.
        """
        await self._calls.users.set_user_password(user, password, mechanism=mechanism, iterations=iterations)

    async def remove_user_credential(self, user: str, *, mechanism: str = "SCRAM-SHA-256") -> None:
        """Removes a SCRAM credential; connections that have authenticated with it stay.

        Raises:
            AdminError: there is no such credential.
        """
        await self._calls.users.remove_user_credential(user, mechanism=mechanism)

    async def create_delegation_token(
        self, *, owner: str | None = None, renewers: Iterable[str] = (), max_lifetime_ms: int = -1
    ) -> DelegationToken:
        """Creates a token with which others log in as ``owner`` (KIP-48); by default the owner is this client's user.

        ``renewers`` are principals that may renew it. ``max_lifetime_ms`` -1 means the greatest life that is allowed.

        Raises:
            KafkaError: this client may not ask for tokens, or not for that owner's, or the cluster has no tokens.
            ValueError: a principal is not of the form User:name.
        """
        return await self._calls.tokens.create(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms)

    async def renew_delegation_token(self, hmac: str, *, period_ms: int = -1) -> int:
        """Extends a token's life to ``period_ms`` from now, -1 for the usual time; returns when it expires.

        Raises:
            KafkaError: there is no such token, it has expired, or this client may not renew it.
            ValueError: ``hmac`` is not base64.
        """
        return await self._calls.tokens.renew(hmac, period_ms=period_ms)

    async def expire_delegation_token(self, hmac: str, *, period_ms: int = -1) -> int:
        """Lets a token expire ``period_ms`` from now, at once for -1; returns when it expires.

        Raises:
            KafkaError: there is no such token, it has expired, or this client may not change it.
            ValueError: ``hmac`` is not base64.
        """
        return await self._calls.tokens.expire(hmac, period_ms=period_ms)

    async def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        """Returns the tokens that this client may see, all or those of some owners.

        Raises:
            KafkaError: this client may not ask for tokens, or the cluster has none.
            ValueError: a principal is not of the form User:name.
        """
        return await self._calls.tokens.describe(owners)

    # --- transactions

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all coordinators that pass every filter, by id.

        ``id_pattern`` is a regular expression of RE2 that the whole id must match.

        Raises:
            AdminError: ``failures`` names brokers that did not answer, ``results`` has what the others listed.
            KafkaError: none did: INVALID_REQUEST for an unknown state, INVALID_REGULAR_EXPRESSION for a wrong pattern,
                UNSUPPORTED_VERSION for a pattern where brokers are older than Kafka 4.1, among others.
        """
        return await self._calls.transactions.list_transactions(
            states=states, producer_ids=producer_ids, min_duration_ms=min_duration_ms, id_pattern=id_pattern
        )

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Returns transactional ids with the partitions of their transactions.

        Raises:
            AdminError: TRANSACTIONAL_ID_NOT_FOUND, among others.
        """
        return await self._calls.transactions.describe_transactions(transactional_ids)

    async def describe_producers(self, partition: tuple[str, int]) -> list[ProducerDescription]:
        """Returns the active producers of a partition, from its leader, by producer id.

        Raises:
            KafkaError: the partition has no leader or does not exist.
        """
        return await self._calls.transactions.describe_producers(partition)

    async def abort_transaction(
        self, partition: tuple[str, int], *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Aborts a hanging transaction in one partition, without its coordinator.

        Use it only if no coordinator knows the transaction; otherwise use ``terminate_transaction``.

        Raises:
            KafkaError: the partition refused the marker.
        """
        await self._calls.transactions.abort_transaction(
            partition, producer_id=producer_id, producer_epoch=producer_epoch, coordinator_epoch=coordinator_epoch
        )

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Fences the producers of transactional ids, which also aborts their open transactions.

        Raises:
            AdminError: a coordinator refused; the other ids are fenced.
        """
        return await self._calls.transactions.fence_producers(transactional_ids)

    async def terminate_transaction(self, transactional_id: str) -> None:
        """Fences the producer of a transactional id and aborts its open transaction.

        Raises:
            KafkaError: the coordinator answered with an error.
        """
        await self._calls.transactions.terminate_transaction(transactional_id)

    async def end_transaction(self, prepared: PreparedTransaction, *, commit: bool) -> None:
        """Commits or aborts a transaction that ``Producer.prepare_transaction`` handed over, from any process.

        The call may be repeated with the same decision until it succeeds, also after a lost answer.

        Raises:
            KafkaError: PRODUCER_FENCED, INVALID_PRODUCER_EPOCH or INVALID_TXN_STATE: the transaction has ended
                otherwise, or another one of the same transactional id has begun since. REQUEST_TIMED_OUT: the outcome
                is unknown.
        """
        await self._calls.transactions.end_transaction(prepared, commit=commit)
