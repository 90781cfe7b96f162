"""Directory and index against the model, over whatever a random fleet does."""

from __future__ import annotations

from tests.model.directory_machine import DirectoryMachine

TestDirectory = DirectoryMachine.TestCase
