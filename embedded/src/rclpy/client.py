"""Service clients."""

from __future__ import annotations

import threading
import time
from typing import Any

from rclpy import _dds, _names
from rclpy._cdr import HEADER_LE
from rclpy.qos import QoSProfile
from rclpy.service import HEADER, ServicePair, user_data_value
from rclpy.task import Future


class Client(ServicePair):
    """Sends requests and gets answers. Made by Node.create_client."""

    def __init__(
        self,
        context: Any,
        participant: int,
        srv_type: Any,
        srv_name: str,
        qos_profile: QoSProfile,
        callback_group: Any,
    ) -> None:
        super().__init__(
            participant,
            srv_name,
            qos_profile,
            (_names.reply_to_dds(srv_name), srv_type.Response),
            (_names.request_to_dds(srv_name), srv_type.Request),
            "clientid",
            _dds.DATA_AVAILABLE | _dds.SUBSCRIPTION_MATCHED,
        )
        self.context = context
        self.srv_type = srv_type
        self.srv_name = srv_name  # as it was given, once the node has made it
        self.service_name = srv_name
        self.callback_group = callback_group
        self._guid = _dds.instance_handle(self._writer)
        self._prefix = HEADER.pack(self._guid, 0)[:8]
        self._lock = threading.Lock()
        self._sequence = 0
        self._pending_requests: dict[int, Future] = {}
        self._waiters: list[_dds.WaitSet] = []

    @property
    def handle(self) -> Client:
        """The client itself: there is no other handle."""
        return self

    def call(self, request: Any, timeout_sec: float | None = None) -> Any:
        """Send a request and wait for the answer; None after the timeout.

        An executor must be spinning in another thread. Never call this in a callback of a
        SingleThreadedExecutor, or of the client's own callback group: it would wait for ever.
        """
        answered = threading.Event()
        future = self.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not future.done() and not answered.wait(timeout_sec):
            self.remove_pending_request(future)
        return future.result()

    def call_async(self, request: Any) -> Future:
        """Send a request; the future completes with the answer.

        :raises TypeError: when it is no request of this service's type
        """
        if not isinstance(request, self.srv_type.Request):
            raise TypeError(f"Expected {self.srv_type.Request}, got {type(request)}")
        future = Future()
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
            self._pending_requests[sequence] = future
        future.add_done_callback(self.remove_pending_request)
        code = self._send(self._guid, sequence, request)
        if code < 0:
            self.remove_pending_request(future)
            raise _dds.DdsError(f"cannot call {self.service_name}: {_dds.error_text(code)}")
        return future

    def get_pending_request(self, sequence_number: int) -> Future:
        """Return the future of a request that is not answered yet."""
        with self._lock:
            return self._pending_requests[sequence_number]

    def remove_pending_request(self, future: Future) -> None:
        """Forget a request: its future will never complete."""
        with self._lock:
            for sequence, pending in self._pending_requests.items():
                if pending is future:
                    del self._pending_requests[sequence]
                    return

    def _invoke(self, sample: tuple[bytes, Any]) -> None:
        start = len(HEADER_LE)
        if sample[0][start : start + 8] != self._prefix:
            return  # the answer to another client
        _, sequence, response = self._split(self.srv_type.Response, sample[0], self.service_name)
        with self._lock:
            future = self._pending_requests.pop(sequence, None)
        if future is not None and response is not None:
            node = self._node()
            # Done callbacks run in the executor, as in rclpy.
            future._set_executor(None if node is None else node.executor)
            future.set_result(response)

    def service_is_ready(self) -> bool:
        """Whether a service is there that both gets requests and reaches this client."""
        if not (_dds.matched_readers(self._writer) and _dds.matched_writers(self._reader)):
            return False
        servers = {
            user_data_value(d, b"serviceid") for d in _dds.user_data_of_readers(self._writer)
        }
        if servers <= {None}:
            return True  # a service of a kind that does not say who it is
        answering = {
            user_data_value(d, b"serviceid") for d in _dds.user_data_of_writers(self._reader)
        }
        return bool((servers & answering) - {None})

    def wait_for_service(self, timeout_sec: float | None = None) -> bool:
        """Wait until a service is ready; False after the timeout. Needs no executor."""
        end = None if timeout_sec is None else time.monotonic() + timeout_sec
        waiter = _dds.WaitSet()
        with self._lock:
            self._waiters.append(waiter)
        self.context.on_shutdown(waiter.wake)
        try:
            alive = waiter.attach(self._writer, 1) and waiter.attach(self._reader, 2)
            while alive and self.context.ok() and not self.service_is_ready():
                left = _dds.INFINITE if end is None else int((end - time.monotonic()) * 1e9)
                if left <= 0:
                    break
                waiter.wait(left)
                self._clear_events()
        finally:
            with self._lock:
                self._waiters.remove(waiter)
            waiter.close()
        return self.context.ok() and self.service_is_ready()

    def _clear_events(self) -> None:
        _dds.take_status(self._writer, _dds.PUBLICATION_MATCHED)
        if _dds.take_status(self._reader, _dds.DATA_AVAILABLE | _dds.SUBSCRIPTION_MATCHED):
            # The executor waits for the same event, which is now cleared: pass it on.
            self._fresh = True
            self._wake()

    def _on_event(self, status: int) -> None:
        super()._on_event(status)
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()
