"""Goal: ``moldau log dump`` finds each changed byte that the broker could see, and accuses no file in good order.

Method: a log with transactions, leader epochs and several segments; single bytes of its files are changed. Histories
of kills, truncations, compaction and restarts follow, after which each file is in order.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from moldau_broker.log.files.checksums import CHECKSUMS
from moldau_broker.log.files.dump import BAD_BYTE, dump_file
from moldau_cli.dumps.comparison import hidden_damage
from moldau_cli.main import main
from support.log.model import Driver, TransactionsDriver, VirtualMachine

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTIONS = (
    *("append",) * 4,
    *("append_idempotent", "append_transactional", "end_transaction", "new_epoch", "advance_watermark", "flush"),
)
DISTURBED = (*ACTIONS, "truncate", "kill", "restart_clean", "tick", "delete_records")
INDEXES = (".index", ".timeindex", ".txnindex")
STOPPED = "/data/.kafka_cleanshutdown"


def stopped(seed: int = 2) -> VirtualMachine:
    machine, rnd = VirtualMachine(seed), random.Random(seed)
    driver = Driver(machine, seed=seed)
    for _ in range(120):
        getattr(driver, rnd.choice(ACTIONS))(rnd)
    driver.manager.close(5)
    return machine


def files_of(machine: VirtualMachine, *endings: str) -> list[str]:
    return [path for path in sorted(machine.virtual_disk.files("/data")) if path.endswith(endings)]


def damage_of(machine: VirtualMachine, path: str) -> str | None:
    """Returns the reason why a file is damaged, as ``moldau log dump`` finds it; None if it is in order."""
    last = list(dump_file(machine.disk, path))[-1]
    if last.startswith(BAD_BYTE):
        return last
    found = hidden_damage(machine.disk, path)
    return None if found is None else found.reason


def changed(machine: VirtualMachine, path: str) -> Iterator[int]:
    """Yields the place of each byte while one of its bits is another one."""
    content = machine.virtual_disk.lookup(path).content
    for at in range(len(content)):
        bit = 1 << at % 3  # the lowest bits make the smallest change
        content[at] ^= bit
        yield at
        content[at] ^= bit


def missed(machine: VirtualMachine, *endings: str) -> list[tuple[str, int]]:
    paths = files_of(machine, *endings)
    assert paths
    return [(path, at) for path in paths for at in changed(machine, path) if damage_of(machine, path) is None]


def test_a_changed_byte_of_an_index_is_found() -> None:
    """An offset inside a batch, and a timestamp of the batch before, passed for entries of the indexes."""
    machine = stopped()
    machine.disk.remove(STOPPED)
    assert missed(machine, ".index", ".timeindex") == []


def test_after_a_clean_stop_each_changed_byte_is_found() -> None:
    """A digit made another valid offset, epoch or node of checkpoints, leader epochs and ``meta.properties``."""
    endings = ("-checkpoint", "meta.properties", "partition.metadata", ".txnindex")
    assert missed(stopped(), *endings) == []


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (2, 7777, "has no marker at offset"),
        (10, 1, "has no batch at offset"),
        (18, 0, "has no marker at offset"),
        (26, 1, "the last stable offset after the marker cannot be"),
    ],
)
def test_aborted_transactions_are_compared_with_batches(field: int, value: int, reason: str) -> None:
    machine = stopped()
    machine.disk.remove(STOPPED)
    path = files_of(machine, ".txnindex")[0]
    base_offset = int(path[-len("00000000000000000030.txnindex") : -len(".txnindex")])
    machine.virtual_disk.lookup(path).content[field : field + 8] = (base_offset + value).to_bytes(8, "big")
    assert reason in (damage_of(machine, path) or "")


def test_bytes_behind_the_entries_of_an_index_are_zeros() -> None:
    machine = stopped()
    path = files_of(machine, ".index")[0]
    machine.virtual_disk.lookup(path).content.extend(bytes(16))
    assert damage_of(machine, path) is None
    machine.virtual_disk.lookup(path).content[-1] = 1
    assert damage_of(machine, path) == "a byte behind the last entry is not 0"


@pytest.mark.parametrize("kind", [Driver, TransactionsDriver])
def test_files_in_good_order_are_not_accused(kind: type[Driver]) -> None:
    """A running broker has batches without index entries, and segments whose records compaction has removed."""
    for seed in range(8):
        machine, rnd = VirtualMachine(seed), random.Random(seed)
        driver = kind(machine, seed=seed)
        actions = getattr(driver, "COMPACT_ACTIONS", ()) if kind is TransactionsDriver else DISTURBED
        for step in range(60):
            action = rnd.choice([one for one in actions if one != "lose_power"])  # leaves empty snapshots
            getattr(driver, action)(rnd)
            if step % 20 == 19:
                assert accused(machine) == {}, (seed, step, action)
        driver.manager.close(5)
        assert accused(machine) == {}, seed


def accused(machine: VirtualMachine) -> dict[str, str]:
    paths = files_of(machine, ".log", *INDEXES, "-checkpoint", "meta.properties", "partition.metadata")
    return {path: reason for path in paths if (reason := damage_of(machine, path)) is not None}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "first bad byte: 0 of {path}: the file is empty"),
        ("0\n", "first bad byte: 2 of {path}: the file ends before the number of its lines"),
        ("0\n0\n", "{path}: no damage"),
    ],
)
def test_a_checkpoint_that_is_cut_has_a_plain_reason(content, line, tmp_path, capsys):
    """An empty one was said to have -1 lines."""
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text(content)
    assert main(["log", "dump", "--check", str(path)]) == line.startswith("first")
    assert capsys.readouterr().out == line.format(path=path) + "\n"


def test_damaged_checksums_are_named(tmp_path, capsys):
    """The files that they cover are shown, and not called damaged."""
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("0\n0\n")
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    (tmp_path / CHECKSUMS).write_text("0\n0\nnonsense\n")
    assert main(["log", "dump", str(path)]) == 0
    assert f"{path} could not be compared: " in capsys.readouterr().err
