"""Goal: each text with a host and a port can be read back: an IPv6 host stands in brackets.

Method: one function joins the two; the sources are searched for texts that join them in another way.
"""

import re
from pathlib import Path

import pytest

from moldau.cluster.metadata import BrokerNode
from moldau.runtime.config.listeners import parse_address
from moldau.values import join_address

ROOT = Path(__file__).parents[3]
FOLDERS = ("client", "cli", "data_plane", "metadata_quorum", "spark", "jepsen_like")
BY_HAND = re.compile(r"\{(?:[\w.]*host|\w+\[0\])\}:\{(?:[\w.]*port|\w+\[1\])\}")


@pytest.mark.parametrize("address", [("::1", 9092), ("127.0.0.1", 9092), ("broker-1", 1)])
def test_an_address_reads_back(address):
    assert parse_address(join_address(*address)) == address


def test_errors_of_clients_name_ipv6_brokers():
    """They said ``::1:9092``."""
    assert str(BrokerNode(node_id=1, host="::1", port=9092, rack=None)) == "1 ([::1]:9092)"


def test_no_text_joins_host_and_port_by_hand():
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for match in BY_HAND.finditer(path.read_text())
        if path.relative_to(ROOT).as_posix() != "client/moldau/values.py"
    ]
    assert found == []
