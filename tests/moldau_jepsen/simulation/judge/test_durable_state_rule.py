"""Goal: an entry of the quorum's log counts as durable when a loss of power would leave it, whatever a process says.

Method: the production write-ahead log on a virtual disk, before and after syncs; a planted bug whose processes say
that they have synced.
"""

from moldau_jepsen.simulation.campaign.campaign import RunOptions, run_seed
from moldau_jepsen.simulation.judge.rules.durable_entries import has_durable_entry
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


def test_a_false_claim_of_a_sync_is_convicted_before_power_loss():
    """A log that claims a sync that did not happen is convicted before any power loss."""
    options = RunOptions(faults=(), fault_seconds=2.0, transactions=False, pipe=False)
    with planted(MUTANTS["raft-wal-not-synced"]):
        convicted = run_seed(1, options).violations
    assert convicted
    assert all("committed-is-durable" in one for one in convicted)
    assert run_seed(1, options).passed
