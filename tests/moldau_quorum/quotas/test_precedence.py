"""Goal: the most specific of the eight levels decides, for each quota separately, and follows every change.

Method: all 256 subsets of configured levels, asked for by clients that differ in user and client id, against a naive
search; and random sequences of changes against an index that is built again.
"""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.quotas.precedence import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    QuotaIndex,
)
from support.quotas.levels import CLIENTS, ORDER, check_every_subset_of_levels, entity, image_of, index_of


def test_every_subset_of_levels():
    check_every_subset_of_levels()


def test_each_quota_has_its_own_level():
    quotas = [(ORDER[0], CONSUMER_BYTE_RATE, 1.0), (ORDER[7], PRODUCER_BYTE_RATE, 2.0)]
    index = index_of(image_of(quotas))
    assert index.limit(PRODUCER_BYTE_RATE, "alice", "app")[1:] == (2.0, None, "app")
    assert index.limit(CONSUMER_BYTE_RATE, "alice", "app")[1:] == (1.0, "alice", "app")
    assert index.limit(CONSUMER_BYTE_RATE, "bob", "app") is None


def test_rates_of_addresses():
    own, default = {"ip": "10.0.0.1"}, {"ip": None}
    index = index_of(image_of([(own, CONNECTION_CREATION_RATE, 3.0), (default, CONNECTION_CREATION_RATE, 5.0)]))
    assert [index.connection_rate(host) for host in ("10.0.0.1", "10.0.0.2")] == [3.0, 5.0]
    assert index_of(MetadataImage()).connection_rate("10.0.0.1") is None
    assert index.limit(PRODUCER_BYTE_RATE, "alice", "app") is None


def test_uses_count_the_entities_that_set_each_quota():
    """A quota that no entity sets costs a request one look-up."""
    entities = [{"ip": "10.0.0.1"}, {"ip": None}]
    image = image_of([(parts, CONNECTION_CREATION_RATE, 3.0) for parts in entities])
    index = QuotaIndex().changed(image.quotas, [entity(parts) for parts in entities])
    assert index.uses == {CONNECTION_CREATION_RATE: 2}
    without = image_of([(parts, CONNECTION_CREATION_RATE, None) for parts in entities], image)
    assert index.changed(without.quotas, [entity(parts) for parts in entities]).uses == {}


changes = st.lists(
    st.tuples(
        st.sampled_from([*ORDER, {"ip": None}]),
        st.sampled_from([PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE]),
        st.sampled_from([None, 1.0, 2.0]),
    ),
    max_size=6,
)


@given(st.lists(changes, max_size=4))
def test_an_index_that_follows_equals_a_new_one(batches):
    image, index = MetadataImage(), QuotaIndex()
    for batch in batches:
        later = image_of(batch, image)
        index = index.changed(later.quotas, {entity(parts) for parts, _, _ in batch})
        image = later
        fresh = index_of(image)
        assert dict(index.uses) == dict(fresh.uses)
        for key, (user, client_id) in itertools.product((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE), CLIENTS):
            assert index.limit(key, user, client_id) == fresh.limit(key, user, client_id)
