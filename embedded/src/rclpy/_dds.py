"""DDS entities as plain handles: the part of Cyclone's C interface that this package uses.

Handles instead of the objects of `cyclonedds`: those delete themselves when Python collects them,
in any order, also while the interpreter ends, which crashes. Here whoever creates an entity deletes
it. Calls go through ctypes, which releases the GIL, so a writer that a slow link blocks does not
stop the other threads; only ddspy_take, which never blocks, holds it.
"""

from __future__ import annotations

import ctypes as ct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cyclonedds._clayer import (
    ddspy_get_matched_publication_data,
    ddspy_get_matched_subscription_data,
    ddspy_read_endpoint,
    ddspy_read_participant,
    ddspy_take,
    ddspy_topic_create,
)
from cyclonedds.core import DDSException, DDSStatus
from cyclonedds.idl import make_idl_struct
from cyclonedds.idl.types import uint8
from cyclonedds.internal import DDS
from cyclonedds.qos import Policy, Qos, _CQos

from rclpy._profile import ConfigurationError, cyclone_config

INFINITE = 2**63 - 1
DATA_AVAILABLE = int(DDSStatus.DataAvailable)
PUBLICATION_MATCHED = int(DDSStatus.PublicationMatched)
SUBSCRIPTION_MATCHED = int(DDSStatus.SubscriptionMatched)

_PSEUDO = 0x7FFF0000
_LIBRARY = _PSEUDO + 256  # DDS_CYCLONEDDS_HANDLE: parent of what belongs to no domain
BUILTIN_PARTICIPANT, BUILTIN_PUBLICATION, BUILTIN_SUBSCRIPTION = (
    _PSEUDO + 1,
    _PSEUDO + 3,
    _PSEUDO + 4,
)
_ANY_STATE = 127
_ALIVE = 16
_MOST = 10000  # participants, writers or readers that are read

# The library that `cyclonedds` has loaded, with function objects (and argument types) of our own.
_lib = ct.CDLL(DDS._dll_handle._name)
_domains_lock = threading.Lock()
_domains: dict[int, tuple[int, int]] = {}  # domain id -> handle, users


class DdsError(RuntimeError):
    """A DDS call failed."""


class _Sample(ct.Structure):
    _fields_ = [("data", ct.c_char_p), ("size", ct.c_size_t)]


def _c(name: str, *arguments: Any) -> Any:
    function = getattr(_lib, name)
    function.argtypes = arguments
    function.restype = ct.c_int32
    return function


_i, _p, _l = ct.c_int32, ct.c_void_p, ct.c_int64
_create_domain = _c("dds_create_domain", ct.c_uint32, ct.c_char_p)
_create_participant = _c("dds_create_participant", ct.c_uint32, _p, _p)
_create_reader = _c("dds_create_reader", _i, _i, _p, _p)
_create_writer = _c("dds_create_writer", _i, _i, _p, _p)
_delete = _c("dds_delete", _i)
_write = _c("dds_write", _i, _p)
_get_guid = _c("dds_get_guid", _i, _p)
_get_instance_handle = _c("dds_get_instance_handle", _i, _p)
_matched_readers = _c("dds_get_matched_subscriptions", _i, _p, ct.c_size_t)
_matched_writers = _c("dds_get_matched_publications", _i, _p, ct.c_size_t)
_set_status_mask = _c("dds_set_status_mask", _i, ct.c_uint32)
_take_status = _c("dds_take_status", _i, _p, ct.c_uint32)
_wait_for_acks = _c("dds_wait_for_acks", _i, _l)
_create_waitset = _c("dds_create_waitset", _i)
_waitset_attach = _c("dds_waitset_attach", _i, _i, ct.c_ssize_t)
_waitset_detach = _c("dds_waitset_detach", _i, _i)
_waitset_wait = _c("dds_waitset_wait", _i, _p, ct.c_size_t, _l)
_create_guard = _c("dds_create_guardcondition", _i)
_set_guard = _c("dds_set_guardcondition", _i, ct.c_bool)
_get_user_data = _c("dds_qget_userdata", _p, _p, _p)
_get_user_data.restype = ct.c_bool
_free = _c("dds_free", _p)
_free.restype = None
_byref = ct.byref


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise DdsError(f"{what}: {DDSException(result)}")
    return result


def _with_qos(policies: list[Any], call: Any) -> int:
    cqos = _CQos.qos_to_cqos(Qos(*policies))
    try:
        return call(ct.c_void_p(cqos))
    finally:
        _CQos.cqos_destroy(cqos)


