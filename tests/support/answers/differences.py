"""Where Moldau answers otherwise than Kafka, each with its reason, and the page that shows them.

``PYTHONPATH=tests python -m support.answers.differences > docs/proof/same-answers.md`` writes the page.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from support.answers.session import differences
from support.interop.kafka_node import NEWEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

OWN_APPEND_TIME = (
    "Kafka names a time for a batch that it has appended before, although the topic keeps the time of the producer"
)
ILLEGAL = (
    "the classic clients of Kafka begin again after either code; ILLEGAL_GENERATION is known to all versions of them"
)
NEVER_FORGOT = "the log has forgotten no producer, so its first batch is missing"
SKIPS_AN_EPOCH = "the former producer could otherwise learn the next epoch from its own abort, and go on"
IDS_ONLY = "the id is unknown in every fetch; Kafka looks for the name that the session had"
NO_BROKER = "no broker of this id can ask here, so the whole fetch is refused"
ANY_BROKER = "each broker forwards the change to the controller"
SAYS_WHY = "the code says why the connection ends; Kafka closes it without an answer"
CLOSED = "the connection is closed without an answer"
DECOY = "all names get a challenge, so that none reveals users or tokens"
NO_RENEWAL = "clients of handshake version 0 cannot learn when their sessions end, so none renews one"
HIDES_A_NAME = "Kafka gives an empty list, which hides a mistyped name"

DIFFERENCES: Final[dict[str, dict[str, str]]] = {
    "topics": {
        "create: a setting given twice": "Kafka takes the last one without a word",
        "metadata by: neither name nor id": "Kafka fails with UNKNOWN_SERVER_ERROR",
        "page: from partition -1": "taken for the first partition",
        "page: from another topic": "no topic of the request follows that one, so the page is empty",
        "page: of bad names": "Kafka fails with UNKNOWN_SERVER_ERROR",
        "delete: by name and by id": "each of both is refused; Kafka refuses the topic once",
    },
    "records": {
        "produce: magic 1": "the code says why the batch cannot be taken",
        "produce: a cut batch": "bytes were lost on the way: the client may send the batch again",
        "idempotent: first again": OWN_APPEND_TIME,
        "idempotent: the batch before again": OWN_APPEND_TIME,
        "idempotent: unknown, not from 0": NEVER_FORGOT,
    },
    "classic_groups": {
        "commit before the sync": "the group has no assignment yet; Kafka looks at the topic first",
        "commit: to a group without members, of a generation": ILLEGAL,
        "commit: to a new group, of a generation": ILLEGAL,
    },
    "transactions": {
        "add offsets: of no group": "a group without a name has no coordinator to which its offsets could go",
        "commit offsets: of a member": ILLEGAL,
        "newer: write again": OWN_APPEND_TIME,
    },
    "settings": {
        "describe a changed: topic": "`max.decompressed.message.bytes` has no key of brokers here",
    },
    "newer_groups": {
        "enter with names and an expression": "the epoch of a new group begins at 1; Kafka raises it twice at once",
    },
    "share_groups": {
        "acknowledge a partition that the session lacks": "no record of it is held by the member",
        "offsets of an unknown group": HIDES_A_NAME,
    },
    "streams_groups": {
        **dict.fromkeys(
            [f"enter: {step}" for step in ("without a process", "with an empty process", "with an empty host")],
            "tasks move without a warm-up copy, so no lag is acceptable for one",
        ),
        **dict.fromkeys(
            ["topology with one subtopology twice", "topology with a number of no topic"],
            "Kafka fails with UNKNOWN_SERVER_ERROR",
        ),
    },
    "administration": {
        "ask for: the quorum of partition 1": "the nodes are named although the partition is refused",
        "ask for: the quorum of another topic": "the nodes are named although the topic is refused",
    },
    "denied": {
        **dict.fromkeys(
            [f"topic-{right}: delete by id" for right in ("read", "write", "alter", "describe")],
            "the answer repeats what the request named; Kafka adds the other of name and id",
        ),
        "topic-delete: delete by id": "each of both is refused; Kafka refuses the topic once",
        "group-read: enter a share group": "rights come before the member id that is missing",
        **dict.fromkeys(
            [f"group-{right}: offsets of a share group" for right in ("read", "delete", "describe")],
            HIDES_A_NAME,
        ),
        "group-read: alter offsets of a share group": "the right to the topic is missing; Kafka looks at the group",
        "group-delete: delete offsets of a share group": "as above",
        **dict.fromkeys(
            [f"cluster-{right}: the quorum" for right in ("alter", "describe")],
            "the nodes are named although the topic is refused",
        ),
    },
    "sequences.producers": {
        **dict.fromkeys(["epoch -1", "epoch -2"], "no producer has such an epoch"),
        **dict.fromkeys(
            [f"unknown in a shortened log: {step}" for step in ("from 7", "from 0", "the next")], NEVER_FORGOT
        ),
    },
    "sequences.open_transactions": {
        **dict.fromkeys(
            [
                f"{word} that is fenced: {step}"
                for word in ("old", "new")
                for step in ("begin while it is open", "state after a second beginning")
            ],
            SKIPS_AN_EPOCH,
        ),
        "new that is fenced: commit, as the new one": SKIPS_AN_EPOCH,
    },
    "sequences.fetch_sessions": dict.fromkeys(
        [
            f"deletion 13: {step}"
            for step in (
                "when it is deleted",
                "when it is deleted, again",
                "when it is deleted, one less",
                "when it is made again",
                "when it is made again, with the id",
                "with the new id",
                "with the new id, next",
            )
        ],
        IDS_ONLY,
    ),
    "sequences.deleted_topics": {
        **dict.fromkeys(
            [f"{how}: append nothing" for how in ("list", "list only checked")], "nothing is added to the list"
        ),
        **dict.fromkeys(
            [f"{how}: operation {number}" for how in ("list", "list only checked") for number in (4, -1)],
            "Kafka fails with UNKNOWN_SERVER_ERROR",
        ),
        "lists after all": "blanks around an element that is subtracted do not count",
        **dict.fromkeys(
            [f"enlarge only checked, timeout {timeout_ms}" for timeout_ms in (0, -1)], "a check waits for nothing"
        ),
    },
    "logins.credentials": {
        "change: no salt": "clients refuse a server without a salt",
        "change: no password": "Kafka fails with UNKNOWN_SERVER_ERROR",
        "change: one user, both mechanisms": "the mechanisms of a user are apart, as in the guide of Kafka",
        "change: set one mechanism, delete the other": "the mechanisms of a user are apart, as in the guide of Kafka",
    },
    "logins.handshakes": {
        "first token: asked": SAYS_WHY,
        "first token of version 0: asked": SAYS_WHY,
        **dict.fromkeys(
            [f"first versions: {step}" for step in ("asked 1", "handshake", "token", "works")],
            "a client may ask for the versions twice",
        ),
        **dict.fromkeys(
            [
                f"{mechanism}, version 1, then {step}: asked"
                for mechanism in ("PLAIN", "SCRAM-SHA-256")
                for step in ("versions", "metadata")
            ],
            CLOSED,
        ),
        "bare token after version 0: handshake again": NO_RENEWAL,
        **dict.fromkeys(
            [
                f"{case}: login, {step}"
                for case in ("SCRAM-SHA-256, unknown user", "SCRAM-SHA-512, user of PLAIN")
                for step in ("first", "proof")
            ],
            DECOY,
        ),
        "SCRAM, first message that could bind: first": "a client that could bind channels may say so (RFC 5802)",
        "SCRAM, first message with a mandatory extension: first": "unknown mandatory extensions are refused (RFC 5802)",
        "SCRAM, first message of a token that is unknown: first": DECOY,
        "SCRAM, proof: a short proof: proof": SAYS_WHY,
        "renewed with an unknown mechanism: handshake": SAYS_WHY,
        **dict.fromkeys(
            [
                f"renewed with version 0: {step}"
                for step in ("renewal 0, handshake", "renewal 0, token", "works after renewal 0")
            ],
            NO_RENEWAL,
        ),
        "renewed with a request between: works in the middle": CLOSED,
        "renewed where sessions stay: handshake": "a client may renew a session that has no end",
        "renewed where sessions stay: works": CLOSED,
    },
    "logins.tokens": {
        "create: for a name without a kind": "Kafka fails with UNKNOWN_SERVER_ERROR",
        **dict.fromkeys(
            [
                f"{case}: login, {step}"
                for case in ("token as a user", "a token that has ended")
                for step in ("first", "proof")
            ],
            DECOY,
        ),
    },
    "several.leaders": {
        **dict.fromkeys(
            [
                *(f"{role}: fetch as replica 9, version 12" for role in ("leader", "follower", "broker apart")),
                *(f"broker apart: fetch as replica 3, version {version}" for version in (12, 15, 18)),
            ],
            NO_BROKER,
        ),
        "follower: offsets for a debugger, version 6": "only the leader knows which offsets are visible",
        "follower: fetch as replica 3, version 18": "the leader is named to followers, too",
    },
    "several.moves": {"election: one twice": "each partition is answered once"},
    "several.stopped": {
        "administer: change a setting of it": ANY_BROKER,
        "removed: change a setting of it": ANY_BROKER,
    },
}
"""By area and step. A step that is not here has the same answer from both."""
_SEVERAL_BROKERS: Final = "several."
ALONE: Final = [area for area in DIFFERENCES if not area.startswith(_SEVERAL_BROKERS)]
"""The areas of one broker."""
SEVERAL: Final = [area for area in DIFFERENCES if area.startswith(_SEVERAL_BROKERS)]
"""The areas of three brokers, in the order in which they must run."""
STEPS_MIN: Final = 40
"""An area with fewer answers has not been asked."""


def scenario_of(area: str) -> Callable[[Any], Awaitable[None]]:
    """Returns the function that sends the requests of an area."""
    found: Callable[[Any], Awaitable[None]] = getattr(import_module(f"support.answers.{area}"), _name(area))
    return found


def judge(area: str, kafka: Mapping[str, object], moldau: Mapping[str, object]) -> None:
    """Checks that the answers differ where they are known to, and only there."""
    known, found = DIFFERENCES.get(area, {}), differences(kafka, moldau)
    assert len(kafka) > STEPS_MIN
    new = {step: lines for step, lines in found.items() if step not in known}
    assert not new, "\n".join(f"{step}: {lines}" for step, lines in new.items())
    same = known.keys() - found.keys()
    assert not same, f"these answers are the same by now: {sorted(same)}"


def _name(area: str) -> str:
    return area.rsplit(".", 1)[-1]


_PREFACE: Final = """# The same requests to Kafka and to Moldau

