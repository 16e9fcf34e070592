"""Goal: SCRAM as RFC 5802 and RFC 7677 have it, and nothing less is accepted.

Method: the RFC's own example; both sides against each other; each field of a correct exchange changed by hand.
"""

import base64
import hashlib
import hmac
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.sasl.core.mechanism import Accepted, Challenge, Rejected, SaslExchangeError
from moldau.runtime.sasl.core.scram import (
    MESSAGE_BYTES_MAX,
    TOKEN_EXTENSION,
    ScramClient,
    ScramServer,
    TokenKeys,
    decode_name,
    decoy_keys,
    encode_name,
    keys_of,
    salted_password,
)

SALT, ITERATIONS = b"0123456789abcdef", 4096
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def credential(mechanism="SCRAM-SHA-256", password="pencil", salt=SALT, iterations=ITERATIONS):
    return keys_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def server(mechanism="SCRAM-SHA-256", users=None, nonce="SERVER"):
    users = {"user": credential(mechanism)} if users is None else users
    return ScramServer(mechanism, users.get, lambda user: decoy_keys(mechanism, user, b"secret", ITERATIONS), nonce)


def client(mechanism="SCRAM-SHA-256", user="user", password="pencil", nonce="CLIENT"):
    return ScramClient(
        mechanism, user, lambda salt, iterations: salted_password(mechanism, password, salt, iterations), nonce
    )


def first_two(serving, asking):
    challenge = serving.step(asking.first())
    assert isinstance(challenge, Challenge)
    return challenge.data, asking.respond(challenge.data)


def test_the_example_of_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = {"user": credential(salt=salt)}
    serving = server(users=known, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    asking = client(nonce="rOprNGfwEbeRWgbNEkqO")
    first, final = first_two(serving, asking)
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    outcome = serving.step(final)
    assert outcome == Accepted(user="user", data=b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert asking.respond(outcome.data) is None
    assert asking.is_complete


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(user=st.text(min_size=1).filter(lambda text: "\0" not in text), password=st.text(min_size=1, max_size=8))
def test_every_user_and_password(mechanism, user, password):
    try:
        user.encode(), password.encode()
    except UnicodeEncodeError:
        return
    assert decode_name(encode_name(user)) == user
    serving = server(mechanism, {user: credential(mechanism, password)})
    asking = client(mechanism, user, password)
    _, final = first_two(serving, asking)
    outcome = serving.step(final)
    assert isinstance(outcome, Accepted)
    assert outcome.user == user
    asking.respond(outcome.data)
    assert asking.is_complete


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_look_alike(mechanism):
    answers = []
    for user, password in (("user", "wrong"), ("mallory", "wrong"), ("mallory", "pencil")):
        serving = server(mechanism)
        first, final = first_two(serving, client(mechanism, user, password))
        outcome = serving.step(final)
        assert isinstance(outcome, Rejected)
        assert (outcome.message, outcome.claimed) == (None, user)
        fields = dict(part.split(b"=", 1) for part in first.split(b","))
        answers.append((len(fields[b"r"]), fields[b"i"]))
        assert len(base64.b64decode(fields[b"s"])) >= 16
    assert len(set(answers)) == 1


def test_an_unknown_user_has_a_salt_that_stays():
    salts = [server().step(client(user=user).first()).data.split(b",")[1] for user in ("a", "a", "b")]
    assert salts[0] == salts[1] != salts[2]
    other = decoy_keys("SCRAM-SHA-256", "a", b"other secret", ITERATIONS)
    assert base64.b64encode(other.salt) not in salts[0]


def test_the_proof_of_a_decoy_never_fits():
    """Even a client that guessed the decoy's keys is not let in."""
    keys = credential()
    serving = ScramServer("SCRAM-SHA-256", {}.get, lambda user: keys, "SERVER")
    _, final = first_two(serving, client())
    assert isinstance(serving.step(final), Rejected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"r=CLIENTSERVER", b"r=CLIENTOTHER"),
        (b"r=CLIENTSERVER", b"r=SERVER"),
        (b"r=CLIENTSERVER", b"r=CLIENT"),
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=biwsYQ=="),
    ],
)
def test_a_final_message_of_another_exchange_is_refused(old, new):
    """The proof is computed over the changed message, so that only the check of the field itself can refuse it."""
    keys, serving = credential(), server()
    asking = client()
    first, final = first_two(serving, asking)
    without_proof = final.rpartition(b",p=")[0].replace(old, new)
    message = b"n=user,r=CLIENT," + first + b"," + without_proof
    client_key = hmac.digest(salted_password("SCRAM-SHA-256", "pencil", SALT, ITERATIONS), b"Client Key", "sha256")
    assert hashlib.sha256(client_key).digest() == keys.stored_key
    signature = hmac.digest(keys.stored_key, message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    outcome = serving.step(without_proof + b",p=" + base64.b64encode(proof))
    assert isinstance(outcome, Rejected)


def test_a_recorded_exchange_cannot_be_repeated():
    serving, asking = server(nonce="ONE"), client()
    _, final = first_two(serving, asking)
    assert isinstance(serving.step(final), Accepted)
    again = server(nonce="TWO")
    assert isinstance(again.step(asking.first()), Challenge)
    assert isinstance(again.step(final), Rejected)
    assert isinstance(serving.step(final), Rejected), "an exchange is over after its end"


@pytest.mark.parametrize("flag", [b"p=tls-unique,,", b"", b"x,,", b"n,a=other,"])
def test_channel_binding_and_other_identities_are_refused(flag):
    assert isinstance(server().step(flag + b"n=user,r=CLIENT"), Rejected)


def test_a_credential_with_few_iterations_is_refused():
    weak = credential(iterations=1000)
    outcome = server(users={"user": weak}).step(client().first())
    assert isinstance(outcome, Rejected)
    assert "1000 iterations" in outcome.cause


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"r=OTHERSERVER,s=c2FsdA==,i=4096", "does not continue"),
        (b"r=CLIENT,s=c2FsdA==,i=4096", "does not continue"),
        (b"r=CLIENTSERVER,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=CLIENTSERVER,s=c2FsdA==,i=1", "1 iterations"),
        (b"r=CLIENTSERVER,s=c2FsdA==,i=2000000000", "2000000000 iterations"),
        (b"r=CLIENTSERVER,s=!,i=4096", "malformed"),
        (b"e=other-error", "refused: other-error"),
        (b"\xff", "not UTF-8"),
        (b"", "malformed"),
    ],
)
def test_a_client_does_not_trust_a_servers_first_message(message, reason):
    asking = client()
    asking.first()
    with pytest.raises(SaslExchangeError, match=reason):
        asking.respond(message)


