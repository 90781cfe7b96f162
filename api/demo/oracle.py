"""What every answer must be, found by brute force from what the caches really hold.

The oracle never sees an event. It is told the content of every server's L1 and of the pool on disk, and
compares tokens window by window; so it shares with the processor neither code nor data, and a lost, doubled
or misordered event shows as a wrong answer. One thing is left open, as the index leaves it open: which of
several chunks with the same content and namespace a match names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from api.demo.workload import CHUNK_TOKENS, Model, Request
from producer.events import Namespace, ObjectKey

L1_BACKEND: Final = "dram"
L2_BACKEND: Final = "pool"
_WINDOW: Final = CHUNK_TOKENS * 4


class Held(NamedTuple):
    """A chunk as one namespace holds it."""

    namespace: Namespace
    chunk_hash: bytes


class Match(NamedTuple):
    """A cached chunk found in a prompt: where it sat when stored, and where it sits in the prompt."""

    chunk_hash: bytes
    old_st: int
    cur_st: int


class Place(NamedTuple):
    """A placement as `/directory/lookup` names it."""

    instance_id: str
    tier: str
    backend: str
    size_bytes: int
    shared: bool


class Oracle:
    """The truth about the fleet at the moments when nothing is under way.

    Attributes:
        l1: what each server holds in memory.
        pool: what the shared pool holds, with the server that wrote it.
        withheld: chunks of a server whose store event was kept back, and so cannot be known.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self.l1: dict[str, set[Held]] = defaultdict(set)
        self.pool: dict[Held, str] = {}
        self.withheld: dict[str, set[Held]] = {}
        self._models: dict[str, Model] = {}
        self._content: dict[bytes, bytes] = {}
        self._offset: dict[bytes, int] = {}
        self._holders: dict[Namespace, dict[bytes, set[bytes]]] = {}
        self._cached: set[bytes] = set()
        for request in requests:
            self.learn(request)

    def learn(self, request: Request) -> None:
        """Note the content and offset behind each of the request's chunk hashes."""
        self._models[request.model.name] = request.model
        for index, chunk_hash in enumerate(request.chunk_hashes):
            if chunk_hash not in self._content:
                self._content[chunk_hash] = request.chunk(index).tobytes()
                self._offset[chunk_hash] = index * CHUNK_TOKENS

    def settle(self) -> None:
        """Take `l1`, `pool` and `withheld` as they stand for the checks that follow."""
        holders: dict[Namespace, dict[bytes, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        visible = [held - self.withheld.get(name, set()) for name, held in self.l1.items()]
        for namespace, chunk_hash in {*self.pool, *(held for server in visible for held in server)}:
            holders[namespace][self._content[chunk_hash]].add(chunk_hash)
        self._holders = holders
        self._cached = {
            chunk for contents in holders.values() for chunks in contents.values() for chunk in chunks
        }

    def places(self, held: Held) -> list[Place]:
        """Every placement of the chunk, the same ones for each rank, in the directory's order."""
        size = self._models[held.namespace.model_name].object_bytes
        places = [
            Place(name, "l1", L1_BACKEND, size, False)
            for name, chunks in self.l1.items()
            if held in chunks and held not in self.withheld.get(name, ())
        ]
        if held in self.pool:
            places.append(Place(self.pool[held], "l2", L2_BACKEND, size, True))
        return sorted(places)

    def wrong_matches(self, request: Request, matches: Sequence[Match]) -> list[str]:
        """What is wrong with a blend lookup's answer; nothing, if it is right."""
        holders = self._holders.get(request.namespace, {})
        windows = _windows(request)
        left = Counter({content: len(chunks) for content, chunks in holders.items()})
        expected = []
        for position, window in enumerate(windows):
            if left[window] > 0:
                left[window] -= 1
                expected.append(position)
        wrong = []
        if [match.cur_st for match in matches] != expected:
            wrong.append(_difference("positions", expected, [match.cur_st for match in matches]))
        if len({match.chunk_hash for match in matches}) < len(matches):
            wrong.append("one chunk is matched twice")
        for match in matches:
            inside = 0 <= match.cur_st < len(windows)
            if not inside or match.chunk_hash not in holders.get(windows[match.cur_st], ()):
                wrong.append(f"{_short(match.chunk_hash)} is not what the prompt has at {match.cur_st}")
            elif match.old_st != self._offset[match.chunk_hash]:
                offset = self._offset[match.chunk_hash]
                wrong.append(f"{_short(match.chunk_hash)} was stored at {offset}, not {match.old_st}")
        return wrong

    def unsound_matches(self, request: Request, matches: Sequence[Match]) -> list[str]:
        """What cannot be right whatever is still under way: other tokens, or another old position."""
        windows = _windows(request)
        return [
            f"{_short(match.chunk_hash)} at {match.old_st} cannot match position {match.cur_st}"
            for match in matches
            if not 0 <= match.cur_st < len(windows)
            or self._content.get(match.chunk_hash) != windows[match.cur_st]
            or self._offset[match.chunk_hash] != match.old_st
        ]

    def wrong_places(
        self, namespace: Namespace, answers: Mapping[bytes, Sequence[Sequence[Place]]]
    ) -> list[str]:
        """What is wrong with the placements of some chunks, given for each rank of each chunk."""
        wrong = []
        for chunk_hash, ranks in answers.items():
            expected = self.places(Held(namespace, chunk_hash))
            for rank, places in enumerate(ranks):
                if list(places) != expected:
                    wrong.append(_difference(f"{_short(chunk_hash)} rank {rank}", expected, list(places)))
            if len(ranks) != namespace.world_size:
                wrong.append(
                    _difference(f"ranks of {_short(chunk_hash)}", [namespace.world_size], [len(ranks)])
                )
        return wrong

    def wrong_tokens(self, chunk_hash: bytes, tokens: bytes) -> list[str]:
        """What is wrong with the tokens answered for a chunk, uint32.

        They belong to the hash, so they are known once anybody caches the chunk, in whatever namespace; and
        they may be remembered for a while after nobody does.
        """
        if tokens == self._content[chunk_hash] or (not tokens and chunk_hash not in self._cached):
            return []
        return [f"the tokens of {_short(chunk_hash)} are not those that were stored"]

    def wrong_directory(self, found: Mapping[ObjectKey, Sequence[Place]]) -> list[str]:
        """What is wrong with a listing of every key in the directory."""
        chunks = {*self.pool, *(held for server in self.l1.values() for held in server)}
        expected = {
            key: places
            for held in chunks
            if (places := self.places(held))
            for key in self._models[held.namespace.model_name].keys(
                held.chunk_hash, held.namespace.cache_salt
            )
        }
        wrong = [
            _difference(f"placements of {_short(key.chunk_hash)}", expected[key], found[key])
            for key in expected.keys() & found.keys()
            if list(found[key]) != expected[key]
        ]
        if expected.keys() != found.keys():
            lacking, extra = len(expected.keys() - found.keys()), len(found.keys() - expected.keys())
            wrong.append(f"the directory lacks {lacking} keys and has {extra} that no cache holds")
        return wrong


def reused(matches: Sequence[Match]) -> list[Match]:
    """The most matches that do not overlap: what a server can take into one prompt."""
    taken: list[Match] = []
    for match in sorted(matches, key=lambda match: match.cur_st):
        if not taken or match.cur_st >= taken[-1].cur_st + CHUNK_TOKENS:
            taken.append(match)
    return taken


def _windows(request: Request) -> list[bytes]:
    data = request.tokens.tobytes()
    return [data[start : start + _WINDOW] for start in range(0, len(data) - _WINDOW + 1, 4)]


def _short(chunk_hash: bytes) -> str:
    return chunk_hash.hex()[:12]


def _difference(what: str, expected: Sequence[object], answered: Sequence[object]) -> str:
    missing = [item for item in expected if item not in answered]
    extra = [item for item in answered if item not in expected]
    counts = f"{len(answered)} answered, {len(expected)} true"
    return f"{what}: missing {missing[:5]}, not expected {extra[:5]} ({counts})"
