"""Goal: a command that waits for brokers or controllers says so within seconds, and only then.

Method: clusters on virtual time, whose controller is killed, or one of whose brokers is slow.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from moldau.admin import Admin, NewTopic
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.errors import CommandError
from moldau_cli.quorum_watch import ANSWER_S, NO_LEADER, SILENT, explaining_waits, noting_a_wait
from support.cluster.broker_cluster import run_cluster


def opener(cluster, **more):
    servers = ",".join(f"b{broker_id}:9092" for broker_id in cluster.broker_ids)
    settings = {"bootstrap.servers": servers, "default.api.timeout.ms": "60000", **more}
    return lambda: Admin(settings, environment=cluster.client_environment)


async def _slowly(seconds):
    await trio.sleep(seconds)
    return "done"


def test_a_command_says_that_no_controller_leads():
    notes = []

    async def scenario(cluster):
        cluster.world.node("c101").kill()
        began = trio.current_time()

        def note(text):
            notes.append((text, trio.current_time() - began))

        async with opener(cluster)() as admin:
            with pytest.raises(ExceptionGroup) as raised:
                await explaining_waits(lambda: admin.create_topics([NewTopic(name="t")]), opener(cluster), note)
        assert raised.group_contains(KafkaError)
        assert trio.current_time() - began > 20

    run_cluster(scenario, brokers=3)
    assert [text for text, _ in notes] == [NO_LEADER]
    assert notes[0][1] < 6


def test_a_command_that_waits_for_something_else_says_nothing():
    notes = []

    async def scenario(cluster):
        result = await explaining_waits(lambda: _slowly(40), opener(cluster), notes.append)
        assert result == "done"

    run_cluster(scenario, brokers=2)
    assert notes == []


@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_a_command_says_that_no_broker_answers(fault):
    """All brokers hang, or are gone: the command was silent for 11 s, wrote a line of a log, and ended after 69 s."""
    notes = []

    async def scenario(cluster):
        for broker in cluster.broker_ids:
            getattr(cluster.world.node(f"b{broker}"), fault)()
        began = trio.current_time()

        def note(text):
            notes.append((text, trio.current_time() - began))

        async with opener(cluster)() as admin:
            with pytest.raises(ExceptionGroup) as raised:
                await explaining_waits(admin.describe_cluster, opener(cluster), note, unanswered="no broker of b1")
        assert raised.group_contains(CommandError, match="no broker of b1")
        assert trio.current_time() - began == pytest.approx(ANSWER_S)

    run_cluster(scenario, brokers=2)
    [(text, after_s)] = notes
    assert text == SILENT
    assert after_s < 4


@pytest.mark.parametrize("servers", ["b1:9092,b2:9092", "b2:9092,b1:9092"])
def test_the_error_names_a_server_that_cannot_be_used(servers):
    """Of two servers one was down, and one did not suit the client's settings: the command blamed a hanging one."""

    async def scenario(cluster):
        cluster.world.node("b1").kill()
        opened = opener(cluster, **{"bootstrap.servers": servers, "security.protocol": "SSL"})
        began = trio.current_time()
        async with opened() as admin:
            with pytest.raises(ExceptionGroup) as raised:
                await explaining_waits(admin.describe_cluster, opened, lambda _: None, unanswered="nothing answers")
        assert raised.group_contains(CommandError, match="nothing answers; b2:9092: .* does not speak TLS")
        assert trio.current_time() - began == pytest.approx(ANSWER_S)

    run_cluster(scenario, brokers=2)


def test_brokers_that_hang_later_are_waited_for():
    """A command that has begun its work goes on when they answer again."""
    notes = []

    async def scenario(cluster):
        async def work():
            await trio.sleep(5)
            cluster.world.node("b1").pause()
            await trio.sleep(60)
            return "done"

        assert await explaining_waits(work, opener(cluster), notes.append) == "done"

    run_cluster(scenario, brokers=1)
    assert notes == [SILENT]


def test_a_command_that_reports_silence_gets_no_note():
    """A note would fall into the screen of ``moldau top``."""
    notes = []

    async def scenario(cluster):
        looks = trio.CancelScope()

        async def work():
            await trio.sleep(5)
            looks.cancel()
            cluster.world.node("b1").pause()
            await trio.sleep(60)

        await explaining_waits(work, opener(cluster), notes.append, looks=looks)

    run_cluster(scenario, brokers=1)
    assert notes == []


@pytest.mark.parametrize("hanging", [1, 2, 3])
def test_one_hanging_server_is_no_reason_for_a_note(hanging):
    """Clients ask another one after a second; the note came at the same time."""
    notes = []

    async def scenario(cluster):
        cluster.world.node(f"b{hanging}").pause()
        await explaining_waits(lambda: _slowly(10), opener(cluster), notes.append)

    run_cluster(scenario, brokers=3)
    assert notes == []


def test_a_leader_that_is_lost_meanwhile_is_noticed():
    notes = []

    async def scenario(cluster):
        async def work():
            await trio.sleep(5)
            cluster.world.node("c101").kill()
            await trio.sleep(30)

        await explaining_waits(work, opener(cluster), notes.append)

    run_cluster(scenario, brokers=1)
    assert notes == [NO_LEADER]


@pytest.mark.parametrize(("seconds", "notes"), [(0.5, []), (40, ["waiting for the voter"])])
def test_a_wait_is_named_if_it_takes_long(seconds, notes):
    noted = []

    async def work():
        await trio.sleep(seconds)
        return "done"

    async def main():
        assert await noting_a_wait(work, "waiting for the voter", noted.append) == "done"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert noted == notes


def test_the_error_of_a_named_wait_is_in_no_group():
    """Callers catch the registry's errors by their class."""

    async def work():
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    with pytest.raises(KafkaError):
        trio.run(noting_a_wait, work, "text", strict_exception_groups=True)
