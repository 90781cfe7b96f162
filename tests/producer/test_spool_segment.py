"""A segment gives back the records that are whole, up to the first that is not, and nothing else."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
import xxhash

from producer.spool.segment import HEADER, Record, SegmentReader, frame

RECORDS = [Record(5, b"server-1", b"first"), Record(6, b"", b""), Record(9, bytes(65_535), bytes(100))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "segment"


def written(path: Path, records: list[Record]) -> bytes:
    content = HEADER + b"".join(frame(one.index, one.key, one.value) for one in records)
    path.write_bytes(content)
    return content


def read(path: Path) -> list[Record]:
    with closing(SegmentReader(path, 5)) as reader:
        return list(reader)


def test_records_come_back_in_order_with_empty_and_with_longest_keys(path: Path) -> None:
    content = written(path, RECORDS)
    with closing(SegmentReader(path, 5)) as reader:
        assert list(reader) == RECORDS
        assert reader.offset == len(content)


def test_a_record_lies_on_disk_as_the_document_says() -> None:
    """Of another program's making, so that a change which reads its own writing shows."""
    rest = struct.pack("<QIH", 0x0102030405060708, 5, 3) + b"key" + b"value"
    assert rest[:8] == bytes((8, 7, 6, 5, 4, 3, 2, 1))
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(rest))
    assert HEADER == b"blspool\x01"
    assert frame(0x0102030405060708, b"key", b"value") == checksum + rest


def test_cut_at_any_byte_a_segment_gives_the_records_that_are_whole(path: Path) -> None:
    records = [Record(index, b"key", bytes(index)) for index in range(5, 9)]
    content = written(path, records)
    ends = [len(HEADER)]
    for one in records:
        ends.append(ends[-1] + len(frame(one.index, one.key, one.value)))
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        assert read(path) == records[: sum(end <= length for end in ends[1:])]


@pytest.mark.parametrize("header", [b"", b"blspool\x02", b"\0" * 8])
def test_without_its_header_a_segment_has_nothing(path: Path, header: bytes) -> None:
    path.write_bytes(header + frame(5, b"key", b"value"))
    assert read(path) == []


def test_what_follows_a_record_that_is_not_whole_is_not_read(path: Path) -> None:
    content = bytearray(written(path, RECORDS))
    second = len(HEADER) + len(frame(5, b"server-1", b"first"))
    content[second] ^= 1
    path.write_bytes(content)
    with closing(SegmentReader(path, 5)) as reader:
        assert list(reader) == RECORDS[:1]
        assert reader.offset == second
        assert reader.find(9) is None


def test_a_damaged_length_takes_no_memory_for_what_is_not_there(path: Path) -> None:
    torn = struct.pack("<QQIH", 0, 5, 2**32 - 1, 3)
    path.write_bytes(HEADER + torn + bytes(1_000))
    tracemalloc.start()
    try:
        assert read(path) == []
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_records_are_found_in_ascending_order_and_again(path: Path) -> None:
    written(path, RECORDS)
    with closing(SegmentReader(path, 5)) as reader:
        for index, found in ((5, 0), (5, 0), (6, 1), (7, None), (8, None), (9, 2), (9, 2), (10, None)):
            assert reader.find(index) == (None if found is None else RECORDS[found])


def test_the_reader_says_from_where_on_it_can_find(path: Path) -> None:
    written(path, RECORDS)
    with closing(SegmentReader(path, 5)) as reader:
        assert reader.index == 5
        reader.find(6)
        assert reader.index == 6
        reader.find(8)
        assert reader.index == 7, "the record behind the gap is the last one read, and can still be found"
        assert reader.find(9) == RECORDS[2]


def test_a_file_that_the_disk_cannot_read_has_nothing(path: Path) -> None:
    path.mkdir()  # which can be opened, and whose reading is an error
    assert read(path) == []
