"""Goal: without a majority of controllers the pages show what brokers know, and name what is wrong.

Method: a simulated cluster whose pages are asked before and after controllers are killed, the overview again and again
as an open page does.
"""

import pytest
import trio

from moldau.protocol.errors import KafkaError
from moldau_cli.console.identities import open_identity
from moldau_cli.console.pages import QUESTIONS, Question
from moldau_cli.health import VOTER_SILENCE_MS_MAX
from support.cluster.broker_cluster import run_cluster

RIGHTS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow_everyone_if_no_acl_found": "true",
}
SERVERS = {"bootstrap.servers": "b1:9092,b2:9092"}


async def scenario(cluster):
    seen = {}
    await cluster.client(1).create_topic("orders", partitions=2, replicas=2)
    async with open_identity(SERVERS, cluster.client_environment) as identity, trio.open_nursery() as nursery:

        async def ask(name):
            question = Question(identity=identity, parameters={}, local=None, avro=None)
            began_s = trio.current_time()
            try:
                document = await QUESTIONS[name](question)
            except KafkaError as error:
                document = {"error": str(error)}
            return document, trio.current_time() - began_s

        async def look_again_and_again():
            while True:
                seen["overview"], _ = await ask("overview")
                await trio.sleep(2)

        first, _ = await ask("controllers")
        leader = first["leader"]
        others = [node for node in (101, 102, 103) if node != leader]
        cluster.world.node(f"c{others[0]}").kill()
        await trio.sleep(2 * VOTER_SILENCE_MS_MAX / 1000)
        seen["one down"], _ = await ask("controllers")
        seen["dead"] = others[0]
        cluster.world.node(f"c{leader}").kill()
        nursery.start_soon(look_again_and_again)
        await trio.sleep(3)  # the overview waits for the quorum
        for name in ("brokers", "topics", "controllers", "acls", "quotas"):
            seen[name] = await ask(name)
        nursery.cancel_scope.cancel()
    return seen


@pytest.fixture(scope="module")
def seen():
    return run_cluster(scenario, brokers=2, controllers=3, **RIGHTS)[0]


def test_a_dead_voter_does_not_look_caught_up(seen):
    """Its last answer had no lag, which stays true while the metadata do not change."""
    rows = {row["node"]: row for row in seen["one down"]["rows"] if row["node"] > 100}
    assert [row["lag"] for row in rows.values()] == [0, 0, 0]
    assert {node: row["is_silent"] for node, row in rows.items()} == {node: node == seen["dead"] for node in rows}


def test_other_pages_do_not_wait_for_a_leader_of_the_quorum(seen):
    """They shared connections with the question about the quorum, which a broker holds until a controller leads."""
    document, took_s = seen["brokers"]
    assert [len(row["log_dirs"]) for row in document["rows"]] == [1, 1]
    assert document["notes"] == []
    assert took_s < 7
    document, took_s = seen["topics"]
    assert [row["topic"] for row in document["rows"]] == ["orders"]
    assert took_s < 1
    assert seen["overview"]["verdict"] == "failing"


def test_the_page_of_controllers_says_that_none_leads(seen):
    """It said that no broker answers."""
    document, took_s = seen["controllers"]
    assert (document["leader"], document["rows"]) == (-1, [])
    assert took_s < 7


@pytest.mark.parametrize("page", ["acls", "quotas"])
def test_pages_that_need_a_leader_say_that_none_leads(seen, page):
    """The cause was that no broker answered, although both did."""
    document, took_s = seen[page]
    assert "the brokers reach no controller that leads the quorum" in document["error"], document
    assert took_s < 20
