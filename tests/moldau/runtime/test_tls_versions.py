"""Goal: ssl.protocol, ssl.enabled.protocols and ssl.cipher.suites choose version and suite as in Kafka.

Method: contexts made from complete configurations of a node's listener, of the same node's outgoing connections, and
of a client shake hands through OpenSSL, in memory. Expected versions follow Kafka's rule: ssl.protocol bounds what a
client offers, and a listener serves every version in ssl.enabled.protocols.
"""

import ssl

import pytest

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigError
from moldau.runtime.config.cipher_suites import TLS_1_2, TLS_1_3, suite_problems
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.context import client_context, client_tls, server_context
from support.certificates import authority

HOST = "server"
GCM_256 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
GCM_128 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
ALL_OF_1_3 = ",".join(TLS_1_3)
NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listeners": "SSL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
    "security.inter.broker.protocol": "SSL",
}
CLIENT = {"bootstrap.servers": "server:9092", "security.protocol": "SSL"}


@pytest.fixture(scope="module")
def keys():
    return authority().keys(HOST)


@pytest.fixture(scope="module")
def disk():
    return real_environment(1).disk


def listener_context(keys, disk, listener, changes):
    config = BROKER_CONFIG.parse(NODE | keys | changes)
    return server_context(tls_settings(config, listener), disk)


def agreed(server, client):
    """Shakes hands in memory; returns the version and OpenSSL's name of the suite, None if the ends do not agree."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=HOST),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    for _ in range(10):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return None
        if all(done):
            return ends[0].version(), ends[0].cipher()[0]
    raise AssertionError("the handshake did not end")


def version(server, client):
    """The version on which the ends agree, or None."""
    found = agreed(server, client)
    return found and found[0]


@pytest.mark.parametrize(
    ("listener", "client", "expected"),
    [
        ({}, {}, "TLSv1.3"),
        ({}, {"ssl.protocol": "TLS"}, "TLSv1.3"),
        ({}, {"ssl.protocol": "TLSv1.3"}, "TLSv1.3"),
        ({}, {"ssl.protocol": "TLSv1.2"}, "TLSv1.2"),
        ({}, {"ssl.enabled.protocols": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.enabled.protocols": "TLSv1.2"}, {}, "TLSv1.2"),
        ({"ssl.enabled.protocols": "TLSv1.2"}, {"ssl.enabled.protocols": "TLSv1.3"}, None),
        ({"ssl.enabled.protocols": "TLSv1.3"}, {"ssl.protocol": "TLSv1.2"}, None),
        ({"ssl.enabled.protocols": "TLSv1.3"}, {"ssl.enabled.protocols": "TLSv1.2"}, None),
        # As in Kafka, a listener's ssl.protocol does not restrict its clients.
        ({"ssl.protocol": "TLSv1.2"}, {"ssl.enabled.protocols": "TLSv1.3"}, "TLSv1.3"),
        ({"listener.name.ssl.ssl.enabled.protocols": "TLSv1.2"}, {}, "TLSv1.2"),
        ({"ssl.cipher.suites": GCM_256}, {}, "TLSv1.2"),
        ({"ssl.cipher.suites": GCM_256}, {"ssl.enabled.protocols": "TLSv1.3"}, None),
        ({}, {"ssl.cipher.suites": GCM_256}, "TLSv1.2"),
        ({"ssl.cipher.suites": ALL_OF_1_3}, {}, "TLSv1.3"),
        ({"ssl.cipher.suites": ALL_OF_1_3}, {"ssl.protocol": "TLSv1.2"}, None),
        ({"ssl.cipher.suites": f"{ALL_OF_1_3},{GCM_128}"}, {"ssl.protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.cipher.suites": GCM_128}, {"ssl.cipher.suites": GCM_256}, None),
    ],
)
def test_client_and_listener_agree_on_kafkas_version(listener, client, expected, keys, disk):
    """Each kind of client meets the listener of a broker and that of a controller."""
    trust = {"ssl.truststore.certificates": keys["ssl.truststore.certificates"]}
    for schema in (ADMIN_CONFIG, CONSUMER_CONFIG, PRODUCER_CONFIG):
        more = {"group.id": "g"} if schema is CONSUMER_CONFIG else {}
        outgoing = client_tls(disk, schema.parse(CLIENT | trust | client | more))
        assert outgoing is not None
        assert version(listener_context(keys, disk, "SSL", listener), outgoing.current()) == expected
    if not any(name.startswith("listener.name.") for name in listener):
        assert version(listener_context(keys, disk, "CONTROLLER", listener), outgoing.current()) == expected


@pytest.mark.parametrize("listener", ["SSL", "CONTROLLER"])
@pytest.mark.parametrize(("protocol", "expected"), [("TLSv1.2", "TLSv1.2"), ("TLSv1.3", "TLSv1.3"), ("TLS", "TLSv1.3")])
def test_nodes_offer_each_other_no_newer_version(listener, protocol, expected, keys, disk):
    """A node's outgoing connections follow its own ssl.protocol, also per listener."""
    for key in ("ssl.protocol", f"listener.name.{listener.lower()}.ssl.protocol"):
        config = BROKER_CONFIG.parse(NODE | keys | {key: protocol})
        outgoing = client_context(tls_settings(config, listener), disk)
        assert version(listener_context(keys, disk, listener, {}), outgoing) == expected


