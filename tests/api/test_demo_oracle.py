"""The brute-force check, on cases small enough to know the answer by hand."""

from __future__ import annotations

import numpy as np
import pytest

from api.demo.oracle import Held, Match, Oracle, Place, reused
from api.demo.trace import block_tokens
from api.demo.workload import CHUNK_TOKENS, LLAMA, Request, Tokens

SIZE = LLAMA.object_bytes


def text(number: int) -> Tokens:
    """One chunk of tokens that no other number has."""
    return block_tokens(number)[:CHUNK_TOKENS]


def prompt(*pieces: Tokens, salt: str = "") -> Request:
    return Request(0, 0.0, LLAMA, salt, "server-a", np.concatenate(pieces), ())


STORED = prompt(text(1), text(2), text(3))
"""Chunks at 0, 256 and 512."""
ASKED = prompt(text(9)[:100], text(2), text(9)[:50], text(1), text(2))
"""The second chunk of `STORED` at 100 and 662, its first at 406."""


def holding(*requests: Request) -> Oracle:
    oracle = Oracle(requests)
    for request in requests:
        oracle.l1["server-a"] |= {Held(request.namespace, chunk) for chunk in request.chunk_hashes}
    oracle.settle()
    return oracle


def matches(*cases: tuple[int, int]) -> list[Match]:
    return [Match(STORED.chunk_hashes[chunk], chunk * CHUNK_TOKENS, at) for chunk, at in cases]


def test_chunks_are_found_at_any_offset_and_each_but_once() -> None:
    assert holding(STORED).wrong_matches(ASKED, matches((1, 100), (0, 406))) == []


@pytest.mark.parametrize(
    "answer",
    [
        matches((1, 100)),
        matches((1, 100), (0, 406), (1, 662)),
        matches((0, 406), (1, 100)),
        matches((0, 100), (0, 406)),
        [*matches((1, 100)), Match(STORED.chunk_hashes[0], 256, 406)],
        [*matches((1, 100)), Match(bytes(32), 0, 406)],
        [*matches((1, 100), (0, 406)), Match(STORED.chunk_hashes[2], 512, 10_000)],
        [],
    ],
    ids=["one lost", "one twice", "order", "other content", "old position", "unknown", "outside", "nothing"],
)
def test_any_other_answer_is_wrong(answer: list[Match]) -> None:
    assert holding(STORED).wrong_matches(ASKED, answer)


def test_chunks_with_equal_content_serve_as_many_positions_in_either_order() -> None:
    again = prompt(text(4), text(2))
    oracle = holding(STORED, again)
    first, second = Match(STORED.chunk_hashes[1], 256, 100), Match(again.chunk_hashes[1], 256, 662)
    other = [first._replace(chunk_hash=second.chunk_hash), second._replace(chunk_hash=first.chunk_hash)]
    [between] = matches((0, 406))
    assert oracle.wrong_matches(ASKED, [first, between, second]) == []
    assert oracle.wrong_matches(ASKED, [other[0], between, other[1]]) == []
    assert oracle.wrong_matches(ASKED, [first, between])


def test_another_tenants_chunks_are_no_match() -> None:
    stranger = Request(1, 0.0, LLAMA, "acme", "server-a", ASKED.tokens, ())
    oracle = holding(STORED)
    assert oracle.wrong_matches(stranger, []) == []
    assert oracle.wrong_matches(stranger, matches((1, 100)))


def test_a_prompt_shorter_than_a_chunk_matches_nothing() -> None:
    assert holding(STORED).wrong_matches(prompt(text(1)[:-1]), []) == []


def test_a_chunk_in_the_pool_counts_as_one_in_memory() -> None:
    oracle = Oracle([STORED])
    held = Held(STORED.namespace, STORED.chunk_hashes[1])
    oracle.pool[held] = "server-b"
    oracle.settle()
    assert oracle.wrong_matches(prompt(text(2)), matches((1, 0))) == []
    assert oracle.places(held) == [Place("server-b", "l2", "pool", SIZE, True)]


