"""Addresses in configurations: listeners, voters, and the checks of a whole node."""

import pytest

from moldau.runtime.config import (
    BROKER_CONFIG,
    ConfigError,
    ConfigSchema,
    SecurityProtocol,
    advertised_listeners,
    bootstraps_from_itself,
    broker_listeners,
    controller_listeners,
    inter_broker_listener_name,
    log_dirs,
    metadata_log_dir,
    metrics_listener,
    parse_address,
    quorum_voters,
)
from moldau.runtime.config.schemas import listener_key_problems
from moldau.runtime.config.tls import leaves_clients_to_sasl

NODE = {
    "process.roles": "broker,controller",
    "node.id": 101,
    "controller.quorum.voters": "101@127.0.0.1:9093,102@[::1]:9094",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://:9093",
}


def node(**changes):
    given = NODE | {key.replace("__", "."): value for key, value in changes.items()}
    return BROKER_CONFIG.parse({key: value for key, value in given.items() if value != "DROP"})


def test_typed_values():
    config = node()
    (plain,) = broker_listeners(config)
    assert (plain.listener_name, plain.host, plain.port) == ("PLAINTEXT", "127.0.0.1", 9092)
    (controller,) = controller_listeners(config)
    assert (controller.host, controller.security_protocol) == ("", SecurityProtocol.PLAINTEXT)
    assert advertised_listeners(config) == (plain,)
    assert inter_broker_listener_name(config) == "PLAINTEXT"
    assert [str(voter) for voter in quorum_voters(config)] == ["101@127.0.0.1:9093", "102@[::1]:9094"]
    assert str(plain) == "PLAINTEXT://127.0.0.1:9092"
    assert log_dirs(config) == ("/tmp/moldau-logs",)
    assert metadata_log_dir(node(log__dirs="/a,/b")) == "/a"
    assert metadata_log_dir(node(metadata__log__dir="/m")) == "/m"


def test_names_map_to_protocols():
    given = {
        "listeners": "INSIDE://h:1,OUTSIDE://h:2,CONTROLLER://h:3",
        "advertised__listeners": "INSIDE://h:1,outside://[2001:db8::1]:22",
        "listener__security__protocol__map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL,CONTROLLER:SSL",
        "inter__broker__listener__name": "inside",
    }
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location: listener OUTSIDE speaks TLS"):
        node(**given)
    unchecked = ConfigSchema.of("broker", list(BROKER_CONFIG.keys.values()))
    config = unchecked.parse(NODE | {key.replace("__", "."): value for key, value in given.items()})
    inside, outside = advertised_listeners(config)
    assert (outside.host, outside.port, outside.security_protocol) == ("2001:db8::1", 22, SecurityProtocol.SASL_SSL)
    assert outside.security_protocol.uses_tls
    assert outside.security_protocol.uses_sasl
    assert not inside.security_protocol.uses_tls
    assert inter_broker_listener_name(config) == "INSIDE"


def test_a_map_of_protocols_may_have_any_case_and_blanks():
    """As in Kafka; a listener's keys and its rule for certificates know it by the same name."""
    config = node(
        listeners="Inside://h:1,CONTROLLER://h:3",
        inter__broker__listener__name="INSIDE",
        listener__security__protocol__map="inside : sasl_ssl , controller: plaintext",
        listener__name__inside__ssl__keystore__location="/k.pem",
        listener__name__inside__sasl__jaas__config='ScramLoginModule required username="a" password="b";',
        ssl__client__auth="required",
    )
    (inside,) = broker_listeners(config)
    assert (inside.listener_name, inside.security_protocol) == ("INSIDE", SecurityProtocol.SASL_SSL)
    assert listener_key_problems(config) == []
    assert leaves_clients_to_sasl(config, "INSIDE")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"listeners": "PLAINTEXT//x:1"}, "listeners: 'PLAINTEXT//x:1' is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://x:70000"}, "port 70000 is not from 0 to 65535"),
        ({"listeners": "PLAINTEXT://x:1,PLAINTEXT://y:2"}, "listener PLAINTEXT is given twice"),
        ({"listeners": "PLAINTEXT://::1:2,CONTROLLER://:1"}, "must stand in brackets"),
        ({"listeners": "FOO://x:1,CONTROLLER://:1"}, "listener FOO has no protocol"),
        ({"listener__security__protocol__map": "A:TLS"}, "'A:TLS' is not NAME:PROTOCOL"),
        ({"listener__security__protocol__map": "A:SSL,a:SSL"}, "listener A is mapped twice"),
        ({"controller__quorum__voters": "x@h:1"}, "'x@h:1' is not id@host:port"),
        ({"controller__quorum__voters": "101@h:1,101@g:1"}, "node 101 is given twice"),
        ({"controller__quorum__voters": ""}, "no controller is known"),
        ({"node__id": 5}, "node.id = 5: a controller must be one of controller.quorum.voters"),
        ({"process__roles": "broker"}, "is among controller.quorum.voters, but process.roles lacks controller"),
        ({"process__roles": ""}, "process.roles: must name broker, controller or both"),
        ({"process__roles": "leader"}, "process.roles = 'leader': must be a list of broker, controller"),
        ({"listeners": "PLAINTEXT://h:1"}, "listener CONTROLLER is not in listeners"),
        ({"listeners": "CONTROLLER://h:1"}, "a broker needs a listener besides"),
        ({"listeners": "SSL://h:1,CONTROLLER://h:2"}, "no listener speaks PLAINTEXT"),
        ({"advertised__listeners": "SSL://h:1"}, "PLAINTEXT is not among the advertised listeners"),
        ({"advertised__listeners": "CONTROLLER://h:1"}, "PLAINTEXT is not among the advertised listeners"),
        (
            {
                "process__roles": "broker",
                "node__id": 1,
                "listeners": "PLAINTEXT://h:1",
                "advertised__listeners": "PLAINTEXT://h:1,CONTROLLER://h:2",
            },
            "CONTROLLER is a controller listener or not in listeners",
        ),
        ({"log__dirs": ""}, "log.dirs: must name at least one directory"),
        ({"broker__session__timeout__ms": 2000}, "must be above broker.heartbeat.interval.ms"),
        ({"node__id": "DROP"}, "node.id: missing broker configuration key; it must be an integer from 0"),
    ],
)
def test_invalid_listener_settings_are_refused(changes, problem):
    with pytest.raises(ConfigError) as caught:
        node(**changes)
    assert any(problem in each for each in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    "text", ["User:node,User:admin", "User:node, User:admin", "alice", "User:a;bob", "User:", ":a"]
)
def test_super_users_that_no_principal_is_are_refused(text):
    """Each of these would be a name without rights: the nodes or the administrator would be refused later."""
    with pytest.raises(ConfigError, match=r"super\.users: expected principals such as User:alice, separated by semi"):
        node(super__users=text)


