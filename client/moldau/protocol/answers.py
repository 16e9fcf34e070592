"""Which entries of a request a response answers. Pure.

A request about several topics, partitions, groups or users is answered entry by entry. Kafka's brokers answer each
entry once; a faulty one may leave entries out, name others, or answer one twice. ``judge`` is the one rule for all of
this. For entries that are left out it is the rule of Kafka's admin client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

K = TypeVar("K", bound="Hashable")
A = TypeVar("A")
E = TypeVar("E")


class Judged(NamedTuple, Generic[K, A]):
    """The outcome of each entry. Invariant: no entry is in both."""

    done: dict[K, A]
    """The answers without an error, in the order of the request."""
    failures: dict[K, KafkaError]
    """The errors: in the order of the request, then those of entries that the request does not name."""


def judge(
    kind: str, wanted: Iterable[K], answers: Iterable[tuple[K, KafkaError | None, A]], *, hint: str = ""
) -> Judged[K, A]:
    """Returns what became of each entry that a request names; ``kind`` says in a word what the entries are.

    An answer is an entry, its error and the rest. An entry without an answer has failed (UNKNOWN_SERVER_ERROR), with
    ``hint`` at the end of the text, and so has one that the request does not name. Of several answers for one entry an
    error counts, else the first one.
    """
    found: dict[K, A] = {}
    errors: dict[K, KafkaError] = {}
    for entry, error, answer in answers:
        if error is not None:
            errors.setdefault(entry, error)
        else:
            found.setdefault(entry, answer)
    asked = dict.fromkeys(wanted)
    failures: dict[K, KafkaError] = {}
    for entry in asked:
        if entry in errors:
            failures[entry] = errors[entry]
        elif entry not in found:
            failures[entry] = _faulty(f"the broker's answer leaves {kind} {entry} out{hint}")
    for entry in [*found, *errors]:
        if entry not in asked:
            failures[entry] = _faulty(f"the broker's answer has {kind} {entry}, which the request does not name")
    return Judged({entry: found[entry] for entry in asked if entry in found and entry not in errors}, failures)


def judge_one(kind: str, wanted: K, answers: Iterable[tuple[K, KafkaError | None, A]]) -> A:
    """Returns the answer for the one entry that a request names.

    Raises:
        KafkaError: the entry's error, or another one by the rule of ``judge``.
    """
    judged = judge(kind, [wanted], answers)
    for error in judged.failures.values():
        raise error
    return judged.done[wanted]


def in_order(names: Sequence[str], answers: Iterable[E]) -> list[tuple[str, E]]:
    """Returns the answers with the names of their entries, for responses that name nothing: their order decides.

    Answers behind the last entry are named by their number, so that ``judge`` finds nothing of that name.
    """
    found = list(answers)
    return [(names[at] if at < len(names) else f"number {at + 1}", each) for at, each in enumerate(found)]


def _faulty(text: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
