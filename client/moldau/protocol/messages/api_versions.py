"""ApiVersions: table of the request and of the response."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ApiVersionsRequest(Request, api_key=18, versions="0-5", flexible="3+"):
    """Ask which APIs and versions a broker serves (KIP-35, KIP-511 client software, KIP-1242 cluster and node)."""

    client_software_name: str = field.string("3+")
    client_software_version: str = field.string("3+")
    cluster_id: str | None = field.string("5+", nullable="5+", default=None)
    node_id: int = field.int32("5+", default=-1)


_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_SOFTWARE_VERSION: Final = 3
_LEVEL_ZERO: Final = 4
"""First version whose clients take 0 as the lowest level of a feature (KIP-1022)."""


def is_malformed(request: ApiVersionsRequest, version: int) -> bool:
    """Returns whether a request breaks the rules of its fields.

    Name and version of the client's software consist of letters, digits, dots and dashes (KIP-511). A request names
    cluster and node, or neither of them (KIP-1242).
    """
    if version < _SOFTWARE_VERSION:
        return False
    software = (request.client_software_name, request.client_software_version)
    if not all(map(_SOFTWARE.fullmatch, software)):
        return True
    return (request.cluster_id is None) != (request.node_id == -1)


class ApiVersion(Struct):
    """An element of ``api_keys`` in ``ApiVersionsResponse``."""

    api_key: int = field.int16("0+")
    min_version: int = field.int16("0+")
    max_version: int = field.int16("0+")


class SupportedFeatureKey(Struct):
    """An element of ``supported_features`` in ``ApiVersionsResponse``."""

    name: str = field.string("3+")
    min_version: int = field.int16("3+")
    max_version: int = field.int16("3+")


class FinalizedFeatureKey(Struct):
    """An element of ``finalized_features`` in ``ApiVersionsResponse``."""

    name: str = field.string("3+")
    max_version_level: int = field.int16("3+")
    min_version_level: int = field.int16("3+")


class ApiVersionsResponse(Response, api_key=18, versions="0-5", flexible="3+"):
    """Served version ranges and features (KIP-584). The response header is version 0 always."""

    error_code: int = field.int16("0+")
    api_keys: Sequence[ApiVersion] = field.array(ApiVersion, "0+")
    throttle_time_ms: int = field.int32("1+")
    supported_features: Sequence[SupportedFeatureKey] = field.array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = field.int64("3+", default=-1, tag=1)
    finalized_features: Sequence[FinalizedFeatureKey] = field.array(FinalizedFeatureKey, "3+", tag=2)
    zk_migration_ready: bool = field.boolean("3+", tag=3)


def supported_feature_keys(features: Mapping[str, tuple[int, int]], version: int) -> list[SupportedFeatureKey]:
    """Returns the lowest and the highest supported level of each feature, sorted by name, for an answer of a version.

    Older versions leave out the features whose lowest level is 0: Java clients 3.3 to 3.7 fail on each connection to a
    node that names one (KAFKA-17492).
    """
    return [
        SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
        for name, (lowest, highest) in sorted(features.items())
        if lowest > 0 or version >= _LEVEL_ZERO
    ]
