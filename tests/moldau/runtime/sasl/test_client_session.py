"""Goal: a client authenticates only with a server that plays by the rules, and survives any other.

Method: the client's states against answers written by hand; then any bytes in each state, by Hypothesis.
"""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeResponse
from moldau.runtime.net.renewal import Renewal
from moldau.runtime.sasl.core.client import ROUNDS_MAX, ClientSession, ClientState, Done, Send, reauthentication_at_ms
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.plain import PlainClient
from moldau.runtime.sasl.core.scram import ScramClient


def frame(response, version):
    return memoryview(encode_response(response, version, 0))[4:]


def versions(*keys, code=0, version=4):
    served = [ApiVersion(api_key=key, min_version=0, max_version=last) for key, last in keys]
    return frame(ApiVersionsResponse(error_code=code, api_keys=served), version)


SERVED = versions((17, 1), (36, 2))
ACCEPTED = frame(SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]), 1)


def authenticated(data=b"", code=0, message=None, lifetime_ms=0, version=2):
    response = SaslAuthenticateResponse(
        error_code=code, error_message=message, auth_bytes=data, session_lifetime_ms=lifetime_ms if version else 0
    )
    return frame(response, version)


class Endless:
    is_complete = False

    def first(self):
        return b"x"

    def respond(self, challenge):
        return b"x"


def session(exchange=None, *answers):
    client = ClientSession("PLAIN", "b:9092", "me", ("moldau", "1"))
    step = client.start(exchange or PlainClient("alice", "s3cret"), 0)
    for number, answer in enumerate(answers, 1):
        assert isinstance(step, Send)
        step = client.receive(answer, number)
    return client, step


def test_an_authentication_and_its_renewal():
    client, step = session(None, SERVED, ACCEPTED, authenticated(lifetime_ms=10_000))
    assert step == Done(lifetime_ms=10_000)
    assert reauthentication_at_ms(1_000, 10_000) == 9_500
    assert reauthentication_at_ms(1_000, 0) == math.inf
    client.start_again(PlainClient("alice", "s3cret"), 7)
    client.receive(ACCEPTED, 8)
    assert client.receive(authenticated(), 9) == Done(lifetime_ms=0)


def test_a_token_that_a_renewal_finds_refused_is_not_used_again():
    """It was revoked: each new connection would offer it until it expires."""
    refused = []
    client, _ = session(None, SERVED, ACCEPTED, authenticated())
    login = SimpleNamespace(
        exchange_nowait=lambda: PlainClient("alice", "s3cret"), refused=lambda: refused.append("token")
    )
    renewal = Renewal(SimpleNamespace(session=client, login=login))
    renewal.awaited = renewal.begin(7)
    renewal.awaited = renewal.receive(ACCEPTED, 8)
    assert renewal.is_under_way
    with pytest.raises(SaslAuthenticationError):
        renewal.receive(authenticated(code=ErrorCode.SASL_AUTHENTICATION_FAILED), 9)
    assert (refused, renewal.is_under_way) == (["token"], False)


def test_each_renewal_counts_its_own_messages():
    """A connection may live for as many renewals as it likes."""
    client, _ = session(None, SERVED, ACCEPTED, authenticated(lifetime_ms=10_000))
    for _ in range(2 * ROUNDS_MAX):
        client.start_again(PlainClient("alice", "s3cret"), 7)
        client.receive(ACCEPTED, 8)
        assert client.receive(authenticated(lifetime_ms=10_000), 9) == Done(lifetime_ms=10_000)


def test_servers_of_other_versions():
    old = versions((17, 1), (36, 0), code=ErrorCode.UNSUPPORTED_VERSION, version=0)
    first = versions((17, 1), (36, 0), version=0)
    _, step = session(None, old, first, ACCEPTED, authenticated(version=0))
    assert step == Done(lifetime_ms=0)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([versions((3, 1))], "does not serve SaslAuthenticate"),
        ([versions((17, 0), (36, 0))], "does not serve SaslAuthenticate"),
        ([versions(code=41)], "refused ApiVersions"),
        ([SERVED, frame(SaslHandshakeResponse(error_code=33, mechanisms=["A", "B"]), 1)], "one of: A, B"),
        ([SERVED, frame(SaslHandshakeResponse(error_code=34, mechanisms=[]), 1)], "does not use SASL"),
        ([SERVED, ACCEPTED, authenticated(code=58, message="no")], "PLAIN: no"),
        ([SERVED, ACCEPTED, authenticated(code=58)], "Authentication failed"),
    ],
)
def test_refusals_name_server_mechanism_and_reason(answers, problem):
    with pytest.raises(SaslAuthenticationError, match=problem) as raised:
        session(None, *answers)
    assert "b:9092 with SASL PLAIN" in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert isinstance(raised.value, ConnectionError)


def test_an_exchange_that_does_not_end_is_ended():
    with pytest.raises(SaslAuthenticationError, match=f"no end after {ROUNDS_MAX}"):
        session(Endless(), SERVED, ACCEPTED, *[authenticated(b"more")] * 20)


def test_a_server_that_ends_scram_too_early_is_not_believed():
    """Without a check of the server's signature any host could impersonate the server."""
    exchange = ScramClient("SCRAM-SHA-256", "alice", lambda salt, iterations: b"k" * 32, "NONCE")
    with pytest.raises(SaslAuthenticationError, match=r"malformed|too early"):
        session(exchange, SERVED, ACCEPTED, authenticated(b""))


@pytest.mark.parametrize("before", [[], [SERVED], [SERVED, ACCEPTED]], ids=["versions", "handshake", "exchange"])
@given(answer=st.binary(min_size=4, max_size=80))
def test_any_answer_in_any_state(before, answer):
    client, _ = session(None, *before)
    try:
        step = client.receive(memoryview(answer), 9)
    except SaslAuthenticationError:
        assert client.state is ClientState.FAILED
    else:
        assert isinstance(step, Send | Done)
