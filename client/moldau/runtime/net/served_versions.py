"""The versions of APIs that the peer of a connection serves, and the choice of a version that both ends know. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.api_versions import ApiVersionsResponse
    from moldau.protocol.schema import Request
    from moldau.protocol.versions import VersionRange


FEATURES: Mapping[str, tuple[ApiKey, ...]] = {
    "delegation tokens (KIP-48, Kafka 1.1)": (
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ),
    "elections on request (KIP-183, Kafka 2.2)": (ApiKey.ELECT_LEADERS,),
    "changes of single configuration values (KIP-339, Kafka 2.3)": (ApiKey.INCREMENTAL_ALTER_CONFIGS,),
    "reassignments by the admin client (KIP-455, Kafka 2.4)": (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ),
    "deletion of committed offsets (KIP-496, Kafka 2.4)": (ApiKey.OFFSET_DELETE,),
    "quotas by the admin client (KIP-546, Kafka 2.6)": (ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS),
    "SCRAM users by the admin client (KIP-554, Kafka 2.7)": (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ),
    "feature levels (KIP-584, Kafka 2.7)": (ApiKey.UPDATE_FEATURES,),
    "descriptions of the cluster (KIP-700, Kafka 2.8)": (ApiKey.DESCRIBE_CLUSTER,),
    "descriptions of producers and transactions (KIP-664, Kafka 3.0)": (
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    ),
    "clusters without ZooKeeper (KIP-500, Kafka 3.3)": (ApiKey.DESCRIBE_QUORUM, ApiKey.UNREGISTER_BROKER),
    "listings of resources (KIP-714, Kafka 3.7)": (ApiKey.LIST_CONFIG_RESOURCES,),
    "changes of the quorum's voters (KIP-853, Kafka 3.9)": (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER),
    "group.protocol=consumer (KIP-848, Kafka 4.0)": (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
    ),
    "share groups (KIP-932, Kafka 4.1)": (
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ),
    "streams groups (KIP-1071, Kafka 4.1)": (ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE),
}
"""APIs that brokers of other makes or of old versions may lack, by what they are for and the first Kafka with them."""
_FEATURE_OF: Mapping[int, str] = {key: feature for feature, keys in FEATURES.items() for key in keys}


class UnsupportedApiError(KafkaError):
    """Reports that the peer serves no version of an API that the client knows."""

    def __init__(self, api_key: int, detail: str) -> None:
        """``detail`` names the versions of both ends."""
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, f"{name_of_api(api_key)}: {detail}")


class ControllerPeerError(UnsupportedApiError):
    """Reports that the peer is a controller although the API is for brokers."""


@dataclass(frozen=True, slots=True)
class NeededVersion:
    """The first version of a request that has a feature; older ones would leave fields of the request out."""

    first: int
    feature: str
    """The subject of the error's sentence."""


class ServedVersions:
    """The answer of one peer to ApiVersions; nothing before it has answered."""

    __slots__ = ("by_key",)

    def __init__(self, response: ApiVersionsResponse | None = None) -> None:
        """Takes the answer; None if there is none yet."""
        keys = () if response is None else response.api_keys
        self.by_key: Mapping[int, tuple[int, int]] = {key.api_key: (key.min_version, key.max_version) for key in keys}
        """First and last version, by API key."""

    def serves(self, api_key: int) -> bool:
        """Returns whether the peer serves an API in a version known here."""
        known = APIS.get(api_key)
        return known is not None and self._common_version(api_key, known.versions) is not None

    def best_version(self, api_key: int) -> int | None:
        """Returns the highest version of an API that both ends know; None if there is none."""
        known = APIS.get(api_key)
        return None if known is None else self._common_version(api_key, known.versions)

    @property
    def _are_of_a_controller(self) -> bool:
        return ApiKey.BROKER_REGISTRATION in self.by_key and ApiKey.METADATA not in self.by_key

    def _common_version(self, api_key: int, known: VersionRange) -> int | None:
        served = self.by_key.get(api_key)
        if served is None:
            return None
        version = min(served[1], known.last)
        return version if version >= served[0] and version in known else None

    def version_for(self, message: type[Request] | Request, version_max: int | None, peer: str) -> int:
        """Returns the highest version of a request that both ends know, at most ``version_max``.

        ``peer`` is host and port, for the error.

        Raises:
            UnsupportedApiError: there is none.
        """
        key, known = message.__api_key__, message.__versions__
        version = self._common_version(key, known)
        if version is None:
            served = self.by_key.get(key)
            if served is None and self._are_of_a_controller:
                raise ControllerPeerError(key, f"{peer} is a controller; give the address of a broker")
            if served is None:
                feature = _FEATURE_OF.get(key)
                needed = "" if feature is None else f"; it is needed for {feature}"
                raise UnsupportedApiError(key, f"{peer} does not serve it{needed}")
            raise UnsupportedApiError(key, f"{peer} serves versions {served[0]} to {served[1]}, this end knows {known}")
        if version_max is not None and version > version_max:
            version = version_max
            if version not in known or version < self.by_key[key][0]:
                raise UnsupportedApiError(key, f"version {version_max} or below is not served by {peer}")
        return version

    def require(self, message: type[Request] | Request, needed: NeededVersion, peer: str) -> None:
        """Checks that the peer serves the version of a request from which on it has a feature.

        Raises:
            UnsupportedApiError: it does not.
        """
        if self.version_for(message, None, peer) < needed.first:
            first, last = self.by_key[message.__api_key__]
            offered = f"{peer} serves versions {first} to {last}"
            raise UnsupportedApiError(message.__api_key__, f"{offered}; {needed.feature} needs version {needed.first}")


def name_of_api(api_key: int) -> str:
    """Returns Kafka's name of an API, or its number."""
    api = APIS.get(api_key)
    return f"API {api_key}" if api is None else api.name
