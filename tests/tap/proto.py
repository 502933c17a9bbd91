"""Reads proto/PulsarApi.proto and describes encoded messages by it: which fields they have, not what is in them."""

import pathlib
import re

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto/PulsarApi.proto"
FIELD = re.compile(r"(?:optional|required|repeated)\s+([\w.]+)\s+(\w+)\s*=\s*(\d+)")


class Schema:
    """The messages and enums of one proto file."""

    def __init__(self, path=PROTO):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        self.messages, self.enums = {}, {}
        scope, kinds = [], []
        for token in re.finditer(r"(message|enum)\s+(\w+)\s*\{|\}|([^;{}]+);", text):
            if token[1]:
                scope.append(token[2])
                kinds.append(token[1])
                (self.messages if token[1] == "message" else self.enums)[".".join(scope)] = {}
            elif token[0] == "}":
                scope.pop()
                kinds.pop()
            elif scope and kinds[-1] == "enum":
                if value := re.fullmatch(r"\s*(\w+)\s*=\s*(\d+).*", token[3], re.DOTALL):
                    self.enums[".".join(scope)][int(value[2])] = value[1]
            elif scope and (field := FIELD.search(token[3])):
                self.messages[".".join(scope)][int(field[3])] = (field[2], field[1])

    def resolve(self, message, kind):
        """The full name of a type that a field of `message` names: searched from the inside out."""
        scope = message.split(".")
        for depth in range(len(scope), -1, -1):
            name = ".".join([*scope[:depth], kind])
            if name in self.messages or name in self.enums:
                return name
        return kind

    def command_name(self, command):
        """The name of the type of an encoded BaseCommand, such as `SEND`."""
        number = next(value for field, _, value in fields(command) if field == 1)
        return self.enums["BaseCommand.Type"].get(number, f"UNKNOWN_{number}")

    def shape(self, message, data, prefix=""):
        """The sorted field paths of an encoded message, with the names of enum values, the values of booleans and a mark at what is empty.

        Two messages of one shape differ only in numbers, texts and bytes.
        """
        found = {}
        for field, _, value in fields(data):
            name, kind = self.messages[message].get(field, (f"#{field}", "unknown"))
            kind = self.resolve(message, kind)
            path = prefix + name
            if kind in self.messages:
                for inner in self.shape(kind, value, path + "."):
                    found[inner] = found.get(inner, 0) + 1
                path = path if value else path + "{}"
            elif kind in self.enums:
                path += "=" + self.enums[kind].get(value, str(value))
            elif kind == "bool":
                path += "=" + str(bool(value)).lower()
            elif kind in ("string", "bytes") and not value:
                path += "=empty"
            found[path] = found.get(path, 0) + 1
        return sorted(path + ("*" if times > 1 else "") for path, times in found.items())


def varint(data, at):
    """Decode one varint; returns the value and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """The fields of an encoded message: number, wire type, value (int, or bytes)."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
            value, at = data[at:at + length], at + length
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(data):
            raise ValueError("a field ends beyond its message")
        yield number, wire, value
