"""What an adversary, or bad luck, would choose: contents that collide under every hash there is."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from processor.state.directory import KeyDirectory, Match
from producer.events import EventType
from tests.model.crowd import NAMESPACE, change, chunk_hash, texts

MODULUS = 1 << 64


def thue_morse(length: int) -> NDArray[np.uint32]:
    return np.array([position.bit_count() & 1 for position in range(length)], np.uint32)


def rolled(base: int, window: NDArray[np.uint32]) -> int:
    total = 0
    for token in reversed(window.tolist()):
        total = (total * base + token) % MODULUS
    return total


def found(directory: KeyDirectory, query: NDArray[np.uint32]) -> list[Match]:
    return directory.match(query, NAMESPACE)


@pytest.mark.parametrize("attempt", range(3))
def test_contents_that_collide_under_every_odd_base_are_told_apart(attempt: int) -> None:
    directory = KeyDirectory(chunk_size=2048, max_chunks=64)
    half = thue_morse(1024)
    blocks = [half, 1 - half]
    contents = [np.concatenate([one, other]) for one in blocks for other in blocks]
    assert len({rolled(directory.blend.base, content) for content in contents}) == 1

    directory.consume(change(EventType.STORE, [0, 1, 2], 1, tokens=np.array(contents[:3])))
    for number, content in enumerate(contents[:3]):
        assert found(directory, content) == [Match(chunk_hash(number), 0, 0)]
    assert found(directory, contents[3]) == []
    gap = np.array([5], np.uint32)
    query = np.concatenate([contents[3], contents[2], gap, contents[0], gap, contents[1]])
    # Thue-Morse sequences contain one another, so the places are looked for.
    stored = [content.tobytes() for content in contents[:3]]
    first = [
        next(i for i in range(len(query)) if query[i : i + 2048].tobytes() == content) for content in stored
    ]
    expected = [Match(chunk_hash(number), 0, place) for number, place in enumerate(first)]
    assert found(directory, query) == sorted(expected, key=lambda match: match.cur_st)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_contents_that_share_a_fingerprint_are_all_found(bits: int) -> None:
    directory = KeyDirectory(chunk_size=8, max_chunks=1024, fingerprint_bits=bits)
    contents = texts(300, 8)
    directory.consume(change(EventType.STORE, range(300), 1, tokens=contents))
    gone = list(range(0, 300, 3))
    directory.consume(change(EventType.DELETE, gone, 2))
    expected = [Match(chunk_hash(i), 0, 8 * i) for i in range(300) if i % 3]
    assert found(directory, contents.reshape(-1)) == expected
    assert directory.stats().blend.num_contents == 200


def test_a_window_of_zeros_is_a_content_like_any_other() -> None:
    directory = KeyDirectory(chunk_size=4, max_chunks=64)
    directory.consume(change(EventType.STORE, [1], 1, tokens=np.zeros((1, 4), np.uint32), offset=3))
    assert found(directory, np.zeros(9, np.uint32)) == [Match(chunk_hash(1), 3, 0)]
    assert found(directory, np.zeros(3, np.uint32)) == []


def test_greatest_tokens_and_longest_runs_do_not_overflow() -> None:
    directory = KeyDirectory(chunk_size=256, max_chunks=64)
    content = np.full((1, 256), 2**32 - 1, np.uint32)
    directory.consume(change(EventType.STORE, [1], 1, tokens=content))
    query = np.concatenate([np.zeros(10_000, np.uint32), content[0], np.zeros(10_000, np.uint32)])
    assert found(directory, query) == [Match(chunk_hash(1), 0, 10_000)]


@pytest.mark.parametrize("stride", [1, 3, 256, 5000])
def test_a_query_far_longer_than_a_block_is_matched_at_every_stride(stride: int) -> None:
    directory = KeyDirectory(chunk_size=16, max_chunks=1024, probe_stride=stride)
    contents = texts(40, 16)
    directory.consume(change(EventType.STORE, range(40), 1, tokens=contents))
    query = np.random.default_rng(1).integers(0, 1000, 40_000, np.uint32)
    places = np.random.default_rng(2).permutation(40_000 // 16 - 1)[:40] * 16
    for number, place in enumerate(places.tolist()):
        query[place : place + 16] = contents[number]
    expected = sorted((place, number) for number, place in enumerate(places.tolist()) if place % stride == 0)
    assert [(m.cur_st, m.chunk_hash) for m in found(directory, query)] == [
        (place, chunk_hash(number)) for place, number in expected
    ]
