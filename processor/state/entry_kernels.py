"""The kernels that Python calls, which take the whole state as one array of addresses.

Handing a tuple of thirty arrays to a compiled function costs 5 us a call, as much as a small batch or a short
match; handing over one array costs half a microsecond. The arrays themselves belong to `State`, which must
outlive the call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from processor.kernel import Int, entry_kernel
from processor.state import directory_kernels, lookup_kernels, restore_kernels
from processor.state.hashing import HashKeys
from processor.state.hashing_kernels import BLOCK_WINDOWS, FILTER_PATTERNS, TABLE_KEYS
from processor.state.layout import (
    CHUNK,
    CLAIM,
    CONTENT,
    HEAD,
    INSTANCE,
    KEY,
    LANES,
    MAX_INSTANCES,
    MAX_SCOPES,
    MAX_SITES,
    META_SIZE,
    NAMESPACES_PER_SCOPE,
    PIECES,
    PLACE,
    POST,
    SITE,
    Tables,
)
from processor.state.lookup_kernels import Cursors, Found, Matches, Survivors
from processor.state.write_kernels import Columns, Write

_U1, _I4, _U4, _I8, _U8, _F8 = (np.dtype(name) for name in ("u1", "i4", "u4", "i8", "u8", "f8"))
_SIZES = 2
"""The first elements of the addresses are no addresses: the chunk size and the words of a filter."""
_T = _SIZES
_K = _SIZES + len(Tables._fields)
"""Where the addresses of the tables and of the hash keys begin; each follow in the order of their fields."""


class State(NamedTuple):
    """Tables and hash keys with their addresses."""

    tables: Tables
    keys: HashKeys
    addresses: NDArray[np.uint64]


def make_state(tables: Tables, keys: HashKeys) -> State:
    """Gather the addresses of all arrays; these must not be replaced afterwards."""
    sizes = [tables.tokens.shape[1], tables.filter_words.shape[1]]
    arrays = [*tables, *keys]
    return State(tables, keys, np.array(sizes + [array.ctypes.data for array in arrays], np.uint64))


def _typed_pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.uint64), generate


_pointer: Any = intrinsic(_typed_pointer)
"""Turn an address into a pointer that `carray` takes."""


# A row number is never negative and never past the end, so the length of a one-dimensional table does not
# matter.
_ANY = 1 << 31


@entry_kernel
def _tables(a: NDArray[np.uint64]) -> Tables:
    chunk_size = np.int64(a[0])
    words = np.int64(a[1])
    return Tables(
        carray(_pointer(a[_T]), (META_SIZE,), _I8),
        carray(_pointer(a[_T + 1]), (_ANY,), CHUNK),
        carray(_pointer(a[_T + 2]), (_ANY,), KEY),
        carray(_pointer(a[_T + 3]), (_ANY,), PLACE),
        carray(_pointer(a[_T + 4]), (_ANY,), CONTENT),
        carray(_pointer(a[_T + 5]), (_ANY,), CLAIM),
        carray(_pointer(a[_T + 6]), (_ANY,), POST),
        carray(_pointer(a[_T + 7]), (_ANY,), _I4),
        carray(_pointer(a[_T + 8]), (_ANY,), _I4),
        carray(_pointer(a[_T + 9]), (_ANY,), _I4),
        carray(_pointer(a[_T + 10]), (_ANY,), _I4),
        carray(_pointer(a[_T + 11]), (_ANY,), _I4),
        carray(_pointer(a[_T + 12]), (_ANY,), _I4),
        carray(_pointer(a[_T + 13]), (_ANY, chunk_size), _U4),
        carray(_pointer(a[_T + 14]), (_ANY,), _I4),
        carray(_pointer(a[_T + 15]), (_ANY,), _F8),
        carray(_pointer(a[_T + 16]), (_ANY,), _U4),
        carray(_pointer(a[_T + 17]), (2, words), _U8),
        carray(_pointer(a[_T + 18]), (MAX_SCOPES,), _I8),
        carray(_pointer(a[_T + 19]), (MAX_SCOPES * NAMESPACES_PER_SCOPE,), _I4),
        carray(_pointer(a[_T + 20]), (MAX_SITES,), SITE),
        carray(_pointer(a[_T + 21]), (MAX_INSTANCES,), INSTANCE),
        carray(_pointer(a[_T + 22]), (3, MAX_INSTANCES), HEAD),
        carray(_pointer(a[_T + 23]), (LANES, PIECES), _U1),
    )


@entry_kernel
def _keys(a: NDArray[np.uint64]) -> HashKeys:
    chunk_size = np.int64(a[0])
    return HashKeys(
        carray(_pointer(a[_K]), (TABLE_KEYS,), _U8),
        carray(_pointer(a[_K + 1]), (2, chunk_size), _U8),
        carray(_pointer(a[_K + 2]), (BLOCK_WINDOWS + chunk_size + 1,), _U8),
        carray(_pointer(a[_K + 3]), (BLOCK_WINDOWS + 1,), _U8),
        carray(_pointer(a[_K + 4]), (FILTER_PATTERNS,), _U8),
        carray(_pointer(a[_K + 5]), (2,), _U8),
    )


@entry_kernel
def apply_slice(a: NDArray[np.uint64], w: Write, cols: Columns, begin: Int, end: Int) -> None:
    """See `directory_kernels.apply_slice`."""
    directory_kernels.apply_slice(_tables(a), _keys(a), w, cols, begin, end)


@entry_kernel
def fence_slice(a: NDArray[np.uint64], blend: bool, keep: bool, instance: Int, limit: Int) -> Int:
    """See `directory_kernels.fence_slice`."""
    return directory_kernels.fence_slice(_tables(a), _keys(a), blend, keep, instance, limit)


@entry_kernel
def settle_slice(a: NDArray[np.uint64], blend: bool, keep: bool, instance: Int, limit: Int) -> Int:
    """See `directory_kernels.settle_slice`."""
    return directory_kernels.settle_slice(_tables(a), _keys(a), blend, keep, instance, limit)


@entry_kernel
def expire_slice(a: NDArray[np.uint64], blend: bool, before: float, limit: Int) -> Int:
    """See `directory_kernels.expire_slice`."""
    return directory_kernels.expire_slice(_tables(a), _keys(a), blend, before, limit)


@entry_kernel
def forget_dormant_slice(a: NDArray[np.uint64], limit: Int) -> Int:
    """See `directory_kernels.forget_dormant_slice`."""
    return directory_kernels.forget_dormant_slice(_tables(a), _keys(a), limit)


@entry_kernel
def derive(a: NDArray[np.uint64]) -> None:
    """Make what a checkpoint leaves out: the filter and the namespaces' counts."""
    restore_kernels.rebuild_filter(_tables(a), _keys(a))
    restore_kernels.count_namespace_claims(_tables(a))


