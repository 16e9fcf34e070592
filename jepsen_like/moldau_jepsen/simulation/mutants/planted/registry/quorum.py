"""The planted bugs of the quorum of controllers."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.profiles import ELECTIONS, LOST_VOTERS
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import quorum
from moldau_jepsen.simulation.mutants.pressed import LATE_QUORUM_SYNCS

QUORUM = (
    Mutant(
        name="raft-quorum-too-small",
        area="quorum",
        text="one of three voters counts as a majority",
        patches=quorum.quorum_of_one,
    ),
    Mutant(
        name="raft-vote-not-persisted",
        area="quorum",
        text="a vote is not persisted",
        patches=quorum.vote_forgotten,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-votes-twice",
        area="quorum",
        text="a voter votes twice in one epoch",
        patches=quorum.votes_twice,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-votes-for-stale-log",
        area="quorum",
        text="a candidate with an older log gets votes",
        patches=quorum.votes_for_stale_log,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-answers-before-durable",
        area="quorum",
        text="entries are counted before they are durable",
        patches=quorum.answers_before_durable,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-commits-on-one",
        area="quorum",
        text="an entry is committed once a single voter holds it",
        patches=quorum.counts_one_follower_twice,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-wal-not-synced",
        area="quorum",
        text="the sync of the metadata log does nothing",
        patches=quorum.wal_not_synced,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-truncated-write-counts",
        area="quorum",
        text="a write counts in full as durable although its entries were dropped while it ran",
        patches=quorum.truncated_write_counts,
        profile=LATE_QUORUM_SYNCS,
    ),
    Mutant(
        name="raft-emptied-voter-accepted",
        area="quorum",
        text="a voter is identified by its id alone, so an emptied voter is accepted",
        patches=quorum.emptied_voter_accepted,
        profile=LOST_VOTERS,
    ),
    Mutant(
        name="metadata-out-of-order",
        area="quorum",
        text="committed metadata is applied out of order",
        patches=quorum.metadata_applied_out_of_order,
    ),
    Mutant(
        name="metadata-configuration-late",
        area="quorum",
        text="some configuration changes are applied after later ones",
        patches=quorum.configuration_applied_late,
        profile=ELECTIONS,
    ),
    Mutant(
        name="raft-conflicts-kept",
        area="quorum",
        text="a follower keeps its own entry where it conflicts with the leader's",
        patches=quorum.conflicts_kept,
        profile=ELECTIONS,
    ),
)
