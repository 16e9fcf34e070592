"""Checks a bank: each transfer takes effect once, as a whole, or not at all, so money is neither made nor lost.

A transfer is a debit and a credit, in two partitions, written in one transaction. It has a number, and several clients
may try it in turn; the history says which records belong to which try, so each leg that is read leads to its try.

The final read sees all partitions when no transaction is open. It must hold both legs of a transfer or none, legs of at
most one try of a transfer, no leg of an aborted try, all acknowledged and all requested transfers, and as much money as
at the beginning. Readers during the run see the partitions of a transfer at different moments, and Kafka promises no
snapshot across partitions; so their total may be off by transfers whose other leg they have not read yet. But up to its
positions a reader must have seen exactly the legs of the final read, each once: the balances that it has added up
(``Audit``) must be those of the final read's records below its positions. This is stricter than a check of the total,
because it also finds two errors that cancel each other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.log.reach import Reach
from moldau_jepsen.checkers.witnesses import WitnessKind, WitnessQuery
from moldau_jepsen.history import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_jepsen.checkers.anomalies import Bank
    from moldau_jepsen.history import Audit, Operation, TopicPartition

NOTHING = -1
_LEG_FIELDS = 3


class Leg(NamedTuple):
    """One record of a try."""

    partition: TopicPartition
    value: int
    account: int
    amount: int
    """Amount that the account gains; negative for a debit."""


@dataclass(slots=True)
class _Try:
    """One transaction's part in a transfer."""

    transfer: int
    operation: int
    fate: Status
    """FAIL for an aborted try."""
    legs: list[Leg] = field(default_factory=list)
    read: list[Leg] = field(default_factory=list)
    """Its legs in the final read, with repetition."""


@dataclass(slots=True)
class _Account:
    """Legs of an account in the final read, in the order of their offsets."""

    partition: TopicPartition | None = None
    offsets: array[int] = field(default_factory=lambda: array("q"))
    balances: array[int] = field(default_factory=lambda: array("q"))
    """Balance after each leg."""


