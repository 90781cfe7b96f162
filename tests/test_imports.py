"""Who may import whom: one table, held against every import of every module, wherever in it that stands.

Imports inside functions and under TYPE_CHECKING count as well: a dependency is one whenever it is taken up.
The second half runs Python afresh to see what is really loaded, since a cache server that uses the producer
or the client must not pay for compiled kernels.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
OURS: Final = ("producer", "processor", "api", "deploy", "bench", "tests")

SHARED: Final = ("processor.batch", "processor.kernel", "producer")
"""What the two halves of the processor, which never see each other, have in common."""
ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "producer": ("producer",),
    "processor": ("processor", "producer"),
    "processor.ingest": ("processor.ingest", *SHARED),
    "processor.state": ("processor.state", *SHARED),
    "api": ("api", "processor.service", "processor.offline", "producer", "deploy.broker"),
    "deploy": ("deploy",),
}
"""Package to the packages and modules that it may import; the longest entry that fits a module holds."""

COMPILED: Final = ("numba", "llvmlite", "processor")


def modules_of(package: str) -> list[str]:
    """Every module of a package by its dotted name."""
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / package).rglob("*.py")
    )


def under(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def path_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything of ours that a module imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"line {node.lineno}: imports are absolute here"
            # A name may be a submodule: `from processor import service` is an import of processor.service.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] in OURS:
                yield node.lineno, name


def rule_for(module: str) -> tuple[str, ...]:
    return ALLOWED[max((prefix for prefix in ALLOWED if under(module, prefix)), key=len)]


def violations(module: str, source: str) -> list[str]:
    allowed = rule_for(module)
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports_of(source)
        if not any(under(name, prefix) for prefix in allowed)
    ]


MODULES: Final = [
    module for package in ("producer", "processor", "api", "deploy") for module in modules_of(package)
]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_package_may(module: str) -> None:
    assert violations(module, path_of(module).read_text()) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("producer.wire", "import processor.batch"),
        ("producer.wire", "from processor import kernel"),
        ("processor.state.blend", "from processor.ingest.gate import EventGate"),
        ("processor.ingest.gate", "from processor.state.directory import KeyDirectory"),
        ("processor.ingest.gate", "from processor import service"),
        ("api.routes", "from processor.state.directory import KeyDirectory"),
        ("api.routes", "def late():\n    from processor import metrics"),
        ("api.routes", "if TYPE_CHECKING:\n    from processor.membership import Membership"),
        ("deploy.broker.kafka", "from producer.events import Tier"),
        ("processor.service", "from tests.waiting import wait_for"),
    ],
)
def test_an_import_against_the_table_is_found(module: str, line: str) -> None:
    assert len(violations(module, line)) == 1


@pytest.mark.parametrize("module", modules_of("tests"))
def test_what_tests_share_is_in_no_module_of_tests(module: str) -> None:
    names = [name.split(".") for _, name in imports_of(path_of(module).read_text())]
    assert [n for n in names if n[0] == "tests" and any(part.startswith("test_") for part in n)] == []


def loaded_after(imports: str) -> list[str]:
    """Which of the modules that must stay away a fresh Python has loaded after some imports."""
    script = f"{imports}\nimport sys\nprint(*sorted(m for m in {COMPILED!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_what_a_cache_server_imports_loads_neither_kernels_nor_the_processor() -> None:
    assert (
        loaded_after("\n".join(f"import {module}" for module in [*modules_of("producer"), "api.client"]))
        == []
    )


def test_the_command_line_loads_no_kernels_before_a_command_needs_them() -> None:
    assert loaded_after("import api.cli, api.commands, processor.offline") == ["processor"]


def test_what_is_looked_for_would_be_found() -> None:
    assert loaded_after("import processor.service") == sorted(COMPILED)
