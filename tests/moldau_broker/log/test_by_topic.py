"""Goal: the partitions of one topic are found at once and in order. Method: puts and removals, compared with a map."""

from moldau_broker.log.by_topic import ByTopic
from moldau_broker.log.values import TopicPartition


def test_the_values_of_a_topic_keep_the_order_of_a_map():
    found, model = ByTopic[int](), dict[TopicPartition, int]()
    steps = [("a", 0), ("b", 1), ("a", 2), ("a", 1), ("b", 1), ("a", 0)]
    for value, key in enumerate(TopicPartition(*step) for step in steps):
        found.put(key, value)
        model[key] = value
    assert found.of("a") == [value for key, value in model.items() if key.topic == "a"] == [5, 2, 3]
    found.remove(TopicPartition("a", 0))
    found.put(TopicPartition("a", 0), 9)
    assert found.of("a") == [2, 3, 9], "a partition that comes again is the last one"


def test_a_topic_without_partitions_is_forgotten():
    found = ByTopic[int]()
    found.put(TopicPartition("b", 0), 1)
    found.put(TopicPartition("a", 0), 2)
    assert found.topics() == ["a", "b"]
    found.remove(TopicPartition("b", 0))
    found.remove(TopicPartition("b", 0))
    found.remove(TopicPartition("c", 0))
    assert found.topics() == ["a"]
    assert found.of("b") == []
