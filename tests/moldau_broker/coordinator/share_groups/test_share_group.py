"""Goal: share groups behave as KIP-932 and Kafka 4.2 describe: members, epochs, assignments, state of partitions.

Method: the pure group core with a driver that commits, refuses or loses writes and answers for share coordinators.
"""

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.share.core.requests import Initialize, asks_of
from moldau_broker.coordinator.share.core.state import GROUP_ID_BYTES_MAX, MEMBER_ID_CHARACTERS_MAX
from support.coordinator.group_world import (
    CoreDriver,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from support.coordinator.share_group_world import GROUP, ShareClient, alter, beat, delete_offsets, error_of

ALL = frozenset(range(10))


def group_of(driver: CoreDriver):
    return driver.core.shares.committed[GROUP]


def numbers(client: ShareClient) -> frozenset[int]:
    return frozenset(number for _, number in client.assigned)


def test_a_member_gets_partitions_once_their_state_has_begun() -> None:
    driver = CoreDriver(auto_commit=False)
    client = ShareClient(driver, "m")
    joined = driver.send(beat("m", 0, ("t",)), 1)
    assert not driver.answers
    driver.commit()
    assert client.take(driver.answers[joined]) is ErrorCode.NONE
    assert (client.epoch, client.assigned) == (1, frozenset())
    (question,) = driver.questions
    asks = asks_of(question.request)
    assert set(asks.values()) == {Initialize(state_epoch=1, start_offset=-1)}
    assert {key.partition for key in asks} == ALL
    driver.answer_questions()
    driver.commit()
    after = driver.send(beat("m", 1), 1)
    driver.commit()
    assert client.take(driver.answers[after]) is ErrorCode.NONE
    assert (client.epoch, numbers(client)) == (2, ALL)
    states = group_of(driver).states
    assert not states.initializing
    assert [topic.partitions for topic in states.initialized.values()] == [ALL]


def test_members_share_what_there_is() -> None:
    driver = CoreDriver()
    driver.topics.counts["t"] = 2
    clients = [ShareClient(driver, f"m{index}") for index in range(4)]
    for client in clients:
        assert client.beat(0) is ErrorCode.NONE
    for client in clients:
        client.beat()
    assert sorted(sorted(numbers(client)) for client in clients) == [[0], [0], [1], [1]]
    assert len({client.epoch for client in clients}) == 1


def test_heartbeats_without_news_change_nothing() -> None:
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)
    client.beat()
    size = len(driver.log)
    answer = driver.ask(beat("m", client.epoch), 1)
    assert answer.assignment is None
    assert answer.heartbeat_interval_ms == 5_000
    assert len(driver.log) == size
    assert driver.ask(beat("m", client.epoch, ("t",)), 1).assignment is not None, "a full request gets a full answer"


def test_new_partitions_are_begun_and_assigned() -> None:
    driver = CoreDriver()
    driver.topics.counts["t"] = 1
    client = ShareClient(driver, "m")
    client.beat(0)
    driver.topics.counts["t"] = 3
    client.beat()
    client.beat()
    assert numbers(client) == {0, 1, 2}


def asked_offsets(driver: CoreDriver) -> dict[int, int]:
    """Returns the start offsets of the states that share coordinators have been asked to begin, by partition."""
    return {
        key.partition: ask.start_offset
        for question in driver.questions
        for key, ask in asks_of(question.request).items()
        if isinstance(ask, Initialize)
    }


def test_new_partitions_begin_with_their_first_record() -> None:
    """Producers may have found them before the group did; with ``latest`` it would never read those records."""
    driver = CoreDriver(auto_commit=False)
    driver.topics.counts["t"] = 2
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    assert asked_offsets(driver) == {0: -1, 1: -1}, "the leader chooses, by the configuration of the group"
    driver.answer_questions()
    driver.commit()
    driver.topics.counts["t"] = 4
    driver.send(beat("m", 1), 1)
    driver.commit()
    assert asked_offsets(driver) == {2: 0, 3: 0}
    driver.fail_over()
    driver.send(beat("m", 1), 1)
    driver.commit()
    assert asked_offsets(driver) == {2: 0, 3: 0}, "asked by the next coordinator again"


