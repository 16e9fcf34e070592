"""Goal: requests are counted by API key and version, and no peer can make the table of counts grow.

Method: the heads of requests, as the loop of a connection passes them.
"""

from moldau.protocol.api import ApiKey
from moldau.runtime.net.serving.request_times import VERSION_MAX, RequestTimes


def head(api_key: int, version: int) -> int:
    return api_key << 16 | version


def test_requests_are_counted_by_key_and_version() -> None:
    times = RequestTimes()
    for each in (
        head(ApiKey.FETCH, 0),
        head(ApiKey.FETCH, VERSION_MAX),
        head(ApiKey.FETCH, 0),
        head(ApiKey.PRODUCE, 3),
    ):
        times.received(each)
    assert times.counts == {(ApiKey.FETCH, 0): 2, (ApiKey.FETCH, VERSION_MAX): 1, (ApiKey.PRODUCE, 3): 1}


def test_keys_and_versions_that_kafka_lacks_are_not_counted() -> None:
    times = RequestTimes()
    for each in (head(ApiKey.FETCH, VERSION_MAX + 1), head(ApiKey.FETCH, 0xFFFF), head(20_000, 0), -1):
        times.received(each)
    times.answered(20_000, 5.0)
    assert times.counts == {}
    assert times.times == {}
