"""The cost that authorization adds to one Produce or Fetch request:

    python -m benchmarks.broker.authorization [--acls N] [--partitions P]

One connection whose rights come from a prefixed ACL among ``N`` others. "remembered" is the cost of each request while
no ACL changes; "first" that of a decision that is not remembered yet, as after a change of ACLs.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import UUID

from moldau.protocol.access import AclOperation
from moldau.protocol.hot.produce import ProduceRequestView
from moldau.runtime.sasl.core.identity import Identity
from moldau_broker.server.data_path.produce_rights import permitted
from moldau_quorum.authorization.authorizer import Authorizer
from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.metadata.records import AccessControlEntryRecord

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 20_000
VERSION = 12
TOPIC, ALLOW, LITERAL, PREFIXED = 2, 3, 3, 4
ALL_OPERATIONS = 2


def entry(number: int, name: str, pattern: int) -> AccessControlEntryRecord:
    """Returns an ACL of the measured principal, or of others."""
    return AccessControlEntryRecord(
        acl_id=UUID(int=number),
        resource_type=TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal="User:alice" if number == 0 else f"User:u{number}",
        host="*",
        operation=ALL_OPERATIONS,
        permission_type=ALLOW,
    )


def microseconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Returns the CPU time of one call: the least of three rounds."""
    rounds = []
    for _ in range(3):
        begun = time.process_time()
        for _ in range(repeats):
            work()
        rounds.append((time.process_time() - begun) / repeats * 1e6)
    return min(rounds)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--acls", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=1)
    given = parser.parse_args()
    editor = PersistentMap[UUID, AccessControlEntryRecord]().edit()
    for number in range(given.acls):
        name = "flights-" if number == 0 else f"{'t' * (1 + number % 20)}{number}"
        pattern = PREFIXED if number % 2 == 0 else LITERAL
        editor.set(UUID(int=number), entry(number, name, pattern))
    image = SimpleNamespace(acls=editor.finish(), topics_by_id={}, topics_by_name={})
    authorizer = Authorizer(lambda: image, super_users=["User:root"])  # type: ignore[arg-type, return-value]
    begun = time.process_time()
    authorizer.follow()
    print(f"{given.acls} ACLs indexed in {(time.process_time() - begun) * 1e3:.1f} ms")
    identity = Identity(principal="User:alice", host="10.0.0.1", listener_name="L", security_protocol="SASL_SSL")
    permissions = authorizer.permissions(identity)
    records = memoryview(bytes(100))
    request = ProduceRequestView(None, 1, 1000, [(b"flights-1", [(n, records) for n in range(given.partitions)])])

    def produce() -> None:
        permissions.refresh()
        permitted(request, VERSION, permissions)

    def fetch() -> None:
        permissions.refresh()
        known = permissions.readable[False]
        for _ in range(given.partitions):
            if b"flights-1" not in known:
                permissions.topic_error(AclOperation.READ, b"flights-1", by_id=False)

    print(f"produce, remembered: {microseconds(produce):.2f} us a request")
    print(f"fetch, remembered: {microseconds(fetch):.2f} us a request")
    decide = microseconds(lambda: authorizer.decide(identity, AclOperation.READ, TOPIC, "flights-1"), 2_000)
    print(f"first decision: {decide:.2f} us")


if __name__ == "__main__":
    main()
