"""Dead letter queues of share groups (KIP-1191): the topic, the records that go there, and the writer."""
