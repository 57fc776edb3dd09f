"""CDR (XCDR1) code, generated once per message type.

rosbags has such a generator too and the tests use it as the oracle; ours exists because the message
classes keep what rosidl's keep (`array.array`, `bytes` of length 1), because runs of scalars become
one `struct` call, and because the result is `bytes` that go to DDS without another copy. A chunk of
1.3 KB costs about 2 us to write and to read.

Rules of the generated code: positions are relative to the end of the 4-byte encapsulation header;
`base, off` is what the generator knows about the position (it is `off` modulo `base`); every length
is checked before it is used.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rclpy._definitions import Definition, Field, lookup

FORMATS = {
    "bool": "?", "byte": "c", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
ARRAY_CODES = {name: code for name, code in FORMATS.items() if name not in ("bool", "byte")}
"""Primitives whose sequences are array.array and whose arrays are numpy arrays, as in rosidl."""

HEADER_LE = b"\x00\x01\x00\x00"
_PADS = tuple(bytes(n) for n in range(8))
_MALFORMED = (struct.error, UnicodeDecodeError, ValueError, IndexError)


class CdrError(ValueError):
    """The bytes are no message of this type."""


class _Writer:
    """Source lines of one function, and what is known about the position at the end of them."""

    def __init__(self, endian: Literal["<", ">"]) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"array": array, "CdrError": CdrError, "np": np}
        self.endian: Literal["<", ">"] = endian
        self.indent = "    "
        self.base, self.off = 8, 0
        self.static: int | None = 0  # the position, as long as it does not depend on the data
        self.format = ""
        self.args: list[str] = []
        self.counter = 0

    def emit(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def name(self, stem: str, value: Any = None) -> str:
        self.counter += 1
        name = f"{stem}{self.counter}"
        if value is not None:
            self.names[name] = value
        return name

    def advance(self, size: int) -> None:
        """Account for `size` bytes, a number known now."""
        self.off = (self.off + size) % self.base
        if self.static is not None:
            self.static += size

    def forget(self, base: int) -> None:
        """Only alignment to `base` is certain from here on."""
        self.base, self.off = base, 0

    def dynamic(self) -> None:
        """From here on the position lives in the variable `pos`."""
        if self.static is not None:
            self.emit(f"pos = {self.static}")
            self.static = None

    def align(self, size: int) -> None:
        if size <= self.base:
            pad = -self.off % size
            if pad:
                self.format += f"{pad}x"
                self.advance(pad)
            return
        self.flush()
        self.dynamic()
        self.emit_align(size)
        self.forget(size)

    def scalar(self, code: str, expression: str) -> None:
        size = struct.calcsize("=" + code)
        self.align(size)
        self.format += code
        self.args.append(expression)
        self.advance(size)

    def flush(self) -> None:
        raise NotImplementedError

    def emit_align(self, size: int) -> None:
        raise NotImplementedError

    def enter(self, line: str) -> None:
        """Open a loop; inside and after it nothing is known about the position."""
        self.flush()
        self.dynamic()
        self.emit(line)
        self.indent += "    "
        self.forget(1)

    def leave(self) -> None:
        self.flush()
        self.indent = self.indent[:-4]
        self.forget(1)

    def struct(self) -> tuple[struct.Struct, int]:
        packer = struct.Struct(self.endian + self.format)
        self.format = ""
        return packer, packer.size


class _Serializer(_Writer):
    """`serialize(m) -> bytes`: collect parts, join them once."""

    def flush(self) -> None:
        if self.format:
            args = ", ".join(self.args)
            packer, size = self.struct()
            self.emit(f"add({self.name('pack', packer.pack)}({args}))")
            if self.static is None:
                self.emit(f"pos += {size}")
            self.args = []

    def emit_align(self, size: int) -> None:
        self.names["pads"] = _PADS
        self.emit(f"pad = -pos & {size - 1}")
        self.emit("if pad:")
        self.emit("    add(pads[pad]); pos += pad")

    def string(self, expression: str) -> None:
        text = self.name("s")
        self.emit(f"{text} = {expression}.encode()")
        self.scalar("I", f"len({text}) + 1")
        self.flush()
        self.dynamic()
        self.emit(f"add({text}); add(b'\\0'); pos += len({text}) + 1")
        self.forget(1)

    def message(self, definition: Definition, owner: str) -> None:
        for field in definition.fields:
            self.field(field, f"{owner}._{field.name}")

    def element(self, field: Field, value: str) -> None:
        if field.is_message:
            nested = self.name("m")
            self.emit(f"{nested} = {value}")
            self.message(lookup(field.base), nested)
        elif field.base == "string":
            self.string(value)
        else:
            self.scalar(FORMATS[field.base], value)

    def field(self, field: Field, value: str) -> None:
        if field.kind == "scalar":
            self.element(field, value)
        elif field.base in ARRAY_CODES and field.kind == "array":
            size = struct.calcsize("=" + FORMATS[field.base])
            self.align(size)
            self.format += f"{size * field.size}s"
            self.args.append(f"{value}.tobytes()")
            self.advance(size * field.size)
        else:
            self.items(field, value)

    def items(self, field: Field, value: str) -> None:
        items = self.name("v")
        self.emit(f"{items} = {value}")
        if field.kind == "sequence":
            self.scalar("I", f"len({items})")
        else:
            self.emit(f"if len({items}) != {field.size}:")
            self.emit(f"    raise ValueError('{field.name} needs {field.size} elements')")
        if field.base in ARRAY_CODES or field.base in ("bool", "byte"):
            self.primitives(field, items)
            return
        self.enter(f"for item{items} in {items}:")
        self.element(field, f"item{items}")
        self.leave()

    def primitives(self, field: Field, items: str) -> None:
        size = struct.calcsize("=" + FORMATS[field.base])
        self.flush()
        self.dynamic()
        if size > self.base or self.off % size:
            self.emit(f"if {items}:")
            self.indent += "    "
            self.emit_align(size)
            self.indent = self.indent[:-4]
        data = {"bool": f"bytes({items})", "byte": f"b''.join({items})"}.get(field.base, items)
        self.emit(f"add({data}); pos += len({items}) * {size}")
        self.forget(min(4, size))


class _Deserializer(_Writer):
    """`deserialize(data, size) -> message`: unpack runs of scalars, check every length.

    Here positions count from the start of the data: the header's 4 bytes come before the body, to
    which alignment refers.
    """

    def __init__(self, endian: Literal["<", ">"], classes: Callable[[str], type]) -> None:
        super().__init__(endian)
        self.classes = classes
        self.static = len(HEADER_LE)

    def flush(self) -> None:
        if self.format:
            packer, size = self.struct()
            where = "pos" if self.static is None else str(self.static - size)
            unpack = self.name("unpack", packer.unpack_from)
            targets = "".join(f"{a}, " for a in self.args)
            self.emit(f"{targets.rstrip()} = {unpack}(data, {where})" if targets else "")
            if self.static is None:
                self.emit(f"pos += {size}")
            self.args = []

    def emit_align(self, size: int) -> None:
        self.emit(f"pos += 4 - pos & {size - 1}")

    def take(self, length: str, value: str, *targets: str) -> None:
        """Bytes pos to `end` as `value`, after a check."""
        self.emit(f"end = pos + {length}")
        self.emit("if end > size: raise CdrError('a length exceeds the data')")
        for target in targets:
            self.emit(target.format(value=value))
        self.emit("pos = end")

    def string(self, target: str) -> None:
        length = self.name("n")
        self.scalar("I", length)
        self.flush()
        self.dynamic()
        self.take(
            length,
            "data[pos:end - 1]",
            f"{target} = str({{value}}, 'utf-8') if {length} else ''",
            f"if {length} and data[end - 1]: raise CdrError('a string does not end with NUL')",
        )
        self.forget(1)

    def message(self, definition: Definition, target: str) -> None:
        values = []
        for field in definition.fields:
            values.append((field.name, self.name("f")))
            self.field(field, values[-1][1])
        self.flush()
        cls = self.name("cls", self.classes(definition.name))
        self.emit(f"{target} = {cls}.__new__({cls})")
        for name, value in values:
            self.emit(f"{target}._{name} = {value}")

    def element(self, field: Field, target: str) -> None:
        if field.is_message:
            self.message(lookup(field.base), target)
        elif field.base == "string":
            self.string(target)
        else:
            self.scalar(FORMATS[field.base], target)

    def field(self, field: Field, target: str) -> None:
        if field.kind == "scalar":
            self.element(field, target)
        elif field.base in ARRAY_CODES or field.base in ("bool", "byte"):
            self.primitives(field, target)
        else:
            count = self.count(field)
            self.emit(f"{target} = []")
            self.enter(f"for _ in range({count}):")
            item = self.name("item")
            self.element(field, item)
            self.flush()
            self.emit(f"{target}.append({item})")
            self.leave()

    def count(self, field: Field) -> str:
        """Expression for the number of elements, checked against the bound and the data."""
        if field.kind == "array":
            self.flush()
            self.dynamic()
            return str(field.size)
        count = self.name("n")
        self.scalar("I", count)
        self.flush()
        self.dynamic()
        self.emit(f"if {count} > size - pos: raise CdrError('a sequence exceeds the data')")
        if field.size:
            self.emit(
                f"if {count} > {field.size}: raise CdrError('{field.name} exceeds its bound')"
            )
        return count

    def primitives(self, field: Field, target: str) -> None:
        size = struct.calcsize("=" + FORMATS[field.base])
        count = self.count(field)
        if size > self.base or self.off % size:
            self.emit(f"if {count}: pos += 4 - pos & {size - 1}")
        swap = self.endian == ">" and size > 1
        if field.base == "bool":
            lines = [f"{target} = [b != 0 for b in {{value}}]"]
        elif field.base == "byte":
            lines = [f"{target} = [bytes((b,)) for b in {{value}}]"]
        elif field.kind == "array":
            dtype = self.name("dtype", np.dtype(field.base).newbyteorder(self.endian))
            native = self.name("dtype", np.dtype(field.base))
            lines = [f"{target} = np.frombuffer({{value}}, {dtype}).astype({native})"]
        else:
            lines = [
                f"{target} = array({ARRAY_CODES[field.base]!r})",
                f"{target}.frombytes(memoryview(data)[pos:end])",
            ]
            lines += [f"{target}.byteswap()"] if swap else []
        self.take(f"{count} * {size}", "data[pos:end]", *lines)
        self.forget(min(4, size) if field.kind == "sequence" else size)


def _compile(writer: _Writer, signature: str, origin: str) -> Any:
    source = "\n".join([f"def {signature}:", *(line for line in writer.lines if line.strip())])
    exec(compile(source, f"<cdr of {origin}>", "exec"), writer.names)
    return writer.names[signature.split("(")[0]]


def make_serializer(definition: Definition) -> Callable[[Any], bytes]:
    """Return a function from a message to its CDR, encapsulation header included."""
    writer = _Serializer("<")
    writer.names["header"] = HEADER_LE
    writer.names["join"] = b"".join
    writer.emit("parts = [header]; add = parts.append")
    writer.message(definition, "m")
    writer.flush()
    writer.emit("return join(parts)")
    return _compile(writer, "serialize(m)", definition.name)


def make_deserializer(
    definition: Definition, classes: Callable[[str], type]
) -> Callable[[bytes], Any]:
    """Return a function from CDR (with encapsulation header) to a message.

    The function raises CdrError when the bytes are no such message.

    :param classes: gives the message class of a type name
    """

    def body_reader(endian: Literal["<", ">"]) -> Callable[[bytes, int], Any]:
        writer = _Deserializer(endian, classes)
        writer.message(definition, "m")
        writer.flush()
        writer.dynamic()
        writer.emit("if size - pos > 3: raise CdrError('data is left over')")
        writer.emit("return m")
        return _compile(writer, "deserialize(data, size)", definition.name)

    readers: dict[bytes, Callable[[bytes, int], Any]] = {}

    def deserialize(data: bytes) -> Any:
        kind = data[:2]
        reader = readers.get(kind)
        if reader is None:
            if kind not in (b"\x00\x00", b"\x00\x01"):
                raise CdrError(f"no CDR of {definition.name}: encapsulation {kind.hex()!r}")
            reader = readers[kind] = body_reader("<" if kind[1] else ">")
        try:
            return reader(data, len(data))
        except _MALFORMED as error:
            raise CdrError(f"no CDR of {definition.name}: {error}") from error

    return deserialize