def test_what_was_withheld_must_not_be_known_until_it_is_delivered() -> None:
    oracle = holding(STORED)
    held = {Held(STORED.namespace, chunk) for chunk in STORED.chunk_hashes}
    oracle.withheld["server-a"] = held
    oracle.settle()
    assert oracle.wrong_matches(ASKED, []) == []
    assert oracle.places(next(iter(held))) == []
    oracle.withheld.clear()
    oracle.settle()
    assert oracle.wrong_matches(ASKED, [])


def test_while_events_are_under_way_an_answer_may_lack_matches_but_not_lie() -> None:
    oracle = holding(STORED)
    assert oracle.unsound_matches(ASKED, []) == []
    assert oracle.unsound_matches(ASKED, matches((1, 100))) == []
    assert oracle.unsound_matches(ASKED, matches((1, 101)))
    assert oracle.unsound_matches(ASKED, [Match(STORED.chunk_hashes[1], 0, 100)])
    assert oracle.unsound_matches(ASKED, [Match(bytes(32), 0, 100)])
    assert oracle.unsound_matches(ASKED, matches((1, -5)))


def test_placements_are_compared_for_every_rank() -> None:
    oracle = holding(STORED)
    first = STORED.chunk_hashes[0]
    oracle.pool[Held(STORED.namespace, first)] = "server-b"
    right = [Place("server-a", "l1", "dram", SIZE, False), Place("server-b", "l2", "pool", SIZE, True)]
    assert oracle.wrong_places(STORED.namespace, {first: [right, right]}) == []
    assert oracle.wrong_places(STORED.namespace, {first: [right, right[:1]]})
    assert oracle.wrong_places(STORED.namespace, {first: [right]})
    smaller = [right[0]._replace(size_bytes=SIZE - 1), right[1]]
    assert oracle.wrong_places(STORED.namespace, {first: [right, smaller]})
    assert oracle.wrong_places(STORED.namespace, {bytes(32): [[], []]}) == []


def test_tokens_belong_to_the_hash_whoever_caches_the_chunk() -> None:
    oracle = holding(STORED)
    first, right = STORED.chunk_hashes[0], text(1).tobytes()
    assert oracle.wrong_tokens(first, right) == []
    assert oracle.wrong_tokens(first, b"")
    assert oracle.wrong_tokens(first, text(2).tobytes())


def test_tokens_of_a_chunk_that_nobody_caches_may_be_forgotten_but_not_be_others() -> None:
    oracle = Oracle([STORED])
    oracle.settle()
    first, right = STORED.chunk_hashes[0], text(1).tobytes()
    assert oracle.wrong_tokens(first, b"") == []
    assert oracle.wrong_tokens(first, right) == []
    assert oracle.wrong_tokens(first, text(2).tobytes())


def test_the_directory_as_a_whole_must_have_every_key_with_its_placements_and_no_other() -> None:
    oracle = holding(STORED)
    held = [Held(STORED.namespace, chunk) for chunk in STORED.chunk_hashes]
    right = {key: oracle.places(item) for item in held for key in LLAMA.keys(item.chunk_hash, "")}
    assert oracle.wrong_directory(right) == []
    [some, *_] = right
    assert oracle.wrong_directory({key: places for key, places in right.items() if key != some})
    assert oracle.wrong_directory(right | {some: []})
    assert oracle.wrong_directory(right | {LLAMA.keys(bytes(32), "")[0]: right[some]})


def test_reuse_takes_the_most_matches_that_do_not_overlap() -> None:
    found = [Match(bytes([n]) * 32, 0, at) for n, at in enumerate((0, 100, 256, 400, 512))]
    assert [match.cur_st for match in reused(found)] == [0, 256, 512]
    assert reused([]) == []
