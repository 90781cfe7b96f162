"""Asks the processor over HTTP, times the answers and compares every one of them with the oracle's.

Once the stream has settled, an answer must be exactly the oracle's. While events are under way nobody can say
which of them an answer has seen, so there it is held to what is true whatever comes: the tokens and the old
position.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from api.answers import Key, LookedUp, Placement
from api.client import Client
from api.demo.oracle import Match, Oracle, Place, reused
from api.demo.workload import CHUNK_TOKENS, Request
from producer.events import ObjectKey

PAGE: Final = 5_000
"""Keys a request when the whole directory is compared."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the processor says of one prompt.

    Attributes:
        reused: matches that do not overlap.
        places: where each of those chunks is.
        prefix_tokens: what can be reused of the prompt's beginning alone, as prefix caching does.
    """

    request: Request
    reused: list[Match]
    places: dict[bytes, list[Place]]
    prefix_tokens: int

    @property
    def reused_tokens(self) -> int:
        """Tokens of the prompt that need not be computed."""
        return len(self.reused) * CHUNK_TOKENS


@dataclass(slots=True)
class Reuse:
    """Sums over the prompts of a run, each counted once, as it arrives."""

    tokens: int = 0
    anywhere: int = 0
    prefix: int = 0

    def count(self, answer: Answer) -> None:
        """Add a prompt."""
        self.tokens += len(answer.request.tokens)
        self.anywhere += answer.reused_tokens
        self.prefix += answer.prefix_tokens

    def ratio(self, tokens: int) -> float:
        """Such a share of all tokens."""
        return tokens / self.tokens if self.tokens else 0.0


class Checker:
    """Lookups with their check.

    Attributes:
        exact: answers compared with the exact truth.
        under_load: answers checked while events were under way.
        seconds: round trips of the blend lookups.
        wrong: what was wrong, one line each.
    """

    def __init__(self, client: Client, oracle: Oracle) -> None:
        self.exact = 0
        self.under_load = 0
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self._client = client
        self._oracle = oracle

    def ask(self, request: Request) -> Answer:
        """Look a prompt up in every way; the stream must have settled."""
        matches = self._blend_lookup(request)
        self._note(request, self._oracle.wrong_matches(request, matches))
        prefix_tokens = self._prefix_lookup(request)
        places = self._places(request, [match.chunk_hash for match in matches])
        self.exact += 3 if matches else 2
        chosen = reused([match for match in matches if places[match.chunk_hash]])
        return Answer(request, chosen, places, prefix_tokens)

    def ask_under_load(self, request: Request) -> None:
        """Blend lookup while events may be under way."""
        self._note(request, self._oracle.unsound_matches(request, self._blend_lookup(request)))
        self.under_load += 1

    def compare_directory(self) -> int:
        """Page through the whole directory; returns how many keys it has."""
        found: dict[ObjectKey, list[Place]] = {}
        total = 1
        while len(found) < total:
            page = self._client.keys(offset=len(found), limit=PAGE)
            total = page.total
            before = len(found)
            for row in page.keys:
                found[_key(row.key)] = _places(row.placements)
            if len(found) == before:
                break
        self.exact += 1
        self.wrong += self._oracle.wrong_directory(found)
        return len(found)

    def percentile(self, share: float) -> float:
        """The blend lookups' round trip in seconds that `share` of them stay within."""
        return float(np.quantile(self.seconds, share)) if self.seconds else 0.0

    def _blend_lookup(self, request: Request) -> list[Match]:
        namespace = request.namespace
        start = time.perf_counter()
        found = self._client.blend_lookup(
            request.tokens,
            namespace.model_name,
            world_size=namespace.world_size,
            cache_salt=namespace.cache_salt,
        )
        self.seconds.append(time.perf_counter() - start)
        return [Match(bytes.fromhex(match.chunk_hash), match.old_st, match.cur_st) for match in found]

    def _places(self, request: Request, chunks: Iterable[bytes]) -> dict[bytes, list[Place]]:
        keys = [key for chunk in chunks for key in request.model.keys(chunk, request.cache_salt)]
        by_chunk = self._by_chunk(self._client.lookup(keys))
        self._note(request, self._oracle.wrong_places(request.namespace, by_chunk))
        return {chunk: ranks[0] for chunk, ranks in by_chunk.items()}

    def _prefix_lookup(self, request: Request) -> int:
        namespace = request.namespace
        found = self._client.lookup_tokens(
            request.tokens,
            namespace.model_name,
            world_size=namespace.world_size,
            cache_salt=namespace.cache_salt,
        )
        by_chunk = self._by_chunk(found.results)
        self._note(request, self._oracle.wrong_places(namespace, by_chunk))
        if list(by_chunk) != request.chunk_hashes:
            self._note(request, ["the processor hashes the prompt's chunks differently"])
            return 0
        for row in found.results:
            tokens = np.array(row.token_ids, np.uint32).tobytes()
            self._note(request, self._oracle.wrong_tokens(bytes.fromhex(row.key.chunk_hash_hex), tokens))
        prefix = 0
        for chunk_hash in request.chunk_hashes:
            if not all(by_chunk.get(chunk_hash, [[]])):
                break
            prefix += CHUNK_TOKENS
        return prefix

    def _by_chunk(self, rows: Sequence[LookedUp]) -> dict[bytes, list[list[Place]]]:
        by_chunk: dict[bytes, list[list[Place]]] = defaultdict(list)
        for row in rows:
            by_chunk[bytes.fromhex(row.key.chunk_hash_hex)].append(_places(row.placements))
        return dict(by_chunk)

    def _note(self, request: Request, wrong: Sequence[str]) -> None:
        self.wrong += [f"request {request.number}: {line}" for line in wrong]


def _key(key: Key) -> ObjectKey:
    return ObjectKey(
        bytes.fromhex(key.chunk_hash_hex), key.model_name, key.kv_rank, key.object_group_id, key.cache_salt
    )


def _places(placements: Sequence[Placement]) -> list[Place]:
    return [Place(p.instance_id, p.tier, p.backend, p.size_bytes, p.shared) for p in placements]
