"""Goal: the broker's side admits only authenticated clients, for any requests in any order.

Method: every state crossed with every event, against a table written by hand; then random walks against a model.
"""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau.runtime.sasl.core.mechanism import Accepted, Challenge, Rejected
from moldau.runtime.sasl.core.plain import PlainServer
from moldau.runtime.sasl.core.server import (
    Answer,
    Event,
    Input,
    PassOn,
    RawAnswer,
    Refuse,
    SaslSession,
    SessionRules,
    State,
)

RIGHT, WRONG, OTHER_USER = b"\0alice\0secret", b"\0alice\0wrong", b"\0bob\0secret"


class TwoSteps:
    """Asks once, then accepts every client."""

    def __init__(self):
        self.steps = 0

    def step(self, token):
        self.steps += 1
        return Challenge(data=b"?") if self.steps == 1 else Accepted(user="alice", data=b"!")


class Expiring:
    def step(self, token):
        return Accepted(user="alice", expires_wall_ms=10_000)


def rules(reauthentication_ms=0):
    users = {"alice": "secret", "bob": "secret"}
    exchanges = {"PLAIN": lambda: PlainServer(users.get), "TWO": TwoSteps, "TOKEN": Expiring}
    return SessionRules(exchanges=exchanges, reauthentication_ms=dict.fromkeys(exchanges, reauthentication_ms))


def send(session, event, *, now_ms=0.0, wall_ms=0, version=1, mechanism="PLAIN", token=RIGHT):
    return session.receive(
        Input(event=event, now_ms=now_ms, wall_ms=wall_ms, version=version, mechanism=mechanism, token=token)
    )


def in_state(state, reauthentication_ms=0):
    session = SaslSession(rules(reauthentication_ms))
    match state:
        case State.EXCHANGE:
            send(session, Event.HANDSHAKE)
        case State.RAW_EXCHANGE:
            send(session, Event.HANDSHAKE, version=0)
        case State.AUTHENTICATED | State.REAUTHENTICATION:
            send(session, Event.HANDSHAKE)
            send(session, Event.AUTHENTICATE)
            if state is State.REAUTHENTICATION:
                send(session, Event.HANDSHAKE, now_ms=5_000)
        case State.CLOSED:
            send(session, Event.OTHER)
    assert session.state is state
    return session


S, E = State, Event
CONTINUED = {
    (S.INITIAL, E.VERSIONS): (PassOn, S.INITIAL),
    (S.INITIAL, E.HANDSHAKE): (Answer, S.EXCHANGE),
    (S.EXCHANGE, E.AUTHENTICATE): (Answer, S.AUTHENTICATED),
    (S.RAW_EXCHANGE, E.TOKEN): (RawAnswer, S.AUTHENTICATED),
    (S.AUTHENTICATED, E.VERSIONS): (PassOn, S.AUTHENTICATED),
    (S.AUTHENTICATED, E.OTHER): (PassOn, S.AUTHENTICATED),
    (S.AUTHENTICATED, E.HANDSHAKE): (Answer, S.REAUTHENTICATION),
    (S.AUTHENTICATED, E.AUTHENTICATE): (Answer, S.AUTHENTICATED),
    (S.REAUTHENTICATION, E.AUTHENTICATE): (Answer, S.AUTHENTICATED),
}
"""All that does not end the connection."""


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_every_state_with_every_event(state, event):
    session = in_state(state)
    effect = send(session, event, now_ms=5_000)
    expected = CONTINUED.get((state, event), (Refuse, State.CLOSED))
    assert (type(effect), session.state) == expected


@pytest.mark.parametrize("state", [S.EXCHANGE, S.RAW_EXCHANGE, S.REAUTHENTICATION])
def test_a_wrong_password_ends_the_connection(state):
    session = in_state(state)
    event = Event.TOKEN if state is S.RAW_EXCHANGE else Event.AUTHENTICATE
    effect = send(session, event, token=WRONG, now_ms=5_000)
    assert isinstance(effect, Refuse)
    assert effect.failure.claimed == "alice"
    if state is S.RAW_EXCHANGE:
        assert effect.response is None
    else:
        assert effect.response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert effect.response.error_message == "Authentication failed: Invalid username or password"
    assert isinstance(send(session, event), Refuse)


