"""Measurements of Blendstream, each beside the same measurement of LMCache's coordinator where that is
installed.

`python -m bench` lists them; `python -m bench NAME...` runs some, `python -m bench all` every one. The peer
runs in the interpreter that the environment variable PEER_PYTHON names, and nothing of it is imported on
our side. This package is imported by both interpreters, so its `__init__`, `workload` and `worker` need
NumPy and nothing else.
"""
