"""Blendstream under the same work as the peer: one worker a task, by the same names as in `bench.peer`."""
