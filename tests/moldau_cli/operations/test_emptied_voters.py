"""Goal: the start of a cluster says which controllers lost their logs. Method: pure functions on answers and files."""

from types import SimpleNamespace

import pytest

from moldau_cli.errors import CommandError
from moldau_cli.operations.emptied_voters import (
    advice_on_emptied,
    emptied_voters,
    is_quorum_led,
    reason_for_no_leader,
    wait_quorum_led,
)
from moldau_jepsen.launcher.cluster import QuorumStatus


def quorum(leader, heard):
    return QuorumStatus(leader_id=leader, leader_epoch=3, high_watermark=9, voters=(), heard_ms=tuple(heard.items()))


@pytest.mark.parametrize(
    ("status", "led"),
    [
        (None, False),
        (quorum(101, {101: 0, 102: 999, 103: 999}), False),
        (quorum(101, {101: 0, 102: 1000, 103: 999}), True),
        (quorum(101, {101: 0, 102: 0, 103: 999}), False),
        (quorum(101, {101: -1, 102: -1, 103: -1}), True),
        (quorum(101, {101: 0}), True),
    ],
)
def test_a_leader_without_its_majority_does_not_count(status, led):
    """It answers as leader for about a second after the others were killed: the start said ready at once."""
    assert is_quorum_led(status, 1000) is led


@pytest.fixture
def controllers(tmp_path):
    """Controllers of which 101 has a log."""
    nodes = []
    for number in (101, 102, 103):
        directory = tmp_path / str(number)
        (directory / "__cluster_metadata" / "raft").mkdir(parents=True)
        address = f"127.0.0.1:9{number}"
        log = tmp_path / f"{number}.log"
        log.write_text("first\nlast line\n")
        nodes.append(SimpleNamespace(node_id=number, directory=str(directory), address=address, log=str(log)))
    (tmp_path / "101" / "__cluster_metadata" / "raft" / "0.wal").touch()
    broker = SimpleNamespace(node_id=1, directory=str(tmp_path / "1"))
    (tmp_path / "1").mkdir()
    return SimpleNamespace(controllers=nodes, brokers=[broker], quorum=lambda: None)


def test_controllers_without_a_log_are_found(controllers, tmp_path):
    assert emptied_voters(controllers) == [102, 103]
    (tmp_path / "101" / "__cluster_metadata" / "raft" / "0.wal").unlink()
    assert emptied_voters(controllers) == []  # a cluster that never ran


def test_controllers_that_all_lost_their_logs_do_not_start(controllers, tmp_path):
    """They began another cluster, the start said ready, and the brokers ended."""
    (tmp_path / "101" / "__cluster_metadata" / "raft" / "0.wal").unlink()
    (tmp_path / "1" / "applied-metadata-checkpoint").touch()
    with pytest.raises(CommandError, match="all controllers are empty"):
        emptied_voters(controllers)


def test_a_lost_majority_is_not_to_be_removed(controllers):
    """Removing a voter needs a leader, which the others cannot elect."""
    with pytest.raises(CommandError) as raised:
        wait_quorum_led(controllers, [102, 103], 0, 5, lambda: 5)
    text = str(raised.value)
    assert text.startswith("no controller leads the quorum: 102, 103 of 3 controllers started with an empty directory")
    assert "restore" in text
    assert "remove-voter" not in text


def test_a_lost_minority_is_replaced(controllers):
    assert advice_on_emptied(controllers, [102]) == [
        "controller 102 started with an empty directory and does not vote: moldau quorum remove-voter 102, "
        "then moldau quorum add-voter 102 127.0.0.1:9102"
    ]


def test_other_reasons_are_those_of_the_logs():
    assert (
        reason_for_no_leader([], {101: "a", 102: "b"})
        == "no controller leads the quorum: controller 101: a; controller 102: b"
    )
    assert reason_for_no_leader([103], {101: "a", 102: "b", 103: "c"}).count("controller 10") == 3
