"""Goal: totals of a broker only grow, whatever topics come and go. Method: joins and leaves by hand."""

from moldau_broker.server.metrics.traffic import BrokerTraffic


def test_counts_outlive_the_last_replica_of_a_topic():
    traffic = BrokerTraffic()
    first, second = traffic.join("t"), traffic.join("t")
    assert first is second
    first.messages_in += 3
    traffic.leave("t")
    assert traffic.topics["t"].messages_in == 3
    traffic.leave("t")
    assert traffic.topics == {}
    assert traffic.total().messages_in == 3
    traffic.join("t").messages_in += 1
    assert traffic.topics["t"].messages_in == 1
    assert traffic.total().messages_in == 4
