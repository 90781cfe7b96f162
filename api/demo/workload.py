"""What a fleet is asked: prompts assembled from a system part, several documents and a question.

A retrieval system puts the same documents into many prompts, each time after other documents, so that only
the system part recurs as a prefix. Everything follows from the seed: every process of the demo builds the
same requests for itself, and only their numbers travel between processes.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from api.demo.corpus import Document, documents
from api.demo.tokenizer import tokenize
from api.token_hasher import TokenHasher
from producer.events import Namespace, ObjectKey, make_kv_rank

CHUNK_TOKENS: Final = 256
SEED: Final = 2025
_HASHER: Final = TokenHasher(CHUNK_TOKENS)

Tokens = NDArray[np.uint32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; its KV of one chunk is split evenly over `world_size` tensor-parallel ranks."""

    name: str
    world_size: int
    kv_bytes_per_token: int

    @property
    def object_bytes(self) -> int:
        """Size of one rank's part of a chunk."""
        return self.kv_bytes_per_token * CHUNK_TOKENS // self.world_size

    def keys(self, chunk_hash: bytes, cache_salt: str) -> list[ObjectKey]:
        """The objects that hold a chunk, one a rank; all ranks sit on one host."""
        size = self.world_size
        return [
            ObjectKey(chunk_hash, self.name, make_kv_rank(size, rank, size, rank), 0, cache_salt)
            for rank in range(size)
        ]


# Layers x KV heads x head size x (K and V) x two bytes, from the models' published configurations.
LLAMA: Final = Model("meta-llama/Llama-3.1-8B-Instruct", 2, 32 * 8 * 128 * 2 * 2)
QWEN: Final = Model("Qwen/Qwen3-32B", 4, 64 * 8 * 128 * 2 * 2)


@dataclass(frozen=True, slots=True)
class Part:
    """A named stretch of a prompt: tokens `start` to `end`, the end not included."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt as a cache server sees it.

    Attributes:
        at: seconds since the start of the workload.
        server: name of the cache server that serves it.
    """

    number: int
    at: float
    model: Model
    cache_salt: str
    server: str
    tokens: Tokens
    parts: tuple[Part, ...]

    @property
    def namespace(self) -> Namespace:
        """The namespace its chunks are stored and looked up in."""
        return Namespace(self.model.name, self.cache_salt, self.model.world_size)

    @cached_property
    def chunk_hashes(self) -> list[bytes]:
        """The prefix-chained hash of each complete chunk, in order."""
        return list(_HASHER.hashes(self.tokens))

    def chunk(self, index: int) -> Tokens:
        """The tokens of one complete chunk."""
        return self.tokens[index * CHUNK_TOKENS : (index + 1) * CHUNK_TOKENS]


