"""For each rule and each checker a planted bug that it convicts with all the others switched off.

The rules overlap: what breaks one mostly breaks several, and the first to notice ends the run. So that a rule has been
the first for no bug says nothing about it; that it never convicts alone would say that it cannot fail.

Not here is ``G0``: transactions of Kafka do not order their writes against each other, so it is a figure without a
verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign.profiles import BANK, GROUPS
from moldau_jepsen.simulation.mutants.pressed import PIPED, SHORT_TRANSACTIONS, TRANSFERS

if TYPE_CHECKING:
    from moldau_jepsen.simulation.campaign.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The observations that a rule gets."""

    mutant: str
    """The planted bug, by name."""
    profile: Profile | None = None
    """Other runs than those in which the bug is hunted, where the rule looks at another part of them."""


def _trial(mutant: str, profile: Profile | None = None) -> Trial:
    return Trial(mutant=mutant, profile=profile)


ALONE: dict[str, Trial] = {
    # the quorum
    "one-controller": _trial("raft-quorum-too-small"),
    "metadata-prefix": _trial("raft-conflicts-kept"),
    "one-vote": _trial("raft-votes-twice"),
    "vote-kept": _trial("raft-vote-not-persisted"),
    "committed-is-durable": _trial("raft-commits-on-one"),
    "counted-is-durable": _trial("raft-truncated-write-counts"),
    "metadata-not-linearizable": _trial("metadata-configuration-late"),
    # metadata
    "partition-state": _trial("empty-elr-unchanged"),
    "one-leader": _trial("leader-epoch-kept"),
    "fenced-not-in-isr": _trial("fenced-broker-may-lead"),
    "session-timeout-enforced": _trial("silent-session-kept"),
    "elr-kept": _trial("elr-ignored"),
    "elr-entry-valid": _trial("empty-elr-unchanged"),
    "unclean-restart": _trial("elr-member-without-its-data"),
    "isr-change-asked": _trial("unfencing-rejoins-every-isr"),
    "isr-incarnation": _trial("stale-broker-epoch-joins"),
    "clean-election": _trial("controller-elects-any-replica"),
    # logs
    "watermark-monotone": _trial("watermark-falls"),
    "log-agreement": _trial("divergence-not-detected"),
    "leader-completeness": _trial("watermark-without-isr"),
    "acked-is-committed": _trial("acknowledged-at-once"),
    "isr-holds": _trial("watermark-by-majority"),
    "truncation-keeps": _trial("truncates-to-watermark"),
    "producer-sequence": _trial("sequence-numbers-ignored"),
    "producer-epoch": _trial("marker-written-twice"),
    "compaction-keeps": _trial("cleaner-drops-last-value"),
    "retention-keeps": _trial("retention-deletes-active-segment"),
    "answered-once": _trial("produce-answered-twice"),
    # coordinators
    "one-owner": _trial("generation-kept"),
    "generation-monotone": _trial("generation-not-loaded"),
    "offset-kept": _trial("transactional-offsets-not-loaded"),
    "transaction-state": _trial("new-producer-epoch-zero"),
    "transaction-epoch": _trial("transaction-epoch-kept"),
    "transaction-outcome": _trial("marker-written-twice"),
    # what clients saw
    "inconsistent-offsets": _trial("divergence-not-detected"),
    "impossible-offset": _trial("offset-bit-flipped"),
    "duplicate": _trial("sequence-numbers-ignored"),
    "lost-write": _trial("acknowledged-at-once"),
    "unseen": _trial("watermark-without-isr"),
    "G1a": _trial("aborted-transactions-omitted-from-fetch"),
    "torn-transaction": _trial("remote-commit-markers-become-aborts", SHORT_TRANSACTIONS),
    "precommitted-read": _trial("last-stable-offset-ignored"),
    "int-poll-skip": _trial("consumer-skips"),
    "int-nonmonotonic-poll": _trial("consumer-repeats"),
    "poll-skip": _trial("consumer-skips"),
    "nonmonotonic-poll": _trial("partial-chunk-repeats"),
    "group-skip": _trial("commits-fetch-position"),
    "int-nonmonotonic-send": _trial("newest-batch-first"),
    "nonmonotonic-send": _trial("newest-batch-first"),
    "G1c": _trial("last-stable-offset-ignored", TRANSFERS),
    "dual-ownership": _trial("generation-kept"),
    "pipe-lost": _trial("aborted-offsets-count"),
    "pipe-duplicate": _trial("transactional-offsets-not-loaded", GROUPS),
    "pipe-disorder": _trial("newest-batch-first"),
    "pipe-unknown": _trial("consumer-skips", PIPED),
    "split-brain": _trial("leader-epoch-kept"),
    "seek-missed": _trial("seek-skips-target"),
    "altered-record": _trial("empty-keys-lost"),
    "bank-torn-transfer": _trial("consumer-skips", BANK),
    "bank-transfer-twice": _trial("aborted-transactions-omitted-from-fetch", BANK),
    "bank-aborted-transfer": _trial("aborted-transactions-omitted-from-fetch", BANK),
    "bank-transfer-lost": _trial("remote-commit-markers-become-aborts", BANK),
    "bank-unknown-leg": _trial("consumer-skips", BANK),
    "bank-total": _trial("consumer-skips", BANK),
    "bank-balance": _trial("last-stable-offset-ignored", BANK),
    "quota-exceeded": _trial("quota-pause-not-enforced"),
    "throttled-without-limit": _trial("quota-removal-ignored"),
    "paused-too-long": _trial("quota-pause-too-long"),
    "permitted-though-denied": _trial("acl-deny-ignored"),
    "denied-though-permitted": _trial("acl-decisions-kept"),
    "stuck": _trial("divergence-ignored"),
    "epochs-in-log": _trial("epochs-kept-when-log-starts-over"),
    "wait-ends": _trial("wake-up-lost"),
    "hanging-disk-given-up": _trial("hanging-disk-kept"),
    "late-write": _trial("hanging-disk-kept"),
    "recovery-point-durable": _trial("log-not-synced"),
    "cordon-kept": _trial("cordon-ignored"),
    "log-watermark": _trial("moved-log-loses-watermark"),
    "watermark-known": _trial("checkpoint-takes-log-end"),
    "group-administration": _trial("second-offset-not-deleted"),
    "share-administration": _trial("first-partition-deleted-only"),
    "share-two-holders": _trial("share-acquires-acquired"),
    "share-delivered-again": _trial("share-state-not-written"),
    "share-count": _trial("share-delivery-count-kept"),
    "share-lost": _trial("share-released-is-done"),
    "share-altered": _trial("share-values-exchanged"),
    "share-letter-missing": _trial("dead-letters-not-written"),
    "share-letter-wrong": _trial("dead-letters-of-the-next-record"),
    "streams-two-in-epoch": _trial("task-assigned-twice"),
    "streams-two-at-once": _trial("revoked-without-order"),
    "streams-offset-back": _trial("commit-of-stranger-accepted"),
    "streams-offset-lost": _trial("some-offsets-not-applied"),
    "streams-not-settled": _trial("task-forgotten-by-assignor"),
    "compacted-key": _trial("tombstones-dropped-at-once"),
    "few-acks": _trial("one-acknowledgement-before-the-append"),
    "remote-copy-committed": _trial("copies-uncommitted-records"),
    "local-range-copied": _trial("local-deletion-without-copy"),
    "remote-range-kept": _trial("retention-before-log-start"),
    "remote-start-state": _trial("starts-without-producers"),
    "remote-orphan": _trial("deleted-topic-stays-in-store"),
    "tiered-read": _trial("remote-aborts-omitted"),
    "topic-recreated": _trial("recreated-topic-reuses-old-log"),
}
