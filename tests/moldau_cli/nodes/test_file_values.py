"""Goal: a node reads from its new file what the operator gave. Method: texts of files that are parsed again."""

import pytest

from moldau.runtime.config import parse_server_config
from moldau_cli.nodes.file import NewNode, configuration_text, parse_voters


@pytest.mark.parametrize(
    "value", ["a\\b", "a\\", "\\\\server", 'x password="a\\"b";', "#x", "a=b", "ü", "a\nnode.id=7"]
)
def test_values_come_back_as_they_were_given(value):
    """A backslash was an escape for the node, so another password was in force than the one that was given."""
    node = NewNode(
        roles=("broker",),
        node_id=1,
        voters=parse_voters("101@c:9093"),
        host="h",
        port=9092,
        directories=("/data/a\\b",),
        keystore="/k.pem",
        more={"ssl.key.password": value},
    )
    config = parse_server_config(configuration_text(node), "node.properties", {})
    assert config.get_str("ssl.key.password") == value
    assert config.get_list("log.dirs") == ("/data/a\\b",)
    assert config.get_int("node.id") == 1
