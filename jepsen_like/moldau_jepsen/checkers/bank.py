"""Money is neither made nor lost: each transfer takes effect once, as a whole, or not at all.

A transfer is a debit and a credit, in partitions of their own, written in one transaction. It has a number, and may be
tried several times, by one client after the other; the history says which records belong to which try, so each leg that
is read back leads to the try that sent it.

What can be asked of whom. The final read sees all partitions when nothing is open any more: there every transfer has
both legs or none, one try at the most, none of a try that was aborted, all that were acknowledged, all that were asked
for, and as much money as at the beginning. Readers at work meanwhile see the partitions of a transfer at different
moments, and Kafka promises no snapshot across them; so a total may be off by the transfers whose other leg lies before
them. What they can demand is that up to their positions, whatever these are, they have seen the legs that are there in
the end, each once, and no other: the balances that they have added up (``Audit``) must be those of the final read's
records below their positions. That is more than a total: two errors that cancel each other show.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.witnesses import How, Sought
from moldau_jepsen.history import Kind, Status

if TYPE_CHECKING:
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
    """What the account gains; negative for a debit."""


@dataclass(slots=True)
class _Try:
    """One transaction's part in a transfer."""

    transfer: int
    operation: int
    fate: Status
    """FAIL for what was aborted."""
    legs: list[Leg] = field(default_factory=list)
    read: list[Leg] = field(default_factory=list)
    """Those of the final read, with repetition."""


@dataclass(slots=True)
class _Account:
    """Legs of an account in the final read, in the order of their offsets."""

    partition: TopicPartition | None = None
    offsets: array[int] = field(default_factory=lambda: array("q"))
    balances: array[int] = field(default_factory=lambda: array("q"))
    """Behind each leg."""