@pytest.mark.parametrize("suite", [name for name in TLS_1_2 if "_RSA_" in name])
@pytest.mark.parametrize("kind", ["kafka", "openssl"])
def test_the_named_suite_is_used_by_both_kinds_of_names(suite, kind, keys, disk):
    named = suite if kind == "kafka" else TLS_1_2[suite]
    trust = {"ssl.truststore.certificates": keys["ssl.truststore.certificates"]}
    client = client_tls(disk, ADMIN_CONFIG.parse(CLIENT | trust)).current()
    server = listener_context(keys, disk, "SSL", {"ssl.cipher.suites": named})
    assert agreed(server, client) == ("TLSv1.2", TLS_1_2[suite])


def test_suites_for_another_kind_of_key_are_refused(keys, disk):
    """Each handshake failed, and a key of the other kind in a changed file took a working listener away."""
    suites = {"ssl.cipher.suites": GCM_256.replace("RSA", "ECDSA")}
    with pytest.raises(ConfigError, match=r"ssl\.cipher\.suites: none is for the key .*NO_SHARED_CIPHER"):
        listener_context(keys, disk, "SSL", suites)
    listener_context(keys, disk, "SSL", {"ssl.cipher.suites": f"{suites['ssl.cipher.suites']},{GCM_256}"})


def test_openssl_knows_every_suite_of_the_table():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offered = {cipher["name"] for cipher in context.get_ciphers()}
    assert set(TLS_1_3) | set(TLS_1_2.values()) <= offered


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        (
            {"ssl.protocol": "TLSv12"},
            "ssl.protocol = 'TLSv12': must be one of TLSv1.2, TLSv1.3, TLS; did you mean TLSv1.2?",
        ),
        ({"ssl.protocol": "SSLv3"}, "ssl.protocol = 'SSLv3': must be one of TLSv1.2, TLSv1.3, TLS"),
        ({"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.3"}, "they leave no version of TLS"),
        ({"ssl.cipher.suites": GCM_256, "ssl.enabled.protocols": "TLSv1.3"}, "they leave no version of TLS"),
        ({"ssl.cipher.suites": GCM_256 + "0"}, f"'{GCM_256}0': must be a list of TLS_AES_128_GCM_SHA256"),
        ({"ssl.cipher.suites": GCM_256 + "0"}, f"did you mean {GCM_256}?"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "add TLS_AES_256_GCM_SHA384, TLS_CHACHA20_POLY1305_SHA256"),
    ],
)
@pytest.mark.parametrize("schema", ["client", "node"])
def test_settings_that_cannot_work_are_refused(schema, changes, reported, keys):
    parse, base = (ADMIN_CONFIG.parse, CLIENT) if schema == "client" else (BROKER_CONFIG.parse, NODE | keys)
    with pytest.raises(ConfigError) as caught:
        parse(base | changes)
    assert reported in "\n".join(caught.value.problems)


@pytest.mark.parametrize("named", [(), ("TLS_AES_128_GCM_SHA256",), TLS_1_3[:2], TLS_1_3])
@pytest.mark.parametrize("others", [(), (GCM_128,), (TLS_1_2[GCM_256],), ("TLS_X",), ("TLS_X", "TLS_Y")])
@pytest.mark.parametrize("protocols", [("TLSv1.2",), ("TLSv1.3",), ("TLSv1.2", "TLSv1.3")])
def test_a_list_of_suites_has_each_problem_once(named, others, protocols):
    """A wrong name is the only problem: what the list lacks is known when all names are right."""
    problems = suite_problems("ssl.cipher.suites", (*named, *others), protocols)
    unknown = [name for name in others if name in ("TLS_X", "TLS_Y")]
    if unknown:
        assert [each.split(":")[0] for each in problems] == [f"ssl.cipher.suites = {name!r}" for name in unknown]
    elif 0 < len(named) < 3 and "TLSv1.3" in protocols:
        missing = ", ".join(name for name in TLS_1_3 if name not in named)
        assert [f"add {missing}, or name none of them" in each for each in problems] == [True]
    else:
        assert problems == []
