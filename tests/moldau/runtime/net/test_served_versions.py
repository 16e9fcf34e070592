"""Goal: two ends agree on the newest version that both know, and an error names what is missing.

Method: each range of versions that a peer may serve, each bound of the caller, and sets of numbers as the model.
"""

from __future__ import annotations

from itertools import product

import pytest

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.share_fetch import ShareFetchRequest
from moldau.runtime.net.served_versions import (
    ControllerPeerError,
    NeededVersion,
    ServedVersions,
    UnsupportedApiError,
    name_of_api,
)

KEY = ApiKey.FIND_COORDINATOR
KNOWN = FindCoordinatorRequest.__versions__
NUMBERS = range(KNOWN.last + 3)


def serving(*ranges: tuple[int, int, int]) -> ServedVersions:
    keys = [ApiVersion(api_key=key, min_version=first, max_version=last) for key, first, last in ranges]
    return ServedVersions(ApiVersionsResponse(api_keys=keys))


def newest(served: ServedVersions, most: int | None) -> int | None:
    try:
        return served.version_for(FindCoordinatorRequest, most, "b:1")
    except UnsupportedApiError:
        return None


def test_the_newest_common_version_is_used() -> None:
    assert KNOWN.first in NUMBERS, "the peers of this test are older, newer and alike"
    for first, last in product(NUMBERS, NUMBERS):
        served = serving((KEY, first, last))
        common = {number for number in NUMBERS if first <= number <= last and number in KNOWN}
        assert served.best_version(KEY) == max(common, default=None)
        assert served.serves(KEY) == bool(common)
        for most in (None, *NUMBERS):
            allowed = {number for number in common if most is None or number <= most}
            assert newest(served, most) == max(allowed, default=None), (first, last, most)
        for least in NUMBERS if common else ():
            needed = NeededVersion(least, "the feature")
            if max(common) >= least:
                served.require(FindCoordinatorRequest, needed, "b:1")
            else:
                text = f"FindCoordinator: b:1 serves versions {first} to {last}; the feature needs version {least}"
                with pytest.raises(UnsupportedApiError, match=text):
                    served.require(FindCoordinatorRequest, needed, "b:1")


def test_an_api_that_is_not_known_here_is_not_served() -> None:
    served = serving((KEY, 0, 3), (20_000, 0, 9))
    assert (served.serves(20_000), served.best_version(20_000)) == (False, None)
    assert not ServedVersions().serves(KEY)
    assert name_of_api(20_000) == "API 20000"
    assert name_of_api(KEY) == APIS[KEY].name


@pytest.mark.parametrize(
    ("served", "kind", "text"),
    [
        (
            [(ApiKey.BROKER_REGISTRATION, 0, 4)],
            ControllerPeerError,
            "b:1 is a controller; give the address of a broker",
        ),
        ([(ApiKey.BROKER_REGISTRATION, 0, 4), (ApiKey.METADATA, 0, 9)], UnsupportedApiError, "b:1 does not serve it$"),
        ([(ApiKey.FETCH, 4, 9)], UnsupportedApiError, "b:1 does not serve it$"),
        ([(KEY, 99, 100)], UnsupportedApiError, f"b:1 serves versions 99 to 100, this end knows {KNOWN}"),
        ([(ApiKey.BROKER_REGISTRATION, 0, 4), (KEY, 99, 100)], UnsupportedApiError, "b:1 serves versions 99 to 100"),
    ],
)
def test_a_missing_version_says_what_the_peer_is(
    served: list[tuple[int, int, int]], kind: type[Exception], text: str
) -> None:
    with pytest.raises(UnsupportedApiError, match=text) as caught:
        serving(*served).version_for(FindCoordinatorRequest, None, "b:1")
    assert (type(caught.value), caught.value.code) == (kind, ErrorCode.UNSUPPORTED_VERSION)


def test_a_missing_api_names_its_feature() -> None:
    with pytest.raises(UnsupportedApiError, match="does not serve it; it is needed for share groups"):
        serving((KEY, 0, 3)).version_for(ShareFetchRequest, None, "b:1")
