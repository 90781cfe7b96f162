from __future__ import annotations

import pybase64
import pytest

from api.bodies import tokens_of_base64
from api.decoding import BASE64_SLICE
from api.http import RequestError


@pytest.mark.parametrize(
    "count", [0, 1, 3, BASE64_SLICE // 4 * 3 // 4, BASE64_SLICE // 4 * 3 // 4 + 1, 10**6]
)
def test_base64_of_any_length_decodes_to_the_same_tokens(count: int) -> None:
    data = bytes(range(256)) * (count // 64 + 1)
    text = pybase64.b64encode(data[: 4 * count])
    assert tokens_of_base64(b'"' + text + b'"').tobytes() == data[: 4 * count]


def test_escapes_inside_the_string_are_undone() -> None:
    assert tokens_of_base64(b'"\\u0041AAAAA\\u003d="').tolist() == [0]


@pytest.mark.parametrize("text", ["A", "AA==AAAA", "AA=A", "A" * (BASE64_SLICE + 1), "AAAA AAAA", "ÄÄÄÄ"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="not valid base64"):
        tokens_of_base64(f'"{text}"'.encode())
