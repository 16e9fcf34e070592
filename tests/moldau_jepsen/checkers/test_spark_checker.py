"""Goal: the Spark job gives the verdicts of the checkers in one process. Method: histories good and bad, by hand and by
the random model, with transactions, pipes and groups in them, are written to files of many frames and judged both ways.
"""

from pathlib import Path

import pytest

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.checkers.spark import check_history_with_spark
from moldau_jepsen.history import (
    HistoryError,
    HistoryFile,
    HistoryWriter,
    Kind,
    Operation,
    Poll,
    Send,
    Status,
    TopicPartition,
)
from pyspark_moldau.session.java import find_java
from support.kit.golden_histories import P0, P1, Story, assert_same, good, model_history, transaction_history
from support.spark.shared import shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_java() is None, reason="needs a Java"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]
K = AnomalyKind
U0 = TopicPartition("u", 0)


@pytest.fixture(scope="module")
def spark():
    return shared_session()


def in_frames(path: Path, history: list[Operation], size: int) -> Path:
    with path.open("wb") as stream:
        writer = HistoryWriter(stream)
        for number, operation in enumerate(history):
            writer.add(operation)
            if number % size == size - 1:
                writer.flush()
        writer.flush()
    return path


def with_transactions() -> list[Operation]:
    """Cycles, a torn transaction, a read of an own write, two owners, a final read that is stuck, a pipe that lost."""
    story = good()
    story.add(1, Kind.SUBSCRIBE, partitions=(P0,), generation=5)
    story.add(2, Kind.SUBSCRIBE, partitions=(P0, P1), generation=5)
    story.add(4, Kind.TRANSACTION, Send(P0, 50, 50), Poll(((P1, ((61, 61),)),)))
    story.add(5, Kind.TRANSACTION, Send(P1, 61, 61), Poll(((P0, ((50, 50),)),)))
    story.add(6, Kind.TRANSACTION, Send(P0, 52, None), Send(P1, 62, None), status=Status.INFO)
    story.add(7, Kind.TRANSACTION, Send(P1, 63, 63), Poll(((P1, ((63, 63),)),)))
    story.add(8, Kind.POLL, Poll(((P0, ((50, 50), (52, 52))), (P1, ((61, 61), (63, 63))))), final=True)
    story.add(9, Kind.POLL, status=Status.INFO, final=True, error="never")
    return story.history


def with_groups() -> list[Operation]:
    """A group that skips a record of one partition, and one that skips none."""
    story = Story()
    for value in range(4):
        story.send(1, value, value).send(1, value, value, partition=P1)
    for partition, skipping in ((P0, True), (P1, False)):
        story.poll(2, (0, 0), (1, 1), partition=partition, group="g", rebalanced=True)
        pairs = ((3, 3),) if skipping else ((2, 2), (3, 3))
        story.poll(3, *pairs, partition=partition, group="g", rebalanced=True)
        story.poll(9, *((value, value) for value in range(4)), partition=partition, final=True)
    return story.history


def with_a_final_read_that_is_stuck() -> list[Operation]:
    """It has come to some of the records of one partition, and to none of the other; a pipe leads between them."""
    story = Story().send(1, 0, 0).send(1, 1, 1).add(2, Kind.TRANSACTION, Send(P1, 0, None), Send(P0, 2, 2))
    story.add(3, Kind.TRANSACTION, Poll(((P0, ((0, 0),)),)), Send(U0, 0, None), Send(P1, 1, None), status=Status.INFO)
    story.poll(9, (1, 1), final=True).poll(9, (0, 0), partition=U0, final=True)
    return story.add(9, Kind.POLL, status=Status.INFO, final=True, error="never").history


HISTORIES = {
    "good": (good().history, CheckOptions()),
    "transactions": (with_transactions(), CheckOptions()),
    "model": (model_history(1, None)[0], CheckOptions()),
    "model-duplicate": (model_history(2, K.DUPLICATE)[0], CheckOptions()),
    "model-skip": (model_history(3, K.INT_POLL_SKIP)[0], CheckOptions()),
    "model-unseen": (model_history(4, K.UNSEEN)[0], CheckOptions(subscribe=True)),
    "pipe": (with_transactions(), CheckOptions(pipes=(("t", "u"),))),
    "groups": (with_groups(), CheckOptions()),
    "transactions-whole": (transaction_history(0, losing=False)[0], CheckOptions()),
    "transactions-lost": (transaction_history(1, losing=True)[0], CheckOptions()),
    "stuck": (with_a_final_read_that_is_stuck(), CheckOptions(pipes=(("t", "u"),))),
    "foreign": (Story().send(1, 0, 0).poll(9, (0, 0), (1, (1 << 64) - 1), final=True).history, CheckOptions()),
    "rotten": (Story().send(1, 0, 0).poll(9, (0, 0), (1 << 49, 0), final=True).history, CheckOptions()),
    "uncommitted": (with_transactions(), CheckOptions(read_committed=False)),
    "empty": (Story().history, CheckOptions()),
}


@pytest.mark.parametrize("name", list(HISTORIES))
def test_the_job_says_what_the_checkers_say(spark, tmp_path: Path, name: str) -> None:
    history, options = HISTORIES[name]
    path = in_frames(tmp_path / "history", history, 7)
    verdict = check_history(HistoryFile(path), options)
    assert_same(check_history_with_spark(spark, path, options), verdict)
    assert verdict.valid == (name in ("good", "model", "transactions-whole", "empty"))


def test_a_foreign_file_is_refused_by_the_driver(spark, tmp_path: Path) -> None:
    (tmp_path / "history").write_bytes(b"something else")
    with pytest.raises(HistoryError, match="not a history"):
        check_history_with_spark(spark, tmp_path / "history", CheckOptions())
