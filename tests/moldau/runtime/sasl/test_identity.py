"""Goal: handlers know their peer by its certificate or as anonymous, and no output shows a secret."""

import logging

import pytest

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, ConfigError, SecurityProtocol
from moldau.runtime.config.providers import resolve
from moldau.runtime.config.sasl import bootstrap_credentials, client_login, listener_sasl
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.sasl.core.identity import ANONYMOUS
from moldau.runtime.sasl.listener import peer_handlers
from support.sasl import PLAIN, node_config

CERTIFICATE = {"subject": ((("organizationName", "Example"),), (("commonName", "Alice"),))}


class Connection:
    peer_address = ("10.0.0.1", 5)

    def __init__(self, certificate=None):
        self.peer_certificate = certificate


def identity(protocol, certificate, rules="DEFAULT"):
    """Returns what the inner handler's peer is, or the handler that refuses."""
    config = BROKER_CONFIG.parse(node_config(**{"ssl.principal.mapping.rules": rules}))
    made = peer_handlers(config, "INSIDE", protocol, None, lambda connection, peer: peer)(Connection(certificate))
    return getattr(made, "identity", made)


def test_peers_without_sasl():
    ssl, plaintext = SecurityProtocol.SSL, SecurityProtocol.PLAINTEXT
    assert identity(plaintext, None).principal == ANONYMOUS
    assert identity(ssl, None).principal == ANONYMOUS
    assert identity(ssl, CERTIFICATE).principal == "User:CN=Alice,O=Example"
    mapped = identity(ssl, CERTIFICATE, "RULE:^CN=(.*?),.*$/$1/L,DEFAULT")
    assert (mapped.principal, mapped.name, mapped.mechanism) == ("User:alice", "alice", "SSL")
    assert (mapped.host, mapped.listener_name, mapped.security_protocol) == ("10.0.0.1", "INSIDE", "SSL")


def test_a_certificate_that_no_rule_fits_is_refused():
    refusing = identity(SecurityProtocol.SSL, CERTIFICATE, "RULE:^CN=bob$/bob/")
    with pytest.raises(CloseConnection, match=r"no rule of ssl\.principal\.mapping\.rules"):
        refusing.handle(memoryview(b""))


def test_users_of_a_listener_come_before_those_of_the_node():
    own = "listener.name.outside.plain.sasl.jaas.config"
    config = BROKER_CONFIG.parse(
        node_config(
            **{
                own: f'{PLAIN} user_carol="c";',
                "connections.max.reauth.ms": "9000",
                "listener.name.outside.plain.connections.max.reauth.ms": "5000",
            }
        )
    )
    found = listener_sasl(config, "OUTSIDE")
    assert dict(found.plain_users) == {"carol": "c"}
    assert found.reauthentication_ms["PLAIN"] == 5000
    assert found.reauthentication_ms["SCRAM-SHA-256"] == 9000
    assert "c'" not in repr(found)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sasl.jaas.config": "PlainLoginModule required user_alice=s3cret"}, "semicolon"),
        ({"sasl.scram.bootstrap.credentials": "SCRAM-SHA-256=[name=a,passwort=s3cret]"}, "must be like"),
        ({"sasl.scram.bootstrap.credentials": "SCRAM-SHA-256=[name=a,password=s3cret,iterations=5]"}, "iterations"),
        ({"sasl.scram.bootstrap.credentials": "SCRAM-SHA-256=[password=s3cret]"}, "lacks name"),
        ({"ssl.principal.mapping.rules": "s3"}, None),
        (
            {"listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"},
            "SCRAM",
        ),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "PLAIN, SCRAM-SHA-256"),
    ],
)
def test_problems_of_a_node_name_the_key_and_no_secret(changes, problem):
    if problem is None:
        BROKER_CONFIG.parse(node_config(**changes))  # no listener of this node uses TLS
        return
    with pytest.raises(ConfigError, match=problem) as raised:
        BROKER_CONFIG.parse(node_config(**changes))
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, r"sasl\.mechanism: must be set"),
        ({"sasl.mechanism": "PLAIN"}, r"sasl\.username: must be set"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a"}, r"sasl\.password: must be set"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "ScramLoginModule required username=a password=s3cret;"},
            "names",
        ),
        ({"sasl.mechanism": "OAUTHBEARER"}, "either a token"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://x"}, "client.id"),
        ({"sasl.mechanism": "PLAIN", "security.protocol": "SSL"}, "set SASL_SSL"),
        ({"sasl.mechanism": "KERBEROS"}, "one of"),
    ],
)
def test_problems_of_a_client(changes, problem):
    with pytest.raises(ConfigError, match=problem) as raised:
        ADMIN_CONFIG.parse({"bootstrap.servers": "b:1", "security.protocol": "SASL_PLAINTEXT", **changes})
    assert "s3cret" not in str(raised.value)


