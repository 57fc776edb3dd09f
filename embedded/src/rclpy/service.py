"""Services."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

from rclpy import _dds, _names
from rclpy._cdr import HEADER_LE
from rclpy._reader import ReaderEntity
from rclpy.publisher import endpoint_data
from rclpy.qos import QoSProfile, to_dds

HEADER = struct.Struct("<Qq")  # client's guid and sequence number, before the fields
BODY = len(HEADER_LE) + HEADER.size
_REPLY_WAIT_NS = 100_000_000


def unique_id() -> str:
    """Return an id for USER_DATA that ties a client's (service's) reader and writer together."""
    return ".".join(f"{b:x}" for b in os.urandom(16))


def user_data_value(data: bytes, key: bytes) -> bytes | None:
    """Return the value of `key=value;` in USER_DATA."""
    for part in data.split(b";"):
        name, _, value = part.partition(b"=")
        if name == key:
            return value
    return None


class ServicePair(ReaderEntity):
    """Reader and writer of a service or client: USER_DATA shows that they belong together."""

    def __init__(
        self,
        participant: int,
        service: str,
        qos: QoSProfile,
        read: tuple[str, Any],
        write: tuple[str, Any],
        role: str,
        mask: int,
    ) -> None:
        """`read` and `write` are a DDS topic and a message class, `role` serviceid or clientid."""
        extra = f"{role}={unique_id()};"
        handles = []
        for topic, cls in (read, write):
            type_name, data = endpoint_data(cls, extra)
            handle = _dds.create_topic(participant, topic, type_name)
            try:
                if cls is write[1]:
                    made = _dds.create_writer(participant, handle, to_dds(qos, data, True))
                else:
                    made = _dds.create_reader(participant, handle, to_dds(qos, data, False), mask)
            finally:
                _dds.delete(handle)
            handles.append(made)
        super().__init__(handles[0], qos)
        self._writer = handles[1]
        self._gids = _dds.guid(self._reader), _dds.guid(self._writer)
        self.qos_profile = qos

    def _send(self, guid: int, sequence: int, message: Any) -> int:
        """Write a request or reply; negative: a DDS return code."""
        body = message._SERIALIZE(message)
        return _dds.write(self._writer, HEADER_LE + HEADER.pack(guid, sequence) + body[4:])

    def _split(self, cls: Any, data: bytes, what: str) -> tuple[int, int, Any]:
        """Client's guid, sequence number and message; the message is None when malformed."""
        if len(data) < BODY or data[:2] != HEADER_LE[:2]:
            return 0, 0, self._decode(cls, b"", what)
        guid, sequence = HEADER.unpack_from(data, len(HEADER_LE))
        # Header and encapsulation are 16 bytes apart, so the alignment of the fields stays.
        return guid, sequence, self._decode(cls, HEADER_LE + data[BODY:], what)

    def destroy(self) -> None:
        """Delete it; use the node's destroy method."""
        if not self._destroyed:
            self._destroyed = True
            _dds.delete(self._reader)
            _dds.delete(self._writer)


class Service(ServicePair):
    """Answers requests. Made by Node.create_service."""

    def __init__(
        self,
        participant: int,
        srv_type: Any,
        srv_name: str,
        callback: Callable[[Any, Any], Any],
        callback_group: Any,
        qos_profile: QoSProfile,
    ) -> None:
        super().__init__(
            participant,
            srv_name,
            qos_profile,
            (_names.request_to_dds(srv_name), srv_type.Request),
            (_names.reply_to_dds(srv_name), srv_type.Response),
            "serviceid",
            _dds.DATA_AVAILABLE,
        )
        self.srv_type = srv_type
        self.srv_name = srv_name  # as it was given, once the node has made it
        self.service_name = srv_name
        self.callback = callback
        self.callback_group = callback_group
        self._matched_clients: set[bytes] = set()

    @property
    def handle(self) -> Service:
        """The service itself: there is no other handle."""
        return self

    def _invoke(self, sample: tuple[bytes, Any]) -> Any:
        data, info = sample
        guid, sequence, request = self._split(self.srv_type.Request, data, self.service_name)
        if request is None:
            return None
        header = (guid, sequence, info.publication_handle)
        response = self.callback(request, self.srv_type.Response())
        if hasattr(response, "__await__"):
            return self._answer_later(header, response)
        self.send_response(response, header)
        return None

    async def _answer_later(self, header: tuple[int, int, int], response: Any) -> None:
        self.send_response(await response, header)

    def send_response(self, response: Any, header: tuple[int, int, int]) -> None:
        """Answer the request with this header."""
        if not isinstance(response, self.srv_type.Response):
            raise TypeError(
                f"the callback of service {self.service_name} returned {type(response).__name__}, "
                f"not {self.srv_type.__name__}.Response"
            )
        guid, sequence, publication = header
        self._wait_for_client(publication)
        self._send(guid, sequence, response)

    def _wait_for_client(self, publication: int) -> None:
        """Do not answer before DDS knows the client's reader, or the answer is lost.

        A request can arrive before discovery has told this side where the client listens.
        """
        data = _dds.user_data_of_writer(self._reader, publication)
        client = None if data is None else user_data_value(data, b"clientid")
        if client is None or client in self._matched_clients:
            return  # gone, or of a kind that does not say
        waiter: _dds.WaitSet | None = None
        try:
            while True:
                readers = _dds.user_data_of_readers(self._writer)
                if any(user_data_value(r, b"clientid") == client for r in readers):
                    self._matched_clients.add(client)
                    return
                if waiter is None:
                    waiter = _dds.WaitSet()
                    if not waiter.attach(self._writer, 1):
                        return  # this service itself is gone
                    continue
                if not waiter.wait(_REPLY_WAIT_NS):
                    return
                _dds.take_status(self._writer, _dds.PUBLICATION_MATCHED)
        finally:
            if waiter is not None:
                waiter.close()
