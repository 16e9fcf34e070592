"""Goal: a group goes over to the assignor that most of its members prefer by now, without any other change.

Method: stories of static members against the pure core: their restarts alone raise no epoch.
"""

from __future__ import annotations

import pytest

from moldau.runtime.config import BROKER_CONFIG
from moldau_broker.coordinator.group.core.config import GroupConfig
from support.coordinator.consumer_world import ConsumerClient, group_of
from support.coordinator.group_world import CoreDriver

PACKAGE = "org.apache.kafka.coordinator.group.assignor"
NODE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "9@c:9093",
}


def rest(clients: list[ConsumerClient]) -> None:
    for _ in range(6):
        for client in clients:
            client.beat()


@pytest.mark.parametrize(("assignor", "shares"), [("range", [0, 2]), ("uniform", [1, 1])])
def test_restarts_of_static_members_change_the_assignor(assignor: str, shares: list[int]) -> None:
    driver = CoreDriver()
    driver.topics.counts = {"t": 1, "u": 1}

    def client(number: int, process: str, wanted: str) -> ConsumerClient:
        return ConsumerClient(driver, f"{process}{number}", ("t", "u"), instance=f"i{number}", assignor=wanted)

    clients = [client(number, "former", "uniform") for number in (0, 1)]
    rest(clients)
    epoch = group_of(driver).epoch
    for number in (0, 1):
        clients[number].leave(-2)
        clients[number] = client(number, "later", assignor)
        rest(clients)
    assert sorted(len(each.numbers) for each in clients) == shares
    assert group_of(driver).epoch == epoch + (assignor != "uniform")


@pytest.mark.parametrize("names", ["RangeAssignor,UniformAssignor", "RangeAssignor,range,uniform"])
def test_assignors_may_have_the_names_of_their_classes(names: str) -> None:
    """Kafka 3.7 to 3.9 had them so in its default, and later releases take them."""
    given = ",".join(f"{PACKAGE}.{name}" if name.endswith("Assignor") else name for name in names.split(","))
    config = GroupConfig.of(BROKER_CONFIG.parse({**NODE, "group.consumer.assignors": given}))
    assert config.consumer_assignors == ("range", "uniform")
