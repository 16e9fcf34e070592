"""Differences of drawn sequences that have a reason."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from support.answers.differences import ILLEGAL, OWN_APPEND_TIME
from support.answers.settings import APPEND, DELETE, SUBTRACT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Rule(NamedTuple):
    """A difference that is allowed."""

    kind: str
    """An expression for the kind of the step."""
    path: str
    """An expression for the place in the answer."""
    kafka: Any
    moldau: Any
    reason: str
    ends: bool = False
    """The brokers are in different states from here on, so that no further answer is compared."""
    when: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
    """The values that may have been drawn for the step, by name."""


ANY: Final = object()
"""Each value."""
_SKIPS: Final = "an epoch is skipped, so that the former producer, which learns the next one by its abort, is fenced"
_IN_TRANSACTION: Final = MappingProxyType({"alone": (False,)})
TRANSACTIONS: Final = (
    Rule("produce", r".*log_append_time_ms", ANY, -1, OWN_APPEND_TIME),
    Rule("begin", r"\.producer_epoch", ANY, ANY, _SKIPS, ends=True, when=_IN_TRANSACTION),
    Rule("begin", r"\.error_code", "NONE", "PRODUCER_FENCED", _SKIPS, ends=True, when=_IN_TRANSACTION),
    Rule("begin", r"\.error_code", "NONE", "INVALID_PRODUCER_EPOCH", _SKIPS, ends=True, when=_IN_TRANSACTION),
    Rule(
        "add_partitions_as_broker",
        r".*partition_error_code",
        "TRANSACTION_ABORTABLE",
        "INVALID_TXN_STATE",
        "version 5 of the request introduced TRANSACTION_ABORTABLE",
        when={"version": (4,)},
    ),
    Rule(
        "list_offsets",
        r".*\.(timestamp|offset|leader_epoch)",
        ANY,
        -1,
        "Kafka names a record that is deleted",
        when={"at": (-3,)},
    ),
)

CLASSIC_GROUPS: Final[tuple[Rule, ...]] = (
    Rule("commit", r".*error_code", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", ILLEGAL),
    Rule("commit", r".*error_code", "GROUP_ID_NOT_FOUND", "ILLEGAL_GENERATION", ILLEGAL),
    Rule(
        "join",
        r".*leader",
        ANY,
        ANY,
        "any member may follow a leader that has left; Kafka takes one by hash",
        ends=True,
    ),
)

CONSUMER_GROUPS: Final[tuple[Rule, ...]] = (
    *CLASSIC_GROUPS,
    Rule(
        "heartbeat",
        r"\.assignment.*",
        ANY,
        ANY,
        "a member that has partitions to release hears of its new topics once it has done so",
        ends=True,
        when={"topics": (["a"], ["b"], ["a", "b"], ["a", "unknown"], ["b", "c"], ["c"], [])},
    ),
    Rule(
        "enter|heartbeat|describe",
        r".*_epoch",
        ANY,
        ANY,
        "Kafka raises the epoch for another assignor once more, with the next heartbeat",
        ends=True,
        when={"style": ("mixed",)},
    ),
    Rule(
        "enter|heartbeat|describe",
        r".*assignment.*",
        ANY,
        ANY,
        "which of equal members gets the odd partition is the choice of the uniform assignor",
        ends=True,
        when={"style": ("uniform", "mixed")},
    ),
)

_EARLY_REPORT: Final = "a report that precedes the order to release a partition does not prove that it is released"
_AT_ONCE: Final = "a classic member joins again at once when another one has left; Kafka waits for a heartbeat first"
_NO_SHARE_OFFSETS: Final = "share groups have no committed offsets; Kafka answers as for a group that has none yet"
MIXED_GROUPS: Final[tuple[Rule, ...]] = (
    *CONSUMER_GROUPS,
    Rule("commit_newer", r".*error_code", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", ILLEGAL),
    Rule("commit_newer", r".*error_code", "GROUP_ID_NOT_FOUND", "ILLEGAL_GENERATION", ILLEGAL),
    Rule("stored", r"\.topics.*", ANY, "(absent)", _NO_SHARE_OFFSETS),
    Rule("stored", r".*error_code", "NONE", "GROUP_ID_NOT_FOUND", _NO_SHARE_OFFSETS),
    Rule(
        "join",
        r".*generation_id",
        0,
        ANY,
        "a classic process took the place of the last other one: it joins again with either generation",
    ),
    Rule(
        "enter",
        r"\.assignment.*",
        ANY,
        ANY,
        "what the target of a classic member names, and the member has never got, is free",
        ends=True,
        when={"early": (True,)},
    ),
    Rule(
        "join",
        r".*error_code",
        "INCONSISTENT_GROUP_PROTOCOL",
        "NONE",
        "the protocols that the member itself had before do not count",
        ends=True,
        when={"protocols": ("other", "one")},
    ),
    Rule("heartbeat", r".*error_code", "NONE", "REBALANCE_IN_PROGRESS", _AT_ONCE),
    Rule("sync|sync_all", r".*error_code", "NONE", "REBALANCE_IN_PROGRESS", _AT_ONCE, ends=True),
    Rule("join", r".*member_id", None, ANY, "a refused join names its sender"),
    Rule("join", r".*generation_id", "the newest", "an earlier one", _EARLY_REPORT, ends=True),
    Rule(
        "join",
        r".*error_code",
        "NONE",
        "UNKNOWN_MEMBER_ID",
        "a member that was removed, and does not know it, gives up what it reads before it joins",
        ends=True,
        when={"owns": (True,)},
    ),
)

_GONE_ID: Final = "the topic of that id is gone; a client looks at the metadata after either code"
TOPICS: Final[tuple[Rule, ...]] = (
    Rule(
        "list_offsets",
        r".*\.(timestamp|offset|leader_epoch)",
        ANY,
        -1,
        "Kafka names a record that is deleted",
        when={"at": (-3,)},
    ),
    Rule(
        "alter", r".*error_code", "INVALID_CONFIG", "UNKNOWN_TOPIC_OR_PARTITION", "of two errors the topic comes first"
    ),
    Rule(
        "alter", r".*error_code", "INVALID_REQUEST", "UNKNOWN_TOPIC_OR_PARTITION", "of two errors the topic comes first"
    ),
    Rule("alter", r".*error_code", "INVALID_REQUEST", "INVALID_CONFIG", "of two errors the first change's comes first"),
    Rule("next", r".*error_code", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", _GONE_ID),
    Rule("next", r".*error_code", "INCONSISTENT_TOPIC_ID", "UNKNOWN_TOPIC_ID", _GONE_ID),
)

SHARE_GROUPS: Final[tuple[Rule, ...]] = (
    Rule(
        "close",
        r" again\.responses",
        None,
        "(absent)",
        "records of a partition that the session has forgotten are free as well; with Kafka their lock has to expire",
        ends=True,
    ),
    Rule(
        "acknowledge",
        r".*error_code",
        "UNKNOWN_SERVER_ERROR",
        "NONE",
        "records that are done may be acknowledged again; Kafka fails if no others are known",
        ends=True,
    ),
    Rule(
        "acknowledge|fetch",
        r".*error_code",
        "INVALID_RECORD_STATE",
        "INVALID_REQUEST",
        "the records were never delivered; the code of Kafka depends on whether others are",
    ),
    Rule(
        "alter_offsets",
        r".*error_code",
        "NONE",
        "INVALID_REQUEST",
        "no record has a negative offset",
        ends=True,
        when={"offset": (-1,)},
    ),
)

_NO_GROUP: Final = "a request that sets no offset creates no group"
SHARE_CHANGES: Final[tuple[Rule, ...]] = (
    *SHARE_GROUPS,
    Rule(
        "many_offsets",
        r".*",
        ANY,
        ANY,
        "there is no such group; Kafka says so only if no topics are named",
        when={"group": ("none",)},
    ),
    Rule(
        "alter_many", r" offsets.*leader_epoch", 0, -1, "no leader has read the state yet; Kafka names the first epoch"
    ),
    Rule("alter_many", r" offsets.*error_code", "NONE", "GROUP_ID_NOT_FOUND", _NO_GROUP),
    Rule("alter_many", r" offsets\.groups\[0\]\.topics#?", ANY, "(absent)", _NO_GROUP),
    *(
        Rule("fetch", path, ANY, shown, "a request for no records says nothing of the partitions", when={"most": (0,)})
        for path, shown in ((r".*", "(absent)"), (r"\.responses", None), (r".*#", ANY), (r".*\.error_code", "NONE"))
    ),
    Rule(
        "recreate|grow",
        r" g. begun.*lag",
        ANY,
        ANY,
        "aborted records count as done once a fetch has passed them; how many a fetch passes is open",
    ),
    Rule(
        "recreate",
        r" g. m. acknowledged\.error_code",
        "UNKNOWN_SERVER_ERROR",
        "NONE",
        "the records of a topic that is gone are refused by partition; Kafka sometimes fails as a whole",
        ends=True,
    ),
    Rule("alter_many", r" offsets.*lag", ANY, 0, "no lag is negative, also if an offset is set behind the end"),
    Rule(
        "many_offsets",
        r".*error_code",
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "there is no such topic, for which a client has no offset either way",
    ),
    Rule(
        "many_offsets",
        r".*(lag|start_offset|leader_epoch)",
        ANY,
        "(absent)",
        "there is no such topic, for which a client has no offset either way",
    ),
)

_FREE_CHOICE: Final = "which of several members runs a task is the choice of the assignor"
_ENDPOINTS: Final = r"\.partitions_by_user_endpoint.*"
_ENDPOINTS_AGAIN: Final = "the endpoints are the same; how often a member that knows them gets them again is not"
STREAMS_GROUPS: Final[tuple[Rule, ...]] = (
    *CLASSIC_GROUPS,
    Rule(
        "enter|heartbeat",
        r"\.error_code",
        "UNKNOWN_SERVER_ERROR",
        ANY,
        "Kafka fails if a topic of a member with an endpoint is gone",
        ends=True,
    ),
    Rule("describe", r".*task_(end_)?offsets.*", ANY, ANY, "reports of restored offsets decide on warm-up tasks"),
    Rule("enter", _ENDPOINTS, ANY, ANY, _ENDPOINTS_AGAIN),
    Rule("heartbeat", _ENDPOINTS, ANY, ANY, _ENDPOINTS_AGAIN, when={"asks": (False,)}),
    Rule("enter|heartbeat|describe", r".*(active_tasks|target_assignment).*", ANY, ANY, _FREE_CHOICE, ends=True),
    Rule(
        "heartbeat",
        r"\.member_epoch",
        "the newest",
        "an earlier one",
        "a report that precedes the order to close a task does not prove that it is closed",
        ends=True,
    ),
    Rule(
        "describe",
        r".*state_changelog_topics.*partitions",
        0,
        ANY,
        "the number is known; Kafka names it after the next heartbeat only",
    ),
    Rule("list", r".*", ANY, ANY, "Kafka finds no group by this state", when={"states": (["NotReady"],)}),
)

_FAILS: Final = "Kafka fails with UNKNOWN_SERVER_ERROR"
_DAMAGED: Final = MappingProxyType(
    {
        "a delete horizon": "no client sets the time at which the log cleaner may delete",
        "another offset of the first record": "consumers cannot read records in the wrong order",
        "a negative offset of the first record": "consumers cannot read records in the wrong order",
        "a time of the broker": "the producer does not set the time of the broker",
    }
)
_CUT: Final = (
    *("a byte more", "length 2^31-1", "cut", "cut to the header", "cut to 16 bytes", "cut to 3 bytes"),
    "a byte less",
)
DATA_PATH: Final[tuple[Rule, ...]] = (
    Rule(
        "produce_damaged",
        r".*error_code",
        "INVALID_RECORD",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "the code says why the batch cannot be taken",
        when={"how": ("magic 0", "magic 1")},
    ),
    Rule(
        "produce_damaged",
        r".*error_code",
        ANY,
        "CORRUPT_MESSAGE",
        "bytes were lost on the way: the client may send the batch again",
        when={"how": _CUT},
    ),
    Rule(
        "produce_damaged",
        r".*error_code",
        "CORRUPT_MESSAGE",
        "INVALID_RECORD",
        "bytes follow the batch",
        when={"how": ("a byte less",)},
    ),
    *(
        Rule("produce_damaged", r".*", ANY, ANY, reason, ends=True, when={"how": (how,)})
        for how, reason in _DAMAGED.items()
    ),
    Rule("produce_damaged|fetch_parts", r".*error_code", "UNKNOWN_SERVER_ERROR", ANY, _FAILS),
    Rule(
        "produce_parts",
        r".*",
        ANY,
        ANY,
        "each batch is appended; Kafka appends only the last one of a partition",
        ends=True,
        when={"twice": (True,)},
    ),
    Rule(
        "fetch_parts",
        r".*",
        ANY,
        ANY,
        "each is answered; Kafka answers the last one of a partition",
        when={"twice": (True,)},
    ),
    Rule(
        "produce",
        r".*error_code",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "of two errors the time comes first",
        when={"topic": ("compacted",), "keyed": (False,)},
    ),
    Rule(
        "look_up_parts",
        r".*",
        ANY,
        ANY,
        "each offset counts; Kafka takes the last one of a partition",
        ends=True,
        when={"twice": (True,), "what": ("delete_records",)},
    ),
    Rule("produce", r".*log_append_time_ms", ANY, -1, OWN_APPEND_TIME),
    Rule(
        "produce",
        r".*error_code",
        ANY,
        "INVALID_REQUIRED_ACKS",
        "of two errors that of the whole request comes first",
        when={"acks": (2,)},
    ),
    Rule(
        "list_offsets",
        r".*error_code",
        "UNSUPPORTED_VERSION",
        ANY,
        "of two errors that of the partition comes first",
        when={"at": (-3, -4, -5, -6)},
    ),
    Rule(
        "list_offsets|look_up_parts",
        r" of a shortened log.*\.(timestamp|offset|leader_epoch)",
        -1,
        ANY,
        "Kafka finds none if a deleted record would have been the first of that time",
    ),
    Rule(
        "list_offsets",
        r" of a shortened log.*\.(timestamp|offset|leader_epoch)",
        ANY,
        ANY,
        "Kafka names a record that is deleted",
        when={"at": (-3,)},
    ),
    Rule(
        "produce_damaged",
        r".*error_code",
        "CORRUPT_MESSAGE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "of two errors the topic comes first",
    ),
    Rule(
        "list_offsets",
        r".*\.(timestamp|offset|leader_epoch)",
        ANY,
        -1,
        "Kafka names a record without a time",
        when={"at": (-3,)},
    ),
)

_OF_BROKERS: Final = MappingProxyType({"of": ("broker", "brokers")})
_OF_METRICS: Final = MappingProxyType({"of": ("metrics",)})
_UNKNOWN: Final = ("", "nope")
_BOUNDED: Final = (
    *("log.cleaner.io.buffer.load.factor", "log.cleaner.min.cleanable.ratio", "log.cleaner.min.compaction.lag.ms"),
    *("max.connections.per.ip.overrides", "remote.list.offsets.request.timeout.ms"),
)
_FREER: Final = (
    *("cordoned.log.dirs", "log.local.retention.bytes", "log.local.retention.ms"),
    "max.connections.per.ip",
    *(f"remote.log.manager.{pool}.thread.pool.size" for pool in ("copier", "expiration", "follower")),
    *("remote.log.reader.threads", "num.io.threads"),
)
SETTINGS: Final[tuple[Rule, ...]] = (
    Rule(
        "change|replace",
        r".*error_code",
        "NONE",
        "INVALID_CONFIG",
        "a dead letter queue whose name no topic can have would be noticed with the first dead letter",
        when={"name": ("errors.deadletterqueue.topic.name",)},
    ),
    Rule(
        "level", r".*configs\[0\]\.value", "ERROR", "INFO", "without a level of its own a logger has that of the file"
    ),
    Rule(
        "change|replace|apply|exchange|level",
        r".*error_code",
        "INVALID_REQUEST",
        "INVALID_CONFIG",
        "the code says that a value is wrong, as it does for topics and groups",
        when={"of": ("broker", "brokers", "metrics", "logger")},
    ),
    Rule(
        "change|replace",
        r".*error_code",
        "INVALID_REQUEST",
        "INVALID_CONFIG",
        "of two errors the first change's comes first",
        when={"of": ("topic", "group")},
    ),
    Rule(
        "change|replace|apply|exchange",
        r".*error_code",
        "NONE",
        "INVALID_CONFIG",
        "the value is no number, or beyond what the broker can keep",
        when={**_OF_BROKERS, "name": _BOUNDED},
    ),
    Rule(
        "change|replace|apply|exchange",
        r".*error_code",
        "NONE",
        "INVALID_CONFIG",
        "no broker has a setting of this name; Kafka keeps it for plugins",
        when={**_OF_BROKERS, "name": _UNKNOWN},
    ),
    Rule(
        "change|replace|apply|exchange",
        r".*error_code",
        "NONE",
        "INVALID_CONFIG",
        "the ratio is no number",
        ends=True,
        when={"of": ("topic",), "name": ("min.cleanable.dirty.ratio",)},
    ),
    Rule(
        "change|replace|apply|exchange",
        r".*error_code",
        "INVALID_CONFIG",
        "NONE",
        "segments may be smaller than Kafka's least size of 1 MiB",
        ends=True,
        when={"of": ("topic",), "name": ("segment.bytes",)},
    ),
    Rule(
        "describe",
        r".*value",
        ANY,
        ANY,
        "a list is shown as it was set; Kafka leaves out repeated elements",
        when=_OF_METRICS,
    ),
    Rule(
        "change|replace|apply|exchange",
        r".*error_code",
        "INVALID_REQUEST",
        "NONE",
        "pools grow at once, limits may be 0, and retention of local segments may be longer than that of all",
        when={**_OF_BROKERS, "name": _FREER},
    ),
    Rule(
        "change|apply",
        r".*error_code",
        "INVALID_CONFIG",
        "NONE",
        "`min.insync.replicas` of one broker may be deleted, although it cannot be set",
        ends=True,
        when={**_OF_BROKERS, "name": ("min.insync.replicas",), "operation": (DELETE,)},
    ),
    Rule(
        "change",
        r".*",
        ANY,
        ANY,
        "metrics and patterns are lists, as their documentation says; Kafka refuses to append to them",
        ends=True,
        when={**_OF_METRICS, "operation": (APPEND, SUBTRACT)},
    ),
)

ADMINISTRATION: Final[tuple[Rule, ...]] = (
    Rule(
        "scram",
        r".*error_code",
        "DUPLICATE_RESOURCE",
        ANY,
        "the mechanisms of a user are apart, as in the guide of Kafka",
        ends=True,
    ),
    Rule(
        "quota",
        r".*",
        ANY,
        ANY,
        "an entity that is named twice is refused; Kafka takes the last one without a word",
        ends=True,
        when={"twice": (True,)},
    ),
    Rule("elect", r".*", ANY, ANY, "each partition is answered once", when={"twice": (True,)}),
    Rule(
        "page",
        r".*",
        ANY,
        ANY,
        "a topic without partitions takes no place on a page",
        when={"unknown": (True,)},
    ),
)


def rule_of(
    rules: Sequence[Rule], kind: str, drawn: Mapping[str, Any], path: str, kafka: object, moldau: object
) -> Rule | None:
    """Returns the rule that allows a difference."""
    for rule in rules:
        matched = re.fullmatch(rule.kind, kind) and re.fullmatch(rule.path, path)
        if any(drawn.get(key) not in values for key, values in rule.when.items()):
            continue
        if matched and rule.kafka in (ANY, kafka) and rule.moldau in (ANY, moldau):
            return rule
    return None
