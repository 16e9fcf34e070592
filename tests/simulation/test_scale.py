"""Goal: the model of large clusters says what a cluster does. Method: a simulated cluster of 30 brokers beside it."""

import pytest
from benchmarks.scale.model import Shape, Units, predict
from benchmarks.scale.simulated import observe

UNITS = Units(
    rest_bytes=0.0,
    rest_broker_bytes=0.0,
    rest_broker_sends=0.0,
    change_bytes=34.0,
    snapshot_bytes=41.0,
    decide_s=20e-6,
    apply_s=30e-6,
    read_s=10e-6,
)


def test_a_larger_cluster_has_shorter_failovers():
    """The model's shape: a dead broker's partitions divide by the number of brokers, bytes to all nodes do not."""
    few, many = (predict(Shape(brokers=brokers, partitions=1_000_000), UNITS) for brokers in (30, 300))
    assert few.changed == 10 * many.changed == 100_000
    assert 9 < few.last_s / many.last_s < 11
    assert few.failover_bytes == pytest.approx(many.failover_bytes, rel=0.05)
    assert few.first_s == many.first_s < few.last_s
    assert few.snapshot_bytes == many.snapshot_bytes == 41_000_000


@pytest.mark.proof
def test_thirty_simulated_brokers_do_as_the_model_says():
    """Traffic at rest grows by the same bytes for each broker; a dead broker costs each node its changes."""
    small, larger, checked = observe(3, 30), observe(6, 60), observe(30, 300)
    each = (larger.rest_bytes_per_s - small.rest_bytes_per_s) / 3
    assert checked.rest_bytes_per_s == pytest.approx(small.rest_bytes_per_s + 27 * each, rel=0.05)
    shape = Shape(brokers=30, partitions=300, round_trip_s=0.001, sync_s=0.001)
    wanted = predict(shape, UNITS, changed=checked.changed)
    assert checked.failover_bytes == pytest.approx(wanted.failover_bytes, rel=0.15)
    assert checked.last_ms < 20
