"""Quotas, SCRAM users, partitions, moves, elections and descriptions, in any order, of one broker with a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from moldau.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from moldau.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from moldau.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from moldau.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from support.answers.administration import election, move
from support.answers.drawn.sequences import Area, DrawnSession, Step, World, length, weighted
from support.answers.settings import quota
from support.answers.topics import WAIT_MS, made

if TYPE_CHECKING:
    import random

_TOPICS: Final = {"a": 2, "b": 1}
"""Topics with their partitions."""
_RATES: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_CONNECTIONS: Final = "connection_creation_rate"
_NAMES: Final[dict[str, tuple[str | None, ...]]] = {
    "user": ("u1", "u2", None, ""),
    "client-id": ("c1", None, ""),
    "ip": ("10.1.2.3", "::1:2", None, "no address", ""),
    "galaxy": ("u1",),
}
_SHAPES: Final = (
    *(("user",), ("client-id",), ("user", "client-id"), ("client-id", "user"), ("ip",)),
    *(("user", "ip"), ("client-id", "ip"), ("user", "user"), ("user", "client-id", "ip"), ("galaxy",), ()),
)
_REPLICAS: Final[tuple[list[int] | None, ...]] = ([1], [1], None, [], [1, 1], [9], [1, 9], [-1])
_PLACES: Final[tuple[list[list[int]] | None, ...]] = (None, None, [[1]], [[1], [1]], [[9]], [[]], [], [[1, 1]])
_WEIGHTS: Final = {
    "quota": 30,
    "quotas": 22,
    "scram": 16,
    "users": 8,
    "enlarge": 8,
    "move": 6,
    "moves": 4,
    "elect": 5,
    "token": 4,
    "directories": 4,
    "page": 12,
    "cluster": 3,
}


def _draw(rng: random.Random) -> list[Step]:
    kinds = {kind: weight for kind, weight in _WEIGHTS.items() if rng.random() < 0.6} or _WEIGHTS
    return [_one(rng, weighted(rng, kinds)) for _ in range(length(rng))]


def _one(rng: random.Random, kind: str) -> Step:
    topic = rng.choices(("a", "b", "unknown", "a/b", ""), (45, 40, 6, 5, 4))[0]
    match kind:
        case "quota":
            entities = [_entity(rng) for _ in range(rng.choices((1, 2), (9, 1))[0])]
            operations = [_operation(rng) for _ in range(rng.choices((1, 2, 0), (80, 15, 5))[0])]
            twice = any(len(dict(each)) < len(each) for each in entities) or len(entities) > len(
                {tuple(each) for each in entities}
            )
            return Step(
                kind, {"entities": entities, "twice": twice, "operations": operations, "checks": rng.random() < 0.1}
            )
        case "quotas":
            shape = rng.choices(_SHAPES, (20, 20, 20, 5, 15, 5, 5, 3, 2, 3, 10))[0]
            components = [_component(rng, each) for each in shape]
            return Step(kind, {"components": components, "strict": rng.random() < 0.5})
        case "scram":
            changes = [
                {
                    "delete": rng.random() < 0.35,
                    "user": rng.choices(("u1", "u2", ""), (50, 46, 4))[0],
                    "mechanism": rng.choices((1, 2, 0, 3), (45, 45, 5, 5))[0],
                    "iterations": rng.choices((4096, 8192, 16384, 4095, 16385, 0), (40, 30, 10, 8, 8, 4))[0],
                }
                for _ in range(rng.choices((1, 2, 3), (7, 2, 1))[0])
            ]
            return Step(kind, {"changes": changes})
        case "users":
            return Step(kind, {"users": rng.choices(("u1", "u2", "none", ""), (40, 40, 15, 5), k=rng.randint(1, 3))})
        case "enlarge":
            places = rng.choice(_PLACES)
            drawn: dict[str, Any] = {"topic": topic, "count": rng.choice((1, 2, 3, 4, 5, 0, -1)), "places": places}
            return Step(kind, {**drawn, "checks": rng.random() < 0.2})
        case "move":
            drawn = {
                "topic": topic,
                "partition": rng.choice((0, 1, 7)),
                "replicas": rng.choice(_REPLICAS),
            }
            return Step(kind, {**drawn, "changes": rng.random() < 0.7, "version": rng.choice((0, 1))})
        case "moves":
            return Step(kind, {"topics": rng.choice((None, ["a"], ["a", "unknown"], []))})
        case "elect":
            parts = [(topic, [rng.choice((0, 1, 7))]) for _ in range(rng.randint(1, 2))]
            return Step(
                kind,
                {
                    "twice": len(parts) > 1 and parts[0] == parts[1],
                    "of": rng.choice((0, 1)),
                    "parts": parts,
                    "version": rng.choice((0, 1, 2)),
                },
            )
        case "token":
            return Step(kind, {"how": rng.choice(("create", "renew", "expire", "describe", "describe none"))})
        case "directories":
            return Step(
                kind,
                {
                    "topic": topic,
                    "partitions": rng.choice(([0], [0, 1], [7], [])),
                    "version": rng.choice((1, 2, 3, 4, 5)),
                },
            )
        case "page":
            topics = rng.choices(("a", "b", "unknown"), (45, 40, 15), k=rng.randint(1, 3))
            cursor = (rng.choice(topics), rng.choice((0, 1, 2, 9))) if rng.random() < 0.6 else None
            return Step(
                kind,
                {
                    "topics": topics,
                    "unknown": "unknown" in topics,
                    "limit": rng.choice((1, 2, 3, 2000)),
                    "cursor": cursor,
                },
            )
    drawn = {"version": rng.choice((0, 1, 2)), "of": rng.choice((1, 1, 2, 9)), "fenced": rng.random() < 0.5}
    return Step(kind, {**drawn, "rights": rng.random() < 0.5})


def _name(rng: random.Random, kind: str) -> str | None:
    names = _NAMES[kind]
    return rng.choice(names[:3] if rng.random() < 0.9 else names)


def _component(rng: random.Random, kind: str) -> tuple[str, int, str | None]:
    how = rng.choices((0, 1, 2, 7, -1), (40, 20, 34, 3, 3))[0]
    return kind, how, _name(rng, kind) if how == 0 or rng.random() < 0.1 else None


def _entity(rng: random.Random) -> list[tuple[str, str | None]]:
    shape = rng.choices(_SHAPES, (30, 20, 20, 5, 15, 2, 2, 2, 1, 2, 1))[0]
    return [(kind, _name(rng, kind)) for kind in shape]


def _operation(rng: random.Random) -> tuple[str, float, bool]:
    """Draws a change of a quota: high rates, because a broker acts on them."""
    key = rng.choices((*_RATES, _CONNECTIONS, "nope", ""), (20, 20, 15, 15, 25, 3, 2))[0]
    value = rng.choices((1e9, 2e9, 1e9 + 0.5, 1e300, 0.0, -1.0, float("nan")), (40, 25, 20, 4, 4, 4, 3))[0]
    return key, value, rng.random() < 0.3


class _Administration(World):
    """Sends steps to one broker, and remembers its answers."""

    def __init__(self, session: DrawnSession) -> None:
        self.session = session
        self.counts = dict(_TOPICS)
        self.changes = 0
        self.limited: dict[tuple[tuple[str, str | None], ...], None] = {}

    async def prepare(self) -> None:
        """Creates the topics."""
        for word, count in _TOPICS.items():
            await made(self.session, word, count)

    async def send(self, name: str, step: Step) -> None:
        """Sends one step."""
        await getattr(self, f"_{step.kind}")(name, step.drawn)

    async def finish(self) -> None:
        """Removes all quotas and users."""
        removed = [(key, 0.0, True) for key in _RATES]
        for entity in self.limited:
            keys = [(_CONNECTIONS, 0.0, True)] if entity[0][0] == "ip" else removed
            await self.session.quietly(quota(entity, *keys))

    def _named(self, word: Any) -> Any:
        """Returns the name of this run for a word that has one."""
        return self.session.name(word) if word in ("a", "b", "u1", "u2", "c1", "unknown", "none") else word

    async def _quota(self, name: str, drawn: Any) -> None:
        request = quota(())
        request.entries = []
        for entity in drawn["entities"]:
            named = tuple((kind, self._named(word)) for kind, word in entity)
            one = quota(named, *drawn["operations"], validate=drawn["checks"])
            if len({kind for kind, _ in named}) == len(named) > 0:
                self.limited[named] = None
            self.limited.update(dict.fromkeys((part,) for part in named))  # Kafka takes the last of two users
            request.entries = [*request.entries, *one.entries]
        request.validate_only = drawn["checks"]
        await self.session.ask(name, request)
        await self._quotas_applied()

    async def _quotas_applied(self) -> None:
        """Waits until the broker has applied all changes: one more follows them, and is visible."""
        entity = (("user", self.session.name("last")),)
        self.changes += 1
        wanted = 1e9 + self.changes
        self.limited[entity] = None
        await self.session.quietly(quota(entity, ("producer_byte_rate", wanted, False)))
        component = ComponentData(entity_type="user", match_type=0, match=entity[0][1])
        for _ in range(400):
            found = await self.session.quietly(DescribeClientQuotasRequest(components=[component], strict=True))
            if found.entries and [each.value for each in found.entries[0].values] == [wanted]:
                return
            await trio.sleep(0.02)

    async def _quotas(self, name: str, drawn: Any) -> None:
        components = [
            ComponentData(entity_type=kind, match_type=how, match=self._named(word))
            for kind, how, word in drawn["components"]
        ]
        answer = await self.session.ask(
            name, DescribeClientQuotasRequest(components=components, strict=drawn["strict"])
        )
        if isinstance(answer, str) or not answer.entries:
            return
        shown: Any = self.session.answers[name]
        mine = ["u1", "u2", "c1", None, *_NAMES["ip"]]
        shown["entries"] = [
            entry for entry in shown["entries"] if all(part["entity_name"] in mine for part in entry["entity"])
        ] or None

    async def _scram(self, name: str, drawn: Any) -> None:
        deletions, upsertions = [], []
        for each in drawn["changes"]:
            user = self._named(each["user"])
            if each["delete"]:
                deletions.append(ScramCredentialDeletion(name=user, mechanism=each["mechanism"]))
            else:
                upsertions.append(
                    ScramCredentialUpsertion(
                        name=user,
                        mechanism=each["mechanism"],
                        iterations=each["iterations"],
                        salt=b"salt",
                        salted_password=b"password",
                    )
                )
        await self.session.ask(name, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions))
        await self._quotas_applied()

    async def _users(self, name: str, drawn: Any) -> None:
        users = [UserName(name=self._named(word)) for word in drawn["users"]]
        await self.session.ask(name, DescribeUserScramCredentialsRequest(users=users))

    async def _enlarge(self, name: str, drawn: Any) -> None:
        places = drawn["places"]
        assigned = None if places is None else [CreatePartitionsAssignment(broker_ids=each) for each in places]
        wanted = CreatePartitionsTopic(name=self._named(drawn["topic"]), count=drawn["count"], assignments=assigned)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=WAIT_MS, validate_only=drawn["checks"])
        answer = await self.session.ask(name, request)
        if answer.results[0].error_code == ErrorCode.NONE and not drawn["checks"]:
            self.counts[drawn["topic"]] = drawn["count"]
            await self._settled(drawn["topic"])

    async def _settled(self, word: str) -> None:
        topics = [MetadataRequestTopic(name=self.session.name(word))]
        for _ in range(400):
            [found] = (await self.session.quietly(MetadataRequest(topics=topics))).topics
            if [each.leader_id for each in found.partitions] == [1] * self.counts[word]:
                return
            await trio.sleep(0.02)

    async def _move(self, name: str, drawn: Any) -> None:
        fields = {"allow_replication_factor_change": drawn["changes"]} if drawn["version"] else {}
        request = move(self._named(drawn["topic"]) or "", drawn["replicas"], drawn["partition"], **fields)
        await self.session.ask(name, request, drawn["version"])

    async def _moves(self, name: str, drawn: Any) -> None:
        topics = drawn["topics"]
        if topics is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=self._named(each), partition_indexes=[0, 7]) for each in topics
            ]
        await self.session.ask(name, ListPartitionReassignmentsRequest(topics=topics))

    async def _elect(self, name: str, drawn: Any) -> None:
        parts = [(self._named(topic) or "", partitions) for topic, partitions in drawn["parts"]]
        await self.session.ask(name, election(drawn["of"], *parts), drawn["version"])

    async def _token(self, name: str, drawn: Any) -> None:
        requests: dict[str, Any] = {
            "create": CreateDelegationTokenRequest(
                renewers=[CreatableRenewers(principal_type="User", principal_name="u1")], max_lifetime_ms=-1
            ),
            "renew": RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1),
            "expire": ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1),
            "describe": DescribeDelegationTokenRequest(owners=None),
            "describe none": DescribeDelegationTokenRequest(owners=[]),
        }
        await self.session.ask(name, requests[drawn["how"]])

    async def _directories(self, name: str, drawn: Any) -> None:
        topics = [DescribableLogDirTopic(topic=self._named(drawn["topic"]), partitions=drawn["partitions"])]
        await self.session.ask(name, DescribeLogDirsRequest(topics=topics), drawn["version"])

    async def _page(self, name: str, drawn: Any) -> None:
        cursor = None
        if drawn["cursor"] is not None:
            topic, partition = drawn["cursor"]
            cursor = DescribeTopicPartitionsRequestCursor(topic_name=self._named(topic), partition_index=partition)
        topics = [TopicRequest(name=self._named(topic)) for topic in drawn["topics"]]
        request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=drawn["limit"], cursor=cursor)
        await self.session.ask(name, request)

    async def _cluster(self, name: str, drawn: Any) -> None:
        fields: dict[str, Any] = {"include_cluster_authorized_operations": drawn["rights"]}
        if drawn["version"] >= 1:
            fields["endpoint_type"] = drawn["of"]
        if drawn["version"] >= 2:
            fields["include_fenced_brokers"] = drawn["fenced"]
        await self.session.ask(name, DescribeClusterRequest(**fields), drawn["version"])


ADMINISTRATION: Final = Area(_Administration, _draw)