@entry_kernel
def index_all(a: NDArray[np.uint64], tokens: NDArray[np.uint32]) -> None:
    """See `restore_kernels.index_all`."""
    restore_kernels.index_all(_tables(a), _keys(a), tokens)


@entry_kernel
def unindex_all(a: NDArray[np.uint64]) -> None:
    """See `restore_kernels.unindex_all`."""
    restore_kernels.unindex_all(_tables(a), _keys(a))


@entry_kernel
def find_keys(
    a: NDArray[np.uint64],
    digests: NDArray[np.uint64],
    hash_lens: NDArray[np.uint8],
    scopes: NDArray[np.int32],
    kv_ranks: NDArray[np.uint64],
    groups: NDArray[np.uint32],
    rows: NDArray[np.int32],
) -> None:
    """See `lookup_kernels.find_keys`."""
    lookup_kernels.find_keys(_tables(a), _keys(a), digests, hash_lens, scopes, kv_ranks, groups, rows)


@entry_kernel
def count_places(a: NDArray[np.uint64], rows: NDArray[np.int32]) -> Int:
    """See `lookup_kernels.count_places`."""
    return lookup_kernels.count_places(_tables(a), rows)


@entry_kernel
def gather_places(a: NDArray[np.uint64], rows: NDArray[np.int32], found: Found) -> Int:
    """See `lookup_kernels.gather_places`."""
    return lookup_kernels.gather_places(_tables(a), rows, found)


@entry_kernel
def find_told_chunks(
    a: NDArray[np.uint64],
    digests: NDArray[np.uint64],
    hash_lens: NDArray[np.uint8],
    rows: NDArray[np.int32],
    chunks: NDArray[np.int32],
) -> None:
    """See `lookup_kernels.find_told_chunks`."""
    lookup_kernels.find_told_chunks(_tables(a), _keys(a), digests, hash_lens, rows, chunks)


@entry_kernel
def count_tokens(a: NDArray[np.uint64], chunks: NDArray[np.int32], counts: NDArray[np.int64]) -> Int:
    """See `lookup_kernels.count_tokens`."""
    return lookup_kernels.count_tokens(_tables(a), chunks, counts)


@entry_kernel
def gather_tokens(a: NDArray[np.uint64], chunks: NDArray[np.int32], out: NDArray[np.uint32]) -> None:
    """See `lookup_kernels.gather_tokens`."""
    lookup_kernels.gather_tokens(_tables(a), chunks, out)


@entry_kernel
def scan_keys(
    a: NDArray[np.uint64],
    begin: Int,
    limit: Int,
    tier: Int,
    instance: Int,
    site_wanted: NDArray[np.uint8],
    skip: Int,
    rows: NDArray[np.int32],
) -> tuple[Int, Int, Int]:
    """See `lookup_kernels.scan_keys`."""
    return lookup_kernels.scan_keys(_tables(a), begin, limit, tier, instance, site_wanted, skip, rows)


@entry_kernel
def list_groups(
    a: NDArray[np.uint64], chunk: Int, scope: Int, kv_rank: Int, groups: NDArray[np.uint32]
) -> Int:
    """See `lookup_kernels.list_groups`."""
    return lookup_kernels.list_groups(_tables(a), chunk, scope, kv_rank, groups)


@entry_kernel
def probe(
    a: NDArray[np.uint64],
    query: NDArray[np.uint32],
    begin: Int,
    stride: Int,
    sums: NDArray[np.uint64],
    spreads: NDArray[np.uint64],
    passed: NDArray[np.uint8],
    out: Survivors,
) -> tuple[Int, Int]:
    """See `lookup_kernels.probe`."""
    return lookup_kernels.probe(_tables(a), _keys(a), query, begin, stride, sums, spreads, passed, out)


@entry_kernel
def resolve(
    a: NDArray[np.uint64],
    namespace: Int,
    query: NDArray[np.uint32],
    survivors: Survivors,
    begin: Int,
    end: Int,
    cursors: Cursors,
    used: Int,
    out: Matches,
    matched: Int,
) -> tuple[Int, Int, Int]:
    """See `lookup_kernels.resolve`."""
    return lookup_kernels.resolve(
        _tables(a), _keys(a), namespace, query, survivors, begin, end, cursors, used, out, matched
    )
