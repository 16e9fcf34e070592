"""Goal: the status of the quorum shows which voters are down, although nothing was written since they fell silent.

Method: the command runs against an admin client with a quorum of three voters.
"""

import dataclasses
import json

import pytest
import trio
import trio.testing

from moldau.admin import ClusterDescription, QuorumDescription, QuorumReplica
from moldau_cli.commands.administration import quorum
from moldau_cli.console.data import cluster
from support.commands import run_command

NOW_MS = 1_700_000_000_000


class Quorum:
    """An admin client; ``ages_ms`` says how long ago the voters 101, 102, ... last answered the leader 101."""

    def __init__(self, ages_ms, leader_id):
        self._voters = tuple(
            QuorumReplica(replica_id=101 + at, log_end_offset=7, last_fetch_ms=NOW_MS - age_ms, last_caught_up_ms=-1)
            for at, age_ms in enumerate(ages_ms)
        )
        self._leader_id = leader_id

    async def describe_quorum(self):
        await trio.lowlevel.checkpoint()
        quorum = {"leader_epoch": 1, "high_watermark": 7, "observers": ()}
        return QuorumDescription(leader_id=self._leader_id, voters=self._voters, **quorum)

    async def describe_cluster(self):
        await trio.lowlevel.checkpoint()
        return ClusterDescription(cluster_id="c", controller_id=1, brokers=())


@pytest.mark.parametrize(("leader_id", "answers"), [(101, [True, True, False]), (-1, [None, None, None])])
def test_a_voter_that_is_down_does_not_look_caught_up(monkeypatch, leader_id, answers):
    """Its last answer had no lag, which stays true while the metadata do not change."""
    admin = Quorum([0, 500, 60_000], leader_id)
    monkeypatch.setattr(quorum, "with_admin_of", lambda _, __, work: trio.run(work, admin))
    replicas = json.loads(run_command("quorum", "status", "--json").stdout)["replicas"]
    assert [one["lag"] for one in replicas] == [0, 0, 0]
    assert [one["answers"] for one in replicas] == answers
    words = {True: "yes", False: "no", None: "-"}
    rows = run_command("quorum", "status").stdout.splitlines()[2:]
    assert [row.split()[-1] for row in rows] == [words[one] for one in answers]


def test_the_broker_of_a_combined_leader_is_an_observer(monkeypatch):
    """Nodes with both roles have one id for both: the table had two leaders, and said of which role neither was."""

    class Combined(Quorum):
        async def describe_quorum(self):
            found = await super().describe_quorum()
            return dataclasses.replace(found, observers=self._voters)

    admin = Combined([0, 500], 102)
    monkeypatch.setattr(quorum, "with_admin_of", lambda _, __, work: trio.run(work, admin))
    replicas = json.loads(run_command("quorum", "status", "--json").stdout)["replicas"]
    roles = ["voter", "leader", "observer", "observer"]
    assert [one["role"] for one in replicas] == roles
    assert [one["role"] for one in trio.run(cluster.controllers, admin)["rows"]] == roles


def test_a_quorum_without_a_leader_is_reported_soon(monkeypatch):
    """The guide to disasters begins with this command; it waited a minute, and spoke of a change."""

    class Lost(Quorum):
        async def describe_quorum(self):
            await trio.sleep_forever()

    took_s = []

    def run(_, __, work):
        async def timed():
            began_s = trio.current_time()
            try:
                return await work(Lost([], -1))
            finally:
                took_s.append(trio.current_time() - began_s)

        return trio.run(timed, clock=trio.testing.MockClock(autojump_threshold=0))

    monkeypatch.setattr(quorum, "with_admin_of", run)
    done = run_command("quorum", "status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("moldau: cluster c: the brokers reach no controller that leads the quorum. Start ")
    assert took_s == [pytest.approx(quorum.LEADER_S)]
