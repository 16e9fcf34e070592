"""The same requests to a broker of Apache Kafka and to one of Moldau, and what of the answers differs.

Each module but ``session`` and ``differences`` has the requests of one area: usual ones, and those that a client with a
bug, an older or a newer client would send. ``tests/interop/test_same_answers.py`` sends them to both,
``test_same_answers_of_three.py`` those of ``several`` to clusters of three.
"""
