"""Each planted bug of a mirror is found by a test. Method: a part is replaced, and the test must fail."""

import itertools

import pytest
import trio

from moldau.mirror import reading, sending
from moldau.mirror.core import batches
from moldau.mirror.core.offset_syncs import SyncStore
from moldau.mirror.core.policy import ReplicationPolicy
from moldau.mirror.core.progress import Progress
from moldau.mirror.core.settings import SourceSettings
from moldau.mirror.exactly_once import ExactlyOnce, behind
from moldau.mirror.positions import PositionStore
from moldau.mirror.syncs import SyncWriter
from moldau.runtime.tasks.exceptions import leaves

from . import test_core_progress, test_crashes, test_groups, test_loops, test_mirroring

pytestmark = pytest.mark.proof

SEEDS = range(1, 13)


def crashes(mode):
    for seed in SEEDS:
        test_crashes.check_story(mode, seed)


def stores_before_acknowledgement(patch):
    """Positions move when a batch is sent, instead of when the target has it."""
    sent = Progress.sent

    def sent_and_done(self, partition, *args, **fields):
        span = sent(self, partition, *args, **fields)
        if span is not None:
            self.acknowledged(span)
        return span

    patch.setattr(Progress, "sent", sent_and_done)
    test_mirroring.test_a_refused_record_is_not_forgotten_by_a_restart()


def stores_no_positions_in_transactions(patch):
    async def nothing(self, producer, positions):
        return []

    patch.setattr(PositionStore, "send", nothing)
    crashes("enabled")


def forgets_partitions_of_an_aborted_transaction(patch):
    """Only partitions of which something was sent are read again."""
    abort = ExactlyOnce._abort

    async def abort_sent_only(self, sent, read, error):
        await abort(self, sent, dict.fromkeys(behind(sent)), error)

    patch.setattr(ExactlyOnce, "_abort", abort_sent_only)
    test_mirroring.test_a_batch_that_is_too_large_is_divided("enabled")


def translates_one_too_far(patch):
    translate = SyncStore.translate

    def further(self, partition, upstream):
        found = translate(self, partition, upstream)
        return None if found is None else found + 1

    patch.setattr(SyncStore, "translate", further)
    test_groups.test_a_group_goes_on_where_it_was("disabled", "source")


def ignores_headers_of_provenance(patch):
    # A few rounds are enough; without an end, the simulation would be busy with them.
    patch.setattr(batches, "has_visited", lambda headers, cluster_id: len(headers) > 4)
    test_loops.test_headers_refuse_loops_of_equal_names("disabled")


def ignores_loops_in_names(patch):
    patch.setattr(ReplicationPolicy, "is_loop", lambda self, topic, alias: topic.count(".") > 1)
    test_loops.test_default_names_refuse_loops()


def ignores_topic_ids(patch):
    patch.setattr(reading.SourceReader, "_is_current", lambda self, part: True)
    test_mirroring.test_a_recreated_topic_is_mirrored_from_its_start("disabled")


def ignores_generations(patch):
    """Records that were read before a failure are sent, although those before them are read again."""
    sent = Progress.sent

    def sent_anyway(self, partition, generation, *args, **fields):
        return sent(self, partition, self.generation(partition), *args, **fields)

    patch.setattr(Progress, "sent", sent_anyway)
    test_core_progress.TestProgress().runTest()


def fences_nothing(patch):
    numbers = itertools.count()
    patch.setattr(SourceSettings, "transactional_id", property(lambda self: f"mirror-{next(numbers)}"))
    test_crashes.test_a_second_mirror_fences_the_first()


def writes_syncs_of_what_was_sent(patch):
    """An offset sync names an offset one behind the copy."""
    copied = SyncWriter.copied
    patch.setattr(SyncWriter, "copied", lambda self, span, base: copied(self, span, base + 1))
    test_groups.test_a_group_goes_on_where_it_was("enabled", "target")


def loses_the_rest_of_a_divided_batch(patch):
    built = batches.target_batches

    def first_only(*args, **fields):
        found = built(*args, **fields)
        return [found[0]._replace(next_offset=found[-1].next_offset)] if found else found

    patch.setattr(sending, "target_batches", first_only)
    test_mirroring.test_a_batch_that_is_too_large_is_divided("disabled")


BUGS = [
    stores_before_acknowledgement,
    stores_no_positions_in_transactions,
    forgets_partitions_of_an_aborted_transaction,
    translates_one_too_far,
    ignores_headers_of_provenance,
    ignores_loops_in_names,
    ignores_topic_ids,
    ignores_generations,
    fences_nothing,
    writes_syncs_of_what_was_sent,
    loses_the_rest_of_a_divided_batch,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.replace("_", "-"))
def test_a_planted_bug_is_found(bug):
    """Only a failed assertion counts, or something that never arrives; a crash of the test itself does not."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            bug(patch)
        except (AssertionError, trio.TooSlowError, BaseExceptionGroup) as error:
            found = [type(each) for each in leaves(error)]
        else:
            found = []
    assert AssertionError in found or trio.TooSlowError in found, found
