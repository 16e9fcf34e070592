"""Seeds of the campaign: random faults and clients, judged after every step. More of them: ``make campaign-raft``."""

import pytest

from support.proof import proof_beyond
from support.raft import campaign as raft_campaign
from support.raft.mutants import MUTANTS, mutant

SEEDS = 100
PARTS = 100
QUICK_PARTS = 1
"""Parts of the seeds that ``make test`` runs; ``make test-proof`` runs the others."""


@pytest.mark.parametrize("part", proof_beyond(QUICK_PARTS, range(PARTS)))
def test_no_seed_breaks_an_invariant(part):
    for seed in range(part, SEEDS, PARTS):
        raft_campaign.run_seed(seed)


def test_a_seed_is_one_run():
    """The same seed gives the same run, event by event; another one another."""
    digests = [raft_campaign.run_seed(seed).digest.hexdigest() for seed in (7, 7, 8)]
    assert digests[0] == digests[1] != digests[2]


FIRST_SEEDS = {"vote-not-synced": 54, "snapshot-pieces-mixed": 8, "log-kept-behind-snapshot": 25}
"""Where the search begins for bugs that no earlier seed finds: a few seeds before the first that does."""


@pytest.mark.proof
@pytest.mark.parametrize(
    "name",
    [
        "vote-not-synced",
        "sync-does-nothing",
        "segment-name-not-synced",
        "vote-forgotten-in-new-segment",
        "torn-tail-kept",
        "snapshot-renamed-before-sync",
        "voted-for-ignored",
        "log-of-candidate-ignored",
        "pre-vote-skipped",
        "epoch-not-kept",
        "commit-beyond-match",
        "minority-commits",
        "snapshot-index-off-by-one",
        "snapshot-pieces-mixed",
        "log-kept-behind-snapshot",
        "active-before-first-commit",
    ],
)
def test_campaign_finds_planted_bug(name):
    """The quickly found ones; ``make mutants-raft`` looks for all of them."""
    assert name in MUTANTS
    first = FIRST_SEEDS.get(name, 0)
    with mutant(name):
        found = raft_campaign.find(range(first, first + 40))
    assert found is not None
    _, error = found
    assert not isinstance(error, TypeError | AttributeError | NameError), f"the planted bug is broken: {error!r}"