@dataclass(frozen=True, slots=True)
class Server:
    """A cache server of the fleet: one model, an L1 of `l1_chunks`, and the pool that all servers mount."""

    name: str
    model: Model
    l1_chunks: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a run in order of time, their fleet, and how many chunks its L2 pool keeps.

    Attributes:
        recorded: the times are those of a real service, not drawn.
    """

    title: str
    requests: Sequence[Request]
    servers: tuple[Server, ...]
    pool_chunks: int
    recorded: bool = False

    def server(self, name: str) -> Server:
        """The server of that name."""
        return next(server for server in self.servers if server.name == name)


def plan_fleet(
    title: str, requests: Sequence[Request], models: Sequence[tuple[str, Model]], recorded: bool = False
) -> Workload:
    """Size the servers' L1 and the pool so that both overflow in the course of the run."""
    load = dict.fromkeys((name for name, _ in models), 0)
    for request in requests:
        load[request.server] += len(request.tokens) // CHUNK_TOKENS
    servers = tuple(Server(name, model, max(64, load[name] // 5)) for name, model in models)
    return Workload(title, requests, servers, max(128, sum(load.values()) // 4), recorded)


_FLEET: Final = (("server-a", LLAMA), ("server-b", LLAMA), ("server-c", QWEN), ("server-d", QWEN))
_SALTS: Final = ("", "acme")
_RATE: Final = 30.0
_FOLLOW_UPS: Final = 0.25
_STYLE_CHARS: Final = 2_400
_INSTRUCTIONS: Final = (
    "You are the assistant of {tenant}. Answer from the documents below and from nothing else. Name the "
    "document that each statement rests on. If the documents do not answer the question, say so. Keep to the "
    "house style.\n\n{style}"
)


def assembled_prompts(count: int, seed: int = SEED) -> Workload:
    """`count` prompts of two models and two tenants over the corpus, in changing order.

    Documents are drawn with the skew of real retrieval: the n-th most asked for comes up about 1/n as often
    as the first. A quarter of the prompts are follow-ups: the documents of the tenant's last prompt, with a
    new question.
    """
    desk = _Desk(documents(), seed)
    requests = [desk.next_request(number) for number in range(count)]
    return plan_fleet("assembled prompts", requests, _FLEET)


class _Desk:
    """Draws requests, by `random()` alone: it is promised to stay the same across Python versions."""

    def __init__(self, corpus: list[Document], seed: int) -> None:
        self._draw = random.Random(seed).random
        self._clock = 0.0
        style, *rest = corpus
        rules = style.text[:_STYLE_CHARS]
        self._systems = {
            salt: tokenize(_INSTRUCTIONS.format(tenant=salt or "the library", style=rules)) for salt in _SALTS
        }
        self._ranked = {salt: self._shuffled(rest) for salt in _SALTS}
        self._tokens = {doc.name: tokenize(f"\n\n# {doc.name}\n\n{doc.text}\n") for doc in corpus}
        self._last: dict[tuple[str, str], list[Document]] = {}

    def next_request(self, number: int) -> Request:
        self._clock -= math.log(1.0 - self._draw()) / _RATE
        server, model = self._pick(_FLEET)
        salt = self._pick(_SALTS)
        chosen = self._last.get((model.name, salt))
        if chosen is None or self._draw() >= _FOLLOW_UPS:
            chosen = self._retrieve(self._ranked[salt], 3 + int(self._draw() * 4))
        self._last[model.name, salt] = chosen
        pieces = [("system", self._systems[salt])]
        pieces += [(doc.name, self._tokens[doc.name]) for doc in chosen]
        pieces.append(("question", tokenize(self._question(chosen))))
        return assemble(number, self._clock, model, salt, server, pieces)

    def _retrieve(self, ranked: list[Document], count: int) -> list[Document]:
        chosen: list[Document] = []
        while len(chosen) < min(count, len(ranked)):
            # The inverse of the distribution function of ranks weighted 1/n.
            doc = ranked[int(len(ranked) ** self._draw()) - 1]
            if doc not in chosen:
                chosen.append(doc)
        return chosen

    def _question(self, chosen: list[Document]) -> str:
        words = [self._pick(re.findall(r"[A-Za-z]{5,}", doc.text) or [doc.name]) for doc in chosen]
        asked = ", ".join(words)
        return f"\n\nQuestion: what do the documents say about {asked}, and how do they belong together?\n"

    def _pick(self, items: Sequence[T]) -> T:
        return items[int(self._draw() * len(items))]

    def _shuffled(self, items: list[Document]) -> list[Document]:
        return [doc for _, _, doc in sorted((self._draw(), n, doc) for n, doc in enumerate(items))]


def assemble(
    number: int, at: float, model: Model, cache_salt: str, server: str, pieces: Sequence[tuple[str, Tokens]]
) -> Request:
    """Join named pieces into a request and keep where each of them lies."""
    parts = []
    start = 0
    for name, piece in pieces:
        parts.append(Part(name, start, start + len(piece)))
        start += len(piece)
    tokens = np.concatenate([piece for _, piece in pieces])
    return Request(number, at, model, cache_salt, server, tokens, tuple(parts))
