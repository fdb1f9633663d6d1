"""Measuring: what the databases and the relays themselves say. I/O adapters with short time-outs.

Nothing here writes to a database, and nothing is decided here about a resource.
"""
