"""Goal: the sink drops no rows of a batch that was planned again under the number of a batch that is written.

Method: the driver's core and the files of a checkpoint; a copy of a checkpoint that a query of Spark goes on with.
"""

import shutil
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_moldau.plans import plan_of
from pyspark_moldau.session.java import find_java
from pyspark_moldau.sink.core.effects import Decision, Kind, NoteBegun, Report
from pyspark_moldau.sink.core.protocol import DriverCore
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError
from support.interop.clients import ConfluentClient, create_topic
from support.interop.committed import committed_values
from support.spark.shared import patiently, shared_brokers, shared_session

REPORT = Report(batch=7, partition=0, kind=Kind.DECIDED)


@pytest.mark.parametrize(("decided", "planned"), [("", ""), ("", "a"), ("a", ""), ("a", "a"), ("a", "b")])
def test_another_plan_of_a_decided_batch_is_refused(decided, planned):
    """Earlier releases noted no plan, and a checkpoint on another file system shows none."""
    core = DriverCore(batch=7, run="again", reports=(REPORT,), plan=planned).on(None)
    decision = Decision(batch=7, run="first", entries=(None,), plan=decided)
    if decided and planned and decided != planned:
        with pytest.raises(ProtocolRefusedError, match=r"batch 7 of this query is written already.* was set back"):
            core.on(decision)
    else:
        assert isinstance(core.on(decision).effect, NoteBegun)


def test_a_plan_is_known_by_the_file_of_its_offsets(tmp_path):
    (tmp_path / "a b" / "offsets").mkdir(parents=True)
    file = tmp_path / "a b" / "offsets" / "3"
    file.write_text("v1")
    plan = plan_of(str(tmp_path / "a b"), 3)
    assert len(plan) == 16
    assert plan == plan_of(tmp_path / "a b", 3) == plan_of(f"file://{tmp_path}/a%20b", 3)
    file.write_text("v2")
    assert plan != plan_of(tmp_path / "a b", 3)
    assert not any(plan_of(place, 3) for place in (None, "hdfs://h/a", str(tmp_path)))
    assert not plan_of(tmp_path / "a b", 4)


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found")
@pytest.mark.filterwarnings("ignore")  # pyspark and py4j leave sockets to the garbage collector
def test_a_copied_checkpoint_drops_no_rows_in_silence(tmp_path):
    """The batch after the copy is planned again with a further row, and the sink had taken it for a replay."""
    brokers, spark = shared_brokers(), shared_session()
    options = {"kafka.bootstrap.servers": brokers.bootstrap}
    for topic in ("set-back", "set-back-copy"):
        create_topic(brokers.bootstrap, topic, 1, 3)
    rows = spark.readStream.format("moldau").options(**options, subscribe="set-back", startingOffsets="earliest").load()
    sink = {"topic": "set-back-copy", "deliveryGuarantee": "exactly-once", "checkpointLocation": str(tmp_path / "now")}
    writer = rows.select("value").writeStream.format("moldau").options(**options, **sink).trigger(availableNow=True)

    def run(value):
        ConfluentClient(brokers.bootstrap).produce("set-back", [(None, value, [])])
        patiently(lambda: writer.start().awaitTermination())

    run(b"1")
    shutil.copytree(tmp_path / "now", tmp_path / "copy")
    run(b"2")
    shutil.rmtree(tmp_path / "now")
    shutil.copytree(tmp_path / "copy", tmp_path / "now")
    for value in (b"3", b"4"):
        with pytest.raises(StreamingQueryException, match="batch 1 of this query is written already, with 1 rows"):
            run(value)
    assert committed_values(brokers.bootstrap, "set-back-copy", 1) == Counter([b"1", b"2"])
