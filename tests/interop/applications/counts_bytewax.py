"""Counts words with Bytewax, and recovers state and positions from a store of its own: BOOTSTRAP NAME FOLDER."""

import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main


def count(total, _):
    """Returns the next state, and the count to emit."""
    total = (total or 0) + 1
    return total, total


def main(bootstrap, name, folder):
    brokers = bootstrap.split(",")
    flow = Dataflow("counter")
    lines = op.input("lines", flow, KafkaSource(brokers, [f"{name}-lines"], batch_size=20))
    words = op.flat_map("split", lines, lambda line: [(word, word) for word in line.value.decode().split()])
    counted = op.stateful_map("count", words, count)
    records = op.map("record", counted, lambda found: KafkaSinkMessage(found[0].encode(), str(found[1]).encode()))
    op.output("counts", records, KafkaSink(brokers, f"{name}-counts"))
    store = Path(folder)
    if not store.exists():
        store.mkdir()
        init_db_dir(store, 1)
    cluster_main(flow, [], 0, epoch_interval=timedelta(seconds=0.3), recovery_config=RecoveryConfig(str(store)))


main(*sys.argv[1:])
