"""Goal: one file stands for the brokers of a machine, whose values never collide. Method: files and derived values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.config import Config, ConfigError, cordoned_log_dirs, parse_server_config, process_configs

BOTH = {
    "process.roles": "broker,controller",
    "node.id": "10",
    "controller.quorum.voters": "10@m1.example:9093,20@m2.example:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://0.0.0.0:9192,CONTROLLER://0.0.0.0:9093",
    "advertised.listeners": "PLAINTEXT://m1.example:9192",
    "log.dirs": "/d1,/d2/",
    "metrics.listener": "[::1]:9644",
    "broker.processes": "3",
}
SHOWN = ("node.id", "process.roles", "listeners", "advertised.listeners", "log.dirs", "metrics.listener", "broker.rack")


def parse(**changes: str) -> Config:
    given = BOTH | {key.replace("_", "."): value for key, value in changes.items()}
    text = "".join(f"{key}={value}\n" for key, value in given.items() if value)
    return parse_server_config(text, "node.properties", {})


def test_each_process_gets_values_of_its_own() -> None:
    first, second, third = process_configs(parse())
    assert [first.get(key) for key in SHOWN] == [
        10,
        ("broker", "controller"),
        ("PLAINTEXT://0.0.0.0:9192", "CONTROLLER://0.0.0.0:9093"),
        ("PLAINTEXT://m1.example:9192",),
        ("/d1/broker.10", "/d2/broker.10"),
        "[::1]:9644",
        "m1.example",
    ]
    assert [third.get(key) for key in SHOWN] == [
        12,
        ("broker",),
        ("PLAINTEXT://0.0.0.0:9194",),
        ("PLAINTEXT://m1.example:9194",),
        ("/d1/broker.12", "/d2/broker.12"),
        "[::1]:9646",
        "m1.example",
    ]
    assert second.get_int("node.id") == 11
    assert process_configs(first) == (first,), "a process stands for itself alone"


def test_a_file_without_the_key_is_one_process() -> None:
    config = parse(broker_processes="")
    assert process_configs(config) == (config,)
    assert process_configs(parse(broker_processes="1"))[0].get_list("log.dirs") == ("/d1", "/d2/")


def test_given_racks_free_ports_and_empty_hosts_stay() -> None:
    free = parse(listeners="PLAINTEXT://:0,CONTROLLER://:9093", advertised_listeners="", metrics_listener="h:0")
    last = process_configs(free)[2]
    assert last.get_list("listeners") == ("PLAINTEXT://:0",)
    assert last.get("metrics.listener") == "h:0"
    assert last.get("broker.rack") is None, "the host is not known before the start"
    assert {one.get("broker.rack") for one in process_configs(parse(broker_rack="zone-a"))} == {"zone-a"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093"},
            "port 9093 would belong to listener CONT",
        ),
        ({"listeners": "PLAINTEXT://0.0.0.0:65534,CONTROLLER://0.0.0.0:9093"}, "port 65534 + 2 is above 65535"),
        ({"metrics_listener": "127.0.0.1:9190"}, "metrics.listener of process 2"),
        ({"controller_quorum_voters": "10@m1:9093,11@m2:9093"}, "process 1 (node.id = 11): node.id = 11: is among"),
        ({"process_roles": "controller", "advertised_listeners": ""}, "process.roles lacks broker"),
        ({"broker_processes": "0"}, "broker.processes = '0'"),
    ],
)
def test_values_that_collide_are_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.processes") as refused:
        parse(**changes)
    assert said in "; ".join(refused.value.problems)


@given(count=st.integers(2, 12), port=st.integers(1024, 60000), gap=st.integers(1, 20), node=st.integers(0, 1000))
def test_no_two_processes_share_anything(count: int, port: int, gap: int, node: int) -> None:
    """Either the file is refused, or ids, ports and directories of all processes differ."""
    changes = {
        "node_id": str(node),
        "process_roles": "broker",
        "controller_quorum_voters": "2000@m9:9093",
        "listeners": f"PLAINTEXT://:{port},SSL://:{port + gap}",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,SSL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "advertised_listeners": "",
        "inter_broker_listener_name": "PLAINTEXT",
        "metrics_listener": "",
        "broker_processes": str(count),
    }
    if gap < count:
        with pytest.raises(ConfigError, match=f"leave {count} ports for each listener"):
            parse(**changes)
        return
    configs = process_configs(parse(**changes))
    listeners = [entry for config in configs for entry in config.get_list("listeners")]
    ports = [entry.rpartition(":")[2] for entry in listeners]
    directories = [entry for config in configs for entry in config.get_list("log.dirs")]
    ids = [config.get_int("node.id") for config in configs]
    for found, each in ((ports, 2), (directories, 2), (ids, 1)):
        assert len(set(found)) == len(found) == each * count


def test_each_process_cordons_its_own_directories() -> None:
    """A path of the file stands for the directory of each process below it; ``*`` for all of its own."""
    first, second = process_configs(parse(log_dirs="/a,/b", cordoned_log_dirs="/b", broker_processes="2"))
    assert (cordoned_log_dirs(first), cordoned_log_dirs(second)) == (("/b/broker.10",), ("/b/broker.11",))
    _, second = process_configs(parse(log_dirs="/a,/b", cordoned_log_dirs="*", broker_processes="2"))
    assert cordoned_log_dirs(second) == ("/a/broker.11", "/b/broker.11")
