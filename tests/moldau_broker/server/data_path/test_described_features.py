"""Goal: ApiVersions describes no feature in a way that ends the connections of an older client.

Method: the answers of a broker and of a controller in each version. Java clients 3.3 to 3.7, which ask with version 3,
fail with IllegalArgumentException if the lowest level of a feature is 0 (KAFKA-17492).
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.framing import decode_request_header
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau_broker.server.data_path.described_apis import DescribedApis
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from moldau_quorum.controller.cluster.features import INITIAL_FEATURES, SUPPORTED_FEATURES
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.node.serving.requests import ControllerService
from support.cluster.broker_cluster import decode_response, frame

FIRST, LAST = 3, APIS[ApiKey.API_VERSIONS].versions.last
LEVEL_ZERO = 4
"""The first version whose clients know level 0."""
IMAGE = MetadataImage(offset=7, features=INITIAL_FEATURES)


def of_a_broker(version: int) -> ApiVersionsResponse:
    context: Any = SimpleNamespace(features=SUPPORTED_FEATURES, broker_id=1, metadata=SimpleNamespace(image=IMAGE))
    request = memoryview(frame(ApiVersionsRequest(client_software_name="t", client_software_version="1"), version)[4:])
    answer, _ = DescribedApis(context, api_table(BASE_APIS)).answer(decode_request_header(request), request)
    return decode_response(ApiVersionsResponse, version, memoryview(answer)[4:])[1]


def of_a_controller(version: int) -> ApiVersionsResponse:
    parts: Any = SimpleNamespace(_features=SUPPORTED_FEATURES, machine=SimpleNamespace(image=IMAGE))
    return ControllerService.api_versions(parts, version)


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
@pytest.mark.parametrize("answer", [of_a_broker, of_a_controller])
def test_old_clients_hear_of_no_lowest_level_zero(answer, version: int) -> None:
    found = answer(version)
    described = {each.name: (each.min_version, each.max_version) for each in found.supported_features}
    if version >= LEVEL_ZERO:
        assert described == SUPPORTED_FEATURES
    else:
        assert described == {name: levels for name, levels in SUPPORTED_FEATURES.items() if levels[0] > 0}
    finalized = {each.name: each.max_version_level for each in found.finalized_features}
    assert finalized == INITIAL_FEATURES, "clients read transaction.version here, in each version"


def test_each_change_of_features_is_described_in_each_version() -> None:
    """The encoded answers are kept; a client that hears of a former level uses the former rules of transactions."""
    context: Any = SimpleNamespace(features=SUPPORTED_FEATURES, broker_id=1, metadata=SimpleNamespace(image=IMAGE))
    described = DescribedApis(context, api_table(BASE_APIS))
    lower = {name: max(level - 1, 1) for name, level in INITIAL_FEATURES.items()}
    images = (
        IMAGE,
        MetadataImage(offset=8, features=lower),
        MetadataImage(offset=9, features=lower),
        MetadataImage(offset=9, features=INITIAL_FEATURES),
    )
    for image, version in product(images, range(FIRST, LAST + 1)):
        context.metadata.image = image
        named = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        request = memoryview(frame(named, version)[4:])
        for _ in range(2):
            answer, _ = described.answer(decode_request_header(request), request)
            found = decode_response(ApiVersionsResponse, version, memoryview(answer)[4:])[1]
            levels = {each.name: each.max_version_level for each in found.finalized_features}
            assert (levels, found.finalized_features_epoch) == (image.features, image.offset)
