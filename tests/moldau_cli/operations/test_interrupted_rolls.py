"""Goal: a roll that is interrupted, or cannot begin, says how to go on.

Method: the progress of a roll at each place where Ctrl-C can come; a command in a directory without a cluster.
"""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.errors import CommandError
from moldau_cli.operations.restarts import CommandRestarter
from moldau_cli.operations.rolling import RollProgress
from moldau_cli.plans.roll import RollNode
from support.commands import run_command


def node(node_id, *roles):
    return RollNode(node_id=node_id, roles=roles, host="h", port=1)


NODES = [node(2, "broker"), node(3, "broker")]


def test_before_the_first_restart_nothing_was_touched():
    assert RollProgress().after_interrupt() == "interrupted before the first restart: no node was touched"
    assert "no node was touched" in RollProgress(remaining=list(NODES)).after_interrupt()


def test_the_restarting_node_and_the_others_are_named():
    text = RollProgress(remaining=list(NODES), restarting=NODES[0], begun=True).after_interrupt()
    assert "while broker 2 (h:1) restarts" in text
    assert "--nodes 2,3 continues" in text


def test_between_two_restarts_the_others_are_named():
    text = RollProgress(remaining=NODES[1:], begun=True).after_interrupt()
    assert text.startswith("interrupted; ")
    assert "--nodes 3 continues" in text


def test_after_the_last_restart_only_leaders_are_left():
    assert "moldau elect" in RollProgress(begun=True).after_interrupt()


def test_a_connection_from_before_shows_that_a_process_has_ended():
    """One that is opened after the command would be to the new process, or to the old one that has not ended yet."""
    done = []
    restarter = CommandRestarter("restart {id}", None, 60)

    async def note(step):
        await trio.lowlevel.checkpoint()
        done.append(step)

    restarter._connect = lambda _: note("connected")
    restarter._run = lambda _: note("restarted")
    trio.run(restarter.restart, NODES[0])
    assert done == ["connected", "restarted"]


def test_a_roll_of_nodes_elsewhere_needs_their_command(tmp_path):
    """The brokers may come from a profile or a variable, which say nothing about the machines."""
    done = run_command("cluster", "roll", cwd=tmp_path)
    where = tmp_path / "moldau-cluster"
    assert done == (2, "", f"moldau: no cluster in {where}; for nodes elsewhere, give --restart-command\n")


class Witness:
    """A connection from before the restart, with the answers of its node: ``ok``, ``hangs``, or an error at its end."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.is_closed = False

    async def negotiate(self, timeout_ms):
        await trio.lowlevel.checkpoint()
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)  # the last one is repeated
        if answer == "hangs":
            await trio.sleep(timeout_ms / 1000)
            raise trio.TooSlowError
        if answer != "ok":
            self.answers.clear()
            raise answer

    def close(self):
        self.is_closed = True


def restart_with(witness):
    restarter = CommandRestarter("restart {id}", None, 60)

    async def connected(_):
        await trio.lowlevel.checkpoint()
        return witness

    async def ran(_):
        await trio.lowlevel.checkpoint()

    restarter._connect, restarter._run = connected, ran
    trio.run(restarter.restart, NODES[0], clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("end", [OSError(), KafkaError(ErrorCode.NETWORK_EXCEPTION, "closed")], ids=["os", "kafka"])
def test_a_node_has_ended_when_its_connection_breaks(end):
    """A node that hangs has not ended: with the next restart, two nodes would be down at a time."""
    for before in itertools.chain.from_iterable(itertools.product(["ok", "hangs"], repeat=n) for n in range(4)):
        witness = Witness([*before, end])
        restart_with(witness)
        assert (witness.answers, witness.is_closed) == ([], True), before


@pytest.mark.parametrize("answer", ["ok", "hangs"])
def test_a_node_that_does_not_end_is_not_restarted(answer):
    witness = Witness([answer])
    with pytest.raises(CommandError, match=r"was not restarted within 60 s by: restart 2"):
        restart_with(witness)
    assert witness.is_closed
