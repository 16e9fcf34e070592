"""Rights to send a request of an API, and the quota it counts against: the rules in the rows of the servers' tables.

The operations and resources are those of Kafka's documentation ("Operations and resources on protocols"); the numbers
are those of its ACL messages. A row states the rules; an authorizer and the quotas enforce them.
"""

from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, auto
from typing import Final, NamedTuple


class AclOperation(IntEnum):
    """An operation of a principal on a resource."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14

    def on(self, resource: "AclResource") -> "Need":
        """Returns the right to do this to a kind of resource."""
        return Need(self, resource)


class AclResource(IntEnum):
    """The kind of a resource; there is one cluster, and the others are named by the request."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7
    """A principal, such as ``User:alice``: whose tokens others create and describe (KIP-373)."""


AUTHORIZED_OPERATIONS: Final = {
    AclResource.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The authorized operations that responses list, per kind of resource."""


class Listeners(Flag):
    """The listeners on which a request may be sent."""

    CLIENT = auto()
    """Listeners of brokers that clients use."""
    INTER_BROKER = auto()
    """The listener of brokers that other brokers use."""
    CONTROLLER = auto()
    """Listeners of controllers."""
    BROKER = CLIENT | INTER_BROKER
    ANY = BROKER | CONTROLLER


class Cost(Enum):
    """The quota that a request counts against."""

    NONE = auto()
    """A request between nodes, or one that sets up a connection; never throttled."""
    REQUEST = auto()
    """The time of its handler."""
    RECORDS = auto()
    """The bytes of its records, and the time of its handler."""
    MUTATION = auto()
    """The partitions that it creates or deletes (KIP-599), and the time of its handler."""


class Need(NamedTuple):
    """A right that some use of an API requires. Which uses, its handler knows: each entry, or a flag of the request."""

    operation: AclOperation
    resource: AclResource


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRules:
    """The rules of one API on one kind of node."""

    listeners: Listeners
    needs: tuple[Need, ...]
    """In the order in which Kafka checks them; empty if all peers may send it."""
    cost: Cost


def operations_mask(*operations: AclOperation) -> int:
    """Returns the bit field in which responses list authorized operations."""
    return sum(1 << operation for operation in operations)