Generated by `PYTHONPATH=tests python -m support.answers.differences > docs/proof/same-answers.md`; do not edit.

Two tests send some 5,000 requests to brokers of Apache Kafka {newest} and of Moldau, in the same order, and compare the
answers field by field; `pytest -m proof tests/interop -k same_answers` runs them.
They are usual requests in each version that both serve, those that a client with a bug, an older or a newer one would
send, and those of 23 users who have one right each, or none (`denied`). Sequences depend on what came before: logins in
right and wrong order, repeated batches, transactions, sessions of fetches, moves of partitions, and a broker of three
that stands still, stops and is removed. Ids, ports and times that a broker chooses count as such, texts for people
do not; of what is refused the code counts. These answers differ; all others are the same.
"""
_DRAWN: Final = """
## Drawn sequences

Chosen requests reach few states, so another test draws sequences of 10 to 60 requests from fixed seeds and
sends each to both: `pytest -m proof tests/interop/test_drawn_answers.py`. Their vocabulary is small (two
groups, four members, three topics, two transactional ids), so that requests meet: producers that miss an
answer, write twice, leave a gap or come with a former or a later epoch, in transactions of both protocols;
members of classic groups and of consumer groups that leave, come again under another id and commit with stale
generations; groups with members of both of these protocols, or of another type than before; topics that are
deleted and created again, and fetch sessions that outlive them; members of share groups that acknowledge what
they hold, held, or never held, in sessions with right and wrong epochs, while locks expire and topics change; several
members of streams groups with endpoints, standby tasks, and topologies whose topics come and go; batches of all codecs,
and damaged ones, to topics with different settings; settings with empty and absurd values, of which those of brokers
change for real where a broker goes on with them; and quotas, users, partitions, moves and pages of descriptions. Ids
that a broker gives appear as "the second id of t1". A sequence whose answers differ is shrunk to the steps that it
needs.
These differences are allowed:
"""


def page() -> str:
    """Returns the page with all differences."""
    lines = [
        *_PREFACE.format(newest=NEWEST).splitlines(),
        "",
        "| area | request | why Moldau differs |",
        "|---|---|---|",
    ]
    for area, steps in DIFFERENCES.items():
        word = _name(area).replace("_", " ")
        lines += [f"| {word} | {step} | {reason} |" for step, reason in steps.items()]
    return "\n".join([*lines, *_drawn_lines()]) + "\n"


def _drawn_lines() -> list[str]:
    """Returns the part of the page about drawn sequences."""
    from support.answers.drawn.areas import AREAS  # which uses reasons of this module

    lines = [*_DRAWN.splitlines(), "", "| area | request | why Moldau differs |", "|---|---|---|"]
    for area, (_, rules) in AREAS.items():
        reasons = dict.fromkeys((rule.kind.replace("_", " ").replace("|", ", "), rule.reason) for rule in rules)
        lines += [f"| {area.replace('_', ' ')} | {kind} | {reason} |" for kind, reason in reasons]
    return lines


if __name__ == "__main__":
    print(page(), end="")
