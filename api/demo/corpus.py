"""Documents found on any Python installation: the language reference behind `help()`, and library sources.

The selection is fixed and needs no network: one installation gives the same documents in the same order every
time. Long texts are cut at paragraphs into sections of a size that a retrieval system would put into a
prompt.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SECTION_CHARS: Final = 6_000
"""A section ends at the first paragraph past this length; about 1,500 tokens."""
MIN_CHARS: Final = 1_500
"""Shorter texts, and shorter last sections, are left out."""
ENOUGH: Final = 80
"""Library sources fill up to this many documents where the language reference is not installed."""

_SOURCES: Final = ("heapq", "bisect", "textwrap", "string", "queue", "sched", "shlex", "fractions")


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of real text with the name that the demo shows for it."""

    name: str
    text: str


def documents() -> list[Document]:
    """The corpus, at least one document, in an order that depends on nothing but the installation."""
    found = [part for name, text in _topics() for part in _sections(name, text)]
    found += [part for name in _SOURCES for part in _source(name)]
    if len(found) < ENOUGH:
        for name in sorted(sys.stdlib_module_names - set(_SOURCES)):
            found += _source(name)
            if len(found) >= ENOUGH:
                break
    if not found:
        raise RuntimeError("this Python installation has neither the texts of help() nor library sources")
    return found


def _topics() -> Iterator[tuple[str, str]]:
    # Debian and some containers leave pydoc's data out of their smallest Python.
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        return
    for name in sorted(topics):
        yield f"help({name})", topics[name]


def _source(module: str) -> list[Document]:
    spec = importlib.util.find_spec(module)
    read = getattr(spec.loader if spec else None, "get_source", None)
    try:
        text = read(module) if read else None
    except (ImportError, OSError):
        text = None
    return list(_sections(f"{module}.py", text)) if text else []


def _sections(name: str, text: str) -> Iterator[Document]:
    sections: list[str] = []
    held: list[str] = []
    for paragraph in text.split("\n\n"):
        held.append(paragraph)
        if sum(map(len, held)) >= SECTION_CHARS:
            sections.append("\n\n".join(held))
            held = []
    sections.append("\n\n".join(held))
    kept = [section for section in sections if len(section) >= MIN_CHARS]
    for number, section in enumerate(kept, 1):
        yield Document(name if len(kept) == 1 else f"{name} {number}/{len(kept)}", section)
