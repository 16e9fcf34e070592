"""Goal: an entry of the quorum's log counts as durable when a loss of power would leave it, whatever a process says.

Method: the production write-ahead log on a virtual disk, before and after syncs; a planted bug whose processes say
that they have synced.
"""

from types import SimpleNamespace

import pytest

from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.judge.rules import watcher
from moldau_jepsen.simulation.judge.rules.durable_entries import has_durable_entry
from moldau_jepsen.simulation.judge.rules.votes import CommitRules
from moldau_jepsen.simulation.mutants.mutants import planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from moldau_jepsen.world.world import run_world
from moldau_quorum.log.raft.core.types import Entry, EntryKind
from moldau_quorum.log.raft.storage.wal import WriteAheadLog, make_durable_directories

DIRECTORY = "/data/raft"


async def written_and_synced(world):
    node = world.node("n")
    disk = node.environment.disk
    seen = []
    first, second = (Entry(index, 3, EntryKind.DATA, b"entry %d" % index) for index in (1, 2))

    def look():
        seen.append([has_durable_entry(node.disk, DIRECTORY, entry) for entry in (first, second)])

    look()
    make_durable_directories(disk, DIRECTORY)
    wal, _, _ = WriteAheadLog.open(disk, DIRECTORY, 1 << 20)
    wal.write(None, [first])
    look()
    work = wal.begin_sync()
    work.run()
    wal.sync_done(work)
    look()
    wal.write(None, [second])
    look()
    node.lose_power()
    look()
    other = first._replace(epoch=4)
    assert not has_durable_entry(node.disk, DIRECTORY, other)
    return seen


def test_an_entry_is_durable_once_it_was_synced():
    seen = run_world(written_and_synced, 1)
    assert seen[:4] == [[False, False], [False, False], [True, False], [True, False]]
    assert seen[4][0]


@pytest.mark.proof
def test_a_false_claim_of_a_sync_is_convicted_before_power_loss():
    """A log that claims a sync that did not happen is convicted before any power loss."""
    options = RunOptions(faults=(), fault_seconds=2.0, transactions=False, pipe=False)
    with planted(MUTANTS["raft-wal-not-synced"]):
        convicted = run_seed(1, options).violations
    assert convicted
    assert all(": counted-is-durable" in one or ": committed-is-durable" in one for one in convicted)
    assert run_seed(1, options).passed


@pytest.mark.parametrize(
    ("durable", "last", "convicted"),
    [
        (2, 2, False),
        (3, 3, True),  # written, not synced
        (5, 3, True),  # behind the end of the log
        (1, 3, False),  # in a snapshot
    ],
    ids=["synced", "written", "beyond", "in-a-snapshot"],
)
def test_what_a_voter_counts_as_durable_is_on_its_disk(monkeypatch, durable, last, convicted):
    monkeypatch.setattr(watcher, "has_durable_entry", lambda disk, directory, index: index <= 2)
    found = []
    log = SimpleNamespace(base_index=1, last_index=last, entry=lambda index: index)
    judge = SimpleNamespace(violated=lambda rule, text: found.append(rule))
    cluster = SimpleNamespace(machines={101: SimpleNamespace(disk=None)})
    watch = SimpleNamespace(_cluster=cluster, _judge=judge, _commits=CommitRules(lambda rule, text: None))
    voter = SimpleNamespace(durable_index=durable, log=log)
    watcher.RuleWatcher._look_at_durable(watch, 101, voter, DIRECTORY)
    assert found == (["counted-is-durable"] if convicted else [])


@pytest.mark.parametrize(
    ("lost", "opened", "said", "convicted"),
    [
        (False, False, 7, True),  # its disk lacks what its process said it had
        (True, False, 7, False),  # a fault has lost the log since, so its last word counts
        (True, False, 6, True),
        (True, True, 7, True),  # it serves again with what is left, so its disk counts
    ],
    ids=["kept", "lost", "never-had-it", "serves-again"],
)
def test_the_last_word_counts_where_a_fault_lost_the_log(monkeypatch, lost, opened, said, convicted):
    """The leader commits the entry when its own sync ends, after the other voter has answered and lost its log.

    That one may have started since (seed 2415833): it counts before it finds its log empty, and refuses.
    """
    monkeypatch.setattr(watcher, "has_durable_entry", lambda disk, directory, entry: disk)
    found = []
    commits = CommitRules(lambda rule, text: found.append(rule))
    log = SimpleNamespace(epoch_at=lambda index: 3, base_index=0, entry=lambda index: None)
    leader = SimpleNamespace(commit_index=7, durable_index=7, log=log)
    leader.configuration = SimpleNamespace(voters=(101, 102, 103))
    machines = {
        101: SimpleNamespace(disk=False),
        102: SimpleNamespace(disk=False),
        103: SimpleNamespace(disk=True),
    }
    controllers = dict.fromkeys((102, 103) if opened else (103,), object())
    cluster = SimpleNamespace(controllers=controllers, lost_logs={102: None} if lost else {}, machines=machines)
    commits.durable(102, said)
    watch = SimpleNamespace(_cluster=cluster, _voters={103: SimpleNamespace(core=leader)}, _commits=commits)
    watcher.RuleWatcher._look_at_commit(watch, 103, leader, DIRECTORY)
    assert found == (["committed-is-durable"] if convicted else [])
