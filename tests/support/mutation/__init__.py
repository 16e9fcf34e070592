"""Mutation testing of the pure cores: small generated bugs, each of which a unit test or a short simulation must find.

``operators`` makes the bugs, ``areas`` says which modules they go into and which tests must find them, ``trial`` runs
one of them in a process of its own, and ``campaign`` is the command: ``make mutation``.
"""
