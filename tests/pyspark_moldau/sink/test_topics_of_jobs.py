"""Goal: of two jobs with the same name and version that write to different topics, the second is refused.

It would find its version written, and drop its rows without an error. Method: the cores of task and driver, which are
given a decision of the first write.
"""

import pytest

from pyspark_moldau.sink.cluster import job_topic
from pyspark_moldau.sink.core.effects import Decision, Entry, FenceDriver, Kind, NoteBegun, Report, WriteDecision
from pyspark_moldau.sink.core.protocol import DriverCore, TaskCore
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError
from pyspark_moldau.sink.core.sink_options import parse_sink_options

ENTRY = Entry(transactional_id="t", producer_id=1, producer_epoch=0, rows=3, fingerprint=4)
REPORT = Report(batch=7, partition=0, kind=Kind.PREPARED, entry=ENTRY)
JOB = {"kafka.bootstrap.servers": "h:1", "deliveryGuarantee": "exactly-once", "txnAppId": "j", "txnVersion": "7"}


def topic_of(**options):
    """Returns what the decision of a write with these options says of its topic."""
    return job_topic(parse_sink_options(JOB | options, streaming=False))


def decided(topic):
    """Returns the decision that a driver writes for this topic."""
    core = DriverCore(batch=7, run="r", reports=(REPORT,), topic=topic, has_notes=False)
    for result in (None, None, ()):  # of FenceDriver, ReadDecision, FindEnded
        core = core.on(result)
    assert isinstance(core.effect, WriteDecision)
    return core.effect.decision


def repeated(topic, decision):
    """Returns the next effects of a task and of a driver that find the decision."""
    task = TaskCore(batch=7, partition=0, topic=topic)
    driver = DriverCore(batch=7, run="again", reports=(REPORT,), topic=topic)
    assert isinstance(driver.effect, FenceDriver)
    found = []
    for core in (task, driver.on(None)):
        try:
            found.append(core.on(decision).effect)
        except ProtocolRefusedError as error:
            found.append(str(error))
    return found


def test_a_version_of_another_topic_is_refused():
    first, other, by_column = topic_of(topic="a"), topic_of(topic="b"), topic_of()
    for text in repeated(other, decided(first)):
        assert "has written this txnVersion to topic a already, so nothing would be written to topic b" in str(text)
    for text in repeated(by_column, decided(first)):
        assert "to topic a already, so nothing would be written to the column topic" in str(text)


@pytest.mark.parametrize("topic", ["a", ""])
def test_a_repeated_job_is_finished(topic):
    given = topic_of(topic=topic) if topic else topic_of()
    assert repeated(given, decided(given)) == [NoteBegun(7)] * 2


def test_queries_and_earlier_decisions_have_no_topic():
    """A query may go on with another topic; its batches are its own."""
    query = parse_sink_options({**dict(list(JOB.items())[:2]), "topic": "a"}, streaming=True)
    assert job_topic(query) is None
    assert repeated(None, decided("a")) == [NoteBegun(7)] * 2
    earlier = Decision(batch=7, run="r", entries=(ENTRY,))
    assert repeated("a", earlier) == [NoteBegun(7)] * 2
