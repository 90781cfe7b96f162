"""A treap of claims: the chunks that one namespace may use for one content, in the order they were indexed.

A popular document sits behind many prefixes and belongs to many tenants, so neither putting a claim in its
place nor finding the first one after another may walk them. Nodes are rows of `claims`; `order` is the key,
`hash`, which nobody outside can choose, the priority.
"""

from __future__ import annotations

from processor.kernel import Int, Records, kernel
from processor.state.layout import CLAIMS, Tables
from processor.state.table_kernels import mark_row


@kernel
def treap_insert(t: Tables, root: Int, node: Int) -> Int:
    """Insert a node whose `order` is set; return the root."""
    claims = t.claims
    mark_row(t, CLAIMS, node)
    claims[node].left = 0
    claims[node].right = 0
    parent = 0
    at = root
    order = claims[node].order
    while at:
        parent = at
        at = claims[at].left if order < claims[at].order else claims[at].right
    claims[node].parent = parent
    if parent == 0:
        return node
    mark_row(t, CLAIMS, parent)
    if order < claims[parent].order:
        claims[parent].left = node
    else:
        claims[parent].right = node
    while claims[node].parent and claims[claims[node].parent].hash < claims[node].hash:
        rotate_up(t, node)
    return root if claims[node].parent else node


@kernel
def treap_remove(t: Tables, root: Int, node: Int) -> Int:
    """Remove a node; return the root, 0 if it was the last."""
    claims = t.claims
    mark_row(t, CLAIMS, node)
    while claims[node].left or claims[node].right:
        left = claims[node].left
        right = claims[node].right
        child = right
        if right == 0 or (left and claims[left].hash > claims[right].hash):
            child = left
        rotate_up(t, child)
        if claims[child].parent == 0:
            root = child
    parent = claims[node].parent
    if parent == 0:
        return 0
    mark_row(t, CLAIMS, parent)
    if claims[parent].left == node:
        claims[parent].left = 0
    else:
        claims[parent].right = 0
    claims[node].parent = 0
    return root


@kernel
def rotate_up(t: Tables, node: Int) -> None:
    """Exchange a node with its parent, keeping the order."""
    claims = t.claims
    parent = claims[node].parent
    above = claims[parent].parent
    mark_row(t, CLAIMS, node)
    mark_row(t, CLAIMS, parent)
    if claims[parent].left == node:
        moved = claims[node].right
        claims[parent].left = moved
        claims[node].right = parent
    else:
        moved = claims[node].left
        claims[parent].right = moved
        claims[node].left = parent
    if moved:
        claims[moved].parent = parent
        mark_row(t, CLAIMS, moved)
    claims[parent].parent = node
    claims[node].parent = above
    if above:
        mark_row(t, CLAIMS, above)
        if claims[above].left == parent:
            claims[above].left = node
        else:
            claims[above].right = node


@kernel
def treap_after(claims: Records, root: Int, order: Int) -> Int:
    """Return the first node with a greater `order`, 0 if there is none."""
    found = 0
    at = root
    while at:
        if claims[at].order > order:
            found = at
            at = claims[at].left
        else:
            at = claims[at].right
    return found
