"""Goal: a broker that hangs up is not taken for a listener of another kind. Method: sockets in memory."""

import socket

import pytest

from moldau.protocol.codec import ProtocolError
from moldau.protocol.framing import encode_response
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from pyspark_moldau.client_options import ClientOptions
from pyspark_moldau.wire import connections
from pyspark_moldau.wire.cluster import METADATA_VERSION
from pyspark_moldau.wire.connections import BrokerConnection

HINT = "; if its listener uses TLS or SASL, set kafka.security.protocol to SSL, SASL_SSL or SASL_PLAINTEXT"
ANSWER = encode_response(MetadataResponse(), METADATA_VERSION, 1)


@pytest.fixture
def connect(monkeypatch):
    """Returns a function that connects to a broker with some answers, which hangs up after them."""
    ends = []

    class Socket(socket.socket):
        def setsockopt(self, *given):
            pass

    def paired(address, timeout):
        one, other = socket.socketpair()
        ends.append(other)
        return Socket(fileno=one.detach())

    monkeypatch.setattr(connections.socket, "create_connection", paired)

    def function(*answers):
        connection = BrokerConnection("h", 1, ClientOptions(bootstrap=(("h", 1),)))
        ends[-1].sendall(b"".join(answers))
        ends[-1].shutdown(socket.SHUT_WR)
        return connection

    yield function
    for end in ends:
        end.close()


def ask(connection):
    connection.send(MetadataRequest(topics=[]), METADATA_VERSION)
    return connection.receive(MetadataResponse, METADATA_VERSION)


@pytest.mark.parametrize("answers", range(3))
def test_a_broker_that_answered_is_of_the_right_kind(connect, answers):
    """Later, the hint at TLS would lead away from a broker that has ended."""
    connection = connect(*[ANSWER] * answers)
    for _ in range(answers):
        assert not ask(connection).brokers
    with pytest.raises(ConnectionResetError, match=r"^the broker closed the connection") as caught:
        ask(connection)
    assert str(caught.value) == "the broker closed the connection" + ("" if answers else HINT)
    connection.close()
    connection.close()


@pytest.mark.parametrize("cut", range(1, len(ANSWER)))
def test_an_answer_that_is_cut_off_is_an_error(connect, cut):
    connection = connect(ANSWER[:cut])
    with pytest.raises(ConnectionError, match="closed the connection"):
        ask(connection)
    connection.close()


@pytest.mark.parametrize("size", [-1, 0, 3, connections.FRAME_BYTES_MAX + 1])
def test_a_size_that_no_answer_has_is_refused(connect, size):
    connection = connect(size.to_bytes(4, "big", signed=True))
    with pytest.raises(
        ConnectionError, match=rf"is none of Kafka's protocol \({size} bytes\): is this another service"
    ):
        ask(connection)
    connection.close()


def test_an_answer_that_is_no_message_is_an_error(connect, monkeypatch):
    def refused(*_):
        raise ProtocolError("too short")

    monkeypatch.setattr(connections, "decode_response", refused)
    connection = connect(ANSWER)
    with pytest.raises(ConnectionError, match=r"^a response is not a MetadataResponse: too short$"):
        ask(connection)
    connection.close()
