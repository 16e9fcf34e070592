"""Goal: PLAIN and OAUTHBEARER messages, JAAS texts and mapping rules are read as Kafka reads them, or refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.sasl.core.jaas import module_for, parse_jaas
from moldau.runtime.sasl.core.mechanism import Accepted, Challenge, Rejected
from moldau.runtime.sasl.core.oauth import OauthClient, OauthServer, TokenFacts, TokenRefusedError
from moldau.runtime.sasl.core.plain import INVALID, PlainClient, PlainServer
from moldau.runtime.sasl.core.principals import MappingRules, distinguished_name

USERS = {"alice": "secret", "empty": ""}


def plain(message):
    return PlainServer(USERS.get).step(message)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0alice\0wrong", INVALID),
        (b"\0mallory\0secret", INVALID),
        (b"\0alice\0secre", INVALID),
        (b"\0alice\0secret\0", "expected 3 tokens"),
        (b"alice", "expected 3 tokens"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0empty\0", "password not specified"),
        (b"bob\0alice\0secret", "authorization id"),
        (b"\xff\0alice\0secret", INVALID),
        (b"", "expected 3 tokens"),
    ],
)
def test_plain_refuses(message, text):
    outcome = plain(message)
    assert isinstance(outcome, Rejected)
    assert text in outcome.message
    assert "secret" not in repr(outcome)


def test_plain_accepts():
    assert plain(PlainClient("alice", "secret").first()) == Accepted(user="alice")
    assert plain(b"alice\0alice\0secret") == Accepted(user="alice")


@given(st.binary(max_size=100))
def test_plain_answers_anything(message):
    assert not isinstance(plain(message), Challenge)


# --- OAUTHBEARER


def check(token):
    if token == "good":
        return TokenFacts(principal="carol", expires_wall_ms=5)
    raise TokenRefusedError("no", scope="write" if token == "narrow" else "")


def test_oauth_accepts_and_keeps_the_expiry():
    outcome = OauthServer(check).step(OauthClient("good", {"traceId": "1"}).first())
    assert outcome == Accepted(user="carol", expires_wall_ms=5)


@pytest.mark.parametrize(
    ("token", "answer"),
    [("bad", b'{"status":"invalid_token"}'), ("narrow", b'{"status":"insufficient_scope","scope":"write"}')],
)
def test_oauth_says_why_and_then_fails(token, answer):
    serving = OauthServer(check)
    asking = OauthClient(token)
    challenge = serving.step(asking.first())
    assert isinstance(challenge, Challenge)
    assert challenge.data == answer
    assert challenge.refusal.cause == "no"
    outcome = serving.step(asking.respond(answer))
    assert isinstance(outcome, Rejected)
    assert outcome.message == answer.decode()
    assert isinstance(serving.step(asking.first()), Rejected), "a second attempt in one exchange fails too"


def test_oauth_clients_answer_a_refusal_only():
    """RFC 7628: a client answers the reason of a refusal with a dummy, and a success with nothing."""
    assert OauthClient("good").respond(b'{"status":"invalid_token"}') == b"\x01"
    assert OauthClient("good").respond(b"") is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"p=tls,,\x01auth=Bearer good\x01\x01",
        b"n,a=mallory,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good good\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * 70_000 + b"\x01\x01",
    ],
)
def test_oauth_refuses_malformed_messages(message):
    assert isinstance(OauthServer(check).step(message), Rejected)


@given(st.binary(max_size=100))
def test_oauth_answers_anything(message):
    assert not isinstance(OauthServer(check).step(message), Accepted)


@pytest.mark.parametrize(
    ("token", "extensions"), [("a\x01b", {}), ("", {}), ("t", {"auth": "x"}), ("t", {"a": "\x01"})]
)
def test_oauth_clients_send_nothing_malformed(token, extensions):
    with pytest.raises(ValueError, match=r"token has|extension"):
        OauthClient(token, extensions)


# --- JAAS


def test_jaas_as_kafka_writes_it():
    (module,) = parse_jaas(
        'org.apache.kafka.common.security.plain.PlainLoginModule required\n  username="admin" /* us */ '
        'password=\'it\\\'s;=\' // end\n user_alice="a \\"b\\"" user_bob=plain;'
    )
    assert module.options["password"] == "it's;="
    assert module.users() == {"alice": 'a "b"', "bob": "plain"}
    assert module.mechanisms == ("PLAIN",)
    assert "plain" not in repr(module).replace("PlainLoginModule", "")


@pytest.mark.parametrize(
    ("written", "password"),
    [
        (r"C:\apps\v1", "C:\apps\v1"),
        (r"\101\1019\89", "AA989"),
        (r"\477\7x\0", "'7\7x\0"),
    ],
)
def test_escapes_of_jaas_are_those_of_java(written, password):
    """A Java client with the same text sends what Java's StreamTokenizer makes of it."""
    (module,) = parse_jaas(f'PlainLoginModule required password="{written}";')
    assert module.options["password"] == password