@pytest.mark.parametrize("text", ["", "User:a", "User:a; User:b;", "User:CN=node,O=Example;User:admin", "Group:a"])
def test_super_users_are_separated_by_semicolons(text):
    assert node(super__users=text).get_str("super.users") == text


def test_a_controller_that_knows_itself_alone_is_found_out():
    """Started for the first time, it would ask itself for a quorum for ever."""
    alone = {"controller__quorum__voters": "DROP", "controller__quorum__bootstrap__servers": "localhost:9093"}
    assert bootstraps_from_itself(node(**alone))
    named = {"listeners": "PLAINTEXT://h:9092,CONTROLLER://h:9093"}
    assert bootstraps_from_itself(node(**alone | named | {"controller__quorum__bootstrap__servers": "h:9093"}))
    for servers in ("localhost:9094", "other:9093", "localhost:9093,other:9093"):
        assert not bootstraps_from_itself(node(**alone | {"controller__quorum__bootstrap__servers": servers})), servers


def test_a_broker_alone_needs_no_controller_listener():
    config = node(process__roles="broker", node__id=1, listeners="PLAINTEXT://h:1")
    assert controller_listeners(config) == ()


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:70000", "::1:5"])
def test_bad_addresses(text):
    with pytest.raises(ValueError, match=r"host:port|70000|brackets"):
        parse_address(text)


def test_an_address_with_a_scheme_says_what_to_leave_out():
    with pytest.raises(ValueError, match="'http://h:1' is not host:port; leave http:// out"):
        parse_address("http://h:1")


def test_good_addresses():
    assert parse_address(" a.b:0 ") == ("a.b", 0)
    assert parse_address("[::1]:99") == ("::1", 99)


@pytest.mark.parametrize("host", ["a..b", ".b", "a" * 64, "ü" * 60])
@pytest.mark.parametrize("key", ["listeners", "advertised.listeners", "metrics.listener", "console.listener"])
def test_a_host_that_no_look_up_takes_is_refused(host, key):
    """The node ended at its start, and the error named the codec and no key."""
    value = f"PLAINTEXT://{host}:9092,CONTROLLER://:9093" if key == "listeners" else f"PLAINTEXT://{host}:9092"
    value = value if "listeners" in key else f"{host}:9092"
    with pytest.raises(ConfigError, match=rf"{key}: .*{host}:9092': the parts between the dots of a host name"):
        node(**{key: value})


@pytest.mark.parametrize("host", ["b1:9092", "http://b1", "::g", "1:2"])
def test_brackets_hold_an_ipv6_address(host):
    """node init --host b1:9092 wrote PLAINTEXT://[b1:9092]:9092, and clients looked this host up."""
    with pytest.raises(
        ConfigError, match=rf"advertised.listeners: .*'{host}' is no host: give a name without a scheme"
    ):
        node(advertised__listeners=f"PLAINTEXT://[{host}]:9092")


@pytest.mark.parametrize("host", ["a.b.", "ü.example", "a_b", "*", "[::1]", "[fe80::1%eth0]", "[::ffff:10.0.0.1]"])
def test_hosts_that_look_ups_take(host):
    assert metrics_listener(node(**{"metrics.listener": f"{host}:1"})) == (host.strip("[]"), 1)
