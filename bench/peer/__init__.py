"""LMCache's coordinator under the same work: run by the interpreter that PEER_PYTHON names, never imported
by ours.
"""