@pytest.mark.parametrize("state", [S.INITIAL, S.AUTHENTICATED])
def test_an_unknown_mechanism_is_refused_with_the_list(state):
    session = in_state(state)
    effect = send(session, Event.HANDSHAKE, mechanism="GSSAPI" * 1000, now_ms=5_000)
    assert effect.response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert effect.response.mechanisms == ["PLAIN", "TWO", "TOKEN"]
    assert len(effect.reason) < 200


def test_several_rounds():
    session = in_state(S.INITIAL)
    send(session, Event.HANDSHAKE, mechanism="TWO")
    assert send(session, Event.AUTHENTICATE).response.auth_bytes == b"?"
    assert session.user is None
    last = send(session, Event.AUTHENTICATE)
    assert (last.response.auth_bytes, last.authenticated) == (b"!", "alice")


def test_a_session_ends_and_can_be_renewed_after_its_end():
    session = in_state(S.AUTHENTICATED, reauthentication_ms=2_000)
    assert session.expires_ms == 2_000
    assert isinstance(send(session, Event.OTHER, now_ms=1_999), PassOn)
    assert isinstance(send(session, Event.HANDSHAKE, now_ms=2_500), Answer)
    renewed = send(session, Event.AUTHENTICATE, now_ms=2_500)
    assert renewed.response.session_lifetime_ms == 2_000
    assert session.expires_ms == 4_500
    ended = send(session, Event.OTHER, now_ms=4_500)
    assert isinstance(ended, Refuse)
    assert "expired" in ended.reason


@pytest.mark.parametrize(("limit_ms", "lifetime_ms"), [(0, 9_000), (4_000, 4_000), (60_000, 9_000)])
def test_a_session_ends_with_its_token(limit_ms, lifetime_ms):
    session = SaslSession(rules(limit_ms))
    send(session, Event.HANDSHAKE, mechanism="TOKEN")
    effect = send(session, Event.AUTHENTICATE, now_ms=500, wall_ms=1_000)
    assert effect.response.session_lifetime_ms == lifetime_ms
    assert session.expires_ms == 500 + lifetime_ms


@pytest.mark.parametrize("limit_ms", [0, 4_000])
@pytest.mark.parametrize("wall_ms", [10_000, 12_000])
def test_a_token_that_expires_in_the_exchange_ends_at_once(limit_ms, wall_ms):
    """Its remaining life of 0 must not be taken for a session without an end."""
    session = SaslSession(rules(limit_ms))
    send(session, Event.HANDSHAKE, mechanism="TOKEN")
    effect = send(session, Event.AUTHENTICATE, now_ms=500, wall_ms=wall_ms)
    assert effect.response.session_lifetime_ms == 1
    assert isinstance(send(session, Event.OTHER, now_ms=500), PassOn)
    assert isinstance(send(session, Event.OTHER, now_ms=501), Refuse)


@pytest.mark.parametrize(("limit_ms", "ends_ms"), [(0, math.inf), (60_000, 63_000), (500, 3_500)])
def test_a_renewed_session_ends_by_the_present_rules(limit_ms, ends_ms):
    """The limit was changed since the login: a renewal may also take the end away."""
    session = in_state(S.AUTHENTICATED, 4_000)
    session.rules = rules(limit_ms)
    assert session.expires_ms == 4_000
    send(session, Event.HANDSHAKE, now_ms=3_000)
    send(session, Event.AUTHENTICATE, now_ms=3_000)
    assert session.expires_ms == ends_ms
    assert isinstance(send(session, Event.OTHER, now_ms=9_000), PassOn if ends_ms > 9_000 else Refuse)


def test_sessions_without_an_end():
    assert in_state(S.AUTHENTICATED).expires_ms == math.inf


