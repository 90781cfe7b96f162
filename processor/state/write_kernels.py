"""A batch in the form that kernels take, and how its stamp compares with those that stand.

A private placement has one writer, so its stamp is (epoch, sequence); what many writers share is ordered by
generation and event time first. Equal stamps are one batch naming a thing twice, and the later entry wins.
An instance is counted wherever its stamp stands, and its name is kept for as long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from processor.kernel import Bool, Int, kernel
from processor.state.layout import ZEROED, Tables

STORE, DELETE, ACCESS = 1, 2, 3


class Write(NamedTuple):
    """What all entries of a batch have in common: the place they concern and the stamp they carry."""

    event: Int
    site: Int
    shared: bool
    instance: Int
    incarnation: Int
    generation: Int
    ts: float
    epoch: Int
    seq: Int
    tombstones: bool  # a delete leaves one
    # L1 of an older incarnation: nothing is placed, and in a shared pool a store counts as a delete.
    void: bool
    keep: bool  # what is known of a chunk outlives its last live key
    blend: bool


class Columns(NamedTuple):
    """The columns of a batch in the form that kernels take; see `processor.batch.BatchColumns`."""

    digests: NDArray[np.uint64]  # [chunks, 4]
    hash_lens: NDArray[np.uint8]
    token_starts: NDArray[np.int64]
    tokens: NDArray[np.uint32]
    token_offsets: NDArray[np.int64]
    chunk: NDArray[np.uint32]
    scope: NDArray[np.uint32]
    kv_rank: NDArray[np.uint64]
    object_group_id: NDArray[np.uint32]
    size_bytes: NDArray[np.int64]
    scope_ids: NDArray[np.int32]  # the batch's scopes, interned


@kernel
def stamp_before(
    t: Tables, w: Write, generation: Int, ts: float, instance: Int, epoch: Int, seq: Int
) -> Bool:
    """Tell whether a batch's stamp, in the form that many writers share, lies before the given one."""
    if w.generation != generation:
        return w.generation < generation
    if w.ts != ts:
        return w.ts < ts
    if w.instance != instance:
        return t.instances[w.instance].rank < t.instances[instance].rank
    if w.epoch != epoch:
        return w.epoch < epoch
    return w.seq < seq


@kernel
def is_older(t: Tables, w: Write, place: Int) -> Bool:
    """Tell whether a batch was written before what stands at a placement; equal stamps are one batch naming a
    key twice.
    """
    p = t.places[place]
    if w.shared:
        return stamp_before(t, w, p.generation, p.ts, p.instance, p.epoch, p.seq)
    if w.epoch != p.epoch:
        return w.epoch < p.epoch
    return w.seq < p.seq


@kernel
def hold_instance(t: Tables, instance: Int) -> None:
    """Count a reference to an instance."""
    t.instances[instance].refs += 1


@kernel
def release_instance(t: Tables, instance: Int) -> None:
    """Discount a reference to an instance."""
    t.instances[instance].refs -= 1
    if t.instances[instance].refs == 0:
        t.meta[ZEROED] += 1
