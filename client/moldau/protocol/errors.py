"""Kafka's error codes as data: the text, and the reaction that a client may choose.

``retriable``: the same request may succeed later. ``refreshes_metadata``: leadership or topics are not what the
client believed; ask for metadata (or the coordinator) before trying again. ``fatal``: the sender's identity or rights
are void; no retry helps and the producer, member or connection that got it must stop.
"""

from enum import IntEnum
from typing import NamedTuple

from moldau.values import Portable


class _Facts(NamedTuple):
    message: str
    retriable: bool = False
    refreshes_metadata: bool = False
    fatal: bool = False


class ErrorCode(IntEnum):
    """An error code on the wire; 0 is success."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133

    @property
    def message(self) -> str:
        """One sentence for people."""
        return _FACTS[self].message

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return _FACTS[self].retriable

    @property
    def refreshes_metadata(self) -> bool:
        """Whether metadata (or the coordinator) should be looked up before the next try."""
        return _FACTS[self].refreshes_metadata

    @property
    def fatal(self) -> bool:
        """Whether the sender must stop."""
        return _FACTS[self].fatal

    @classmethod
    def of(cls, code: int) -> "ErrorCode":
        """Returns the code of a number from the wire; UNKNOWN_SERVER_ERROR for a number that is not known here."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR


