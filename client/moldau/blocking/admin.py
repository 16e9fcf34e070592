"""The admin client for ordinary threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from moldau.admin import Admin as TrioAdmin
from moldau.blocking.portal import Portal, PortalClient
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from moldau.admin import (
        ApiVersion,
        ClusterDescription,
        ConfigAlteration,
        ConfigEntry,
        ConfigResource,
        CreatedTopic,
        DelegationToken,
        FeatureDescription,
        FencedProducer,
        GroupDescription,
        GroupListing,
        LogDirDescription,
        NewTopic,
        PartitionReassignment,
        ProducerDescription,
        QuorumDescription,
        ReplicaLogDir,
        ResourceType,
        ShareOffset,
        StreamsGroupDescription,
        TopicDescription,
        TopicListing,
        TransactionDescription,
        TransactionListing,
        UserCredential,
    )
    from moldau.admin.calls.acls import Acl, AclFilter
    from moldau.admin.calls.quotas import ClientQuota, QuotaAlteration, QuotaEntity
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer import CommittedOffset
    from moldau.producer import PreparedTransaction
    from moldau.runtime.config import Config


class Admin(PortalClient):
    """An admin client for ordinary threads; see ``moldau.admin.Admin``. Threads may share it."""

    def __init__(self, config: Mapping[str, object] | Config) -> None:
        """Takes Kafka's admin configuration keys.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._admin = TrioAdmin(config)
        self._portal: Portal[TrioAdmin] = Portal("moldau-admin", self._admin)

    def __enter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._portal.start()
        return self

    def within(self, timeout_ms: int) -> Self:
        """Returns this client with calls that end together, ``timeout_ms`` from now; see ``moldau.Admin.within``.

        Raises:
            RuntimeError: the client is not open.
        """
        bounded = self._twin()
        bounded._admin = self._admin.within(timeout_ms)
        return bounded

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Creates topics.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.create_topics, topics, validate_only=validate_only)

    def delete_topics(self, names: Iterable[str | UUID]) -> None:
        """Deletes topics.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.delete_topics, names)

    def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Increases the numbers of partitions of topics.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.create_partitions, counts, assignments=assignments, validate_only=validate_only)

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """Returns all topics, by name."""
        return self._portal.call(self._admin.list_topics, include_internal=include_internal)

    def describe_topics(
        self, names: Iterable[str | UUID], *, node_id: int | None = None, include_authorized_operations: bool = False
    ) -> dict[str, TopicDescription]:
        """Returns topics with their partitions, as any broker (or ``node_id``) knows them.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(
            self._admin.describe_topics,
            names,
            node_id=node_id,
            include_authorized_operations=include_authorized_operations,
        )

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Returns configurations.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.describe_configs, resources, include_documentation=include_documentation)

    def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """Returns the resources that have configurations.

        Raises:
            KafkaError: the broker answered with an error; UNSUPPORTED_VERSION if the brokers list client metrics only.
        """
        return self._portal.call(self._admin.list_config_resources, types)

    def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigAlteration]], *, validate_only: bool = False
    ) -> None:
        """Changes single keys.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.alter_configs, changes, validate_only=validate_only)

    def describe_cluster(
        self, *, include_fenced: bool = False, include_authorized_operations: bool = False
    ) -> ClusterDescription:
        """Returns the id, the controller and the live brokers of the cluster; also fenced ones if they are wanted."""
        return self._portal.call(
            self._admin.describe_cluster,
            include_fenced=include_fenced,
            include_authorized_operations=include_authorized_operations,
        )

    def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns an id for this client, as KIP-714 has them; admin clients push no metrics, as in Kafka.

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: UNSUPPORTED_VERSION if brokers take no client metrics; REQUEST_TIMED_OUT, by default after
                ``default.api.timeout.ms``.
        """
        return self._portal.call(self._admin.client_instance_id, timeout_ms)

    def unregister_broker(self, broker_id: int) -> None:
        """Removes the registration of a broker that does not run any more.

        Raises:
            KafkaError: BROKER_ID_NOT_REGISTERED, among others.
        """
        self._portal.call(self._admin.unregister_broker, broker_id)

    def describe_quorum(self) -> QuorumDescription:
        """Returns the state of the metadata quorum."""
        return self._portal.call(self._admin.describe_quorum)

    def add_voter(
        self, voter_id: int, host: str, port: int, *, directory_id: UUID = ZERO_UUID, listener: str = "CONTROLLER"
    ) -> None:
        """Makes a running controller a voter; the change is committed on return.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        self._portal.call(self._admin.add_voter, voter_id, host, port, directory_id=directory_id, listener=listener)

    def remove_voter(self, voter_id: int, *, directory_id: UUID = ZERO_UUID) -> None:
        """Removes a voter; the change is committed on return.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        self._portal.call(self._admin.remove_voter, voter_id, directory_id=directory_id)

    def describe_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        """Returns the ACLs that pass a filter, or all.

        Raises:
            KafkaError: the caller may not describe the cluster, or no authorizer is on (SECURITY_DISABLED).
        """
        return self._portal.call(self._admin.describe_acls, wanted)

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Adds ACLs; one that exists is not an error.

        Raises:
            AdminError: the cluster refused some.
            ValueError: a kind, operation or permission is unknown.
        """
        self._portal.call(self._admin.create_acls, acls)

    def delete_acls(self, wanted: AclFilter | Iterable[AclFilter]) -> list[Acl]:
        """Deletes the ACLs that pass a filter, or one of several, in one request, and returns them.

        Raises:
            AdminError: the cluster refused some filters.
            KafkaError: the caller may not alter the cluster, or no authorizer is on (SECURITY_DISABLED).
        """
        return self._portal.call(self._admin.delete_acls, wanted)

    def describe_client_quotas(self, wanted: QuotaEntity | None = None, *, strict: bool = False) -> list[ClientQuota]:
        """Returns the quotas of the entities that have the parts of ``wanted``, or all.

        ``strict`` leaves out entities that have further parts.

        Raises:
            KafkaError: the caller may not describe the cluster's configuration.
        """
        return self._portal.call(self._admin.describe_client_quotas, wanted, strict=strict)

    def alter_client_quotas(self, alterations: Iterable[QuotaAlteration], *, validate_only: bool = False) -> None:
        """Sets and removes quotas, which brokers obey as soon as they know them.

        Raises:
            AdminError: the cluster refused some entities.
            ValueError: an entity is none to which a quota can belong.
        """
        self._portal.call(self._admin.alter_client_quotas, alterations, validate_only=validate_only)

    def describe_users(self, names: Iterable[str] | None = None) -> list[UserCredential]:
        """Returns the SCRAM credentials of all users or of the named ones, without their secrets.

        Raises:
            AdminError: a named user has none.
        """
        return self._portal.call(self._admin.describe_users, names)

    def set_user_password(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-256", iterations: int = 4096
    ) -> None:
        """Adds or replaces a SCRAM credential; the password itself does not leave this client.

        Raises:
            AdminError: the cluster refused it.
            ValueError: the mechanism or the number of iterations is not allowed.
        """
        self._portal.call(self._admin.set_user_password, user, password, mechanism=mechanism, iterations=iterations)

    def remove_user_credential(self, user: str, *, mechanism: str = "SCRAM-SHA-256") -> None:
        """Removes a SCRAM credential; connections that have authenticated with it stay.

        Raises:
            AdminError: there is no such credential.
        """
        self._portal.call(self._admin.remove_user_credential, user, mechanism=mechanism)

    def create_delegation_token(
        self, *, owner: str | None = None, renewers: Iterable[str] = (), max_lifetime_ms: int = -1
    ) -> DelegationToken:
        """Creates a token with which others log in as ``owner`` (KIP-48); by default the owner is this client's user.

        ``renewers`` are principals that may renew it. ``max_lifetime_ms`` -1 means the greatest life that is allowed.

        Raises:
            KafkaError: this client may not ask for tokens, or not for that owner's, or the cluster has no tokens.
            ValueError: a principal is not of the form User:name.
        """
        return self._portal.call(
            self._admin.create_delegation_token, owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms
        )

    def renew_delegation_token(self, hmac: str, *, period_ms: int = -1) -> int:
        """Extends a token's life to ``period_ms`` from now, -1 for the usual time; returns when it expires.

        Raises:
            KafkaError: there is no such token, it has expired, or this client may not renew it.
            ValueError: ``hmac`` is not base64.
        """
        return self._portal.call(self._admin.renew_delegation_token, hmac, period_ms=period_ms)

    def expire_delegation_token(self, hmac: str, *, period_ms: int = -1) -> int:
        """Lets a token expire ``period_ms`` from now, at once for -1; returns when it expires.

        Raises:
            KafkaError: there is no such token, it has expired, or this client may not change it.
            ValueError: ``hmac`` is not base64.
        """
        return self._portal.call(self._admin.expire_delegation_token, hmac, period_ms=period_ms)

    def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        """Returns the tokens that this client may see, all or those of some owners.

        Raises:
            KafkaError: this client may not ask for tokens, or the cluster has none.
            ValueError: a principal is not of the form User:name.
        """
        return self._portal.call(self._admin.describe_delegation_tokens, owners)

    def describe_features(self) -> list[FeatureDescription]:
        """Returns the features that a broker supports, with the finalized levels."""
        return self._portal.call(self._admin.describe_features)

    def describe_api_versions(self, broker_ids: Iterable[int]) -> dict[int, list[ApiVersion]]:
        """Returns the APIs of brokers with the versions that they serve, by API key.

        Raises:
            KafkaError: a broker failed; if several were asked, an ``AdminError`` whose ``results`` has the others.
        """
        return self._portal.call(self._admin.describe_api_versions, broker_ids)

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        allow_downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Finalizes feature levels, all or none; see ``moldau.Admin``.

        Raises:
            KafkaError: the broker or the client reports an error.
            AdminError: some of the items failed.
        """
        self._portal.call(
            self._admin.update_features,
            levels,
            allow_downgrade=allow_downgrade,
            unsafe=unsafe,
            validate_only=validate_only,
        )

    def list_offsets(
        self, wanted: Mapping[tuple[str, int], int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of each partition at EARLIEST, LATEST, MAX_TIMESTAMP or a time.

        Raises:
            AdminError: offsets are missing; ``results`` has those of the other partitions.
        """
        return self._portal.call(self._admin.list_offsets, wanted, isolation_level=isolation_level)

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all coordinators.

        Raises:
            AdminError: brokers did not list theirs; ``results`` has what the others listed.
            KafkaError: the broker or the client reports an error.
        """
        return self._portal.call(
            self._admin.list_transactions,
            states=states,
            producer_ids=producer_ids,
            min_duration_ms=min_duration_ms,
            id_pattern=id_pattern,
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Returns transactional ids with the partitions of their transactions.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.describe_transactions, transactional_ids)

    def describe_producers(self, partition: tuple[str, int]) -> list[ProducerDescription]:
        """Returns the active producers of a partition, from its leader.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        return self._portal.call(self._admin.describe_producers, partition)

    def abort_transaction(
        self, partition: tuple[str, int], *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Aborts a hanging transaction in one partition, without its coordinator.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        self._portal.call(
            self._admin.abort_transaction,
            partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Fences the producers of transactional ids.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.fence_producers, transactional_ids)

    def terminate_transaction(self, transactional_id: str) -> None:
        """Fences the producer of a transactional id and aborts its open transaction.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        self._portal.call(self._admin.terminate_transaction, transactional_id)

    def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Returns the groups of all coordinators.

        Raises:
            AdminError: brokers did not list theirs; ``results`` has the groups of the others.
        """
        return self._portal.call(self._admin.list_groups, states=states, types=types)

    def describe_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Returns groups, of the classic or the consumer protocol, with their members.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(
            self._admin.describe_groups, group_ids, include_authorized_operations=include_authorized_operations
        )

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes empty groups.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.delete_groups, group_ids)

    def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns every committed offset of a group; ``require_stable`` waits for open transactions."""
        return self._portal.call(self._admin.list_group_offsets, group_id, require_stable=require_stable)

    def delete_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Deletes committed offsets of a group.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.delete_group_offsets, group_id, partitions)

    def remove_group_members(
        self, group_id: str, instance_ids: Iterable[str] | None = None, *, reason: str | None = None
    ) -> list[str]:
        """Removes members of a group and returns their names.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.remove_group_members, group_id, instance_ids, reason=reason)

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        *,
        retention_ms: int | None = None,
    ) -> None:
        """Sets committed offsets of a group without members."""
        self._portal.call(self._admin.alter_group_offsets, group_id, offsets, retention_ms=retention_ms)

    def describe_share_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Returns share groups with their members.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(
            self._admin.describe_share_groups, group_ids, include_authorized_operations=include_authorized_operations
        )

    def delete_share_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes share groups without members.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.delete_share_groups, group_ids)

    def list_share_group_offsets(self, group_id: str) -> dict[TopicPartition, ShareOffset]:
        """Returns start offset and lag of each share-partition whose state has begun.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.list_share_group_offsets, group_id)

    def alter_share_group_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Sets start offsets of a share group without members.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.alter_share_group_offsets, group_id, offsets)

    def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Deletes what a share group without members knows of topics.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.delete_share_group_offsets, group_id, topics)

    # --- streams groups

    def describe_streams_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, StreamsGroupDescription]:
        """Returns streams groups with their topology, members and tasks (KIP-1071).

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(
            self._admin.describe_streams_groups, group_ids, include_authorized_operations=include_authorized_operations
        )

    def delete_streams_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes streams groups without members, with their committed offsets; their internal topics stay.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.delete_streams_groups, group_ids)

    def list_streams_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns the committed offsets of a streams group.

        Raises:
            KafkaError: some of the items failed.
        """
        return self._portal.call(self._admin.list_streams_group_offsets, group_id, require_stable=require_stable)

    def alter_streams_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int | CommittedOffset]
    ) -> None:
        """Sets committed offsets of a streams group without members.

        Raises:
            CommitFailedError: the group has members.
            AdminError: the coordinator refused the offsets of some partitions; those of the others are set.
        """
        self._portal.call(self._admin.alter_streams_group_offsets, group_id, offsets)

    def delete_streams_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Deletes committed offsets of a streams group, of topics that no member reads.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.delete_streams_group_offsets, group_id, partitions)

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Deletes the records below the offsets and returns the new log start offsets.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.delete_records, before)

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[TopicPartition]:
        """Elects preferred leaders; returns the partitions that changed.

        Raises:
            AdminError: some of the items failed.
        """
        return self._portal.call(self._admin.elect_leaders, partitions, unclean=unclean)

    def alter_partition_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None], *, allow_replication_factor_change: bool = True
    ) -> None:
        """Moves replicas; None cancels a move.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(
            self._admin.alter_partition_reassignments,
            targets,
            allow_replication_factor_change=allow_replication_factor_change,
        )

    def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the moves of replicas that are in progress."""
        return self._portal.call(self._admin.list_partition_reassignments)

    def describe_log_dirs(
        self, broker_ids: Iterable[int], *, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        """Returns the log directories of brokers, with all partitions or those that are named."""
        return self._portal.call(self._admin.describe_log_dirs, broker_ids, partitions=partitions)

    def end_transaction(self, prepared: PreparedTransaction, *, commit: bool) -> None:
        """Commits or aborts a transaction that ``Producer.prepare_transaction`` handed over."""
        self._portal.call(self._admin.end_transaction, prepared, commit=commit)

    def alter_replica_log_dirs(self, moves: Mapping[tuple[str, int, int], str]) -> None:
        """Moves replicas to other log directories of their brokers.

        Raises:
            AdminError: some of the items failed.
        """
        self._portal.call(self._admin.alter_replica_log_dirs, moves)

    def describe_replica_log_dirs(
        self, replicas: Iterable[tuple[str, int, int]]
    ) -> dict[tuple[str, int, int], ReplicaLogDir]:
        """Returns the log directory of each replica.

        Raises:
            KafkaError: a broker failed; if several were asked, an ``AdminError`` whose ``results`` has the others.
        """
        return self._portal.call(self._admin.describe_replica_log_dirs, replicas)
