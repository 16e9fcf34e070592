"""Goal: a leader never holds an idle fetch longer than its follower waits, or than an in-sync replica may lag."""

from itertools import product

from moldau.runtime.config import BROKER_CONFIG, ConfigError

WAIT, TIMEOUT, LAG = "replica.fetch.wait.max.ms", "replica.socket.timeout.ms", "replica.lag.time.max.ms"
BROKER = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://h:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "101@c:9093",
    "log.dirs": "/data",
}


def test_each_bound_of_a_wait_is_named():
    """Kafka refuses the same files. A new partition is replicated only when the fetch that is held has ended."""
    for wait, timeout, lag in product((1, 499, 500, 501), repeat=3):
        named = [
            f"{WAIT} = {wait}: must not be above {key} = {most}"
            for key, most in ((TIMEOUT, timeout), (LAG, lag))
            if wait > most
        ]
        found: list[str] = []
        try:
            BROKER_CONFIG.parse({**BROKER, WAIT: str(wait), TIMEOUT: str(timeout), LAG: str(lag)})
        except ConfigError as error:
            found = list(error.problems)
        assert found == named
