"""Goal: ``moldau txns`` shows transactions as they are and ends those that hang.

Method: one real broker, a producer that leaves transactions open on purpose, and the commands in this process.
"""

import json

import pytest

from moldau.blocking import Admin, Consumer, Producer
from moldau_jepsen.testing import cluster
from support.commands import run_command
from support.interop.clients import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def bootstrap():
    with cluster(brokers=1, controllers=1, links=False) as running:
        yield running.bootstrap


@pytest.fixture
def moldau(bootstrap):
    def run(*arguments, code=0):
        done = run_command(*arguments, "--bootstrap-server", bootstrap)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def as_json(*arguments):
        return json.loads(run(*arguments, "--json").stdout)

    run.json = as_json
    return run


def committed_values(bootstrap, topic):
    config = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.assign([(topic, 0)])
        end = consumer.end_offsets([(topic, 0)])[topic, 0]  # of those who read committed: the last stable offset
        values = []

        def read_to_the_end():
            values.extend(bytes(record.value) for batch in consumer.poll(200) for record in batch.records)
            return consumer.position((topic, 0)) >= end

        wait_until(read_to_the_end, f"{topic} is read up to {end}")
        return values


def test_a_transaction_is_listed_described_and_terminated(bootstrap, moldau):
    assert moldau.json("txns", "list")["transactions"] == []
    assert "TRANSACTIONAL_ID_NOT_FOUND" in moldau("txns", "describe", "no-such-id", code=2).stderr
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": "mover", "max.block.ms": 20_000}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("moves", b"open", partition=0)
        producer.flush()
        (row,) = moldau.json("txns", "list", "--state", "Ongoing")["transactions"]
        assert (row["transactional_id"], row["state"], row["coordinator"]) == ("mover", "Ongoing", 1)
        assert moldau.json("txns", "list", "--state", "Empty")["transactions"] == []
        assert moldau.json("txns", "list", "--transactional-id-pattern", "m.*r")["transactions"] == [row]
        assert moldau.json("txns", "list", "--transactional-id-pattern", "move")["transactions"] == []
        wrong = moldau("txns", "list", "--transactional-id-pattern", "(", code=2).stderr
        assert "INVALID_REGULAR_EXPRESSION" in wrong
        assert "no transaction state Nonsense" in moldau("txns", "list", "--state", "Nonsense", code=2).stderr
        described = moldau.json("txns", "describe", "mover")
        assert described["partitions"] == ["moves-0"]
        assert described["start_ms"] > 0
        (known,) = moldau.json("txns", "producers", "moves", "0")["producers"]
        assert known["producer_id"] == described["producer_id"]
        assert known["transaction_start_offset"] == 0
        assert "terminated mover" in moldau("txns", "terminate", "mover").stdout
        with pytest.raises(Exception, match="PRODUCER_FENCED"):
            producer.commit_transaction()
    assert committed_values(bootstrap, "moves") == []
    wait_until(lambda: moldau.json("txns", "describe", "mover")["partitions"] == [], "the transaction is complete")


def test_a_hanging_transaction_is_aborted_in_its_partition(bootstrap, moldau):
    """``txns abort`` ends a transaction that hangs in one partition."""
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": "hanger"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("hangs", b"stuck", partition=0)
        producer.flush()
        with Producer({"bootstrap.servers": bootstrap}) as plain:
            plain.send("hangs", b"behind", partition=0)
        assert committed_values(bootstrap, "hangs") == []
        refused = moldau("txns", "abort", "hangs", "0", "--start-offset", "1", code=1).stderr
        assert "no open transaction in hangs-0 starts at offset 1" in refused
        assert "--start-offset or --producer-id" in moldau("txns", "abort", "hangs", "0", code=2).stderr
        assert moldau.json("txns", "abort", "hangs", "0", "--start-offset", "0")["start_offset"] == 0
        assert committed_values(bootstrap, "hangs") == [b"behind"]
        producer.abort_transaction()
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        listed = {one.transactional_id: one.state for one in admin.list_transactions()}
        assert listed["hanger"] in ("PrepareAbort", "CompleteAbort")
        assert admin.describe_transactions(["hanger"])["hanger"].timeout_ms == 60_000
        assert [one.transaction_start_offset for one in admin.describe_producers(("hangs", 0))][:1] == [-1]