class BankChecker:
    """Judges the transfers of one bank. Memory is about 600 bytes per try, and 8 per account and audit."""

    def __init__(self, bank: Bank, findings: Findings) -> None:
        """Starts before the first operation."""
        self._bank = bank
        self._findings = findings
        self._tries: dict[tuple[int, int], _Try] = {}
        self._by_record: dict[TopicPartition, dict[int, tuple[_Try, Leg]]] = {}
        self._read: dict[TopicPartition, list[tuple[int, int]]] = {}
        """Offsets and values of the final read."""
        self._reach: dict[TopicPartition, Reach] = {}
        self._misplaced: dict[TopicPartition, dict[int, int]] = {}
        """Values that the final read returned at impossible offsets, with the offset behind those before them."""
        self._misled: dict[int, None] = {}
        """Processes that were given an impossible offset: they are sent elsewhere, and add up records again."""
        self._seen: dict[TopicPartition, dict[int, int]] = {}
        """Values that other reads polled, with their first operation."""
        self._requests: dict[TopicPartition, dict[int, int]] = {}
        self._requested: dict[TopicPartition, set[int]] = {}
        """Values of requests in the final read."""
        self._audits: list[tuple[int, int, Audit]] = []
        self._is_whole = True

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        bank = self._bank
        if operation.audit is not None and operation.process not in self._misled:
            self._audits.append((operation.index, operation.process, operation.audit))
        if operation.final and operation.status is not Status.OK:
            self._is_whole = False
        for send in operation.sends:
            if send.partition.topic in bank.topics and len(send.says) == _LEG_FIELDS:
                self._add_leg(operation, Leg(send.partition, send.value, *send.says[1:]), send.says[0])
            elif bank.requests and send.partition.topic == bank.requests and send.says:
                self._requests.setdefault(send.partition, {})[send.value] = send.says[0]
        for poll in operation.polls:
            for partition, pairs in poll.records:
                if partition.topic in bank.topics:
                    self._add_read(operation, partition, pairs)
                elif operation.final and partition.topic == bank.requests:
                    self._requested.setdefault(partition, set()).update(value for _, value in pairs)

    def _add_read(self, operation: Operation, partition: TopicPartition, pairs: Sequence[tuple[int, int]]) -> None:
        reach = self._reach.setdefault(partition, Reach(self._findings.options.offset_gap_max))
        if not all(reach.admits(offset) for offset, _ in pairs):
            self._misled[operation.process] = None
        if operation.final:
            read = self._read.setdefault(partition, [])
            for offset, value in pairs:
                if reach.admits(offset):
                    read.append((offset, value))
                else:
                    behind = read[-1][0] + 1 if read else 0
                    self._misplaced.setdefault(partition, {}).setdefault(value, behind)
            return
        seen = self._seen.setdefault(partition, {})
        for _, value in pairs:
            seen.setdefault(value, operation.index)

    def _add_leg(self, operation: Operation, leg: Leg, transfer: int) -> None:
        failed = operation.aborted or operation.status is Status.FAIL
        one = self._tries.get((transfer, operation.index))
        if one is None:
            fate = Status.FAIL if failed else operation.status
            one = self._tries[transfer, operation.index] = _Try(transfer, operation.index, fate)
        one.legs.append(leg)
        self._by_record.setdefault(leg.partition, {})[leg.value] = (one, leg)

    def finish(self) -> None:
        """Compares the records of the reads with the tries."""
        if not self._findings.options.final_phase:
            return
        accounts = [_Account() for _ in range(self._bank.accounts)]
        total = self._settle(accounts)
        effective = self._check_tries()
        self._check_aborted()
        if not self._is_whole:
            return  # An unfinished final read proves nothing; it is an anomaly of its own.
        self._check_requests(effective)
        start = self._bank.accounts * self._bank.opening
        if total != start:
            self._findings.add(
                AnomalyKind.BANK_TOTAL, f"there were {start} at the beginning, and are {total} at the end"
            )
        for audit in self._audits:
            self._check_audit(accounts, *audit)

    def _settle(self, accounts: list[_Account]) -> int:
        """Adds up the legs of the final read; returns the total of all accounts."""
        total = self._bank.accounts * self._bank.opening
        for partition in sorted(self._read):
            records = self._records(partition)
            known = self._by_record.get(partition, {})
            for offset, value in records:
                found = known.get(value)
                if found is None:
                    self._findings.add(
                        AnomalyKind.BANK_UNKNOWN,
                        f"value {value} at offset {offset} belongs to no transfer",
                        partition=partition,
                        offsets=(offset,),
                        sought=(
                            WitnessQuery(WitnessKind.READ, partition, offset, value),
                            WitnessQuery(WitnessKind.SENT, partition, value=value),
                        ),
                    )
                    continue
                one, leg = found
                one.read.append(leg)
                total += leg.amount
                account = accounts[leg.account]
                account.partition = partition
                account.offsets.append(offset)
                account.balances.append((account.balances or (self._bank.opening,))[-1] + leg.amount)
        return total

    def _records(self, partition: TopicPartition) -> list[tuple[int, int]]:
        """Returns the offsets and values of the final read.

        A record with an impossible offset counts where it was delivered. The reader was sent back then, so that other
        records may be there twice.
        """
        misplaced = self._misplaced.get(partition)
        if misplaced is None:
            return self._read[partition]
        records = set(self._read[partition])
        placed = {value for _, value in records}
        return sorted(records | {(place, value) for value, place in misplaced.items() if value not in placed})

    def _check_tries(self) -> set[int]:
        """Finds torn, repeated, aborted and lost transfers; returns those that took effect."""
        effective: dict[int, _Try] = {}
        for one in self._tries.values():
            if not one.read:
                if one.fate is Status.OK and self._is_whole:
                    self._report(AnomalyKind.BANK_LOST, "was acknowledged, and is not in the final read", one)
                continue
            missing = [leg for leg in one.legs if leg not in one.read]
            if missing and self._is_whole:
                where = ", ".join(
                    f"{_name(leg.partition)} ({leg.amount:+} on account {leg.account})" for leg in missing
                )
                self._report(AnomalyKind.BANK_TORN, f"is not in {where}, and is in the other partition", one)
            if len(one.read) > len(set(one.read)):
                self._report(AnomalyKind.BANK_TWICE, "has a leg that lies at several offsets", one)
            sides = [(leg.account, leg.amount > 0) for leg in dict.fromkeys(one.read)]
            if len(sides) > len(set(sides)):
                self._report(AnomalyKind.BANK_TWICE, "took effect twice in one transaction", one)
            before = effective.setdefault(one.transfer, one)
            if before is not one:
                self._report(AnomalyKind.BANK_TWICE, "took effect in two transactions", before, one)
        return set(effective)

    def _check_aborted(self) -> None:
        """Finds legs of failed and aborted tries in any read."""
        for one in self._tries.values():
            if one.fate is not Status.FAIL:
                continue
            reads = [seen for leg in one.legs if (seen := self._seen.get(leg.partition, {}).get(leg.value)) is not None]
            if reads or one.read:
                self._report(AnomalyKind.BANK_ABORTED, "failed or was aborted, and was read", one, also=reads[:1])

    def _check_requests(self, effective: set[int]) -> None:
        """Finds requested transfers that were not carried out, and transfers without a request."""
        if not self._bank.requests:
            return
        asked: set[int] = set()
        refused: set[int] = set()
        for partition, requests in sorted(self._requests.items()):
            read = self._requested.get(partition, set())
            for value, transfer in requests.items():
                (asked if value in read else refused).add(transfer)
                if value in read and transfer not in effective:
                    self._findings.add(
                        AnomalyKind.BANK_LOST,
                        f"transfer {transfer} was asked for (value {value}), and not carried out",
                        partition=partition,
                        sought=(
                            WitnessQuery(WitnessKind.SENT, partition, value=value),
                            WitnessQuery(WitnessKind.READ, partition, value=value),
                            WitnessQuery(WitnessKind.TAKEN, partition, value=value),
                        ),
                    )
        for one in self._tries.values():
            if one.read and one.transfer in refused and one.transfer not in asked:
                self._report(AnomalyKind.BANK_UNKNOWN, "was carried out, and the request for it is gone", one)

    def _check_audit(self, accounts: list[_Account], operation: int, process: int, audit: Audit) -> None:
        """Compares a reader's balances with the records below its positions."""
        positions = dict(audit.positions)
        for number, (account, found) in enumerate(zip(accounts, audit.balances, strict=True)):
            place = 0
            if account.partition is not None:
                place = bisect_left(account.offsets, positions.get(account.partition, 0))
            expected = account.balances[place - 1] if place else self._bank.opening
            if found != expected:
                self._findings.add(
                    AnomalyKind.BANK_BALANCE,
                    f"process {process} found {found} on account {number}, and the records below its position "
                    f"have {expected}",
                    partition=account.partition,
                    operations=(operation,),
                )
                return  # Reports one account only, because one error may change all accounts of a partition.

    def _report(self, kind: AnomalyKind, text: str, *tries: _Try, also: list[int] | None = None) -> None:
        self._findings.add(
            kind,
            f"transfer {tries[0].transfer} {text}",
            partition=tries[0].legs[0].partition,
            operations=(*(one.operation for one in tries), *(also or ())),
            sought=tuple(
                WitnessQuery(WitnessKind.READ, leg.partition, value=leg.value) for one in tries for leg in one.legs
            ),
        )


def is_of(bank: Bank, operation: Operation, topics: set[str]) -> bool:
    """Returns whether the checker of a bank needs an operation that touched ``topics``."""
    stuck = operation.final and operation.status is not Status.OK
    return operation.kind is Kind.AUDIT or stuck or not topics.isdisjoint((*bank.topics, bank.requests))


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
