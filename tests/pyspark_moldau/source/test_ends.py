"""Goal: what was seen of an end counts only as long as it can still say something about the log."""

from pyspark_moldau.source.core.ends import SeenEnds

P = ("t", 0)


def test_an_end_has_the_epoch_in_which_it_was_named():
    seen = SeenEnds()
    assert seen.epoch_of(P, "id", 0) is None
    seen.note(P, "id", 3, 10)
    seen.note(P, "id", 3, 8)  # an earlier answer that came later
    assert seen.epoch_of(P, "id", 10) == 3
    assert seen.epoch_of(P, "id", 11) is None
    assert seen.epoch_of(("t", 1), "id", 1) is None


def test_a_later_epoch_replaces_and_an_earlier_one_does_not():
    seen = SeenEnds()
    seen.note(P, "id", 3, 10)
    seen.note(P, "id", 2, 20)
    assert seen.epoch_of(P, "id", 20) is None
    seen.note(P, "id", 4, 6)
    assert seen.epoch_of(P, "id", 6) == 4
    assert seen.epoch_of(P, "id", 10) is None


def test_a_topic_that_was_created_again_begins_again():
    """Its leader epochs begin at 0."""
    seen = SeenEnds()
    seen.note(P, "first", 7, 10)
    seen.note(P, "second", 0, 2)
    assert seen.epoch_of(P, "first", 1) is None
    assert seen.epoch_of(P, "second", 2) == 0
