"""Replication between clusters: ``moldau mirror``, with the topics, formats and names of MirrorMaker 2 (KIP-382).

    await run_mirror(environment, settings)

A mirror copies topics of several source clusters into one target cluster. ``core`` holds the pure parts.
"""
