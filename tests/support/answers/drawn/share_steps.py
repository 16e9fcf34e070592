"""The steps of share groups, and what is drawn for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from support.answers.drawn.sequences import Step, length, weighted
from support.answers.share_groups import ACCEPT, GAP, REJECT, RELEASE, RENEW

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

GROUPS: Final = {"g1": {}, "g2": {"share.delivery.count.limit": "3", "share.record.lock.duration.ms": "15000"}}
"""Groups with their settings."""
WORDS: Final = ("m1", "m2", "m3")
STRANGER: Final = "stranger"
SLEEPER: Final = "sleeper"
"""The member whose locks expire."""
PLACES: Final = (("a", 0), ("a", 1), ("b", 0))
ALL: Final = 1000
WEIGHTS: Final = {
    "enter": 6,
    "heartbeat": 8,
    "leave": 4,
    "describe": 4,
    "list": 1,
    "produce": 14,
    "open": 8,
    "fetch": 26,
    "acknowledge": 26,
    "close": 4,
    "offsets": 6,
    "alter_offsets": 3,
    "delete_offsets": 2,
    "delete_group": 1,
    "delete_records": 2,
}
Place = tuple[str, int]


def draw(rng: random.Random) -> list[Step]:
    """Draws a sequence."""
    groups = rng.choice((("g1",), ("g2",), ("g1", "g2")))
    words, places = rng.sample(WORDS, rng.randint(1, 3)), rng.sample(PLACES, rng.randint(1, 3))
    return [one(rng, weighted(rng, WEIGHTS), groups, words, places) for _ in range(length(rng))]


def one(rng: random.Random, kind: str, groups: tuple[str, ...], words: list[str], places: list[Place]) -> Step:
    group: dict[str, Any] = {"group": rng.choice(groups)}
    member: dict[str, Any] = group | {
        "who": rng.choice(words) if rng.random() < 0.97 else STRANGER,
        "epoch": rng.choices((0, -1, 1, 9), (92, 3, 3, 2))[0],
    }
    place = {"place": rng.choice(places) if rng.random() < 0.97 else (rng.choice(("a", "unknown")), 7)}
    topics = rng.choices((["a"], ["b"], ["a", "b"], ["a", "unknown"], []), (35, 15, 35, 10, 5))[0]
    acknowledged = [_batch(rng) for _ in range(rng.choices((1, 2, 3), (7, 2, 1))[0])]
    match kind:
        case "enter":
            return Step(kind, group | {"who": rng.choice(words), "topics": topics or ["a"]})
        case "heartbeat":
            return Step(kind, member | {"topics": topics if rng.random() < 0.15 else None})
        case "leave" | "close":
            return Step(kind, member | _end(rng, kind))
        case "list":
            return Step(kind, {"states": rng.choice(([], ["Stable"], ["Empty"])), "types": rng.choice(([], ["share"]))})
        case "produce":
            return Step(kind, {"place": rng.choice(places), "count": rng.choice((1, 1, 2, 3, 4))})
        case "open":
            few = rng.sample(places, rng.randint(1, len(places)))
            return Step(kind, member | {"places": few, "most": rng.choice((ALL, 1, 2)), "version": rng.choice((1, 2))})
        case "fetch":
            drawn = {
                "most": rng.choices((ALL, 1, 2, 3, 0), (70, 8, 8, 9, 5))[0],
                "batch": rng.choice((100, 100, 1, 2)),
                "exact": rng.random() < 0.3,
                "added": rng.choice(places) if rng.random() < 0.12 else None,
                "forgotten": rng.choice(places) if rng.random() < 0.06 else None,
                # A release beside a fetch may be stored before or after it.
                "acknowledged": acknowledged if rng.random() < 0.25 and RELEASE not in _types(acknowledged) else [],
                "version": rng.choice((1, 2, 2)),
            }
            return Step(kind, member | place | drawn)
        case "acknowledge":
            drawn = {"acknowledged": acknowledged, "renews": rng.random() < 0.12, "version": rng.choice((1, 2, 2))}
            return Step(kind, member | place | drawn)
        case "offsets":
            return Step(kind, group | {"all": rng.random() < 0.5, "version": rng.choice((0, 1))})
        case "alter_offsets" | "delete_records":
            offsets = (0, 1, -1) if kind == "delete_records" else (0, 1, 2, 3, 4, -1)  # Kafka gives batches as a whole
            return Step(kind, group | place | {"offset": rng.choice(offsets)})
        case "delete_offsets":
            return Step(kind, group | place)
    return Step(kind, group)


def _end(rng: random.Random, kind: str) -> dict[str, Any]:
    return {"by": rng.choice(("fetch", "acknowledge")), "releases": rng.random() < 0.9} if kind == "close" else {}


def _batch(rng: random.Random) -> dict[str, Any]:
    """Draws which of the records that a member holds it acknowledges, and how."""
    kinds, weights = (ACCEPT, RELEASE, REJECT, GAP, RENEW, 9, -1), (45, 35, 8, 4, 4, 2, 2)
    count = rng.choices((1, 2, 3, 5), (5, 3, 2, 1))[0]
    one = rng.random() < 0.75
    return {
        "which": rng.choices(("held", "beyond", "done", "of another", "reversed"), (88, 3, 4, 3, 2))[0],
        "from": rng.choice((0, 0, 0, 1, 2)),
        "count": count,
        "types": rng.choices(kinds, weights, k=1 if one else max(1, count - (rng.random() < 0.05))),
    }


def _types(drawn: Sequence[dict[str, Any]]) -> set[int]:
    return {kind for each in drawn for kind in each["types"]}