def create_participant(domain: int, user_data: bytes) -> int:
    """Create a participant, and the domain's configuration with the first one in this process."""
    with _domains_lock:
        handle, users = _domains.get(domain, (0, 0))
        if users == 0:
            handle = _create_domain(domain, cyclone_config().encode())
            if handle < 0:
                raise ConfigurationError(
                    f"DDS does not start in domain {domain}: {DDSException(handle)}. Check "
                    "CYCLONEDDS_URI, and that the network interfaces it names (or, without it, the "
                    "loopback interface: `ip link set lo up`) exist and are up."
                )
        participant = _with_qos(
            [Policy.Userdata(user_data)], lambda qos: _create_participant(domain, qos, None)
        )
        if participant < 0:
            if users == 0:
                _delete(handle)
            raise ConfigurationError(
                f"no DDS participant in domain {domain}: {DDSException(participant)}. Either no "
                "network interface can be used (is the loopback up: `ip link set lo up`?), or more "
                "than 32 processes on this machine use the domain, or other programs hold its UDP "
                f"ports (from {7400 + 250 * domain}): choose another ROS_DOMAIN_ID."
            )
        _domains[domain] = (handle, users + 1)
        return participant


def delete_participant(domain: int, participant: int) -> None:
    """Delete a participant with everything in it; the last one takes the domain with it."""
    with _domains_lock:
        _delete(participant)
        handle, users = _domains[domain]
        _domains[domain] = (handle, users - 1)
        if users == 1:
            del _domains[domain]
            _delete(handle)


@cache
def opaque_type(type_name: str) -> Any:
    """An IDL type that stands for `type_name`: DDS matches by name and never looks at the bytes.

    Cyclone would otherwise check every sample against a description of the type; our own
    deserialiser checks them anyway. (Side effect: samples of a big-endian sender are not
    understood, as Cyclone announces a byte order swap that an opaque type does not get.)
    """
    idl_type = make_idl_struct("Opaque", type_name, {"bytes": uint8}, dataclassify=False)
    idl_type.__idl__.populate()
    idl_type.__idl__.fill_type_data()
    return idl_type


def create_topic(participant: int, name: str, type_name: str) -> int:
    """Create a topic; the caller deletes it once its reader or writer exists."""
    handle = ddspy_topic_create(participant, name, opaque_type(type_name), None, None)
    return _checked(handle, f"cannot create topic {name} of type {type_name}")


def create_writer(participant: int, topic: int, policies: list[Any]) -> int:
    """Create a writer with cyclonedds QoS policies."""
    handle = _with_qos(policies, lambda qos: _create_writer(participant, topic, qos, None))
    _set_status_mask(_checked(handle, "cannot create a writer"), PUBLICATION_MATCHED)
    return handle


def create_reader(
    participant: int, topic: int, policies: list[Any], mask: int = DATA_AVAILABLE
) -> int:
    """Create a reader whose events in `mask` trigger the wait sets that it is attached to."""
    handle = _with_qos(policies, lambda qos: _create_reader(participant, topic, qos, None))
    _set_status_mask(_checked(handle, "cannot create a reader"), mask)
    return handle


@contextmanager
def discovery(participant: int, topic: int) -> Iterator[int]:
    """Give a reader of what DDS itself knows, while the block runs: it knows all at once.

    DDS keeps what has gone for a reader that stays, which would grow for ever. Where the
    participant is gone, nothing is found.
    """
    reader = _create_reader(participant, topic, None, None)
    try:
        yield reader
    finally:
        _delete(reader)


def delete(handle: int) -> None:
    """Delete an entity; one that is gone already is no error."""
    _delete(handle)


def write(writer: int, data: bytes) -> int:
    """Write CDR bytes (with encapsulation header); negative: a DDS return code."""
    return _write(writer, _byref(_Sample(data, len(data))))


def error_text(code: int) -> str:
    """Return words for a negative return code."""
    return str(DDSException(code))


def take(reader: int, limit: int) -> list[tuple[bytes, Any]]:
    """Take up to `limit` samples: (bytes, SampleInfo). A deleted reader has none."""
    result = ddspy_take(reader, _ANY_STATE, limit)
    return result if isinstance(result, list) else []


def guid(handle: int) -> bytes:
    """Return an entity's 16-byte GUID, which ROS calls gid."""
    buffer = (ct.c_uint8 * 16)()
    _checked(_get_guid(handle, buffer), "cannot get a GUID")
    return bytes(buffer)


def instance_handle(handle: int) -> int:
    """Return the 64-bit number by which Cyclone knows an entity."""
    value = ct.c_uint64()
    _checked(_get_instance_handle(handle, _byref(value)), "cannot get an instance handle")
    return value.value


def matched_readers(writer: int) -> int:
    """Return the number of readers that receive what `writer` writes."""
    return max(0, _matched_readers(writer, None, 0))


def matched_writers(reader: int) -> int:
    """Return the number of writers that `reader` receives from."""
    return max(0, _matched_writers(reader, None, 0))


def _handles(function: Any, entity: int) -> list[int]:
    count = 16
    while True:
        buffer = (ct.c_uint64 * count)()
        found = function(entity, buffer, count)
        if found <= count:
            return list(buffer[: max(0, found)])
        count = found


def _user_data(pointer: Any) -> bytes:
    # The function of `cyclonedds` for this never frees the copy that it is given.
    value, size = ct.c_void_p(), ct.c_size_t()
    _get_user_data(ct.cast(pointer, ct.c_void_p), _byref(value), _byref(size))
    try:
        return ct.string_at(value, size.value) if value else b""
    finally:
        _free(value)


