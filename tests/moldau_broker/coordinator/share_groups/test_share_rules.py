"""Goal: share groups while a write, or a question to a share coordinator, is pending.

Method: the pure core, with writes that the test holds back or refuses.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from moldau.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from moldau.protocol.messages.leave_group import LeaveGroupResponse
from moldau.protocol.refusals import refusal
from moldau.values import ZERO_UUID
from moldau_broker.coordinator.group.share.core.groups import ASK_AGAIN_MS
from moldau_broker.coordinator.group.share.core.state import ShareCurrent, ShareGroup, ShareMember, ShareSubscription
from moldau_broker.coordinator.share.core.requests import asks_of
from support.coordinator.group_world import CoreDriver, code_of, commit_request, leave_request
from support.coordinator.share_group_world import GROUP, ShareClient, alter, beat, delete_offsets, error_of
from support.proof import proof_beyond

SESSION_MS = 45_000


def members_of(driver: CoreDriver) -> set[str]:
    return set(driver.core.shares.committed[GROUP].members)


def test_a_session_that_ends_during_the_join_counts() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.pass_time(SESSION_MS + 1_000)
    driver.auto_commit = True
    driver.commit()
    assert not members_of(driver)


def test_a_session_that_ends_during_a_failed_leave_counts() -> None:
    """The session ends while the write is pending that the log refuses in the end."""
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)
    client.beat()
    driver.pass_time(SESSION_MS - 1_000)
    assert members_of(driver) == {"m"}
    driver.auto_commit = False
    driver.send(beat("m", -1), 1)
    driver.pass_time(2_000)
    driver.auto_commit = True
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.commit()
    assert not members_of(driver)


def test_a_member_that_is_heard_during_a_write_stays() -> None:
    """Its session ended while another member's join was being written, and it spoke before the write was committed."""
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)
    client.beat()
    driver.pass_time(SESSION_MS - 1_000)
    driver.auto_commit = False
    driver.send(beat("n", 0, ("t",)), 1)
    driver.pass_time(2_000)
    sent = driver.send(beat("m", client.epoch), 1)
    driver.auto_commit = True
    driver.commit()
    assert members_of(driver) == {"m", "n"}
    assert error_of(driver.answers[sent]) is ErrorCode.NONE


def test_requests_are_refused_while_a_write_is_overdue() -> None:
    """They would wait for a log that may not answer for long; the client tries again."""
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.pass_time(5_000)
    refused = driver.send(beat("n", 0, ("t",)), 1)
    assert error_of(driver.answers[refused]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit()
    taken = driver.send(beat("n", 0, ("t",)), 1)
    driver.commit()
    assert error_of(driver.answers[taken]) is ErrorCode.NONE


def test_a_share_coordinator_is_asked_once_at_a_time() -> None:
    driver = CoreDriver(auto_commit=False)
    for member in ("m", "n"):
        driver.send(beat(member, 0, ("t",)), 1)
        driver.commit()
    assert len(driver.questions) == 1
    driver.answer_questions()
    driver.commit()
    assert not driver.questions


def test_one_refused_partition_is_asked_for_after_a_pause() -> None:
    """The others have begun; heartbeats come much faster than a share coordinator recovers."""
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    driver.answer_questions(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused={3})
    driver.commit()
    epoch = driver.core.shares.committed[GROUP].members["m"].epoch
    driver.send(beat("m", epoch), 1)
    driver.commit()
    assert not driver.questions
    driver.pass_time(ASK_AGAIN_MS)
    driver.send(beat("m", epoch), 1)
    driver.commit()
    assert len(driver.questions) == 1


def test_a_beginning_that_is_not_noted_keeps_its_offset() -> None:
    """The log refuses the note that the last of a topic's first partitions has begun, so it begins again.

    As a partition that was added later it would begin with its first record, and its whole past would be delivered.
    """
    driver = CoreDriver(auto_commit=False)
    driver.topics.counts["t"] = 2
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    driver.answer_questions(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused={1})
    driver.commit()
    for _ in range(2):
        driver.pass_time(ASK_AGAIN_MS)
        driver.send(beat("m", driver.core.shares.committed[GROUP].members["m"].epoch), 1)
        driver.commit()
        assert [offset for _, offset in begun_by(driver).values()] == [-1]
        driver.answer_questions()
        driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)


