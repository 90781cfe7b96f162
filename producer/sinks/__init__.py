"""Transports for an emitter's batches, behind one narrow protocol.

Each is imported by its own module, so that nobody loads a client library of a transport not in use.
"""
