"""The planted bugs of client quotas."""

from __future__ import annotations

from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import quotas
from moldau_jepsen.simulation.mutants.pressed import QUOTAS as PROFILE

QUOTAS = (
    Mutant(
        name="quota-pause-not-enforced",
        area="quotas",
        text="an answer names the pause, but the broker goes on reading the connection",
        patches=quotas.pause_not_enforced,
        profile=PROFILE,
    ),
    Mutant(
        name="quota-kept-by-connection",
        area="quotas",
        text="a connection keeps the limits that it found first",
        patches=quotas.first_limits_kept,
        profile=PROFILE,
    ),
    Mutant(
        name="quota-least-specific-wins",
        area="quotas",
        text="the least specific of the levels that set a quota wins",
        patches=quotas.least_specific_first,
        profile=PROFILE,
    ),
    Mutant(
        name="quota-fetch-uncharged",
        area="quotas",
        text="fetches count against no quota of bytes",
        patches=quotas.fetches_uncharged,
        profile=PROFILE,
    ),
    Mutant(
        name="quota-pause-too-long",
        area="quotas",
        text="a pause is ten times as long as the limit demands",
        patches=quotas.pause_in_wrong_unit,
        profile=PROFILE,
    ),
    Mutant(
        name="quota-removal-ignored",
        area="quotas",
        text="a removed quota goes on limiting its client",
        patches=quotas.removed_quota_kept,
        profile=PROFILE,
    ),
)
