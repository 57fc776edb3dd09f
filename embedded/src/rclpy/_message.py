"""Message classes, made from definitions, that behave as those of rosidl_generator_py.

Fields are checked whenever they are assigned (rosidl does so with ROS_PYTHON_CHECK_FIELDS=1;
without it a wrong type surfaces at `publish`, or not at all), so a mistake shows up here first.
`uint8[]` and other sequences of numbers are `array.array`, arrays of fixed size are numpy arrays.
"""

from __future__ import annotations

import copy
from array import array
from collections import UserList
from collections.abc import Callable, Sequence, Set
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from rclpy import _cdr
from rclpy._definitions import EMPTY_MEMBER, Definition, Field, lookup, type_hash

_INTEGERS = {
    f"{u}int{bits}": (-(2 ** (bits - 1)) * (not u), 2 ** (bits - (not u)) - 1)
    for u in ("", "u")
    for bits in (8, 16, 32, 64)
}
_FLOAT32_MAX = 3.402823466e38
# Names of primitives in IDL, as get_fields_and_field_types() shows them.
_IDL_NAMES = {"bool": "boolean", "byte": "octet", "float32": "float", "float64": "double"}
_ZEROS: dict[str, Any] = {
    "bool": False,
    "byte": b"\0",
    "string": "",
    "float32": 0.0,
    "float64": 0.0,
}
_MISSING: Any = object()

Check = Callable[[Any], Any]
"""Takes the value assigned to a field, returns what is stored, raises AssertionError."""