def test_a_re_authentication_keeps_mechanism_and_principal():
    session = in_state(S.REAUTHENTICATION)
    effect = send(session, Event.AUTHENTICATE, token=OTHER_USER, now_ms=5_000)
    assert isinstance(effect, Refuse)
    assert "Cannot change principals" in effect.response.error_message
    assert isinstance(effect.failure, Rejected)
    session = in_state(S.AUTHENTICATED)
    effect = send(session, Event.HANDSHAKE, mechanism="TWO", now_ms=5_000)
    assert effect.response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert session.state is S.CLOSED


@pytest.mark.parametrize("logins", list(itertools.product([False, True], repeat=3)))
def test_the_last_login_says_whether_a_token_was_used(logins):
    """A client with a delegation token may renew its session with the password, and the other way round."""

    class Login:
        def step(self, token):
            return Accepted(user="alice", by_token=token == b"token")

    session = SaslSession(SessionRules(exchanges={"SCRAM": Login}, reauthentication_ms={}))
    for number, by_token in enumerate(logins):
        send(session, Event.HANDSHAKE, mechanism="SCRAM", now_ms=5_000 * number)
        answer = send(session, Event.AUTHENTICATE, token=b"token" if by_token else b"password", now_ms=5_000 * number)
        assert answer.authenticated == "alice"
        assert session.by_token == by_token


def test_a_short_session_can_be_renewed():
    """A client whose token ends within a second renews its session before that."""
    session = SaslSession(rules())
    send(session, Event.HANDSHAKE, mechanism="TOKEN")
    assert send(session, Event.AUTHENTICATE, wall_ms=9_000).response.session_lifetime_ms == 1_000
    assert send(session, Event.HANDSHAKE, mechanism="TOKEN", now_ms=850).response.error_code == ErrorCode.NONE
    assert isinstance(send(session, Event.AUTHENTICATE, now_ms=850, wall_ms=9_850), Answer)


def test_an_early_re_authentication_is_refused_but_harmless():
    session = in_state(S.REAUTHENTICATION)
    send(session, Event.AUTHENTICATE, now_ms=5_500)
    effect = send(session, Event.HANDSHAKE, now_ms=5_999)
    assert effect.response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert isinstance(send(session, Event.OTHER, now_ms=6_000), PassOn)


def test_the_interval_begins_with_each_re_authentication():
    session = in_state(S.REAUTHENTICATION)
    send(session, Event.AUTHENTICATE, now_ms=5_500)
    early = send(session, Event.HANDSHAKE, now_ms=5_999)
    assert (early.response.error_code, session.state) == (ErrorCode.ILLEGAL_SASL_STATE, S.AUTHENTICATED)
    assert send(session, Event.HANDSHAKE, now_ms=6_000).response.error_code == ErrorCode.NONE


def test_a_re_authentication_with_bare_tokens_is_refused():
    session = in_state(S.AUTHENTICATED)
    assert isinstance(send(session, Event.HANDSHAKE, version=0, now_ms=5_000), Refuse)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(Event),
        st.sampled_from(["PLAIN", "TWO", "TOKEN", "NONE"]),
        st.sampled_from([RIGHT, WRONG, OTHER_USER, b""]),
        st.integers(0, 1),
        st.integers(0, 3_000),
    ),
    max_size=12,
)


@given(steps=STEPS)
def test_no_order_of_requests_passes_without_a_right_secret(steps):
    """The model: a request passes only after an exchange was accepted, and before the session's end."""
    session, now_ms = SaslSession(rules(5_000)), 0
    proven, closed = None, False
    for event, mechanism, token, version, passed_ms in steps:
        now_ms += passed_ms
        effect = send(session, event, mechanism=mechanism, token=token, version=version, now_ms=now_ms)
        if isinstance(effect, Answer | RawAnswer) and effect.authenticated is not None:
            assert mechanism is not None
            assert session.mechanism != "PLAIN" or token in (RIGHT, OTHER_USER)
            assert proven is None or effect.authenticated == proven[0]
            proven = (effect.authenticated, now_ms)
        if isinstance(effect, PassOn):
            assert not closed
            assert event in (Event.VERSIONS, Event.OTHER)
            assert event is Event.VERSIONS or (proven is not None and now_ms < proven[1] + 5_000)
        assert not closed or isinstance(effect, Refuse)
        closed = closed or isinstance(effect, Refuse)