def test_an_answer_behind_a_write_leaves_no_request_open() -> None:
    """The leadership ends before the write of a member is committed; a request without an answer ended the broker."""
    driver = CoreDriver(auto_commit=False)
    driver.send(alter(("t", 3, 5)), 0)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    for request, version in (
        (alter(("t", 3, 7)), 0),
        (delete_offsets("t"), 0),
        (DeleteGroupsRequest(groups_names=[GROUP]), 2),
    ):
        sent = driver.send(request, version)
        driver.commit()
        driver.send(beat("m", 0, ("t",)), 1)
        driver.answer_questions()
        assert sent not in driver.answers, "it waits for the write in flight"
        driver.fail_over()
        assert driver.answers[sent] == refusal(request, ErrorCode.NOT_COORDINATOR, version=version)


def test_a_topic_that_goes_as_its_states_are_noted_is_forgotten() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.delete_topic("t")
    for _ in range(2):
        driver.commit()
        driver.answer_questions(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert driver.core.shares.committed[GROUP].states.is_empty


def test_a_note_of_a_gone_topic_is_written_again() -> None:
    """The log refuses it twice; without it the group would keep the topic until another one is deleted."""
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)
    client.beat()
    driver.auto_commit = False
    driver.delete_topic("t", made_again=True)
    for _ in range(2):
        driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert not driver.core.shares.committed[GROUP].states.is_empty
        driver.pass_time(1_000)
    driver.commit()
    assert driver.core.shares.committed[GROUP].states.is_empty


def test_the_topics_of_a_member_that_is_gone_do_not_count() -> None:
    """A change of any topic makes the coordinator look at those of the group: there is nothing new for it."""
    driver = CoreDriver()
    stays, goes = ShareClient(driver, "m"), ShareClient(driver, "n", ("u",))
    for client in (stays, goes, stays):
        client.beat()
    driver.send(beat("n", -1), 1)
    stays.beat()
    epoch = stays.epoch
    driver.make_topic("another")
    driver.topics.counts["u"] = 9
    stays.beat()
    assert stays.epoch == driver.core.shares.committed[GROUP].epoch == epoch


def begun_group() -> CoreDriver:
    """Returns a group without members whose state in ``t`` has begun."""
    driver = CoreDriver(auto_commit=False)
    driver.send(alter(("t", 3, 5)), 0)
    driver.commit()
    driver.answer_questions()
    driver.commit()
    return driver


def test_states_begin_after_the_end_of_their_deletion() -> None:
    """Share coordinators may get two questions in any order, and a deletion that comes last would leave no state."""
    driver = begun_group()
    deleted = driver.send(delete_offsets("t"), 0)
    driver.commit()
    driver.send(beat("m", 0, ("t",)), 1)
    altered = driver.send(alter(("t", 3, 7)), 0)
    driver.commit()
    assert [type(each.request) for each in driver.questions] == [DeleteShareGroupStateRequest]
    assert error_of(driver.answers[altered]) is ErrorCode.NON_EMPTY_GROUP
    driver.answer_questions()
    driver.commit()
    assert driver.answers[deleted].responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
    assert driver.core.shares.committed[GROUP].states.is_empty
    driver.auto_commit = True
    client = ShareClient(driver, "m")
    for _ in range(3):
        assert client.beat() is ErrorCode.NONE
    assert len(client.assigned) == driver.topics.partition_count("t")