class Message:
    """Base of all message classes.

    Its own attributes are in capitals: a field `fields` has the slot `_fields`.
    """

    __slots__: tuple[str, ...] = ()
    _DEFINITION: Definition
    _FIELDS: tuple[str, ...] = ()
    _SERIALIZE: Callable[[Any], bytes]
    _DESERIALIZE: Callable[[bytes], Any]

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, str]:
        """Return field names and their types in IDL's words."""
        fields = cls._DEFINITION.fields
        return {f.name: _idl_type(f) for f in fields if f.name != EMPTY_MEMBER}

    def __repr__(self) -> str:
        texts = []
        for name in self._FIELDS:
            value = getattr(self, name)
            text = repr(list(value)) if isinstance(value, array) else repr(value)
            texts.append(f"{name}={text}")
        package, folder, type_name = self._DEFINITION.name.split("/")
        return f"{package}.{folder}.{type_name}({', '.join(texts)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self.__class__):
            return NotImplemented
        return all(_equal(getattr(self, n), getattr(other, n)) for n in self._FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Any:
        new = self.__class__.__new__(self.__class__)
        for name in self.__slots__:
            setattr(new, name, getattr(self, name))
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = self.__class__.__new__(self.__class__)
        for name in self.__slots__:
            setattr(new, name, copy.deepcopy(getattr(self, name), memo))
        return new


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def _idl_type(field: Field) -> str:
    if field.is_message:
        package, _, type_name = field.base.split("/")
        base = f"{package}/{type_name}"
    else:
        base = _IDL_NAMES.get(field.base, field.base)
        base += f"<{field.string_bound}>" if field.string_bound else ""
    if field.kind == "array":
        return f"{base}[{field.size}]"
    if field.kind == "sequence":
        return f"sequence<{base}, {field.size}>" if field.size else f"sequence<{base}>"
    return base


def _integer_check(name: str, base: str) -> Check:
    low, high = _INTEGERS[base]

    def check(value: Any) -> Any:
        assert isinstance(value, int), f"The '{name}' field must be of type 'int', not {value!r}"
        assert low <= value <= high, f"The '{name}' field must be in [{low}, {high}], not {value}"
        return value

    return check


def _float_check(name: str, base: str) -> Check:
    def check(value: Any) -> Any:
        assert isinstance(value, float), f"The '{name}' field must be a 'float', not {value!r}"
        if base == "float32" and abs(value) > _FLOAT32_MAX:
            assert value in (float("inf"), float("-inf")), f"The '{name}' field must be a float32"
        return value

    return check


def _string_check(name: str, bound: int) -> Check:
    def check(value: Any) -> Any:
        assert isinstance(value, str), f"The '{name}' field must be of type 'str', not {value!r}"
        assert not bound or len(value) <= bound, f"The '{name}' field must not exceed {bound}"
        return value

    return check


def _element_check(field: Field) -> Check:
    name = field.name
    if field.base in _INTEGERS:
        return _integer_check(name, field.base)
    if field.base.startswith("float"):
        return _float_check(name, field.base)
    if field.base == "string":
        return _string_check(name, field.string_bound)
    if field.base == "bool":

        def check(value: Any) -> Any:
            assert isinstance(value, bool), f"The '{name}' field must be a 'bool', not {value!r}"
            return value

    elif field.base == "byte":

        def check(value: Any) -> Any:
            ok = isinstance(value, (bytes, bytearray)) and len(value) == 1
            assert ok, f"The '{name}' field must be 'bytes' of length 1, not {value!r}"
            return value

    else:
        cls = message_class(field.base)

        def check(value: Any) -> Any:
            ok = isinstance(value, cls)
            assert ok, f"The '{name}' field must be a '{cls.__name__}', not {type(value).__name__}"
            return value

    return check


def _numbers_check(field: Field) -> Check:
    """Sequences of numbers: everything that holds such numbers becomes array.array."""
    code = _cdr.ARRAY_CODES[field.base]
    name, bound = field.name, field.size
    width = array(code).itemsize
    dtype = np.dtype(field.base)

    def convert(value: Any) -> array:
        if isinstance(value, np.ndarray):
            assert value.ndim == 1, f"The '{name}' field needs one dimension, not {value.ndim}"
            if value.dtype == dtype:
                return array(code, value.tobytes())
            value = value.tolist()
        if isinstance(value, (bytes, bytearray, memoryview)) and width == 1:
            return array(code, bytes(value))
        ok = isinstance(value, (Sequence, Set, UserList, array)) and not isinstance(value, str)
        assert ok, f"The '{name}' field must be a sequence of {field.base}, not {value!r}"
        try:
            return array(code, list(value))
        except (TypeError, OverflowError) as error:
            raise AssertionError(
                f"The '{name}' field must be a sequence of {field.base}: {error}"
            ) from None

    def check(value: Any) -> Any:
        if type(value) is not array or value.typecode != code:
            value = convert(value)
        assert not bound or len(value) <= bound, f"The '{name}' field must not exceed {bound}"
        return value

    return check


def _numpy_check(field: Field) -> Check:
    """Arrays of numbers with a fixed size are numpy arrays."""
    name, size, dtype = field.name, field.size, np.dtype(field.base)

    def check(value: Any) -> Any:
        try:
            # A copy, contiguous: the serialiser reads its bytes.
            value = np.array(value, dtype=dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise AssertionError(f"The '{name}' field must hold {dtype}: {error}") from None
        assert value.shape == (size,), f"The '{name}' field must have {size} elements"
        return value

    return check


def _list_check(field: Field) -> Check:
    name, size, kind = field.name, field.size, field.kind
    element = _element_check(field)

    def check(value: Any) -> Any:
        ok = isinstance(value, (Sequence, Set, UserList)) and not isinstance(value, (str, bytes))
        assert ok, f"The '{name}' field must be a set or sequence, not {value!r}"
        if kind == "array":
            assert len(value) == size, f"The '{name}' field must have {size} elements"
        assert not size or len(value) <= size, f"The '{name}' field must not exceed {size}"
        for item in value:
            element(item)
        return value

    return check


def _check(field: Field) -> Check:
    if field.kind == "scalar":
        return _element_check(field)
    if field.base in _cdr.ARRAY_CODES:
        return _numbers_check(field) if field.kind == "sequence" else _numpy_check(field)
    return _list_check(field)


def _given_default(field: Field) -> Any:
    """The default that the definition gives, None without one; a byte is `bytes` here."""
    if field.base != "byte" or field.default is None:
        return field.default
    if field.kind == "scalar":
        return bytes((field.default,))
    return [bytes((value,)) for value in field.default]


def _default(field: Field) -> Callable[[], Any]:
    """A function that makes the field's default value."""
    given = _given_default(field)
    if field.kind == "scalar":
        if field.is_message:
            return message_class(field.base)
        value = _ZEROS.get(field.base, 0) if given is None else given
        return lambda: value
    if given is not None:
        check = _check(field)
        return lambda: check(list(given))
    if field.base in _cdr.ARRAY_CODES:
        if field.kind == "sequence":
            code = _cdr.ARRAY_CODES[field.base]
            return lambda: array(code)
        return lambda: np.zeros(field.size, dtype=field.base)
    make = _default(Field(field.name, field.base))
    count = field.size if field.kind == "array" else 0
    return lambda: [make() for _ in range(count)]


def _make_init(definition: Definition, checks: dict[str, Check]) -> Callable[..., None]:
    """The constructor: keywords only, one check per given field."""
    names: dict[str, Any] = {"_MISSING": _MISSING}
    lines = []
    for field in definition.fields:
        n = field.name
        # In capitals, as `check_fields` is an argument, and may be the check of a field, too.
        names[f"DEFAULT_{n}"], names[f"CHECK_{n}"] = _default(field), checks[n]
        lines.append(f"    self._{n} = DEFAULT_{n}() if {n} is _MISSING else CHECK_{n}({n})")
    visible = [f.name for f in definition.fields if f.name != EMPTY_MEMBER]
    arguments = "".join(f"{n}=_MISSING, " for n in visible)
    if len(visible) < len(definition.fields):
        lines = [f"    self._{EMPTY_MEMBER} = 0"]
    source = "\n".join(
        [
            f"def __init__(self, *, {arguments}check_fields=None, **UNKNOWN):",
            "    assert not UNKNOWN, 'Invalid arguments passed to constructor: %s' % ("
            "', '.join(sorted(UNKNOWN)))",
            *lines,
        ]
    )
    exec(compile(source, f"<{definition.name}>", "exec"), names)
    return names["__init__"]


def _make_property(name: str, check: Check) -> property:
    slot = f"_{name}"

    def assign(self: Any, value: Any) -> None:
        object.__setattr__(self, slot, check(value))

    return property(attrgetter(slot), assign, doc=f"Message field '{name}'.")


@cache
def message_class(name: str) -> Any:
    """Return the class of a type such as std_msgs/msg/String or std_srvs/srv/Empty_Request."""
    definition = lookup(name)
    package, folder, type_name = name.split("/")
    visible = [f for f in definition.fields if f.name != EMPTY_MEMBER]
    checks = {f.name: _check(f) for f in definition.fields}
    namespace: dict[str, Any] = {
        "__slots__": tuple(f"_{f.name}" for f in definition.fields),
        "__module__": f"{package}.{folder}",
        "__qualname__": type_name,
        "__doc__": f"Message class '{type_name}'.",
        "__init__": _make_init(definition, checks),
        "_DEFINITION": definition,
        "_FIELDS": tuple(f.name for f in visible),
        "_SERIALIZE": staticmethod(_cdr.make_serializer(definition)),
        "_DESERIALIZE": staticmethod(_cdr.make_deserializer(definition, message_class)),
    }
    for field in visible:
        namespace[field.name] = _make_property(field.name, checks[field.name])
        if field.default is not None:
            namespace[f"{field.name.upper()}__DEFAULT"] = _default(field)()
    for constant, base, value in definition.constants:
        namespace[constant] = bytes((value,)) if base == "byte" else value
    return type(type_name, (Message,), namespace)


@cache
def service_class(name: str) -> Any:
    """Return the class of a service type such as std_srvs/srv/SetBool: it holds two classes."""
    package, folder, type_name = name.split("/")
    namespace = {
        "__module__": f"{package}.{folder}",
        "__doc__": f"Service class '{type_name}'.",
        "Request": message_class(f"{name}_Request"),
        "Response": message_class(f"{name}_Response"),
        "_name": name,
    }
    return type(type_name, (), namespace)


def wire_type(cls: type[Message]) -> tuple[str, str]:
    """Return the DDS type name and the RIHS01 hash of a message class."""
    name = cls._DEFINITION.name
    package, folder, type_name = name.split("/")
    return f"{package}::{folder}::dds_::{type_name}_", type_hash(name)
