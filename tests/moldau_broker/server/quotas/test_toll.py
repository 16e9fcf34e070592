"""Goal: a request pays for the time in which its handler runs, and not for the time in which it waits.

Method: a clock that only the handler moves, and handlers that wait, fail and are cancelled.
"""

from __future__ import annotations

from itertools import product

import pytest
import trio
import trio.lowlevel

from moldau.runtime.net.serving.throttle import Throttle
from moldau.runtime.sasl.core.identity import Identity
from moldau_broker.server.quotas.broker_quotas import BrokerQuotas, ClientAccount
from moldau_broker.server.quotas.toll import timed
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClientQuotaRecord
from moldau_quorum.quotas.rate import Windows

ALICE = Identity(principal="User:alice", host="h", listener_name="L", security_protocol="x")


class Clock:
    now_ms = 1_000.0

    def monotonic_ms(self):
        return self.now_ms


def quotas_with(**values):
    """Returns quotas of alice, which no request here exceeds unless it says so."""
    quotas = BrokerQuotas(Clock(), Windows())
    records = [ClientQuotaRecord(entity=(("user", "alice"),), key=key, value=value) for key, value in values.items()]
    quotas.follow(MetadataImage().apply(records, offset=0, epoch=0))
    return quotas


def used_percent(quotas):
    ((_, sensor),) = quotas.use.sensors()
    return sensor.rate.total


def test_only_the_time_in_which_a_handler_runs_is_charged():
    quotas = quotas_with(request_percentage=1e6)
    toll = ClientAccount(quotas, Throttle()).toll(ALICE, b"app")
    toll.ended()

    async def handler():
        quotas.clock.now_ms += 5
        await trio.lowlevel.checkpoint()
        quotas.clock.now_ms += 3
        return "done"

    async def main():
        async def others():
            for _ in range(5):
                quotas.clock.now_ms += 1_000
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            assert await timed(toll, handler()) == "done"

    trio.run(main)
    assert toll.due() == 0
    assert used_percent(quotas) == pytest.approx(0.8)


def test_each_moment_of_a_handler_is_charged_once():
    """The time before the charge of the answer is paid with it, that of encoding afterwards."""
    quotas = quotas_with(request_percentage=1e6)
    toll = ClientAccount(quotas, Throttle()).toll(ALICE, b"app")
    for charge in (toll.due, lambda: toll.due_for_fetch(0), toll.due, toll.ended, toll.ended):
        quotas.clock.now_ms += 10
        charge()
    assert used_percent(quotas) == pytest.approx(4.0)


def test_any_quota_that_was_ever_stored_has_a_burst():
    """A quota near the largest double gives no infinite number of bytes, with which each fetch would fail."""
    for value in (5e-324, 1.0, 1e19, 1.7976931348623157e308):
        toll = ClientAccount(quotas_with(consumer_byte_rate=value), Throttle()).toll(ALICE, b"app")
        assert 1 <= toll.fetch_bytes_max <= 2**53
        assert toll.due_for_fetch(1) == 0


def test_errors_and_cancellations_pass_through():
    quotas = quotas_with(request_percentage=1e6)
    ended = []

    async def fails():
        try:
            await trio.sleep(1_000)
        finally:
            ended.append("fails")

    async def raises():
        await trio.lowlevel.checkpoint()
        raise KeyError("k")

    async def main():
        toll = ClientAccount(quotas, Throttle()).toll(ALICE, b"app")
        with trio.move_on_after(0.01) as scope:
            await timed(toll, fails())
        assert scope.cancelled_caught
        with pytest.raises(KeyError):
            await timed(toll, raises())
        toll.ended()

    trio.run(main)
    assert ended == ["fails"]


def test_a_client_pays_what_its_limits_name():
    quotas = quotas_with(producer_byte_rate=10.0)
    throttle = Throttle()
    account = ClientAccount(quotas, throttle)
    assert account.toll(Identity(host="h", listener_name="L", security_protocol="x"), b"app") is None
    toll = account.toll(ALICE, b"app")
    assert (toll.due_for_fetch(10**9), toll.fetch_bytes_max) == (0, None)
    assert toll.due(200) == 10_000
    assert throttle.until_ms == 11_000.0
    assert quotas.paused_count() == 1
    quotas.clock.now_ms = 11_000.0
    assert quotas.paused_count() == 0
    waived = account.toll(ALICE, b"app")
    waived.waive()
    assert waived.due(10**9) == 0


def test_limits_follow_user_client_id_and_changes():
    quotas = quotas_with(producer_byte_rate=10.0)
    account = ClientAccount(quotas, Throttle())
    assert account.toll(ALICE, b"app").due(200) > 0
    entity = (("client-id", "\ufffd"), ("user", "alice"))
    image = MetadataImage().apply(
        [
            ClientQuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=10.0),
            ClientQuotaRecord(entity=entity, key="producer_byte_rate", value=1e9),
        ],
        offset=0,
        epoch=0,
    )
    quotas.index = type(quotas.index)()
    quotas.follow(image)
    assert account.toll(ALICE, b"\xff").due(200) == 0  # bytes that are not UTF-8 decode to U+FFFD
    assert account.toll(ALICE, b"app").due(200) > 0


