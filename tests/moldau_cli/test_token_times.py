"""Goal: a token whose life has no limit in practice is shown like any other, and JSON has numbers and whole names.

Method: the row of a token, without a cluster.
"""

from __future__ import annotations

import pytest

from moldau.admin import DelegationToken
from moldau_cli.commands.administration.tokens import _row

DATES_END_MS = 253_402_300_800_000


@pytest.mark.parametrize(
    ("max_ms", "shown"),
    [
        (DATES_END_MS - 1_000, "9999-12-31T23:59:59+00:00"),
        (DATES_END_MS, "after 9999-12-31T23:59:59+00:00"),
        ((1 << 63) - 1, "after 9999-12-31T23:59:59+00:00"),
    ],
)
def test_a_time_beyond_all_dates_is_shown(max_ms, shown):
    token = DelegationToken(
        token_id="i", hmac="h", owner="User:a", requester="User:a", issue_ms=0, expiry_ms=1_000, max_ms=max_ms
    )
    row = _row(token)
    assert (row["issued"], row["expires"]) == ("1970-01-01T00:00:00+00:00", "1970-01-01T00:00:01+00:00")
    assert row["max"] == shown
    assert (row["issue_ms"], row["expiry_ms"], row["max_ms"]) == (0, 1_000, max_ms)


def test_renewers_with_commas_stay_apart():
    """JSON had one text, in which the comma of a name looked like the one between two names."""
    renewers = ("User:CN=a,O=b", "User:c")
    token = DelegationToken(
        token_id="i",
        hmac="h",
        owner="User:a",
        requester="User:a",
        issue_ms=0,
        expiry_ms=1_000,
        max_ms=2_000,
        renewers=renewers,
    )
    assert _row(token)["renewers"] == [*renewers]
