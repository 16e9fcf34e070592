"""What producer, consumer and admin client share: the picture of the cluster (pure) and the connections to its
brokers.
"""