@pytest.mark.parametrize("final", [b"v=AAAA", b"v=", b"", b"e=invalid-proof", b"v=!!!!"])
def test_a_client_does_not_trust_a_server_without_the_keys(final):
    serving, asking = server(), client()
    first_two(serving, asking)
    with pytest.raises(SaslExchangeError):
        asking.respond(final)
    assert not asking.is_complete


@given(messages=st.lists(st.one_of(st.binary(max_size=200), st.text(max_size=80).map(str.encode)), max_size=4))
def test_a_server_answers_any_messages(messages):
    serving = server()
    for message in messages:
        assert not isinstance(serving.step(message), Accepted)


@given(message=st.one_of(st.binary(max_size=200), st.from_regex(r"r=CLIENT[a-z]*,s=[A-Za-z=]*,i=[0-9]{1,4}")))
def test_a_client_survives_any_message(message):
    data = message if isinstance(message, bytes) else message.encode()
    asking = client()
    asking.first()
    try:
        asking.respond(data)
    except SaslExchangeError:
        return
    assert not asking.is_complete


TOKEN = TokenKeys(keys=credential(), owner="alice", expires_wall_ms=77)


def token_exchange(tokens, users=None, extension=TOKEN_EXTENSION):
    """Returns the outcome of an exchange of a client that gives a token's id and secret."""
    users = {} if users is None else users
    serving = ScramServer(
        "SCRAM-SHA-256",
        users.get,
        lambda user: decoy_keys("SCRAM-SHA-256", user, b"secret", ITERATIONS),
        "SERVER",
        tokens.get,
    )
    asking = ScramClient(
        "SCRAM-SHA-256",
        "id",
        lambda salt, iterations: salted_password("SCRAM-SHA-256", "pencil", salt, iterations),
        "CLIENT",
        extension,
    )
    _, final = first_two(serving, asking)
    return serving.step(final)


def test_a_token_stands_for_its_owner_until_it_expires():
    outcome = token_exchange({"id": TOKEN})
    assert isinstance(outcome, Accepted)
    assert (outcome.user, outcome.expires_wall_ms, outcome.by_token) == ("alice", 77, True)


def test_an_unknown_token_is_refused_even_if_a_user_has_its_name():
    outcome = token_exchange({}, users={"id": credential()})
    assert isinstance(outcome, Rejected)
    assert (outcome.claimed, outcome.cause) == ("id", "unknown or expired delegation token")


def test_the_log_says_that_a_client_does_not_ask_for_a_token():
    """Clients on librdkafka cannot."""
    outcome = token_exchange({"id": TOKEN}, extension="")
    assert isinstance(outcome, Rejected)
    assert "does not ask for a token (tokenauth)" in outcome.cause
    assert outcome.message is None, "the client learns no more than of an unknown user"
    assert token_exchange({}, extension="").cause == "unknown user"


def test_a_message_may_not_be_longer_than_the_bound():
    first = client(nonce="x" * (MESSAGE_BYTES_MAX - len(client(nonce="").first()))).first()
    assert len(first) == MESSAGE_BYTES_MAX
    assert isinstance(server().step(first), Challenge)
    outcome = server().step(first + b"x")
    assert isinstance(outcome, Rejected)
    assert "too long" in outcome.cause


def test_names_that_look_escaped_keep_their_letters():
    """With its escapes read in the wrong order, the name ``a=2Cb`` would become ``a,b``, which is another user."""
    names = ["".join(word) for length in range(1, 6) for word in itertools.product("=,23CD", repeat=length)]
    escaped = {name: encode_name(name) for name in names}
    assert all("," not in text for text in escaped.values())
    assert {name: decode_name(text) for name, text in escaped.items()} == {name: name for name in names}
    serving = server(users={"a=2Cb": credential()})
    _, final = first_two(serving, client(user="a=2Cb"))
    assert serving.step(final).user == "a=2Cb"
