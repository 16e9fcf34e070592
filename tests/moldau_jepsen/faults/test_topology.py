"""Goal: shapes of network partitions are what their names say. Method: rings of all sizes up to eleven."""

import random

import pytest

from moldau_jepsen.faults.topology import ring_cuts


@pytest.mark.parametrize("count", range(3, 12))
def test_each_node_of_a_ring_hears_its_own_majority(count):
    """Every node hears a majority with itself in it, and no two nodes hear the same one."""
    hosts = [f"n{number}" for number in range(count)]
    random.Random(count).shuffle(hosts)
    cuts = ring_cuts(hosts)
    heard = {host: frozenset(other for other in hosts if (other, host) not in cuts) for host in hosts}
    assert all(len(others) == count // 2 + 1 for others in heard.values())
    assert all(host in others for host, others in heard.items())
    assert len(set(heard.values())) == count
    assert len(set(cuts)) == len(cuts)