def test_secrets_are_not_shown(caplog):
    caplog.set_level(logging.DEBUG)
    given = {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "a",
        "sasl.password": "s3cret",
    }
    config = ADMIN_CONFIG.parse(given)
    node = BROKER_CONFIG.parse(
        node_config(
            **{
                "sasl.jaas.config": f'{PLAIN} user_a="s3cret";',
                "sasl.scram.bootstrap.credentials": "SCRAM-SHA-256=[name=a,password=s3cret]",
                "sasl.scram.decoy.secret": "s3cret",
                "sasl.oauthbearer.token": "s3cret",
            }
        )
    )
    shown = [repr(config), repr(client_login(config)), repr(node), repr(bootstrap_credentials(node))]
    shown += [repr(listener_sasl(node, "OUTSIDE"))]
    shown += [str(node.text(name, hide=True)) for name in node]
    assert not [text for text in shown if "s3cret" in text]
    assert bootstrap_credentials(node)[0].password == "s3cret"


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("sasl.username", {"sasl.username": "ali\udce9", "sasl.password": "s3cret"}),
        ("sasl.password", {"sasl.username": "alice", "sasl.password": "s3cr\udce9t"}),
        ("sasl.jaas.config", {"sasl.jaas.config": f'{PLAIN} username="alice" password="s3cr\udce9t";'}),
    ],
)
def test_a_login_in_another_encoding_is_refused(key, given):
    """Python keeps a Latin-1 byte of a variable so. The connection failed with an error whose repr has the password."""
    config = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **given}
    with pytest.raises(ConfigError, match=f"^{key} = .*: must be UTF-8 text") as raised:
        ADMIN_CONFIG.parse(config)
    assert "s3cr" not in repr(raised.value)
    assert raised.value.__context__ is None or "s3cr" not in repr(raised.value.__context__)
    with pytest.raises(ConfigError, match="must be UTF-8 text"):
        BROKER_CONFIG.parse(node_config(**{"sasl.scram.decoy.secret": "s3cr\udce9t"}))


def test_tokens_may_come_from_a_function():
    config = ADMIN_CONFIG.parse(
        {
            "bootstrap.servers": "b:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token": lambda: "token",
        }
    )
    assert client_login(config).token() == "token"
    with pytest.raises(ConfigError, match="a string"):
        ADMIN_CONFIG.parse({"bootstrap.servers": "b:1", "sasl.password": lambda: "no"})


def test_references_in_files(tmp_path):
    (tmp_path / "secrets.properties").write_text("alice=one\nbob=two\n")
    (tmp_path / "mounted").write_text("three\n")
    given = {
        "a": "${env:NAME}",
        "b": f"x ${{file:{tmp_path}/secrets.properties:bob}} y",
        "c": f"${{dir:{tmp_path}:mounted}}",
        "d": ["${env:NAME}", "plain"],
        "e": "$1 ${unknown:x}",
        "f": 5,
    }
    found = resolve(given, {"NAME": "value"})
    assert found == {
        "a": "value",
        "b": "x two y",
        "c": "three",
        "d": ["value", "plain"],
        "e": "$1 ${unknown:x}",
        "f": 5,
    }


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("s3cret ${env:NONE}", "no environment variable NONE"),
        ("${file:/none:key}", "No such file"),
        ("${file:key}", "must be"),
        ("${dir:/etc:../passwd}", "name of a file"),
    ],
)
def test_wrong_references(value, problem):
    with pytest.raises(ConfigError, match=problem) as raised:
        resolve({"key": value}, {})
    assert "s3cret" not in str(raised.value)
