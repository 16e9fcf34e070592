"""Drawn sequences of requests, sent to a broker of Apache Kafka and to one of Moldau.

``sequences`` draws, sends, compares and shrinks; ``rules`` has the differences with a reason; each other module has
the requests of one area. ``tests/interop/test_drawn_answers.py`` sends the sequences of fixed seeds.
"""
