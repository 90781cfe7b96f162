"""Apache Kafka as a plain process: one KRaft node that is broker and controller, on Java 17 or newer.

The jars come from Maven Central by way of pom.xml and are kept in the user's cache folder; after the first
time no network is needed. The storage is formatted when its folder is new and reused otherwise, so records,
topics, offsets and the cluster id survive a restart.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from deploy.broker.broker import HOST, BrokerError, BrokerKind, BrokerUnavailable, free_port
from deploy.broker.process import ProcessBroker

logger = logging.getLogger(__name__)

POM = Path(__file__).with_name("pom.xml")
LOG4J = Path(__file__).with_name("log4j.properties")
JAVA_AT_LEAST = 17

# The quick compiler and the simple collector: two starts and stops take 7 s of processor time in place of 12,
# which is what counts where brokers start and stop all the time.
JVM_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One node can hold one replica; one partition of each internal topic starts faster than fifty.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def find_java() -> str | None:
    """The `java` of JAVA_HOME, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def java_version(java: str) -> int:
    """The feature version of a `java`, such as 17; 0 where it says none."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def jars_folder() -> Path:
    """Where this version's jars are kept; another pom.xml means another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "blendstream" / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"


def fetch_jars() -> Path:
    """The folder with Kafka's jars, downloaded by Maven the first time."""
    jars = jars_folder()
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailable(
            "Maven is needed once, to download Apache Kafka: install maven (Debian: apt-get install maven)"
        )
    logger.warning("fetching Apache Kafka from Maven Central, this once (43 MB)")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="fetching-") as scratch:
        fetched = Path(scratch) / "jars"
        command = [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={fetched}", "-DincludeScope=runtime"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerError(
                f"Maven could not download Apache Kafka:\n{(done.stdout + done.stderr).strip()[-2000:]}"
            )
        try:
            fetched.rename(jars)
        except OSError:
            # Another process was faster; its jars are the same.
            if not jars.is_dir():
                raise
    return jars


def new_cluster_id() -> str:
    """A cluster id in Kafka's form: 16 random bytes in URL-safe base64, not beginning with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class KafkaBroker(ProcessBroker):
    """Apache Kafka, one KRaft node; `settings` adds to or replaces broker settings."""

    kind = BrokerKind.KAFKA
    durable = True

    def __init__(
        self, port: int = 0, folder: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(port, folder)
        self._settings = dict(settings or {})

    @staticmethod
    def why_unavailable() -> str | None:
        """What is missing on this machine, or None."""
        java = find_java()
        if java is None:
            return (
                f"Java {JAVA_AT_LEAST} or newer is needed (Debian: apt-get install openjdk-17-jre-headless)"
            )
        if (version := java_version(java)) < JAVA_AT_LEAST:
            return f"Java {JAVA_AT_LEAST} or newer is needed, and {java} is version {version}"
        if not jars_folder().is_dir() and shutil.which("mvn") is None:
            return "Maven is needed once, to download Apache Kafka (Debian: apt-get install maven)"
        return None

    def _command(self) -> list[str]:
        if (reason := self.why_unavailable()) is not None:
            raise BrokerUnavailable(reason)
        properties = self._write_properties()
        java = [
            str(find_java()),
            *JVM_FLAGS,
            f"-Dlog4j.configuration=file:{LOG4J}",
            "-cp",
            f"{fetch_jars()}/*",
        ]
        if not (self._storage / "meta.properties").exists():
            self._format(java, properties)
        return [*java, "kafka.Kafka", str(properties)]

    @property
    def _storage(self) -> Path:
        return self.folder / "storage"

    def _write_properties(self) -> Path:
        controller = free_port()
        settings = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "log.dirs": str(self._storage),
            **self._settings,
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _format(self, java: list[str], properties: Path) -> None:
        command = [*java, "kafka.tools.StorageTool", "format", "-c", str(properties), "-t", new_cluster_id()]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerError(
                f"the storage in {self._storage} could not be formatted:\n{done.stdout + done.stderr}"
            )
