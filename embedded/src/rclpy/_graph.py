"""The ROS graph: our nodes as others see them, and theirs as we see them.

DDS knows participants, writers and readers. Which node they belong to is said by each participant
in `ros_discovery_info`, a transient local topic that it writes again whenever its nodes change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cyclonedds.qos import Policy

from rclpy import _dds, _names
from rclpy._cdr import CdrError
from rclpy._message import message_class, wire_type
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, to_dds

_TOPIC = "ros_discovery_info"

# Made at the import, so that processes that are forked after it have them: half of what a context
# costs a process.
_INFO = message_class("rmw_dds_common/msg/ParticipantEntitiesInfo")
_NODE_INFO = message_class("rmw_dds_common/msg/NodeEntitiesInfo")
_GID = message_class("rmw_dds_common/msg/Gid")
_INFO_TYPE, _INFO_HASH = wire_type(_INFO)
_dds.opaque_type(_INFO_TYPE)


@dataclass
class NodeEntry:
    """One of our nodes: what it is called and the gids of its DDS endpoints."""

    namespace: str
    name: str
    readers: list[bytes] = field(default_factory=list)
    writers: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Endpoint:
    """A writer or reader somewhere in the domain."""

    gid: bytes
    participant: bytes
    topic: str
    type_name: str
    qos: Any
    is_writer: bool


class Graph:
    """One participant's view of the domain."""

    def __init__(self, participant: int) -> None:
        self._participant = participant
        self._gid = _dds.guid(participant)
        self._lock = threading.RLock()
        self._nodes: list[NodeEntry] = []
        self._remote: dict[bytes, Any] = {}
        self._held = 0
        user_data = f"typehash={_INFO_HASH};".encode()
        own = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        # All participants write the same instance: keep them all, not the last one.
        others = QoSProfile(
            history=HistoryPolicy.KEEP_ALL, durability=DurabilityPolicy.TRANSIENT_LOCAL
        )
        topic = _dds.create_topic(participant, _TOPIC, _INFO_TYPE)
        self._writer = _dds.create_writer(participant, topic, to_dds(own, user_data, True))
        self._reader = _dds.create_reader(
            participant,
            topic,
            [*to_dds(others, user_data, False), Policy.IgnoreLocal.Participant],
        )
        _dds.delete(topic)

    # Our own nodes.

    def add_node(self, namespace: str, name: str) -> NodeEntry:
        """Announce a node."""
        entry = NodeEntry(namespace, name)
        with self._lock:
            self._nodes.append(entry)
            self._publish()
        return entry

    def remove_node(self, entry: NodeEntry) -> None:
        """Announce that a node is gone."""
        with self._lock:
            if entry in self._nodes:
                self._nodes.remove(entry)
                self._publish()

    def add(self, entry: NodeEntry, readers: list[bytes], writers: list[bytes]) -> None:
        """Announce new endpoints of a node."""
        with self._lock:
            entry.readers += readers
            entry.writers += writers
            self._publish()

    def remove(self, entry: NodeEntry, readers: list[bytes], writers: list[bytes]) -> None:
        """Announce that endpoints are gone."""
        with self._lock:
            entry.readers = [g for g in entry.readers if g not in readers]
            entry.writers = [g for g in entry.writers if g not in writers]
            self._publish()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Announce once what changes inside the `with` block."""
        with self._lock:
            self._held += 1
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
                self._publish()

    def _publish(self) -> None:
        if self._held:
            return

        def gids(raw: list[bytes]) -> list[Any]:
            return [_GID(data=list(g)) for g in raw]

        nodes = [
            _NODE_INFO(
                node_namespace=n.namespace,
                node_name=n.name,
                reader_gid_seq=gids(n.readers),
                writer_gid_seq=gids(n.writers),
            )
            for n in self._nodes
        ]
        info = _INFO(gid=_GID(data=list(self._gid)), node_entities_info_seq=nodes)
        _dds.write(self._writer, _INFO._SERIALIZE(info))

    # Everybody's.

    @contextmanager
    def watch(self, context: Any) -> Iterator[Callable[[float], Any]]:
        """Give a function that waits (at most so many seconds) for the graph to change.

        It returns at once when the context is shut down.
        """
        mask = _dds.DATA_AVAILABLE
        with _dds.discovery(self._participant, _dds.BUILTIN_PARTICIPANT) as participants:
            readers = [self._reader, participants]
            waiter = _dds.WaitSet()
            context.on_shutdown(waiter.wake)
            try:
                for key, reader in enumerate(readers, 1):
                    waiter.attach(reader, key)

                def wait(seconds: float) -> None:
                    waiter.wait(max(0, int(seconds * 1e9)))
                    for reader in readers:
                        _dds.take_status(reader, mask)

                yield wait
            finally:
                waiter.close()

    def _update(self) -> dict[bytes, bytes]:
        """Read what others have announced; returns the living participants and their USER_DATA."""
        for data, info in _dds.take(self._reader, 10000):
            if not info.valid_data:
                continue
            try:
                message = _INFO._DESERIALIZE(data)
            except CdrError:
                continue  # whoever writes this speaks another wire format
            self._remote[bytes(message.gid.data)] = message
        alive = _dds.read_participants(self._participant)
        for gid in [g for g in self._remote if g not in alive]:
            del self._remote[gid]
        return alive

    def nodes(self) -> list[tuple[str, str, str]]:
        """Return name, namespace and enclave of every node in the domain."""
        with self._lock:
            alive = self._update()
            found = [(n.name, n.namespace, "/") for n in self._nodes]
            for gid, message in self._remote.items():
                enclave = _enclave(alive[gid])
                nodes = message.node_entities_info_seq
                found += [(n.node_name, n.node_namespace, enclave) for n in nodes]
            return found

    def endpoints(self) -> list[Endpoint]:
        """Return all writers and readers in the domain."""
        found = []
        with self._lock:
            for topic in (_dds.BUILTIN_PUBLICATION, _dds.BUILTIN_SUBSCRIPTION):
                is_writer = topic == _dds.BUILTIN_PUBLICATION
                found += [
                    Endpoint(*raw, is_writer)
                    for raw in _dds.read_endpoints(self._participant, topic)
                ]
        return found

    def owners(self) -> dict[bytes, tuple[str, str]]:
        """Return name and namespace of the node of every endpoint, by the endpoint's identity."""
        with self._lock:
            self._update()
            found: dict[bytes, tuple[str, str]] = {}
            for own in self._nodes:
                for gid in (*own.readers, *own.writers):
                    found[gid] = own.name, own.namespace
            for message in self._remote.values():
                for node in message.node_entities_info_seq:
                    for gid in (*node.reader_gid_seq, *node.writer_gid_seq):
                        found[bytes(gid.data)] = node.node_name, node.node_namespace
            return found

    def endpoints_of(self, name: str, namespace: str) -> list[Endpoint] | None:
        """Return the endpoints of one node, None when there is no such node."""
        with self._lock:
            self._update()
            gids: set[bytes] | None = None
            for own in self._nodes:
                if (own.name, own.namespace) == (name, namespace):
                    gids = (gids or set()) | {*own.readers, *own.writers}
            for message in self._remote.values():
                for node in message.node_entities_info_seq:
                    if (node.node_name, node.node_namespace) == (name, namespace):
                        listed = [*node.reader_gid_seq, *node.writer_gid_seq]
                        gids = (gids or set()) | {bytes(g.data) for g in listed}
            if gids is None:
                return None
            return [e for e in self.endpoints() if e.gid in gids]


def _enclave(user_data: bytes) -> str:
    for part in user_data.split(b";"):
        key, _, value = part.partition(b"=")
        if key == b"enclave":
            return value.decode(errors="replace")
    return "/"


def topics_and_types(endpoints: list[Endpoint], plain: bool = False) -> list[tuple[str, list[str]]]:
    """Return topic names and their types, sorted; `plain`: as DDS calls them."""
    found: dict[str, set[str]] = {}
    for e in endpoints:
        if plain:
            found.setdefault(e.topic, set()).add(e.type_name)
            continue
        name = _names.topic_from_dds(e.topic)
        if name is not None:
            found.setdefault(name, set()).add(_names.type_from_dds(e.type_name))
    return [(name, sorted(found[name])) for name in sorted(found)]


def services_and_types(endpoints: list[Endpoint]) -> list[tuple[str, list[str]]]:
    """Return service names and their types, sorted."""
    found: dict[str, set[str]] = {}
    for e in endpoints:
        name = _names.service_from_dds(e.topic)
        if name is not None:
            found.setdefault(name, set()).add(_names.service_type_from_dds(e.type_name))
    return [(name, sorted(found[name])) for name in sorted(found)]