def test_a_repeated_question_keeps_its_offsets() -> None:
    """One of the first partitions of a topic is refused: it begins where the group's configuration says, later too."""
    driver = CoreDriver(auto_commit=False)
    driver.topics.counts["t"] = 2
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    driver.answer_questions(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused={1})
    driver.commit()
    assert [topic.partitions for topic in group_of(driver).states.initialized.values()] == [{0}]
    driver.pass_time(5_000)
    driver.send(beat("m", 1), 1)
    driver.commit()
    assert asked_offsets(driver) == {1: -1}


def test_a_changed_subscription_changes_the_assignment() -> None:
    driver = CoreDriver()
    client = ShareClient(driver, "m", ("t", "u"))
    client.beat(0)
    client.beat()
    assert len(client.assigned) == 20
    client.take(driver.ask(beat("m", client.epoch, ("u",)), 1))
    assert {topic for topic, _ in client.assigned} == {driver.topics.ids["u"]}


def test_the_former_epoch_is_accepted_and_others_are_fenced() -> None:
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)
    before = client.epoch
    client.beat()
    assert client.epoch == before + 1
    assert client.beat(before) is ErrorCode.NONE
    assert client.beat(client.epoch + 1) is ErrorCode.FENCED_MEMBER_EPOCH
    ShareClient(driver, "n").beat(0)
    client.beat()
    assert client.beat(before) is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (beat("", 0, ("t",)), ErrorCode.INVALID_REQUEST),
        (beat("m", 0, ("t",), group=""), ErrorCode.INVALID_REQUEST),
        (beat("m", 0, ("t",), group="g" * (GROUP_ID_BYTES_MAX + 1)), ErrorCode.INVALID_REQUEST),
        (beat("m", 0, ("t",), rack=""), ErrorCode.INVALID_REQUEST),
        (beat(" ", 0, ("t",)), ErrorCode.INVALID_REQUEST),
        (beat("m", 0, ("t",), group="\t "), ErrorCode.INVALID_REQUEST),
        (beat("m", 0, ("t",), rack=" "), ErrorCode.INVALID_REQUEST),
        (beat("m" * (MEMBER_ID_CHARACTERS_MAX + 1), 0, ("t",)), ErrorCode.INVALID_REQUEST),
        (beat("m", 0), ErrorCode.INVALID_REQUEST),
        (beat("m", 0, ()), ErrorCode.INVALID_REQUEST),
        (beat("m", -2, ("t",)), ErrorCode.INVALID_REQUEST),
        (beat("m", 1), ErrorCode.GROUP_ID_NOT_FOUND),
        (beat("m", -1), ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_malformed_heartbeats_change_nothing(request_, code: ErrorCode) -> None:
    driver = CoreDriver()
    assert error_of(driver.ask(request_, 1)) is code
    assert not driver.log
    assert not driver.core.shares.has(GROUP)


def test_unknown_members_and_full_groups_are_refused() -> None:
    driver = CoreDriver(GroupConfig(share_size_max=1))
    ShareClient(driver, "m").beat(0)
    assert ShareClient(driver, "n").beat(3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert ShareClient(driver, "n").beat(-1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert ShareClient(driver, "n").beat(0) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert ShareClient(driver, "m").beat(0) is ErrorCode.NONE


def test_refused_heartbeats_do_not_prolong_a_session() -> None:
    driver = CoreDriver(GroupConfig(metadata_bytes_max=4_500))
    client = ShareClient(driver, "m")
    client.beat(0)
    wide = beat("m", client.epoch, tuple(f"topic-{number}" for number in range(100)))
    for _ in range(9):
        assert error_of(driver.ask(wide, 1)) is ErrorCode.GROUP_MAX_SIZE_REACHED
        driver.pass_time(5_000)
    assert not group_of(driver).members


def test_a_member_leaves_and_the_others_take_over() -> None:
    driver = CoreDriver()
    first, second = ShareClient(driver, "m"), ShareClient(driver, "n")
    for client in (first, second, first):
        client.beat(0 if client.epoch == 0 else None)
    second.beat()
    assert second.beat(-1) is ErrorCode.NONE
    first.beat()
    assert numbers(first) == ALL
    assert group_of(driver).targets.keys() == {"m"}


def test_a_silent_member_is_removed_after_its_session() -> None:
    driver = CoreDriver()
    driver.topics.settings[GROUP, "share.session.timeout.ms"] = 50_000
    first, second = ShareClient(driver, "m"), ShareClient(driver, "n")
    first.beat(0)
    second.beat(0)
    for _ in range(6):
        driver.pass_time(8_000)
        first.beat()
    assert set(group_of(driver).members) == {"m", "n"}
    driver.pass_time(8_000)
    assert set(group_of(driver).members) == {"m"}
    assert second.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_own_settings_of_a_group_are_used() -> None:
    driver = CoreDriver()
    driver.topics.settings[GROUP, "share.heartbeat.interval.ms"] = 7_000
    assert driver.ask(beat("m", 0, ("t",)), 1).heartbeat_interval_ms == 7_000


def test_a_refused_beginning_is_asked_again() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    driver.answer_questions(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    driver.commit()
    assert not group_of(driver).states.initialized
    driver.send(beat("m", 1), 1)
    driver.commit()
    assert not driver.questions, "not at once"
    driver.pass_time(5_000)
    driver.send(beat("m", 1), 1)
    driver.commit()
    assert len(driver.questions) == 1


def test_a_new_coordinator_asks_again() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    driver.fail_over()
    assert not driver.questions
    driver.send(beat("m", 1), 1)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    assert [topic.partitions for topic in group_of(driver).states.initialized.values()] == [ALL]


def test_a_failed_write_is_answered_and_leaves_no_trace() -> None:
    driver = CoreDriver(auto_commit=False)
    sent = driver.send(beat("m", 0, ("t",)), 1)
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert error_of(driver.answers[sent]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not driver.core.shares.has(GROUP)
    assert not driver.questions


def test_a_write_that_takes_too_long_is_answered() -> None:
    driver = CoreDriver(auto_commit=False)
    slow = driver.send(beat("m", 0, ("t",)), 1)
    parked = driver.send(beat("n", 0, ("t",)), 1)
    driver.pass_time(5_000)
    assert {error_of(driver.answers[each]) for each in (slow, parked)} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    driver.commit()
    assert set(group_of(driver).members) == {"m"}
    driver.send(beat("m", 1), 1)
    driver.commit()
    assert len(driver.questions) == 1


def test_topics_that_are_deleted_leave_the_group() -> None:
    driver = CoreDriver()
    client = ShareClient(driver, "m", ("t", "u"))
    client.beat(0)
    client.beat()
    driver.delete_topic("t")
    assert set(group_of(driver).states.initialized) == {driver.topics.ids["u"]}
    client.beat()
    assert {topic for topic, _ in client.assigned} == {driver.topics.ids["u"]}
    driver.delete_topic("u", observed=False)
    driver.fail_over()
    assert group_of(driver).states.is_empty


# Types of groups


def test_other_protocols_find_no_group_of_theirs() -> None:
    driver = CoreDriver()
    ShareClient(driver, "m").beat(0)
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="c",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert error_of(driver.ask(consumer, 1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert error_of(driver.ask(join_request(group=GROUP), 9)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    for request, version in (
        (sync_request("m", 1, group=GROUP), 5),
        (heartbeat_request("m", 1, group=GROUP), 4),
    ):
        assert error_of(driver.ask(request, version)) is ErrorCode.UNKNOWN_MEMBER_ID
    (left,) = driver.ask(leave_request(("m", None), group=GROUP), 3).members
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    commit = driver.ask(commit_request(5, "", -1, group=GROUP), 9)
    assert commit.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    fetched = driver.core.fetch(OffsetFetchRequestGroup(group_id=GROUP, topics=None), False)
    assert fetched.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    described = driver.ask(DescribeGroupsRequest(groups=[GROUP]), 6).groups[0]
    assert (described.error_code, described.error_message) == (69, "Group g is not a classic group.")
    described = driver.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP, "absent"]), 1).groups
    assert [(group.error_code, group.error_message) for group in described] == [
        (69, "Group g is not a consumer group."),
        (69, "Group absent not found."),
    ]


def test_ids_of_other_groups_are_not_taken() -> None:
    driver = CoreDriver()
    driver.ask(commit_request(5, "", -1, group=GROUP), 9)
    for request in (beat("m", 0, ("t",)), alter(("t", 0, 1)), delete_offsets("t")):
        answer = driver.ask(request, request.__versions__.last)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert answer.error_message == "Group g is not a share group."
    described = driver.ask(ShareGroupDescribeRequest(group_ids=[GROUP, "x"]), 1).groups
    assert [group.error_message for group in described] == ["Group g is not a share group.", "Group x not found."]


def test_an_offset_in_flight_takes_the_id() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(commit_request(5, "", -1, group=GROUP), 9)
    refused = driver.send(beat("m", 0, ("t",)), 1)
    assert error_of(driver.answers[refused]) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_share_group_in_flight_takes_the_id() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    refused = driver.send(join_request(group=GROUP), 9)
    assert error_of(driver.answers[refused]) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_lists_show_type_and_state() -> None:
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)

    def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
        found = driver.ask(ListGroupsRequest(**filters), 5).groups
        return [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in found]

    assert listed() == [(GROUP, "share", "Stable", "share")]
    assert listed(types_filter=["Share"]) == listed()
    assert listed(types_filter=["consumer"]) == []
    assert listed(states_filter=["empty"]) == []
    client.beat(-1)
    assert listed(states_filter=["empty"]) == [(GROUP, "share", "Empty", "share")]


def test_descriptions_show_members_and_assignments() -> None:
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)
    client.beat()
    (group,) = driver.ask(ShareGroupDescribeRequest(group_ids=[GROUP]), 1).groups
    assert (group.group_state, group.assignor_name, group.group_epoch, group.assignment_epoch) == (
        "Stable",
        "simple",
        2,
        2,
    )
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.subscribed_topic_names) == ("m", 2, ["t"])
    assert member.assignment.topic_partitions[0].topic_name == "t"


# Administration


def test_offsets_of_an_empty_group_are_altered() -> None:
    """The group need not exist; its epoch grows, so that leaders of the old state are fenced."""
    driver = CoreDriver(auto_commit=False)
    sent = driver.send(alter(("t", 0, 5), ("t", 99, 5), ("t", 1, -4), ("x", 0, 1)), 0)
    driver.commit()
    (question,) = driver.questions
    assert [(key.partition, ask) for key, ask in asks_of(question.request).items()] == [
        (0, Initialize(state_epoch=1, start_offset=5))
    ]
    driver.answer_questions()
    assert sent not in driver.answers
    driver.commit()
    codes = {
        (topic.topic_name, part.partition_index): part.error_code
        for topic in driver.answers[sent].responses
        for part in topic.partitions
    }
    assert codes == {
        ("t", 0): ErrorCode.NONE,
        ("t", 99): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 1): ErrorCode.INVALID_REQUEST,
        ("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    again = driver.send(alter(("t", 0, 6)), 0)
    driver.commit()
    assert set(asks_of(driver.questions[0].request).values()) == {Initialize(state_epoch=2, start_offset=6)}
    driver.answer_questions(ErrorCode.FENCED_STATE_EPOCH)
    driver.commit()
    assert driver.answers[again].responses[0].partitions[0].error_code == ErrorCode.FENCED_STATE_EPOCH


def test_offsets_of_groups_with_members_stay() -> None:
    driver = CoreDriver()
    ShareClient(driver, "m").beat(0)
    assert driver.ask(alter(("t", 0, 5)), 0).error_code == ErrorCode.NON_EMPTY_GROUP
    assert driver.ask(delete_offsets("t"), 0).error_code == ErrorCode.NON_EMPTY_GROUP
    deleted = driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP


def test_offsets_are_deleted_topic_by_topic() -> None:
    driver = CoreDriver()
    driver.ask(alter(("t", 0, 5), ("u", 0, 5)), 0)
    answer = driver.ask(delete_offsets("t", "x"), 0)
    assert [(topic.topic_name, topic.error_code) for topic in answer.responses] == [
        ("t", ErrorCode.NONE),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert set(group_of(driver).states.initialized) == {driver.topics.ids["u"]}
    again = driver.ask(delete_offsets("t"), 0).responses[0]
    assert (again.error_code, again.error_message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "There is no offset information to delete.",
    )
    assert driver.ask(delete_offsets("t", group="x"), 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_deleted_offsets_begin_by_the_configuration_again() -> None:
    """Partitions that were added later began with their first record; that is over with their states."""
    driver = CoreDriver()
    driver.topics.counts["t"] = 2
    client = ShareClient(driver, "m")
    client.beat(0)
    driver.topics.counts["t"] = 4
    client.beat()
    client.beat()
    assert numbers(client) == {0, 1, 2, 3}
    client.beat(-1)
    assert driver.ask(delete_offsets("t"), 0).responses[0].error_code == ErrorCode.NONE
    driver.auto_commit = False
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    assert asked_offsets(driver) == dict.fromkeys(range(4), -1)


def test_a_failed_deletion_of_offsets_can_be_repeated() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(alter(("t", 3, 5)), 0)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    failed = driver.send(delete_offsets("t"), 0)
    driver.commit()
    driver.answer_questions(ErrorCode.NOT_COORDINATOR)
    driver.commit()
    assert driver.answers[failed].responses[0].error_code == ErrorCode.NOT_COORDINATOR
    assert list(group_of(driver).states.deleting.values()) == ["t"]
    again = driver.send(delete_offsets("t"), 0)
    driver.commit()
    assert {key.partition for key in asks_of(driver.questions[0].request)} == ALL
    driver.answer_questions()
    driver.commit()
    assert driver.answers[again].responses[0].error_code == ErrorCode.NONE
    assert group_of(driver).states.is_empty


def test_a_group_is_deleted_after_its_states() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(alter(("t", 3, 5)), 0)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    failed = driver.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    driver.commit()
    driver.answer_questions(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    driver.commit()
    assert driver.answers[failed].results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_of(driver).exists
    deleted = driver.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    assert driver.answers[deleted].results[0].error_code == ErrorCode.NONE
    assert not driver.core.shares.has(GROUP)
    driver.fail_over()
    assert not driver.core.shares.has(GROUP)
    assert driver.core.consumers.committed == {}
    unknown = driver.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert driver.answers[unknown].results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_that_joins_saves_the_group() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(alter(("t", 3, 5)), 0)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    deleted = driver.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    driver.commit()
    driver.send(beat("m", 0, ("u",)), 1)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    assert driver.answers[deleted].results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert set(group_of(driver).members) == {"m"}


def test_open_requests_are_answered_when_leadership_ends() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(alter(("t", 3, 5)), 0)
    driver.commit()
    driver.send(alter(("t", 3, 5), group="h"), 0)
    driver.send(delete_offsets("t", group="h"), 0)
    driver.fail_over()
    assert {answer.error_code for answer in driver.answers.values()} == {ErrorCode.NOT_COORDINATOR}
    assert len(driver.answers) == 3


def test_members_are_counted_and_bounded() -> None:
    driver = CoreDriver(GroupConfig(metadata_bytes_max=4_500))
    memory = driver.core._memory
    before = memory.used_bytes
    assert ShareClient(driver, "m").beat(0) is ErrorCode.NONE
    assert ShareClient(driver, "n").beat(0) is ErrorCode.NONE
    assert ShareClient(driver, "o").beat(0) is ErrorCode.GROUP_MAX_SIZE_REACHED
    for member in ("m", "n"):
        ShareClient(driver, member).beat(-1)
    driver.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert memory.used_bytes == before
