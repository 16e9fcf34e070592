"""Goal: records count as durable when a loss of power would leave them, whatever a broker says.

Method: the production log on a virtual disk, whose recovery point is moved by hand or by syncs; a planted bug.
"""

import pytest

from moldau_broker.log.values import run_work
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.judge.rules.durable_records import DurableRecords
from moldau_jepsen.simulation.mutants.mutants import planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from support.log.lab import create, open_manager, put
from support.log.model import VirtualMachine

VALUE = b"v" * 200
FIRST, SECOND = "00000000000000000000.log", "00000000000000000003.log"


class Story:
    """One log with segments of three records, and a claim of how far it is durable."""

    def __init__(self):
        machine = VirtualMachine(1)
        self.disk = machine.virtual_disk
        self.manager = open_manager(machine, ["/d1"])
        self.log = create(self.manager)
        self.records = DurableRecords()

    def put(self, count):
        for _ in range(count):
            put(self.log, VALUE)

    def sync(self):
        run_work(self.manager.flush_work(self.log))

    def claim(self, offset):
        self.log.storage.recovery.offset = offset

    def look(self):
        return self.records.look(self.log, self.disk)


@pytest.fixture
def story():
    return Story()


def test_synced_records_are_durable(story):
    for _ in range(3):
        story.put(2)
        story.sync()
        assert story.look() is None


def test_new_records_are_not(story):
    story.put(1)
    story.sync()
    assert story.look() is None
    story.put(1)
    assert story.look() is None, "the broker does not claim it"
    story.claim(2)
    assert story.look().endswith(f"of {FIRST}")
    assert story.look() is None, "said once"


def test_a_new_segment_needs_its_name(story):
    story.put(3)
    story.sync()
    assert story.look() is None
    story.put(1)
    assert story.log.storage.segments.count == 2
    story.disk.lookup(f"{story.log.directory}/{SECOND}").sync()
    story.claim(4)
    assert story.look() == f"the name {SECOND}"


def test_a_new_log_needs_the_name_of_its_directory(story):
    story.put(1)
    story.disk.lookup(f"{story.log.directory}/{FIRST}").sync()
    story.disk.directory(story.log.directory).sync()
    story.claim(1)
    assert story.look() == "the name of the log's directory"


def test_what_was_cut_is_looked_at_again(story):
    story.put(3)
    story.sync()
    assert story.look() is None
    story.log.truncate_to(1)
    assert story.look() is None
    put(story.log, b"w" * 200)
    story.claim(2)
    assert story.look().endswith(f"of {FIRST}")


def test_a_cut_that_may_come_back_is_not_durable(story):
    """The file was cut without a sync since, and written with the same bytes again."""
    story.put(2)
    story.sync()
    inode = story.disk.lookup(f"{story.log.directory}/{FIRST}")
    bytes_before = bytes(inode.content)
    inode.cut(10)
    inode.content += bytes_before[10:]
    assert story.look() == f"the end of {FIRST}, which was cut to 10 of {len(bytes_before)} bytes"


def test_what_is_claimed_during_a_move_is_looked_at_later(story):
    """The log's directory has no name for a moment; what the broker claims then must hold when it has one again."""
    story.put(1)
    story.sync()
    assert story.look() is None
    story.put(1)
    story.claim(2)
    names = story.disk.directory(story.log.parent_directory).names
    name = story.log.directory.rsplit("/", 1)[1]
    directory = names.pop(name)
    assert story.look() is None
    names[name] = directory
    assert story.look().endswith(f"of {FIRST}")


def test_rotten_files_are_not_judged(story):
    story.put(1)
    story.sync()
    story.put(1)
    story.disk.lookup(f"{story.log.directory}/{FIRST}").rotten = True
    story.claim(2)
    assert story.look() is None


@pytest.mark.proof
def test_a_false_claim_of_a_sync_is_convicted_before_power_loss():
    options = RunOptions(faults=(), fault_seconds=2.0, transactions=False, pipe=False, synced=True)
    with planted(MUTANTS["log-not-synced"]):
        convicted = run_seed(1, options).violations
    assert convicted
    assert all("recovery-point-durable" in one for one in convicted)
    assert run_seed(1, options).passed
