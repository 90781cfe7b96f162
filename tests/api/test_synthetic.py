from __future__ import annotations

from api.synthetic import Synthetic
from api.token_hasher import TokenHasher


def test_made_up_events_are_the_same_for_the_same_seed_and_count_without_holes() -> None:
    made = Synthetic("a", 7, batches=3, chunks=2, chunk_size=4, world_size=2)
    events = list(made.events(10.0))
    assert events == list(made.events(10.0))
    assert [(batch.incarnation, batch.seq, len(batch.entries)) for batch in events] == [
        (7, 1, 4),
        (7, 2, 4),
        (7, 3, 4),
    ]


def test_made_up_keys_are_those_that_their_tokens_have() -> None:
    made = Synthetic("a", 7, batches=1, chunks=2, chunk_size=4)
    (batch,) = made.events(10.0)
    sequence = made.sequence(0)
    hashes = list(TokenHasher(4).hashes(sequence))
    assert [entry.key.chunk_hash for entry in batch.entries] == hashes
    assert [entry.token_offset for entry in batch.entries] == [0, 4]
    assert batch.entries[1].token_ids.tolist() == sequence[4:].tolist()