_FACTS: dict[ErrorCode, _Facts] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: _Facts("The server met an unexpected condition; its log says more."),
    ErrorCode.NONE: _Facts("No error."),
    ErrorCode.OFFSET_OUT_OF_RANGE: _Facts("The offset lies before the log start offset or after the log end."),
    ErrorCode.CORRUPT_MESSAGE: _Facts("A record batch fails its checksum or is malformed.", retriable=True),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _Facts(
        "This server does not host the topic or partition.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.INVALID_FETCH_SIZE: _Facts("The fetch size is negative or too large."),
    ErrorCode.LEADER_NOT_AVAILABLE: _Facts(
        "The partition has no leader at the moment.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _Facts(
        "This broker is not the leader, or not a replica, of the partition.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.REQUEST_TIMED_OUT: _Facts(
        "The request did not finish within its timeout; it may still take effect.", retriable=True
    ),
    ErrorCode.BROKER_NOT_AVAILABLE: _Facts("The broker is not available."),
    ErrorCode.REPLICA_NOT_AVAILABLE: _Facts(
        "The replica is not available on this broker.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.MESSAGE_TOO_LARGE: _Facts("A record batch is larger than the topic's max.message.bytes."),
    ErrorCode.STALE_CONTROLLER_EPOCH: _Facts("The controller epoch of the request is older than the one in force."),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: _Facts(
        "The metadata of a committed offset is longer than offset.metadata.max.bytes."
    ),
    ErrorCode.NETWORK_EXCEPTION: _Facts(
        "The connection was lost before the answer arrived.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _Facts(
        "The coordinator is reading its log and cannot answer yet.", retriable=True
    ),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _Facts(
        "No coordinator is available for the key.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.NOT_COORDINATOR: _Facts(
        "This broker does not coordinate the group or transactional id.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: _Facts(
        "The topic name is not valid, or the operation is not allowed on an internal topic."
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: _Facts("A record batch is larger than the segment size."),
    ErrorCode.NOT_ENOUGH_REPLICAS: _Facts(
        "Fewer replicas are in sync than min.insync.replicas asks for; nothing was written.", retriable=True
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _Facts(
        "The batch was written, but too few replicas are in sync to acknowledge it.", retriable=True
    ),
    ErrorCode.INVALID_REQUIRED_ACKS: _Facts("acks must be -1, 0 or 1."),
    ErrorCode.ILLEGAL_GENERATION: _Facts("The generation of the member is not the group's current one."),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: _Facts("The member shares no protocol with the rest of the group."),
    ErrorCode.INVALID_GROUP_ID: _Facts("The group id is not valid."),
    ErrorCode.UNKNOWN_MEMBER_ID: _Facts("The group does not know the member."),
    ErrorCode.INVALID_SESSION_TIMEOUT: _Facts("The session timeout lies outside of the range that the broker allows."),
    ErrorCode.REBALANCE_IN_PROGRESS: _Facts("The group is rebalancing; the member should rejoin."),
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: _Facts("The committed offsets do not fit into a record batch."),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _Facts("The principal lacks the right on the topic.", fatal=True),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _Facts("The principal lacks the right on the group.", fatal=True),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _Facts("The principal lacks the right on the cluster.", fatal=True),
    ErrorCode.INVALID_TIMESTAMP: _Facts("The timestamp of a record is out of the allowed range."),
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: _Facts("The SASL mechanism is not enabled on this listener.", fatal=True),
    ErrorCode.ILLEGAL_SASL_STATE: _Facts("The request does not fit the state of the SASL exchange.", fatal=True),
    ErrorCode.UNSUPPORTED_VERSION: _Facts("The server does not serve this version of the API."),
    ErrorCode.TOPIC_ALREADY_EXISTS: _Facts("A topic of this name exists already."),
    ErrorCode.INVALID_PARTITIONS: _Facts("The number of partitions is not valid."),
    ErrorCode.INVALID_REPLICATION_FACTOR: _Facts("The replication factor is below 1 or above the number of brokers."),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: _Facts("The assignment of replicas is not valid."),
    ErrorCode.INVALID_CONFIG: _Facts("A configuration key or value is not valid."),
    ErrorCode.NOT_CONTROLLER: _Facts(
        "This node is not the active controller.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.INVALID_REQUEST: _Facts("The request contradicts itself or cannot be understood."),
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: _Facts("The message format of the data does not support the request."),
    ErrorCode.POLICY_VIOLATION: _Facts("A policy of the server forbids the request."),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: _Facts("The sequence number of the batch does not follow the last one."),
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: _Facts("The batch was written before."),
    ErrorCode.INVALID_PRODUCER_EPOCH: _Facts("The producer epoch is older than the one in force."),
    ErrorCode.INVALID_TXN_STATE: _Facts("The transaction is in a state that does not allow the operation.", fatal=True),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: _Facts(
        "The producer id does not belong to the transactional id.", fatal=True
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: _Facts(
        "The transaction timeout exceeds transaction.max.timeout.ms.", fatal=True
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: _Facts(
        "An earlier operation on the transaction has not finished.", retriable=True
    ),
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: _Facts(
        "The transaction coordinator's epoch is older than the one in force.", fatal=True
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _Facts(
        "The principal lacks the right on the transactional id.", fatal=True
    ),
    ErrorCode.SECURITY_DISABLED: _Facts("No authorizer is configured."),
    ErrorCode.OPERATION_NOT_ATTEMPTED: _Facts(
        "The operation was not attempted because another one of the batch failed."
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: _Facts("A disk of the broker failed.", retriable=True, refreshes_metadata=True),
    ErrorCode.LOG_DIR_NOT_FOUND: _Facts("The broker has no such log directory."),
    ErrorCode.SASL_AUTHENTICATION_FAILED: _Facts("Authentication failed.", fatal=True),
    ErrorCode.UNKNOWN_PRODUCER_ID: _Facts("The broker holds no state of the producer id."),
    ErrorCode.REASSIGNMENT_IN_PROGRESS: _Facts("A reassignment of the partition is under way."),
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: _Facts("Delegation tokens are not enabled."),
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: _Facts("No such delegation token."),
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: _Facts("The principal neither owns nor may renew the delegation token."),
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: _Facts(
        "Delegation tokens are not served on this kind of connection."
    ),
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: _Facts(
        "The principal lacks the right on the delegation token.", fatal=True
    ),
    ErrorCode.DELEGATION_TOKEN_EXPIRED: _Facts("The delegation token has expired."),
    ErrorCode.INVALID_PRINCIPAL_TYPE: _Facts("The type of the principal is not supported."),
    ErrorCode.NON_EMPTY_GROUP: _Facts("The group has members."),
    ErrorCode.GROUP_ID_NOT_FOUND: _Facts("No such group."),
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: _Facts("The broker does not know the fetch session.", retriable=True),
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: _Facts(
        "The epoch of the fetch session is not the expected one.", retriable=True
    ),
    ErrorCode.LISTENER_NOT_FOUND: _Facts(
        "The leader has no listener of the name the request came in on.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.TOPIC_DELETION_DISABLED: _Facts("Topic deletion is disabled."),
    ErrorCode.FENCED_LEADER_EPOCH: _Facts(
        "The leader epoch of the request is older than the broker's.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.UNKNOWN_LEADER_EPOCH: _Facts(
        "The leader epoch of the request is newer than the broker's.", retriable=True
    ),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: _Facts("The codec is not allowed in this version of the request."),
    ErrorCode.STALE_BROKER_EPOCH: _Facts("The broker epoch is not the one in force."),
    ErrorCode.OFFSET_NOT_AVAILABLE: _Facts(
        "The leader's high watermark has not caught up yet after its election.", retriable=True
    ),
    ErrorCode.MEMBER_ID_REQUIRED: _Facts("The member must join again with the member id it was given."),
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: _Facts(
        "The preferred leader is not available.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: _Facts("The group has group.max.size members already."),
    ErrorCode.FENCED_INSTANCE_ID: _Facts("Another member has taken over the group instance id.", fatal=True),
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: _Facts(
        "No eligible leader is available.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.ELECTION_NOT_NEEDED: _Facts(
        "The partition has the wanted leader already.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: _Facts("No reassignment of the partition is under way."),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: _Facts(
        "The group is subscribed to the topic, so its offsets cannot be deleted."
    ),
    ErrorCode.INVALID_RECORD: _Facts("A record breaks the rules of the topic."),
    ErrorCode.UNSTABLE_OFFSET_COMMIT: _Facts(
        "A transaction that commits offsets of the partition is not finished.", retriable=True
    ),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _Facts("The quota of changes is used up.", retriable=True),
    ErrorCode.PRODUCER_FENCED: _Facts("A newer producer uses the transactional id.", fatal=True),
    ErrorCode.RESOURCE_NOT_FOUND: _Facts("No such resource."),
    ErrorCode.DUPLICATE_RESOURCE: _Facts("The resource is named twice, or exists already."),
    ErrorCode.UNACCEPTABLE_CREDENTIAL: _Facts("The credential does not meet the requirements."),
    ErrorCode.INCONSISTENT_VOTER_SET: _Facts("The voters of the request are not the voters of the quorum."),
    ErrorCode.INVALID_UPDATE_VERSION: _Facts("The feature level cannot be set so."),
    ErrorCode.FEATURE_UPDATE_FAILED: _Facts("Features could not be updated."),
    ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: _Facts(
        "The principal of a forwarded request cannot be read.", fatal=True
    ),
    ErrorCode.SNAPSHOT_NOT_FOUND: _Facts("No such snapshot."),
    ErrorCode.POSITION_OUT_OF_RANGE: _Facts("The position lies outside of the snapshot."),
    ErrorCode.UNKNOWN_TOPIC_ID: _Facts(
        "This server does not host a topic of this id.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: _Facts("Another live broker is registered under this id."),
    ErrorCode.BROKER_ID_NOT_REGISTERED: _Facts("No broker is registered under this id."),
    ErrorCode.INCONSISTENT_TOPIC_ID: _Facts(
        "The topic id of the log is not the one of the request.", retriable=True, refreshes_metadata=True
    ),
    ErrorCode.INCONSISTENT_CLUSTER_ID: _Facts("The cluster id of the request is not the one of this cluster."),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: _Facts("No such transactional id."),
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: _Facts(
        "The fetch session mixes topic names and topic ids.", retriable=True
    ),
    ErrorCode.INELIGIBLE_REPLICA: _Facts("The replica may not join the in-sync replicas now."),
    ErrorCode.NEW_LEADER_ELECTED: _Facts("The change made another replica the leader."),
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: _Facts("The offset is in tiered storage."),
    ErrorCode.FENCED_MEMBER_EPOCH: _Facts("The member epoch is not the one in force; the member must rejoin."),
    ErrorCode.UNRELEASED_INSTANCE_ID: _Facts("The group instance id is still held by another member."),
    ErrorCode.UNSUPPORTED_ASSIGNOR: _Facts("The group's assignor is not supported."),
    ErrorCode.STALE_MEMBER_EPOCH: _Facts(
        "The member epoch is older than the one in force; heartbeat first, then try again."
    ),
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: _Facts("The request went to the wrong kind of node."),
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: _Facts("The kind of endpoint is not supported."),
    ErrorCode.UNKNOWN_CONTROLLER_ID: _Facts("No such controller."),
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: _Facts("The telemetry subscription is not the current one."),
    ErrorCode.TELEMETRY_TOO_LARGE: _Facts("The telemetry exceeds the size limit."),
    ErrorCode.INVALID_REGISTRATION: _Facts("The broker's registration is not valid."),
    ErrorCode.TRANSACTION_ABORTABLE: _Facts(
        "The transaction failed and must be aborted; the producer may go on afterwards."
    ),
    ErrorCode.INVALID_RECORD_STATE: _Facts("The record is in a state that does not allow the acknowledgement."),
    ErrorCode.SHARE_SESSION_NOT_FOUND: _Facts("No such share session.", retriable=True),
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: _Facts(
        "The epoch of the share session is not the expected one.", retriable=True
    ),
    ErrorCode.FENCED_STATE_EPOCH: _Facts("The state epoch is older than the one in force."),
    ErrorCode.INVALID_VOTER_KEY: _Facts("The voter's directory id is not the known one."),
    ErrorCode.DUPLICATE_VOTER: _Facts("The voter belongs to the quorum already."),
    ErrorCode.VOTER_NOT_FOUND: _Facts("The quorum has no such voter."),
    ErrorCode.INVALID_REGULAR_EXPRESSION: _Facts("The regular expression is not valid."),
    ErrorCode.REBOOTSTRAP_REQUIRED: _Facts("The client's metadata is too old; start again from the bootstrap servers."),
    ErrorCode.STREAMS_INVALID_TOPOLOGY: _Facts("The topology of the streams group is not valid."),
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: _Facts("The topology epoch is not valid."),
    ErrorCode.STREAMS_TOPOLOGY_FENCED: _Facts("The topology epoch is older than the one in force."),
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: _Facts("The limit of share sessions is reached.", retriable=True),
}
assert len(_FACTS) == len(ErrorCode)


class KafkaError(Portable, Exception):
    """An error that has a code on the wire. The dispatcher turns it into the code; clients raise it from the code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = message or code.message
        super().__init__(f"{code.name}: {self.message}")

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable
