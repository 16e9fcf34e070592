"""Goal: sequence numbers end early in runs that say so, in clients, brokers and rules alike, and nowhere else.

Method: the functions themselves inside and outside of the block; one short run.
"""

from __future__ import annotations

from moldau.records import add_sequence
from moldau_broker.log.producers import producer_state
from moldau_jepsen.coverage.coverage import Transition
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.seed import run_seed
from moldau_jepsen.simulation.campaign.sequences import SHORT_END, sequences_end_at
from moldau_jepsen.simulation.judge.rules.producers import ProducerBatch, ProducerRules
from moldau_jepsen.workloads.queue import QueueOptions


def test_sequences_end_early_inside_of_the_block_only():
    with sequences_end_at(SHORT_END):
        assert add_sequence(SHORT_END, 1) == 0
        assert producer_state._SEQUENCE_MASK == SHORT_END
        found = []
        rules = ProducerRules(lambda rule, text: found.append(rule))
        rules.committed("flights-0", 0, ProducerBatch(1, 0, 0, SHORT_END, False))
        rules.committed("flights-0", 128, ProducerBatch(1, 0, 0, 3, False))
        assert rules.wrapped == 1
        rules.committed("flights-0", 132, ProducerBatch(1, 0, 5, 6, False))
        assert found == ["producer-sequence"]
    assert add_sequence(SHORT_END, 1) == SHORT_END + 1
    assert producer_state._SEQUENCE_MASK == 2**31 - 1


def test_a_run_passes_the_end_of_the_sequence_numbers():
    workload = QueueOptions(
        partitions=1, senders=1, assigned_readers=1, group_readers=0, sends_per_second=150.0, crash_every_s=0.0
    )
    options = RunOptions(
        workload=workload, faults=(), fault_seconds=3.0, pipe=False, transactions=False, short_sequences=True
    )
    result = run_seed(5, options)
    assert result.passed, result.violations
    wrapped = result.coverage.transitions[Transition("rare situations", "(start)", "sequence numbers began again at 0")]
    assert wrapped >= 1
    assert result.draws["short_sequences"] is True
