"""Brokers and topics for tests.

A test that takes `kafka_broker` (or `topic`) runs twice: on the embedded broker and on a real Kafka, which is
the first of BLENDSTREAM_KAFKA (an address), Java with Maven, Docker. `@pytest.mark.broker("kafka")` asks for
certain kinds instead, and `pytest --broker embedded` keeps a run to one. Each broker is started once a run,
when the first test needs it.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from deploy.broker import create_topic, delete_topic, make_broker
from tests.brokers import RunningBroker
from tests.requirements import EXTERNAL_KAFKA, PEER_PYTHON, STRICT, missing, real_broker

KINDS = ("embedded", "kafka")
REASONS: pytest.StashKey[Counter[str]] = pytest.StashKey()


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """A running broker of each kind that the test asks for."""
    kind = request.param
    if kind == "kafka":
        if EXTERNAL_KAFKA:
            yield RunningBroker(EXTERNAL_KAFKA, "external")
            return
        kind = real_broker()
    with make_broker(kind) as broker:
        yield RunningBroker(broker.bootstrap, broker.kind.value)


@pytest.fixture
def topic(request: pytest.FixtureRequest, kafka_broker: RunningBroker) -> Iterator[str]:
    """A new topic of one partition; `parametrize("topic", [4], indirect=True)` gives it four."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.lower()) + "-" + uuid.uuid4().hex[:8]
    create_topic(kafka_broker.bootstrap, name, partitions=getattr(request, "param", 1))
    yield name
    delete_topic(kafka_broker.bootstrap, name)


@pytest.fixture
def peer_python() -> str:
    """The Python that has LMCache; the test is to be marked `needs("peer")`."""
    return PEER_PYTHON


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker", action="append", choices=[*KINDS, "docker"], help="run tests on this kind of broker only"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kafka_broker" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("broker")
        kinds = marker.args if marker is not None else KINDS
        metafunc.parametrize("kafka_broker", kinds, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = config.stash[REASONS] = Counter()
    wanted = config.getoption("--broker")
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        kind = broker_kind(item)
        if wanted and kind is not None and kind not in wanted:
            reason: str | None = f"--broker {' '.join(wanted)}"
        else:
            reason = None if STRICT else unmet_need(item)
        if reason is not None:
            reasons[reason] += 1
        (kept if reason is None else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    if (reason := unmet_need(item)) is not None:
        pytest.fail(reason, pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in sorted(config.stash.get(REASONS, Counter()).items()):
        terminalreporter.write_line(f"DESELECTED [{count}] {reason}", yellow=True)


def broker_kind(item: pytest.Item) -> str | None:
    """The kind of broker that the test runs on, if any."""
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("kafka_broker")


def unmet_need(item: pytest.Item) -> str | None:
    """Why the test cannot run on this machine, or None."""
    needs = [need for marker in item.iter_markers("needs") for need in marker.args]
    if (kind := broker_kind(item)) is not None:
        needs.append(kind)
    return next((reason for need in needs if (reason := missing(need)) is not None), None)