def test_offsets_are_not_set_while_they_are_deleted() -> None:
    driver = begun_group()
    driver.send(delete_offsets("t"), 0)
    driver.commit()
    altered = driver.send(alter(("t", 3, 7)), 0)
    driver.commit()
    assert error_of(driver.answers[altered]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(driver.questions) == 1


def test_states_are_deleted_after_they_have_begun() -> None:
    """A beginning that comes last would leave a state whose epoch fences the next group with the same id."""
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    driver.send(beat("m", -1), 1)
    driver.commit()
    delete = DeleteGroupsRequest(groups_names=[GROUP])
    refused = driver.send(delete, 2)
    driver.commit()
    assert [type(each.request) for each in driver.questions] == [InitializeShareGroupStateRequest]
    (result,) = driver.answers[refused].results  # type: ignore[attr-defined]
    assert result.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.answer_questions()
    driver.commit()
    driver.auto_commit = True
    (result,) = driver.ask(delete, 2).results  # type: ignore[attr-defined]
    assert result.error_code == ErrorCode.NONE


@pytest.mark.parametrize("refused", [each for count in range(4) for each in combinations(range(3), count)], ids=str)
@pytest.mark.parametrize("whole", [False, True], ids=["offsets", "group"])
def test_a_deletion_holds_for_every_partition(whole: bool, refused: tuple[int, ...]) -> None:
    """A state that stays in one partition would fence the next group with this id, or give it an old offset."""
    driver = CoreDriver(auto_commit=False)
    driver.send(alter(*(("t", number, 5) for number in range(3))), 0)
    driver.commit()
    driver.answer_questions()
    driver.commit()

    def delete(*still_refused: int) -> ErrorCode:
        request = DeleteGroupsRequest(groups_names=[GROUP]) if whole else delete_offsets("t")
        sent = driver.send(request, 2 if whole else 0)
        driver.commit()
        asked = {key.partition for each in driver.questions for key in asks_of(each.request)}
        assert asked.issuperset(refused or range(3))
        driver.answer_questions(ErrorCode.NOT_COORDINATOR, refused=still_refused)
        driver.commit()
        answer = driver.answers[sent]
        (part,) = answer.results if whole else answer.responses  # type: ignore[attr-defined]
        return ErrorCode(part.error_code)

    if refused:
        assert delete(*refused) is ErrorCode.NOT_COORDINATOR
        assert driver.core.shares.committed[GROUP].states.deleting
    assert delete() is ErrorCode.NONE
    left = driver.core.shares.get(GROUP)
    assert left is None if whole else left is not None and left.states.is_empty


OUTCOMES = [((), True), *product([(0,), (1,), (0, 1)], [True, False])]
"""Which partitions the share coordinator refuses, and whether it does what it refuses all the same."""
CHANGES = [(kind, *outcome) for kind in ((0,), (1,), (0, 1), "delete") for outcome in OUTCOMES]
"""Offsets are set in some partitions, or deleted."""


@pytest.mark.parametrize(
    ("begins", "fails_over"), proof_beyond(1, [(True, True), (False, True), (True, False), (False, False)])
)
def test_a_deleted_group_leaves_no_state(begins: bool, fails_over: bool) -> None:
    """All short histories of changes whose outcome may be unknown. A state that stays would fence the next group."""
    for history in product(CHANGES, repeat=2):
        driver, states = CoreDriver(auto_commit=False), set[int]()
        driver.topics.counts["t"] = 2

        def answer(refused: tuple[int, ...], *, is_done: bool, driver: CoreDriver, states: set[int]) -> None:
            driver.commit()
            for question in driver.questions:
                for key in asks_of(question.request):
                    if key.partition in refused and not is_done:
                        continue
                    if isinstance(question.request, DeleteShareGroupStateRequest):
                        states.discard(key.partition)
                    else:
                        states.add(key.partition)
            driver.answer_questions(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused=refused)
            driver.commit()

        steps = [((0, 1), (), True), *history] if begins else history
        for kind, refused, is_done in steps:
            if isinstance(kind, str):
                driver.send(delete_offsets("t"), 0)
            else:
                driver.send(alter(*(("t", number, 5) for number in kind)), 0)
            answer(refused, is_done=is_done, driver=driver, states=states)
            if fails_over:
                driver.fail_over()
        sent = driver.send(DeleteGroupsRequest(groups_names=[GROUP]), 2)
        answer((), is_done=True, driver=driver, states=states)
        (result,) = driver.answers[sent].results  # type: ignore[attr-defined]
        assert result.error_code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
        assert not states, f"after {steps}"


def begun_by(driver: CoreDriver) -> dict[int, tuple[int, int]]:
    """Returns state epoch and start offset of each partition that share coordinators are asked to begin."""
    found: dict[int, tuple[int, int]] = {}
    for each in driver.questions:
        assert isinstance(each.request, InitializeShareGroupStateRequest)
        for topic in each.request.topics:
            found.update({part.partition: (part.state_epoch, part.start_offset) for part in topic.partitions})
    return found


def test_a_join_does_not_undo_altered_offsets() -> None:
    """The member's question has a higher epoch: it would begin the state again, without the offset that was set."""
    driver = CoreDriver(auto_commit=False)
    altered = driver.send(alter(("t", 3, 5)), 0)
    driver.commit()
    joined = driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    assert begun_by(driver) == {3: (1, 5)}
    driver.answer_questions()
    driver.commit()
    (topic,) = driver.answers[altered].responses  # type: ignore[attr-defined]
    assert topic.partitions[0].error_code == ErrorCode.NONE
    driver.send(beat("m", driver.answers[joined].member_epoch), 1)  # type: ignore[attr-defined]
    driver.commit()
    others = set(range(driver.topics.partition_count("t"))) - {3}
    assert set(begun_by(driver)) == others, "they have waited"


def test_offsets_are_not_set_while_states_begin() -> None:
    """The earlier question may be fenced by the later one; its refusal would let the group forget the altered state."""
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.commit()
    driver.send(beat("m", -1), 1)
    driver.commit()
    assert len(driver.questions) == 1
    for _ in range(2):
        refused = driver.send(alter(("t", 3, 7)), 0)
        driver.commit()
        assert error_of(driver.answers[refused]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.answer_questions()
    driver.commit()
    first = driver.send(alter(("t", 3, 7)), 0)
    driver.commit()
    second = driver.send(alter(("t", 3, 9)), 0)
    driver.commit()
    assert error_of(driver.answers[second]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.answer_questions()
    driver.commit()
    (topic,) = driver.answers[first].responses  # type: ignore[attr-defined]
    assert topic.partitions[0].error_code == ErrorCode.NONE


def compacted(driver: CoreDriver) -> CoreDriver:
    """Returns a coordinator that loads the last record of each key only."""
    last = {key: value for append in driver.log for key, value in append.records}
    again = CoreDriver(driver.config)
    for key, value in last.items():
        if value is not None:
            again.core.replay(key, value, None)
    return again


@pytest.mark.parametrize("leaves", [True, False])
def test_a_compacted_log_has_nothing_of_removed_members(leaves: bool) -> None:
    """Records that stay would make the member come back with the next coordinator."""
    driver = CoreDriver()
    client, other = ShareClient(driver, "m"), ShareClient(driver, "n")
    for each in (client, other, client, other):
        each.beat()
    assert members_of(compacted(driver)) == {"m", "n"}
    if leaves:
        client.beat(-1)
    for _ in range(2):
        driver.pass_time(SESSION_MS - 1_000)
        other.beat()
    assert members_of(driver) == members_of(compacted(driver)) == {"n"}
    assert driver.core.shares.committed[GROUP] == compacted(driver).core.shares.committed[GROUP]


def test_records_of_a_member_count_in_any_order() -> None:
    """Compaction keeps the last record of each key, so a member's epoch may lie before its subscription."""
    member = ShareMember(member_id="m", epoch=7, previous_epoch=6, topics=("t",))
    current = ShareCurrent(group_id=GROUP, member_id="m", member=member)
    subscription = ShareSubscription(group_id=GROUP, member_id="m", member=member)
    found = []
    for changes in ((current, subscription), (subscription, current)):
        group = ShareGroup(group_id=GROUP)
        for change in changes:
            group.apply(change)
        found.append(group.members["m"])
    assert found == [member, member]
    group = ShareGroup(group_id=GROUP)
    group.apply(ShareCurrent(group_id=GROUP, member_id="m", member=None))
    assert not group.members, "the end of a member that is not there makes none"


def test_the_answer_for_an_unknown_topic_has_no_id() -> None:
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat()
    client.beat(-1)
    (topic,) = driver.ask(alter(("none", 0, 5)), 0).responses  # type: ignore[attr-defined]
    assert (topic.topic_name, topic.topic_id) == ("none", ZERO_UUID)
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_administrators_must_name_a_group() -> None:
    """Old tools commit offsets of the group without a name, which a share group of that id would refuse."""
    driver = CoreDriver()
    for request in (alter(("t", 0, 5), group=""), delete_offsets("t", group="")):
        assert error_of(driver.ask(request, 0)) is ErrorCode.INVALID_GROUP_ID
    assert not driver.core.shares.has("")
    assert code_of(driver.ask(commit_request(1, "", -1, group=""), 9)) is ErrorCode.NONE


def test_each_member_that_leaves_a_share_group_is_unknown() -> None:
    """LeaveGroup of an administrator: a code for the whole request would hide the member that it is about."""
    driver = CoreDriver()
    ShareClient(driver, "m").beat(0)
    answer = driver.ask(leave_request(("m", None), ("", "i")), 5)
    assert isinstance(answer, LeaveGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    assert [(each.member_id, each.error_code) for each in answer.members] == [
        ("m", ErrorCode.UNKNOWN_MEMBER_ID),
        ("", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert members_of(driver) == {"m"}
