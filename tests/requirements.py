"""What tests may need beyond Python, and whether this machine has it.

In CI (CI=true), or under BLENDSTREAM_REQUIRE_KAFKA=1, a test whose need is not met fails. Elsewhere it is
deselected, and the end of the run says how many and why; conftest.py sees to both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache

from deploy.broker import BrokerKind, why_unavailable

EXTERNAL_KAFKA = os.environ.get("BLENDSTREAM_KAFKA", "")
"""The address of a broker that somebody else runs."""

PEER_PYTHON = os.environ.get("PEER_PYTHON", "")
"""The Python of an environment with LMCache in it."""

STRICT = any(
    os.environ.get(name, "").lower() in ("1", "true", "yes") for name in ("CI", "BLENDSTREAM_REQUIRE_KAFKA")
)


@cache
def missing(need: str) -> str | None:
    """Why the need is not met on this machine, or None where it is."""
    return NEEDS[need]()


def real_broker() -> BrokerKind | None:
    """Which real Kafka can be started here: a process where Java is, else a container."""
    if missing("java") is None:
        return BrokerKind.KAFKA
    return BrokerKind.DOCKER if missing("docker") is None else None


def _no_kafka() -> str | None:
    if EXTERNAL_KAFKA or real_broker():
        return None
    return f"no Apache Kafka: BLENDSTREAM_KAFKA names none; {missing('java')}; {missing('docker')}"


def _no_peer() -> str | None:
    if not PEER_PYTHON:
        return "no LMCache: PEER_PYTHON does not name the Python of an environment with it"
    return None if shutil.which(PEER_PYTHON) else f"PEER_PYTHON is {PEER_PYTHON!r}, which cannot be run"


def _no_namespaces() -> str | None:
    """Why no file system of a test's own can be mounted: some containers do not let their processes."""
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        return f"no mount namespaces: {error}"
    return None if done.returncode == 0 else f"no mount namespaces: {done.stderr.strip()}"


NEEDS: Mapping[str, Callable[[], str | None]] = {
    "embedded": lambda: why_unavailable(BrokerKind.EMBEDDED),
    "java": lambda: why_unavailable(BrokerKind.KAFKA),
    "docker": lambda: why_unavailable(BrokerKind.DOCKER),
    "kafka": _no_kafka,
    "peer": _no_peer,
    "namespaces": _no_namespaces,
}
