"""The folder of the kernels' machine code is another one for any other source that went into it."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import processor
from processor.kernel import FROZEN, cache_name, kernel_sources

PACKAGE = Path(processor.__file__).parent
ROOT = PACKAGE.parent


def imports(source: Path) -> Iterator[Path]:
    """The files of this project that a module imports from."""
    for node in ast.walk(ast.parse(source.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source} has a relative import"
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            file = ROOT.joinpath(*name.split(".")).with_suffix(".py")
            if file.is_file():
                yield file


def copy_sources(to: Path) -> None:
    for source in kernel_sources(PACKAGE):
        copy = to / source.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


def test_the_digest_covers_all_that_kernel_modules_import_and_no_more() -> None:
    kernels = sorted(PACKAGE.rglob("*kernels.py"))
    imported = {file for source in kernels for file in imports(source)}
    assert PACKAGE / "state" / "layout.py" in imported
    assert imported | set(kernels) == set(kernel_sources(PACKAGE))


@pytest.mark.parametrize("name", [*FROZEN, "state/table_kernels.py"])
def test_a_changed_byte_in_a_source_gives_another_folder(tmp_path: Path, name: str) -> None:
    copy_sources(tmp_path)
    assert cache_name(tmp_path) == cache_name(PACKAGE)
    text = bytearray((tmp_path / name).read_bytes())
    text[-2] ^= 1
    (tmp_path / name).write_bytes(text)
    assert cache_name(tmp_path) != cache_name(PACKAGE)


def test_the_makefile_compiles_again_after_a_change_in_any_of_them() -> None:
    lines = (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines()
    (rule,) = [line for line in lines if line.startswith("KERNELS :=")]
    assert "$(shell find processor -name '*kernels.py')" in rule
    assert {f"processor/{name}" for name in FROZEN} <= set(rule.split())
