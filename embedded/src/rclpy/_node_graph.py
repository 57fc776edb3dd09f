"""What a node sees of the graph. Base of Node."""

from __future__ import annotations

import time
from typing import Any

from rclpy import _graph, _names
from rclpy.exceptions import NameValidationException
from rclpy.qos import from_dds
from rclpy.service import user_data_value
from rclpy.topic_endpoint_info import TopicEndpointInfo, TopicEndpointTypeEnum
from rclpy.type_hash import TypeHash


class NodeNameNonExistentError(RuntimeError):
    """There is no node of this name."""


class NodeGraph:
    """Queries about nodes, topics and services in the domain."""

    _context: Any

    def _resolve(self, name: str, only_expand: bool, is_service: bool) -> str:
        raise NotImplementedError

    def get_topic_names_and_types(self, no_demangle: bool = False) -> list[tuple[str, list[str]]]:
        """Return all topics in the domain and their types."""
        return _graph.topics_and_types(self._context.graph.endpoints(), no_demangle)

    def get_service_names_and_types(self) -> list[tuple[str, list[str]]]:
        """Return all services in the domain and their types."""
        return _graph.services_and_types(self._context.graph.endpoints())

    def _endpoints_of(self, name: str, namespace: str) -> list[_graph.Endpoint]:
        found = self._context.graph.endpoints_of(name, namespace)
        if found is None:
            raise NodeNameNonExistentError(
                f"Cannot get endpoints for nonexistent node: {_names.join(namespace, name)}"
            )
        return found

    def get_publisher_names_and_types_by_node(
        self, node_name: str, node_namespace: str, no_demangle: bool = False
    ) -> list[tuple[str, list[str]]]:
        """Return the topics that a node publishes."""
        found = [e for e in self._endpoints_of(node_name, node_namespace) if e.is_writer]
        return _graph.topics_and_types(found, no_demangle)

    def get_subscriber_names_and_types_by_node(
        self, node_name: str, node_namespace: str, no_demangle: bool = False
    ) -> list[tuple[str, list[str]]]:
        """Return the topics that a node subscribes to."""
        found = [e for e in self._endpoints_of(node_name, node_namespace) if not e.is_writer]
        return _graph.topics_and_types(found, no_demangle)

    def get_service_names_and_types_by_node(
        self, node_name: str, node_namespace: str
    ) -> list[tuple[str, list[str]]]:
        """Return the services that a node offers."""
        found = self._endpoints_of(node_name, node_namespace)
        return _graph.services_and_types(
            [e for e in found if not e.is_writer and e.topic.startswith("rq/")]
        )

    def get_client_names_and_types_by_node(
        self, node_name: str, node_namespace: str
    ) -> list[tuple[str, list[str]]]:
        """Return the services that a node may call."""
        found = self._endpoints_of(node_name, node_namespace)
        return _graph.services_and_types(
            [e for e in found if e.is_writer and e.topic.startswith("rq/")]
        )

    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]:
        """Return name and namespace of every node in the domain."""
        return [(name, namespace) for name, namespace, _ in self._context.graph.nodes()]

    def get_node_names_and_namespaces_with_enclaves(self) -> list[tuple[str, str, str]]:
        """Return name, namespace and enclave of every node in the domain."""
        return self._context.graph.nodes()

    def get_node_names(self) -> list[str]:
        """Return the name of every node in the domain."""
        return [name for name, _, _ in self._context.graph.nodes()]

    def get_fully_qualified_node_names(self) -> list[str]:
        """Return the fully qualified name of every node in the domain."""
        return [_names.join(ns, name) for name, ns, _ in self._context.graph.nodes()]

    def _graph_name(self, name: str, is_service: bool) -> str:
        """Expand a name to look up; ValueError when it is none, as rclpy has it here."""
        try:
            return self._resolve(name, True, is_service)
        except NameValidationException as error:
            raise ValueError(f"{name!r} is invalid: {error}") from None

    def _count(self, dds_topic: str, is_writer: bool) -> int:
        endpoints = self._context.graph.endpoints()
        return sum(e.topic == dds_topic and e.is_writer == is_writer for e in endpoints)

    def count_publishers(self, topic_name: str) -> int:
        """Return the number of publishers of a topic in the domain."""
        return self._count(_names.topic_to_dds(self._graph_name(topic_name, False)), True)

    def get_publishers_info_by_topic(
        self, topic_name: str, no_mangle: bool = False
    ) -> list[TopicEndpointInfo]:
        """Return the publishers of a topic; one whose node is unknown has rclpy's words for it.

        :param no_mangle: it is a topic of DDS, not of ROS
        """
        return self._infos(topic_name, no_mangle, TopicEndpointTypeEnum.PUBLISHER)

    def get_subscriptions_info_by_topic(
        self, topic_name: str, no_mangle: bool = False
    ) -> list[TopicEndpointInfo]:
        """Return the subscriptions to a topic, as get_publishers_info_by_topic."""
        return self._infos(topic_name, no_mangle, TopicEndpointTypeEnum.SUBSCRIPTION)

    def _infos(
        self, topic: str, no_mangle: bool, kind: TopicEndpointTypeEnum
    ) -> list[TopicEndpointInfo]:
        dds_topic = topic if no_mangle else _names.topic_to_dds(self._graph_name(topic, False))
        is_writer = kind is TopicEndpointTypeEnum.PUBLISHER
        owners = self._context.graph.owners()
        unknown = ("_NODE_NAME_UNKNOWN_", "_NODE_NAMESPACE_UNKNOWN_")
        infos = []
        for e in self._context.graph.endpoints():
            if e.topic != dds_topic or e.is_writer != is_writer:
                continue
            name, namespace = owners.get(e.gid, unknown)
            profile, user_data = from_dds(e.qos)
            type_hash = user_data_value(user_data, b"typehash") or b""
            info = TopicEndpointInfo(
                node_name=name,
                node_namespace=namespace,
                topic_type=e.type_name if no_mangle else _names.type_from_dds(e.type_name),
                topic_type_hash=TypeHash._from_text(type_hash.decode(errors="replace")),
                endpoint_type=kind,
                endpoint_gid=list(e.gid),
                qos_profile=profile,
            )
            infos.append(info)
        return infos

    def count_subscribers(self, topic_name: str) -> int:
        """Return the number of subscriptions to a topic in the domain."""
        return self._count(_names.topic_to_dds(self._graph_name(topic_name, False)), False)

    def count_clients(self, service_name: str) -> int:
        """Return the number of clients of a service in the domain."""
        return self._count(_names.request_to_dds(self._graph_name(service_name, True)), True)

    def count_services(self, service_name: str) -> int:
        """Return the number of servers of a service in the domain."""
        return self._count(_names.request_to_dds(self._graph_name(service_name, True)), False)

    def wait_for_node(self, fully_qualified_node_name: str, timeout: float) -> bool:
        """Wait until a node is in the graph; False after the timeout (in seconds)."""
        end = time.monotonic() + timeout
        with self._context.graph.watch(self._context) as wait:
            while fully_qualified_node_name not in self.get_fully_qualified_node_names():
                left = end - time.monotonic()
                if left <= 0 or not self._context.ok():
                    return False
                wait(left)
        return True