# The policies that ROS knows.
_policies = [
    getattr(_CQos, f"_get_p_{name}")
    for name in ("reliability", "durability", "history", "lifespan", "deadline", "liveliness")
]
_policies_lock = threading.Lock()  # each of them writes to the same place in every thread


def _qos(pointer: Any) -> Qos:
    cqos = ct.cast(pointer, ct.c_void_p)
    found = [policy(cqos) for policy in _policies]
    return Qos(*(p for p in found if p is not None), Policy.Userdata(_user_data(pointer)))


def _matched_user_data(
    _k: Any, _pk: Any, _ih: Any, _t: Any, _tn: Any, data: bytes, *_: Any
) -> bytes:
    return data


def user_data_of_writer(reader: int, handle: int) -> bytes | None:
    """Return USER_DATA of a matched writer, None when it is gone."""
    found = ddspy_get_matched_publication_data(reader, handle, _matched_user_data, _user_data)
    return found if isinstance(found, bytes) else None


def user_data_of_readers(writer: int) -> list[bytes]:
    """Return USER_DATA of all matched readers."""
    found = [
        ddspy_get_matched_subscription_data(writer, h, _matched_user_data, _user_data)
        for h in _handles(_matched_readers, writer)
    ]
    return [f for f in found if isinstance(f, bytes)]


def user_data_of_writers(reader: int) -> list[bytes]:
    """Return USER_DATA of all matched writers."""
    found = [user_data_of_writer(reader, h) for h in _handles(_matched_writers, reader)]
    return [f for f in found if f is not None]


def read_endpoints(participant: int, topic: int) -> list[tuple[bytes, bytes, str, str, Any]]:
    """Return the living writers or readers: guid, participant's guid, topic, type, Qos."""

    def endpoint(
        key: Any, owner: Any, _h: Any, topic: str, kind: str, qos: Any, info: Any, _t: Any
    ) -> Any:
        return (bytes(key), bytes(owner), topic, kind, qos, info)

    with discovery(participant, topic) as reader, _policies_lock:
        found = ddspy_read_endpoint(reader, _MOST, endpoint, _qos)
    return (
        [e[:5] for e in found if e[5].instance_state == _ALIVE] if isinstance(found, list) else []
    )


def read_participants(participant: int) -> dict[bytes, bytes]:
    """Return the living participants: guid to USER_DATA."""
    with discovery(participant, BUILTIN_PARTICIPANT) as reader:
        found = ddspy_read_participant(
            reader, _MOST, lambda key, data, info: (bytes(key), data, info), _user_data
        )
    if not isinstance(found, list):
        return {}
    return {k: d for k, d, info in found if info.instance_state == _ALIVE}


def wait_for_acks(writer: int, timeout_ns: int) -> bool:
    """Wait until all reliable readers have what was written; False after the timeout."""
    result = _wait_for_acks(writer, timeout_ns)
    if result == DDSException.DDS_RETCODE_TIMEOUT:
        return False
    _checked(result, "cannot wait for acknowledgements")
    return True


def take_status(handle: int, mask: int) -> int:
    """Return and clear the events in `mask` that have happened since the last call."""
    status = ct.c_uint32()
    if _take_status(handle, _byref(status), mask) < 0:
        return 0
    return status.value


class WaitSet:
    """Waits for events of attached entities, or for `wake` from any thread.

    It belongs to no participant, so a context that shuts down never deletes it under a waiter.
    """

    def __init__(self) -> None:
        self._set = _checked(_create_waitset(_LIBRARY), "cannot create a wait set")
        self._guard = _checked(_create_guard(_LIBRARY), "cannot create a guard condition")
        self._buffer = (ct.c_ssize_t * 64)()
        self._closed = False
        _waitset_attach(self._set, self._guard, 0)

    def attach(self, handle: int, key: int) -> bool:
        """Watch an entity; `wait` returns `key` (positive) when it has an event.

        False: the entity is gone, as another thread may delete it, or its context, at any time.
        """
        return _waitset_attach(self._set, handle, key) >= 0

    def detach(self, handle: int) -> None:
        """Stop watching; an entity that is gone already is no error."""
        _waitset_detach(self._set, handle)

    def wait(self, timeout_ns: int) -> list[int]:
        """Return the keys of entities with events, empty after a timeout or a wake."""
        count = _waitset_wait(self._set, self._buffer, 64, timeout_ns)
        if count <= 0:
            return []
        keys = self._buffer[: min(count, 64)]
        if 0 in keys:
            _set_guard(self._guard, False)
            keys = [k for k in keys if k]
        return keys

    def wake(self) -> None:
        """Make `wait` return, now or the next time that it is called."""
        if not self._closed:
            _set_guard(self._guard, True)

    def close(self) -> None:
        """Delete the wait set; nobody may be waiting."""
        if not self._closed:
            self._closed = True
            _delete(self._set)
            _delete(self._guard)
