"""Goal: no connection of a query is lost open, or used again after an error, and retries come in good time.

Method: connections in memory that are counted; all short sequences of requests that succeed, fail or are interrupted.
"""

import itertools
import types

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from pyspark_moldau.client_options import ClientOptions, OptionError
from pyspark_moldau.errors import ReadTimeoutError
from pyspark_moldau.wire import cluster as cluster_module
from pyspark_moldau.wire import connections
from pyspark_moldau.wire.cluster import Cluster, NoAnswerError, RetryTimer

ONE, TWO = ("one", 1), ("two", 2)
CLIENT = ClientOptions(bootstrap=(ONE, TWO), api_timeout_ms=1000, retry_backoff_ms=100, retry_backoff_max_ms=400)
ANSWERS = {
    "answers": None,
    "is cut off": ConnectionResetError("cut off"),
    "refuses the login": OptionError("kafka.sasl.password: refused"),
    "is interrupted": KeyboardInterrupt(),
}


class Connection:
    """One of the connections of a test."""

    made = None
    answer = None
    is_outdated = False

    def __init__(self, host, port, client):
        self.address, self.is_open, self.asked = (host, port), True, 0
        self.made.append(self)

    def send(self, request, version):
        assert self.is_open, "a connection that failed is used again"
        self.asked += 1

    def receive(self, response_class, version):
        if type(self).answer is not None:
            raise type(self).answer
        return "the answer"

    def close(self):
        self.is_open = False


@pytest.fixture
def made(monkeypatch):
    """All connections that were made."""
    monkeypatch.setattr(Connection, "made", [])
    monkeypatch.setattr(Connection, "answer", None)
    monkeypatch.setattr(cluster_module, "BrokerConnection", Connection)
    return Connection.made


def open_ones(made):
    return [each for each in made if each.is_open]


@pytest.mark.parametrize("first", ANSWERS)
def test_a_connection_is_kept_only_after_an_answer(made, monkeypatch, first):
    for rest in itertools.product(ANSWERS, repeat=2):
        made.clear()
        cluster = Cluster(CLIENT)
        for name in (first, *rest):
            monkeypatch.setattr(Connection, "answer", ANSWERS[name])
            if ANSWERS[name] is None:
                assert cluster.ask(ONE, "request", 0, object) == "the answer"
                assert len(open_ones(made)) == 1
                continue
            kind = ConnectionError if name == "is cut off" else type(ANSWERS[name])
            with pytest.raises(kind):
                cluster.ask(ONE, "request", 0, object)
            assert not open_ones(made), (first, rest)
        cluster.forget()
        assert not open_ones(made)


def test_the_same_connection_answers_again_until_its_login_ends(made, monkeypatch):
    cluster = Cluster(CLIENT)
    for _ in range(3):
        cluster.ask(ONE, "request", 0, object)
    assert [each.asked for each in made] == [3]
    made[0].is_outdated = True
    cluster.ask(ONE, "request", 0, object)
    assert [(each.asked, each.is_open) for each in made] == [(3, False), (1, True)]


def test_one_connection_of_an_address_is_kept(made):
    cluster = Cluster(CLIENT)
    taken = [cluster.take_connection(ONE) for _ in range(3)]
    assert len({*map(id, taken)}) == 3, "each caller has one of its own"
    for each in taken:
        cluster.give_back(ONE, each)
    assert open_ones(made) == [taken[0]]
    cluster.ask(TWO, "request", 0, object)
    assert {each.address for each in open_ones(made)} == {ONE, TWO}
    cluster.leaders["t", 0] = 1
    cluster.forget()
    assert (open_ones(made), cluster.leaders) == ([], {})
    assert cluster.take_connection(ONE) is not taken[0]


def test_each_address_is_asked_once_until_one_answers(made, monkeypatch):
    """Those of the metadata first; a refused login is an answer, and the others would refuse it too."""
    cluster = Cluster(CLIENT)
    cluster.brokers = {7: ("three", 3), 8: TWO}
    monkeypatch.setattr(Connection, "answer", ConnectionResetError("cut off"))
    with pytest.raises(NoAnswerError) as caught:
        cluster.ask_any("request", 0, object)
    assert [each.address for each in made] == [("three", 3), TWO, ONE]
    assert caught.value.causes == "three:3: cut off; two:2: cut off; one:1: cut off"
    made.clear()
    monkeypatch.setattr(Connection, "answer", ANSWERS["refuses the login"])
    with pytest.raises(OptionError):
        cluster.ask_any("request", 0, object)
    assert len(made) == 1
    made.clear()
    monkeypatch.setattr(Connection, "answer", None)
    assert cluster.ask_any("request", 0, object) == "the answer"
    assert [each.address for each in made] == [("three", 3)]


@pytest.fixture
def waits(monkeypatch):
    """The waits between attempts; time passes during them only."""
    found, now = [], [0.0]

    def sleep(seconds):
        found.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(cluster_module, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return found


def test_waits_grow_up_to_a_bound_until_there_is_progress(waits):
    timer = RetryTimer("read t-0", CLIENT)
    for _ in range(2):
        timer.progress()
        waits.clear()
        for _ in range(3):
            timer.failed(ConnectionResetError("cut off"))
        assert waits == [0.1, 0.2, 0.4]
    assert not timer.is_over
    with pytest.raises(ReadTimeoutError, match=r"^could not read t-0 for 1 s: cut off; is the cluster up\? kafka\.def"):
        timer.failed(ConnectionResetError("cut off"))


def test_an_attempt_is_repeated_with_new_connections(made, waits):
    """Outdated ones would fail again."""
    cluster = Cluster(CLIENT)
    seen = []

    def attempt():
        seen.append((len(open_ones(made)), dict(cluster.leaders)))
        cluster.take_connection(ONE)
        cluster.give_back(TWO, cluster.take_connection(TWO))
        cluster.leaders["t", 0] = len(seen)
        made[0].close()
        if len(seen) < 3:
            raise ConnectionResetError("cut off")
        return "done"

    assert cluster.retry("ask", attempt) == "done"
    assert [leaders for _, leaders in seen] == [{}, {}, {}]
    assert waits == [0.1, 0.2]
    waits.clear()

    def final():
        raise KafkaError(ErrorCode.INVALID_REQUEST)

    def refused():
        raise ConnectionResetError("cut off")

    with pytest.raises(KafkaError, match="INVALID_REQUEST"):
        cluster.retry("ask", final)

    with pytest.raises(ReadTimeoutError, match=r"^could not ask for 0\.25 s: "):
        cluster.retry("ask", refused, timeout_ms=250)
    assert waits == [0.1]


@pytest.mark.parametrize(
    "error", [OSError("no"), OptionError("no"), KeyboardInterrupt()], ids=["error", "option", "Ctrl-C"]
)
def test_a_connection_that_is_not_made_leaves_no_socket(monkeypatch, error):
    closed = []
    plain = types.SimpleNamespace(
        setsockopt=lambda *given: None, settimeout=lambda seconds: None, close=lambda: closed.append("closed")
    )

    def refused(*_):
        raise error

    monkeypatch.setattr(connections.socket, "create_connection", lambda address, timeout: plain)
    monkeypatch.setattr(connections, "login_of", lambda client: object())
    monkeypatch.setattr(connections, "tls_context", lambda client: None)
    plain.sendall = None
    monkeypatch.setattr(connections, "authenticate", refused)
    with pytest.raises(type(error)):
        connections.BrokerConnection("h", 1, CLIENT)
    assert closed == ["closed"]
