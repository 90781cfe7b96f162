"""The demo's text, tokens and requests: the same everywhere, and shaped as the demo needs them."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from api.demo import corpus
from api.demo.corpus import Document, documents
from api.demo.tokenizer import VOCABULARY, tokenize
from api.demo.trace import BLOCK_TOKENS, TraceError, block_tokens, read_trace
from api.demo.workload import CHUNK_TOKENS, LLAMA, Request, Workload, assembled_prompts
from producer.events import world_size_of


def fingerprint(requests: Iterable[Request]) -> str:
    digest = hashlib.sha256()
    for request in requests:
        digest.update(f"{request.number} {request.server} {request.namespace} {request.parts}".encode())
        digest.update(request.tokens.tobytes())
    return digest.hexdigest()


def write_trace(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


ROWS: list[dict[str, object]] = [
    {"timestamp": 0, "input_length": 1200, "output_length": 10, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 1024, "output_length": 10, "hash_ids": [0, 3]},
]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox.", [60166, 68959, 988, 76246, 578]),
        (
            "naïve café — 東京\n",
            [56600, 57355, 94552, 22480, 43326, 62277, 54986, 62277, 73667, 109326, 88723],
        ),
        ("", []),
    ],
)
def test_tokens_of_a_text_never_change(text: str, tokens: list[int]) -> None:
    assert tokenize(text).tolist() == tokens
    assert tokenize(text).dtype == np.uint32


def test_tokens_of_texts_joined_are_the_joined_tokens_at_a_line_break() -> None:
    joined = tokenize("one document\n" + "\nanother")
    assert tokenize("one document").tolist() == joined[:3].tolist()
    assert joined.max() < VOCABULARY


def test_the_corpus_has_enough_real_documents_of_a_prompts_size() -> None:
    found = documents()
    assert len(found) >= corpus.ENOUGH
    assert len({document.name for document in found}) == len(found)
    assert all(len(document.text) >= corpus.MIN_CHARS for document in found)
    assert found == documents()


def test_library_sources_stand_in_where_the_language_reference_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    found = documents()
    assert len(found) >= corpus.ENOUGH
    assert all(".py" in document.name for document in found)


def test_long_texts_are_cut_at_paragraphs_and_nothing_is_lost_but_a_short_rest() -> None:
    paragraphs = [f"{number} " + "word " * 200 for number in range(20)]
    sections = list(corpus._sections("long", "\n\n".join(paragraphs)))
    assert [section.name for section in sections] == [f"long {number}/4" for number in (1, 2, 3, 4)]
    assert "\n\n".join(section.text for section in sections) == "\n\n".join(paragraphs)
    assert list(corpus._sections("short", "a few words")) == []
    assert isinstance(sections[0], Document)


def test_the_same_seed_gives_the_same_requests_in_another_process() -> None:
    program = (
        "from tests.api.test_demo_workload import fingerprint;"
        "from api.demo.workload import assembled_prompts;"
        "print(fingerprint(assembled_prompts(12).requests))"
    )
    root = Path(__file__).parents[2]
    elsewhere = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert fingerprint(assembled_prompts(12).requests) == elsewhere
    assert fingerprint(assembled_prompts(12, seed=1).requests) != elsewhere


def test_a_prompt_is_a_system_part_then_documents_then_a_question() -> None:
    for request in assembled_prompts(20).requests:
        names = [part.name for part in request.parts]
        assert (names[0], names[-1]) == ("system", "question")
        assert 3 <= len(names[1:-1]) <= 6
        assert len(set(names)) == len(names)
        assert request.parts[0].start == 0
        assert request.parts[-1].end == len(request.tokens)
        assert all(a.end == b.start for a, b in zip(request.parts, request.parts[1:], strict=False))


def test_the_documents_of_a_prompt_have_the_same_tokens_wherever_they_stand() -> None:
    seen: dict[str, bytes] = {}
    positions: dict[str, set[int]] = {}
    for request in assembled_prompts(60).requests:
        for part in request.parts[1:-1]:
            tokens = request.tokens[part.start : part.end].tobytes()
            assert seen.setdefault(part.name, tokens) == tokens
            positions.setdefault(part.name, set()).add(part.start)
    assert max(map(len, positions.values())) > 5


def test_a_fleet_has_two_models_of_two_sizes_two_tenants_and_caches_that_overflow() -> None:
    workload = assembled_prompts(200)
    assert {request.namespace.world_size for request in workload.requests} == {2, 4}
    assert len({request.namespace for request in workload.requests}) == 4
    for server in workload.servers:
        stored = {
            (request.cache_salt, chunk_hash)
            for request in workload.requests
            if request.server == server.name
            for chunk_hash in request.chunk_hashes
        }
        assert len(stored) > server.l1_chunks
        assert workload.server(server.name) is server


def test_chunk_hashes_are_chained_so_that_equal_prefixes_alone_share_them() -> None:
    first, second = read_two()
    assert len(first.chunk_hashes) == len(first.tokens) // CHUNK_TOKENS
    assert first.chunk_hashes[:2] == second.chunk_hashes[:2]
    assert not set(first.chunk_hashes[2:]) & set(second.chunk_hashes[2:])


def test_a_chunk_is_split_evenly_over_the_ranks_of_a_model() -> None:
    keys = LLAMA.keys(bytes(32), "acme")
    assert [world_size_of(key.kv_rank) for key in keys] == [2, 2]
    assert len(set(keys)) == 2
    assert LLAMA.object_bytes * 2 == 32 * 1024**2


def read_two() -> list[Request]:
    blocks = [block_tokens(n) for n in range(4)]
    tokens = [np.concatenate([blocks[0], blocks[n]]) for n in (1, 2)]
    return [Request(n, 0.0, LLAMA, "", "server-a", tokens[n], ()) for n in range(2)]


@pytest.mark.parametrize(
    ("block", "head", "digest"),
    [
        (0, [49167, 27546, 77407, 117439], "495c5d675eacd511"),
        (1, [96164, 123631, 107665, 65295], "222f300d3fcdd1d1"),
        (182789, [73585, 43269, 45657, 21549], "5e5f2ae278090bce"),
    ],
)
def test_the_tokens_of_a_block_never_change(block: int, head: list[int], digest: str) -> None:
    tokens = block_tokens(block)
    assert tokens.dtype == np.uint32
    assert len(tokens) == BLOCK_TOKENS == 2 * CHUNK_TOKENS
    assert tokens[:4].tolist() == head
    assert hashlib.sha256(tokens.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_becomes_requests_whose_equal_blocks_have_equal_tokens(tmp_path: Path, name: str) -> None:
    workload = read_trace(write_trace(tmp_path / name, ROWS), 10)
    first, second = workload.requests
    assert (first.at, second.at) == (0.0, 1.5)
    assert (len(first.tokens), len(second.tokens)) == (1200, 1024)
    assert first.tokens[:512].tolist() == second.tokens[:512].tolist() == block_tokens(0).tolist()
    assert first.tokens[1024:].tolist() == block_tokens(2)[:176].tolist()
    assert first.chunk_hashes[:2] == second.chunk_hashes[:2]


def test_a_trace_is_read_no_further_than_asked(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl", ROWS)
    path.write_text(path.read_text() + "not a request\n")
    assert len(read_trace(path, 2).requests) == 2
    with pytest.raises(TraceError, match=r"trace\.jsonl: cannot be read"):
        read_trace(path, 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"timestamp": 0, "input_length": 10},
            "line 1: not a request of a block trace: it has no 'hash_ids'",
        ),
        ({"timestamp": 0, "input_length": 513, "hash_ids": [1]}, "input_length 513 does not fit 1 blocks"),
        ({"timestamp": 0, "input_length": 0, "hash_ids": [1]}, "input_length 0 does not fit"),
        ({"timestamp": 0, "input_length": 10, "hash_ids": "x"}, "line 1: not a request"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_line(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(write_trace(tmp_path / "bad.jsonl", [row]), 10)


def test_a_missing_empty_or_damaged_trace_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl: cannot be read"):
        read_trace(tmp_path / "nowhere.jsonl", 10)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TraceError, match=r"empty\.jsonl: no requests"):
        read_trace(tmp_path / "empty.jsonl", 10)
    damaged = write_trace(tmp_path / "cut.jsonl.gz", ROWS)
    damaged.write_bytes(damaged.read_bytes()[:-12])
    with pytest.raises(TraceError, match=r"cut\.jsonl\.gz: cannot be read"):
        read_trace(damaged, 10)


def test_a_trace_keeps_every_server_busy(tmp_path: Path) -> None:
    rows = [{"timestamp": n, "input_length": 512, "hash_ids": [n]} for n in range(8)]
    workload: Workload = read_trace(write_trace(tmp_path / "trace.jsonl", rows), 8)
    assert {request.server for request in workload.requests} == {server.name for server in workload.servers}