def test_a_changed_quota_holds_for_the_next_request():
    """Also of a connection whose user and client id stay the same; a quota that is removed limits it no more."""
    image = MetadataImage()
    quotas = BrokerQuotas(Clock(), Windows())
    account = ClientAccount(quotas, Throttle())
    for offset, value in enumerate((None, 10.0, 1e9, None, 20.0)):
        record = ClientQuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=value)
        delta = image.apply([record], offset=offset, epoch=0)
        image = delta.image
        quotas.follow(delta)
        toll = account.toll(ALICE, b"app")
        assert (None if toll is None else toll._limits.produce.value) == value
        assert quotas.is_active is (value is not None)


def test_a_changed_quota_ends_the_pauses_of_clients():
    """They may be too long now. A bound of connections of an address pauses no client, unless it changes beside one."""
    entities = {"user": (("user", "alice"),), "ip": (("ip", "10.0.0.1"),)}
    keys = {"user": "producer_byte_rate", "ip": "connection_creation_rate"}
    for changed, lifts in ((("user",), True), (("ip",), False), (("ip", "user"), True), (("user", "ip"), True)):
        quotas, throttle = quotas_with(producer_byte_rate=10.0), Throttle()
        quotas.pause(throttle, 60_000.0)
        records = [ClientQuotaRecord(entity=entities[each], key=keys[each], value=5.0) for each in changed]
        quotas.follow(MetadataImage().apply(records, offset=1, epoch=0))
        assert (throttle.until_ms > quotas.clock.now_ms, quotas.paused_count()) == (not lifts, 0 if lifts else 1)
        quotas.forget(throttle)
        assert quotas.paused_count() == 0, "its connection has ended"


def test_an_answer_that_another_quota_empties_is_not_charged():
    quotas = quotas_with(consumer_byte_rate=1e9, request_percentage=1.0)
    toll = ClientAccount(quotas, Throttle()).toll(ALICE, b"app")
    quotas.clock.now_ms += 500.0
    assert toll.due_for_fetch(1_000) == 1_000
    totals = {group[0]: sensor.rate.total for group, sensor in quotas.use.sensors()}
    assert totals == {"consumer_byte_rate": 0.0, "request_percentage": 50.0}


def test_the_bytes_of_the_answers_that_are_sent_count():
    """All short runs of fetches: an answer that one quota empties, or both, counts for nothing, and once only."""
    refusals = set()
    for fetches in product(product((0.0, 500.0), (100, 10_000)), repeat=4):
        quotas, sent = quotas_with(consumer_byte_rate=1_000.0, request_percentage=1.0), 0
        account = ClientAccount(quotas, Throttle())
        for spent_ms, fetched in fetches:
            before = dict(quotas.use.throttled)
            toll = account.toll(ALICE, b"app")
            quotas.clock.now_ms += spent_ms
            sent += fetched if toll.due_for_fetch(fetched) == 0 else 0
            totals = {group[0]: sensor.rate.total for group, sensor in quotas.use.sensors()}
            assert totals["consumer_byte_rate"] == sent, fetches
            refusals.add(tuple(key for key, count in quotas.use.throttled.items() if count > before[key]))
    by_bytes, by_time = ("consumer_byte_rate",), ("request_percentage",)
    assert refusals == {(), by_bytes, by_time, by_bytes + by_time}


@pytest.mark.parametrize(
    ("changed", "is_lifted"), [(["ip"], False), (["user"], True), (["client-id"], True), (["ip", "user"], True)]
)
def test_changed_quotas_of_clients_end_all_pauses(changed, is_lifted):
    """One change of metadata may bring quotas of clients and of addresses; the latter pause nothing."""
    quotas, throttle = quotas_with(producer_byte_rate=10.0), Throttle()
    assert ClientAccount(quotas, throttle).toll(ALICE, b"app").due(200) > 0
    keys = {"ip": "connection_creation_rate"}
    records = [
        ClientQuotaRecord(entity=((kind, "10.0.0.1"),), key=keys.get(kind, "consumer_byte_rate"), value=5.0)
        for kind in changed
    ]
    image = MetadataImage().apply(
        [ClientQuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=10.0)], offset=0, epoch=0
    )
    quotas.follow(image.image.apply(records, offset=1, epoch=0))
    assert (throttle.until_ms == 0.0, quotas.paused_count()) == (is_lifted, 0 if is_lifted else 1)


def test_what_was_used_counts_under_a_changed_limit():
    """A client could else use its whole allowance at once again whenever its quota is set."""
    quotas = quotas_with(producer_byte_rate=10.0)
    account = ClientAccount(quotas, Throttle())
    assert account.toll(ALICE, b"app").due(200) == 10_000
    changed = [ClientQuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=15.0)]
    quotas.follow(MetadataImage().apply(changed, offset=1, epoch=0))
    assert account.toll(ALICE, b"app").due(0) == pytest.approx(3_334, abs=1)


def test_a_connection_that_has_ended_does_not_pause():
    """A client with a long pause may connect again and again: each of its connections would be kept until its end."""
    quotas, throttle = quotas_with(producer_byte_rate=10.0), Throttle()
    assert ClientAccount(quotas, throttle).toll(ALICE, b"app").due(200) > 0
    assert quotas.paused_count() == 1
    quotas.forget(throttle)
    quotas.forget(throttle)
    assert quotas.paused_count() == 0
