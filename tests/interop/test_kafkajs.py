"""Goal: kafkajs works unmodified: groups, transactions and its admin client.

Method: an application that sends lines on in transactions is killed and started again, and a broker is killed; each
line must come out once. Each call of the admin client is made once, on Moldau and on Apache Kafka, and the answers are
compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from moldau_jepsen.testing import cluster
from support.interop.frameworks import APPLICATIONS, Applications, Lines, live_through_kills, node_modules
from support.interop.kafka_node import NEW, kafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
ADMIN_S = 120


@pytest.fixture
def environment() -> dict[str, str]:
    modules, reason = node_modules()
    if modules is None:
        pytest.skip(reason)
    return {"NODE_PATH": str(modules)}


@pytest.fixture
def applications(tmp_path: Path) -> Iterator[Applications]:
    running = Applications(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(running.end)
        yield running


def test_lines_are_relayed_once_while_processes_die(environment, applications):
    with cluster(brokers=3, controllers=1, links=False) as brokers:
        lines = Lines(brokers, "kafkajs", applications, counts=False)

        def start(instance: str) -> None:
            command = ["node", APPLICATIONS / "relay_kafkajs.js", brokers.bootstrap, "kafkajs"]
            applications.start(instance, command, environment)

        live_through_kills(lines, applications, brokers, start)
        assert lines.found == lines.expected


def administer(bootstrap: str, environment: dict[str, str]) -> dict[str, Any]:
    """Returns what each call of the admin client returned."""
    run = subprocess.run(
        ["node", str(APPLICATIONS / "admin_kafkajs.js"), bootstrap, "administered", "1"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=ADMIN_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-1_000:]
    return {answer.pop("what"): answer for answer in map(json.loads, run.stdout.splitlines())}


def test_admin_calls_are_answered_as_by_kafka(environment, tmp_path):
    with cluster(brokers=1, controllers=1, links=False) as brokers:
        answers = administer(brokers.bootstrap, environment)
    with kafka(tmp_path, NEW) as bootstrap:
        expected = administer(bootstrap, environment)
    assert answers == expected
