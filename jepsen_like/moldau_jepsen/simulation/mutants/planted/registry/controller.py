"""The planted bugs of the controller."""

from __future__ import annotations

from moldau_jepsen.simulation.campaign.profiles import CRASHES, HANDOVERS, REJOINS
from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import elections, registrations
from moldau_jepsen.simulation.mutants.pressed import SILENCES

CONTROLLER = (
    Mutant(
        name="controller-unclean-election",
        area="controller",
        text="a replica outside the ISR is elected although unclean election is disabled",
        patches=elections.unclean_election,
        profile=CRASHES,
    ),
    Mutant(
        name="controller-elects-any-replica",
        area="controller",
        text="elections ignore the ISR",
        patches=elections.elects_any_replica,
        profile=CRASHES,
    ),
    Mutant(
        name="controller-accepts-stale-isr",
        area="controller",
        text="the controller accepts an ISR change with an old leader epoch",
        patches=elections.stale_isr_change,
        profile=HANDOVERS,
    ),
    Mutant(
        name="elr-ignored",
        area="controller",
        text="a replica that leaves a small ISR is not added to the ELR",
        patches=registrations.elr_ignored,
        profile=CRASHES,
    ),
    Mutant(
        name="elr-member-without-its-data",
        area="controller",
        text="a broker stays in the ELR after an unclean stop that may have lost records",
        patches=registrations.eligible_without_data,
        profile=CRASHES,
    ),
    Mutant(
        name="last-known-leader-too-early",
        area="controller",
        text="any live replica is elected while the eligible replicas are offline",
        patches=registrations.last_known_leader_too_early,
        profile=CRASHES,
    ),
    Mutant(
        name="fenced-broker-may-lead",
        area="controller",
        text="a broker whose session has expired may lead partitions and join the ISR",
        patches=registrations.fenced_broker_may_lead,
        profile=CRASHES,
    ),
    Mutant(
        name="session-timeout-ignored",
        area="controller",
        text="sessions never end",
        patches=registrations.session_timeout_ignored,
        profile=SILENCES,
    ),
    Mutant(
        name="stale-broker-epoch-joins",
        area="controller",
        text="a replica joins the ISR on progress that it made under an older broker epoch",
        patches=registrations.stale_broker_epoch_joins,
        profile=REJOINS,
    ),
    Mutant(
        name="empty-elr-unchanged",
        area="controller",
        text="a change that empties the ELR is applied as no change",
        patches=elections.empty_elr_taken_for_unchanged,
        profile=CRASHES,
    ),
    Mutant(
        name="leader-epoch-kept",
        area="controller",
        text="a new leader keeps the leader epoch of its predecessor",
        patches=elections.epoch_kept_in_handover,
        profile=HANDOVERS,
    ),
    Mutant(
        name="unfencing-rejoins-every-isr",
        area="controller",
        text="an unfenced broker is added to the ISR of all its partitions",
        patches=elections.unfenced_is_in_sync,
        profile=CRASHES,
    ),
    Mutant(
        name="silent-session-kept",
        area="controller",
        text="a session expires only if its connection was closed",
        patches=registrations.silence_on_an_open_connection,
        profile=SILENCES,
    ),
)
