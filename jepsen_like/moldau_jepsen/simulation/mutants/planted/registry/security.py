"""The planted bugs of authentication and authorization."""

from __future__ import annotations

from moldau_jepsen.simulation.mutants.mutant import Mutant
from moldau_jepsen.simulation.mutants.planted import rights
from moldau_jepsen.simulation.mutants.pressed import RIGHTS

SECURITY = (
    Mutant(
        name="acl-deny-ignored",
        area="security",
        text="an ACL that denies has no effect",
        patches=rights.deny_ignored,
        profile=RIGHTS,
    ),
    Mutant(
        name="acl-allow-before-deny",
        area="security",
        text="an ACL that allows wins over one that denies under the same pattern",
        patches=rights.allow_before_deny,
        profile=RIGHTS,
    ),
    Mutant(
        name="acl-prefix-too-short",
        area="security",
        text="a prefix also fits names that differ in its last character",
        patches=rights.prefix_matched_short,
        profile=RIGHTS,
    ),
    Mutant(
        name="acl-literal-as-prefix",
        area="security",
        text="a literal ACL fits all names that begin with it",
        patches=rights.literal_taken_for_prefix,
        profile=RIGHTS,
    ),
    Mutant(
        name="acl-decisions-kept",
        area="security",
        text="a connection keeps its decisions when ACLs change",
        patches=rights.decisions_kept,
        profile=RIGHTS,
    ),
    Mutant(
        name="produce-without-check",
        area="security",
        text="Produce does not check rights",
        patches=rights.produce_unchecked,
        profile=RIGHTS,
    ),
    Mutant(
        name="fetch-without-check",
        area="security",
        text="Fetch does not check rights",
        patches=rights.fetch_unchecked,
        profile=RIGHTS,
    ),
    Mutant(
        name="token-never-expires",
        area="security",
        text="a delegation token admits logins after its expiry",
        patches=rights.token_never_expires,
        profile=RIGHTS,
    ),
    Mutant(
        name="session-outlives-token",
        area="security",
        text="a session does not end with the delegation token that opened it",
        patches=rights.session_outlives_token,
        profile=RIGHTS,
    ),
    Mutant(
        name="session-end-unchecked",
        area="security",
        text="a broker names the end of a session, and serves it longer",
        patches=rights.session_end_unchecked,
        profile=RIGHTS,
    ),
    Mutant(
        name="password-kept",
        area="security",
        text="a broker keeps the first password of each user",
        patches=rights.password_kept,
        profile=RIGHTS,
    ),
)
