"""Goal: node check looks for a host in a certificate as nodes and clients do. Method: certificates of several names."""

import pytest

from moldau.runtime.config import BROKER_CONFIG, listeners
from moldau.runtime.ports.real import real_environment
from moldau_cli.nodes.certificates import unnamed_host
from support.certificates import authority

KEYS = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "2@c:9093",
    "controller.listener.names": "CONTROLLER",
    "security.inter.broker.protocol": "SSL",
    "listeners": "SSL://:9092",
}


@pytest.mark.parametrize(
    ("name", "host", "unnamed"),
    [
        ("b1.example", "b1.example.", None),
        ("fe80::1", "[fe80::1%eth0]", None),
        ("b2.example", "b1.example.", "b1.example."),
    ],
)
def test_a_host_is_compared_without_dot_and_zone(tmp_path, name, host, unnamed):
    """The check warned that others refuse such a node, which they do not."""
    chain, key = authority().issue(name)
    (tmp_path / "node.pem").write_text(key + chain)
    keys = {"ssl.keystore.location": str(tmp_path / "node.pem"), "advertised.listeners": f"SSL://{host}:9092"}
    config = BROKER_CONFIG.parse({**KEYS, **keys})
    assert unnamed_host(real_environment(1), config, listeners(config)[0]) == unnamed