class BankChecker:
    """Judges the transfers of one bank. Memory is some 600 bytes per try, and 8 per account and audit."""

    def __init__(self, bank: Bank, findings: Findings) -> None:
        """Nothing was read yet."""
        self._bank = bank
        self._findings = findings
        self._tries: dict[tuple[int, int], _Try] = {}
        self._by_record: dict[TopicPartition, dict[int, tuple[_Try, Leg]]] = {}
        self._read: dict[TopicPartition, list[tuple[int, int]]] = {}
        """Of the final read: offsets and values."""
        self._seen: dict[TopicPartition, dict[int, int]] = {}
        """Values that others polled, with the first operation that did."""
        self._requests: dict[TopicPartition, dict[int, int]] = {}
        self._requested: dict[TopicPartition, set[int]] = {}
        """Values of requests in the final read."""
        self._audits: list[tuple[int, int, Audit]] = []
        self._is_whole = True

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        bank = self._bank
        if operation.audit is not None:
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
                    if operation.final:
                        self._read.setdefault(partition, []).extend(pairs)
                    else:
                        seen = self._seen.setdefault(partition, {})
                        for _, value in pairs:
                            seen.setdefault(value, operation.index)
                elif operation.final and partition.topic == bank.requests:
                    self._requested.setdefault(partition, set()).update(value for _, value in pairs)

    def _add_leg(self, operation: Operation, leg: Leg, transfer: int) -> None:
        failed = operation.aborted or operation.status is Status.FAIL
        one = self._tries.get((transfer, operation.index))
        if one is None:
            fate = Status.FAIL if failed else operation.status
            one = self._tries[transfer, operation.index] = _Try(transfer, operation.index, fate)
        one.legs.append(leg)
        self._by_record.setdefault(leg.partition, {})[leg.value] = (one, leg)

    def finish(self) -> None:
        """Compares what was read with what was sent."""
        if not self._findings.options.final_phase:
            return
        accounts = [_Account() for _ in range(self._bank.accounts)]
        total = self._settle(accounts)
        effective = self._check_tries()
        self._check_aborted()
        if not self._is_whole:
            return  # what was not read is not missing, and that the read did not end is told
        self._check_requests(effective)
        start = self._bank.accounts * self._bank.opening
        if total != start:
            self._findings.add(
                AnomalyKind.BANK_TOTAL, f"there were {start} at the beginning, and are {total} at the end"
            )
        for audit in self._audits:
            self._check_audit(accounts, *audit)

    def _settle(self, accounts: list[_Account]) -> int:
        """Adds up the legs of the final read; returns what all accounts have together."""
        total = self._bank.accounts * self._bank.opening
        for partition, records in sorted(self._read.items()):
            known = self._by_record.get(partition, {})
            for offset, value in records:
                found = known.get(value)
                if found is None:
                    self._findings.add(
                        AnomalyKind.BANK_UNKNOWN,
                        f"value {value} at offset {offset} belongs to no transfer",
                        partition=partition,
                        offsets=(offset,),
                        sought=(Sought(How.READ, partition, offset, value), Sought(How.SENT, partition, value=value)),
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

    def _check_tries(self) -> set[int]:
        """Finds torn, repeated, aborted and lost transfers; returns those that took effect."""
        effective: dict[int, _Try] = {}
        for one in self._tries.values():
            if not one.read:
                if one.fate is Status.OK and self._is_whole:
                    self._tell(AnomalyKind.BANK_LOST, "was acknowledged, and is not in the final read", one)
                continue
            missing = [leg for leg in one.legs if leg not in one.read]
            if missing and self._is_whole:
                where = ", ".join(
                    f"{_name(leg.partition)} ({leg.amount:+} on account {leg.account})" for leg in missing
                )
                self._tell(AnomalyKind.BANK_TORN, f"is not in {where}, and is in the other partition", one)
            if len(one.read) > len(set(one.read)):
                self._tell(AnomalyKind.BANK_TWICE, "has a leg that lies at several offsets", one)
            sides = [(leg.account, leg.amount > 0) for leg in dict.fromkeys(one.read)]
            if len(sides) > len(set(sides)):
                self._tell(AnomalyKind.BANK_TWICE, "took effect twice in one transaction", one)
            before = effective.setdefault(one.transfer, one)
            if before is not one:
                self._tell(AnomalyKind.BANK_TWICE, "took effect in two transactions", before, one)
        return set(effective)

    def _check_aborted(self) -> None:
        """Finds legs of failed and aborted tries in any read."""
        for one in self._tries.values():
            if one.fate is not Status.FAIL:
                continue
            reads = [seen for leg in one.legs if (seen := self._seen.get(leg.partition, {}).get(leg.value)) is not None]
            if reads or one.read:
                self._tell(AnomalyKind.BANK_ABORTED, "failed or was aborted, and was read", one, also=reads[:1])

    def _check_requests(self, effective: set[int]) -> None:
        """Each transfer that was asked for is carried out, and no other."""
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
                            Sought(How.SENT, partition, value=value),
                            Sought(How.READ, partition, value=value),
                            Sought(How.TAKEN, partition, value=value),
                        ),
                    )
        for one in self._tries.values():
            if one.read and one.transfer in refused and one.transfer not in asked:
                self._tell(AnomalyKind.BANK_UNKNOWN, "was carried out, and the request for it is gone", one)

    def _check_audit(self, accounts: list[_Account], operation: int, process: int, audit: Audit) -> None:
        """What a reader has added up is what lies below its positions."""
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
                return  # one error may spoil every account of a partition

    def _tell(self, kind: AnomalyKind, text: str, *tries: _Try, also: list[int] | None = None) -> None:
        self._findings.add(
            kind,
            f"transfer {tries[0].transfer} {text}",
            partition=tries[0].legs[0].partition,
            operations=(*(one.operation for one in tries), *(also or ())),
            sought=tuple(Sought(How.READ, leg.partition, value=leg.value) for one in tries for leg in one.legs),
        )


def is_of(bank: Bank, operation: Operation, topics: set[str]) -> bool:
    """Whether the checker of a bank needs an operation that touched ``topics``."""
    stuck = operation.final and operation.status is not Status.OK
    return operation.kind is Kind.AUDIT or stuck or not topics.isdisjoint((*bank.topics, bank.requests))


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