def test_jaas_with_several_modules():
    modules = parse_jaas('ScramLoginModule required username="s" password="p"; PlainLoginModule required;')
    assert module_for(modules, "SCRAM-SHA-512").options["username"] == "s"
    assert module_for(modules, "PLAIN").options == {}
    assert module_for(modules, "OAUTHBEARER") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no login module"),
        ("PlainLoginModule required", "semicolon"),
        ("PlainLoginModule username=x;", "required"),
        ("com.sun.security.auth.module.Krb5LoginModule required;", "Krb5LoginModule is not served"),
        ('PlainLoginModule required username="x;', "does not end"),
        ("PlainLoginModule required username;", "not name="),
        ('"PlainLoginModule" required;', "must be like"),
        ('PlainLoginModule "required";', "must be like"),
        ('PlainLoginModule required a="s3cret" a="s3cret";', "a of PlainLoginModule is given twice"),
    ],
)
def test_jaas_errors_name_the_fault_and_quote_no_value(text, problem):
    with pytest.raises(ValueError, match=problem) as raised:
        parse_jaas(text)
    assert "s3cret" not in str(raised.value)


@given(st.text(max_size=60))
def test_jaas_takes_any_text(text):
    with contextlib.suppress(ValueError):
        parse_jaas(text)


# --- principals


def name_of(*parts):
    return distinguished_name({"subject": tuple((part,) for part in parts)})


def test_a_name_is_written_as_kafka_writes_it():
    name = name_of(("countryName", "DE"), ("organizationName", "Example"), ("commonName", "alice"))
    assert name == "CN=alice,O=Example,C=DE"
    assert name_of(("commonName", "alice,O=Other")) == "CN=alice\\,O\\=Other", "a value cannot look like another part"


@pytest.mark.parametrize(
    ("value", "written"),
    [("a b ", "a b\\ "), (" a", "\\ a"), ("#a ", "\\#a\\ "), (" ", "\\ "), ("a b", "a b")],
)
def test_blanks_at_the_ends_of_a_name_are_escaped(value, written):
    assert name_of(("commonName", value)) == f"CN={written}"


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", "CN=a,O=B", "CN=a,O=B"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=svc,OU=ServiceUsers,O=X", "svc"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT", "CN=Adm,OU=Ops,O=X", "adm@ops"),
        ("RULE:^cn=(.*?)$/$1/U, RULE:^CN=([^,]*).*$/$1/U", "CN=low,O=x", "LOW"),
        ("RULE:^CN=x$/y/", "CN=z", None),
        ("RULE:CN=(a\\/b)/$1/,DEFAULT", "CN=a/b", "a/b"),
        ("RULE:CN=a/b/", "CN=ab", None),
        ("RULE:CN=(.*)/$1\\/clients/", "CN=a", "a/clients"),
        ("RULE:CN=(.*)/DOMAIN\\\\$1/", "CN=a", "DOMAIN\\a"),
    ],
)
def test_mapping_rules(rules, name, expected):
    assert MappingRules(rules).apply(name) == expected


@given(st.text(st.characters(exclude_characters="\n"), max_size=8))
def test_an_escaped_replacement_stands_for_itself(text):
    """Java takes each character behind a backslash as it is, so ``\\$1`` is no group, and two backslashes are one."""
    escaped = "".join(f"\\{letter}" for letter in text)
    assert MappingRules(f"RULE:CN=(.*)/{escaped}/").apply("CN=a") == text


@pytest.mark.parametrize(
    "rules", ["RULE:a", "RULE:(/x/", "RULE:a{99999999999}/x/", "default", "RULE:a/$1/", "DEFAULT DEFAULT", "RULE:a/b/X"]
)
def test_wrong_rules_are_refused(rules):
    with pytest.raises(ValueError, match=r"RULE|group|regular"):
        MappingRules(rules)
