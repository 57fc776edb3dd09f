"""Message definitions: what fields a type has.

Two sources, in this order: `.msg` and `.srv` files (of our own packages, in the checkout or in the
wheel, and of the few services that rosbags does not know), then the ROS 2 Jazzy definitions that
`rosbags` carries. No definition is written down twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.msg import MSGParser
from rosbags.typesys.store import Typestore

EMPTY_MEMBER = "structure_needs_at_least_one_member"
"""The member that rosidl puts into a message without fields, since IDL has no empty structures."""

# rosbags drops default values of fields; these are all that the packages in embedded/ have.
_DEFAULTS: dict[tuple[str, str], Any] = {
    ("geometry_msgs/msg/Quaternion", "w"): 1.0,
    ("sensor_msgs/msg/NavSatStatus", "status"): -2,
}


class UnknownTypeError(LookupError):
    """No source defines this type."""


@dataclass(frozen=True)
class Field:
    """One field of a message.

    :param base: a primitive's name as in a .msg file, or a full name such as std_msgs/msg/Header
    :param kind: scalar, array (of `size` elements) or sequence (of at most `size` elements, 0: any)
    :param string_bound: longest string, 0: any
    """

    name: str
    base: str
    kind: str = "scalar"
    size: int = 0
    string_bound: int = 0
    default: Any = None

    @property
    def is_message(self) -> bool:
        """Whether the element is a message and no primitive."""
        return "/" in self.base


@dataclass(frozen=True)
class Definition:
    """One message type, or one half of a service."""

    name: str
    fields: tuple[Field, ...]
    constants: tuple[tuple[str, str, Any], ...] = ()


def _element(desc: tuple[Any, Any]) -> tuple[str, int]:
    """Base name and string bound of a rosbags element descriptor."""
    if desc[0] == Nodetype.NAME:
        return desc[1], 0
    base, bound = desc[1]
    # In ROS 2 `char` is another word for uint8 (rosidl_adapter); in the hash and in Python too.
    return ("uint8" if base == "char" else base), bound


def _field(name: str, desc: tuple[Any, Any], default: Any) -> Field:
    if desc[0] in (Nodetype.BASE, Nodetype.NAME):
        base, bound = _element(desc)
        return Field(name, base, "scalar", 0, bound, default)
    base, bound = _element(desc[1][0])
    kind = "array" if desc[0] == Nodetype.ARRAY else "sequence"
    return Field(name, base, kind, desc[1][1], bound, default)


@cache
def _jazzy() -> Typestore:
    return get_typestore(Stores.ROS2_JAZZY)


def _from_rosbags(name: str) -> Definition | None:
    entry = _jazzy().fielddefs.get(name)
    if entry is None:
        return None
    constants, fields = entry
    return Definition(
        name,
        tuple(_field(n, d, _DEFAULTS.get((name, n))) for n, d in fields),
        tuple((n, "uint8" if t == "char" else t, v) for n, t, v in constants),
    )


def _directories(package: str) -> list[Path]:
    """Folders that may hold the package's msg/ and srv/ folders."""
    found = []
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent)
    # An editable install: embedded/src/rclpy/_definitions.py next to ros2_ws/src.
    found.append(Path(__file__).resolve().parents[3] / "ros2_ws" / "src" / package)
    return [d for d in found if any(d.glob("msg/*.msg")) or any(d.glob("srv/*.srv"))]


@cache
def _files(package: str) -> dict[str, Path]:
    """Type name (pkg/msg/T, pkg/srv/T) to file, first directory wins."""
    files: dict[str, Path] = {}
    for directory in _directories(package):
        for path in sorted([*directory.glob("msg/*.msg"), *directory.glob("srv/*.srv")]):
            files.setdefault(f"{package}/{path.parent.name}/{path.stem}", path)
    return files


def _parse(name: str, text: str) -> Definition:
    package = name.split("/")[0]
    # The parser knows no `srv` folder; a relative name means a message of the package in any case.
    message = MSGParser(f"MSG: {package}/msg/Parsed\n{text}\n").specification()[0]
    fields = []
    for f in message.fields:
        ref = f.typ.ref.name
        base = ref if isinstance(ref, str) else ref.value
        default = f.value
        if isinstance(default, int) and not isinstance(default, bool) and base.startswith("float"):
            default = float(default)
        if isinstance(default, str) and f.typ.cardinality.value != "scalar":
            default = [str(text) for text in yaml.safe_load(default)]  # the parser leaves it whole
        fields.append(
            Field(
                f.name,
                "uint8" if base == "char" else base,
                f.typ.cardinality.value,
                f.typ.size,
                f.typ.str_size,
                default,
            )
        )
    constants = tuple((c.name, c.typ.value, c.value) for c in message.constants)
    return Definition(name, tuple(fields), constants)


def _from_file(name: str) -> Definition | None:
    package, folder, type_name = name.split("/")
    if folder == "srv":
        service, _, half = type_name.rpartition("_")
        path = _files(package).get(f"{package}/srv/{service}")
        if path is None or half not in ("Request", "Response"):
            return None
        lines = path.read_text().splitlines()
        if "---" not in [line.strip() for line in lines]:
            raise ValueError(f"{path}: a service definition needs a line '---'")
        cut = [line.strip() for line in lines].index("---")
        return _parse(name, "\n".join(lines[:cut] if half == "Request" else lines[cut + 1 :]))
    path = _files(package).get(name)
    return None if path is None else _parse(name, path.read_text())


@cache
def lookup(name: str) -> Definition:
    """Return the definition of a type such as std_msgs/msg/String or std_srvs/srv/Empty_Request.

    :raises UnknownTypeError: if nobody defines it
    """
    found = _from_file(name) or _from_rosbags(name)
    if found is None:
        raise UnknownTypeError(
            f"no definition of {name}: add its .msg or .srv file, or use a sourced ROS 2"
        )
    return found if found.fields else replace(found, fields=(Field(EMPTY_MEMBER, "uint8"),))


def names(package: str, folder: str) -> list[str]:
    """Names of the types that `package` has in `folder` (msg or srv)."""
    prefix = f"{package}/{folder}/"
    known = [*_files(package), *_jazzy().fielddefs]
    return sorted({n.removeprefix(prefix) for n in known if n.startswith(prefix)})


def _describe(field: Field) -> tuple[Any, Any]:
    """The rosbags descriptor of a field."""
    element = (
        (Nodetype.NAME, field.base)
        if field.is_message
        else (Nodetype.BASE, (field.base, field.string_bound))
    )
    if field.kind == "scalar":
        return element
    return (Nodetype.ARRAY if field.kind == "array" else Nodetype.SEQUENCE, (element, field.size))


@cache
def type_hash(name: str) -> str:
    """Return the type's RIHS01 hash, as ROS 2 writes it into USER_DATA."""
    store = Typestore()
    todo = [name]
    while todo:
        current = todo.pop()
        if current not in store.fielddefs:
            definition = lookup(current)
            store.fielddefs[current] = ([], [(f.name, _describe(f)) for f in definition.fields])
            todo += [f.base for f in definition.fields if f.is_message]
    return store.hash_rihs01(name)
