"""Goal: Kafka's own Java clients find a cluster again whose brokers have all moved to other addresses (KIP-899, 1102).

Method: a real node behind a bootstrap address that stays, as a name or a load balancer does; the node ends and starts
again at another port. A producer without the recovery, which gets no answer any more, is the control.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from moldau.admin import NewTopic
from moldau.blocking import Admin
from moldau_jepsen.launcher.ports import take_free_ports
from support.interop import plain_node
from support.interop.clients import WAIT_S
from support.interop.kafka_node import NEWEST, kafka_jars
from support.interop.mirrormaker import java
from support.interop.plain_node import Doorway, PlainNode

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PROGRAM = Path(plain_node.__file__).with_name("Rebootstrap.java")


def test_java_clients_follow_a_cluster_to_other_addresses(tmp_path: Path) -> None:
    jars = kafka_jars(NEWEST)
    before, after, controller = take_free_ports(3)
    with Doorway(before) as doorway, contextlib.ExitStack() as ending:
        with PlainNode(tmp_path, (before, controller)) as node:
            with Admin({"bootstrap.servers": node.bootstrap}) as admin:
                admin.create_topics([NewTopic("t", 1, 1)])
            program = subprocess.Popen(
                java(jars, str(PROGRAM), f"127.0.0.1:{doorway.port}"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            ending.callback(program.communicate)
            ending.callback(program.kill)
            assert program.stdout is not None
            shown = [program.stdout.readline().strip() for _ in range(3)]
        doorway.target = after
        with PlainNode(tmp_path, (after, controller)):
            rest, _ = program.communicate("\n", timeout=4 * WAIT_S)
    assert shown == ["first=at 0", "first of the other=at 1", "read=ab"]
    assert rest.splitlines() == ["second=at 2", "read again=c", "second of the other=TimeoutException"]
