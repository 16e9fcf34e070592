"""Goal: what the launcher writes can be read back, by itself and by a node. Method: values in, texts out and in
again.
"""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.runtime.config import parse_config_text, parse_server_config
from moldau_jepsen.launcher.spec import (
    ClusterSpec,
    Door,
    LauncherUsageError,
    Node,
    Place,
    bootstrap_of,
    from_json,
    node_properties,
    plan_nodes,
    properties_text,
    to_json,
)


def nodes_of(tmp_path, **spec):
    made = ClusterSpec(**spec)
    return plan_nodes(made, tmp_path, list(range(20000, 20000 + made.nodes)))


def test_brokers_come_first_and_controllers_start_at_101(tmp_path):
    nodes = nodes_of(tmp_path, brokers=2, controllers=3)
    assert [(node.node_id, node.role, node.port) for node in nodes] == [
        (1, "broker", 20000),
        (2, "broker", 20001),
        (101, "controller", 20002),
        (102, "controller", 20003),
        (103, "controller", 20004),
    ]
    assert bootstrap_of(nodes) == "127.0.0.1:20000,127.0.0.1:20001"


def test_the_cluster_file_is_lossless(tmp_path):
    nodes = nodes_of(tmp_path)
    nodes[0].pid, nodes[0].started = 4711, "99"
    assert from_json(to_json(nodes), "here") == nodes


def test_nodes_in_network_namespaces_have_their_own_addresses(tmp_path):
    """Nodes in network namespaces are known by their addresses."""
    places = tuple(
        Place(host=f"198.18.0.{number}", namespace=f"n{number}", asked_from="198.18.0.9") for number in (1, 2)
    )
    nodes = nodes_of(tmp_path, brokers=1, controllers=1, ports=(9092, 9093), places=places)
    assert from_json(to_json(nodes), "here") == nodes
    assert bootstrap_of(nodes) == "198.18.0.1:20000"
    assert nodes[1].door == Door("198.18.0.2", 20001, "198.18.0.9")
    text = node_properties(nodes[0], nodes, {})
    assert "listeners=PLAINTEXT://198.18.0.1:20000\n" in text
    assert "controller.quorum.voters=101@198.18.0.2:20001\n" in text
    with pytest.raises(LauncherUsageError, match="places must be one per node"):
        ClusterSpec(brokers=3, controllers=3, places=places)
    with pytest.raises(LauncherUsageError, match="places need ports"):
        ClusterSpec(brokers=1, controllers=1, places=places)


@pytest.mark.parametrize(
    ("brokers", "replication", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)], ids=lambda value: str(value)
)
def test_a_nodes_file_is_valid_configuration(tmp_path, brokers, replication, in_sync):
    nodes = nodes_of(tmp_path, brokers=brokers, controllers=1)
    for node in nodes:
        config = parse_server_config(node_properties(node, nodes, {"num.partitions": "7"}), node.config, {})
        assert config.get_int("node.id") == node.node_id
        assert config.get_list("process.roles") == (node.role,)
        assert config.get_int("default.replication.factor") == replication
        assert config.get_int("min.insync.replicas") == in_sync
        assert config.get_int("num.partitions") == 7


def test_values_survive_the_properties_format(tmp_path):
    nodes = nodes_of(tmp_path)
    config = parse_server_config(node_properties(nodes[0], nodes, {"broker.rack": r" C:\rack 1"}), "x", {})
    assert config.get_str("broker.rack").strip() == r"C:\rack 1"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"brokers": 0}, "number of brokers must be 1..99, not 0"),
        ({"controllers": 100}, "number of controllers must be 1..99, not 100"),
        ({"base_port": 80}, "base port must be 1024.."),
        ({"ports": (1, 2)}, r"ports must be one per node \(6\), not 2"),
    ],
)
def test_a_bad_spec_is_refused(spec, message):
    with pytest.raises(LauncherUsageError, match=message):
        ClusterSpec(**spec)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', '{"version": 1, "nodes": [{"id": "x"}]}', "nul"])
def test_a_damaged_cluster_file_is_refused_by_name(text):
    with pytest.raises(LauncherUsageError, match=r"cluster\.json is not a cluster file"):
        from_json(text, "cluster.json")


def test_a_cluster_file_of_another_version_is_refused():
    with pytest.raises(LauncherUsageError, match="has version 9"):
        from_json('{"version": 9, "nodes": []}', "cluster.json")


def test_groups_of_local_clusters_start_at_once(tmp_path):
    """Kafka's default of 3 s stays for a node that is configured by hand, and settings win over the launcher's."""
    nodes = nodes_of(tmp_path)
    for settings, expected in (({}, 0), ({"group.initial.rebalance.delay.ms": "3000"}, 3000)):
        config = parse_server_config(node_properties(nodes[0], nodes, settings), "x", {})
        assert config.get_int("group.initial.rebalance.delay.ms") == expected


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
NODES = st.builds(
    Node,
    **{
        name: {"int": st.integers(0, 65535), "str": TEXTS, "bool": st.booleans()}[str(kind)]
        for name, kind in Node.__annotations__.items()
    },
)


@given(nodes=st.lists(NODES, max_size=3), client=TEXTS)
def test_the_cluster_file_keeps_every_field(nodes, client):
    """A field that is lost would change the node at the next command: its namespace, its disk, its encryption."""
    text = to_json(nodes, client)
    assert from_json(text, "here") == nodes
    assert json.loads(text).get("client_config", "") == client
    assert json.loads(text)["bootstrap"] == ",".join(node.address for node in nodes if node.role == "broker")


@given(values=st.dictionaries(st.sampled_from(["a", "b.c", "ssl.key"]), TEXTS.map(str.rstrip)))
@example(values={"a": "\fx\x1cy\x85\u2028z"})
def test_every_value_survives_the_properties_format(values):
    """Passwords and paths have any characters, but no blanks at their end."""
    assert parse_config_text(properties_text(values), "x.properties") == values
