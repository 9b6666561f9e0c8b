"""Calls between the process of a program and the process of its tests; standard library only.

Both sides send JSON with its length in front, and while one waits for an answer it serves the other's calls. The
tests' side takes nothing but data from the program: an object of the program's is a `ForeignObject`, whose attributes,
items and calls are asked for, and which is equal to itself alone.
"""

from __future__ import annotations

import builtins
import json
import socket
import types
from collections.abc import Callable, Iterator
from typing import Any

from rlhf_core.evaluation.sandbox_values import Encoded, decode, encode, replace_content

LONGEST_MESSAGE = 64 << 20
DETAIL_LIMIT = 300
Message = dict[str, Any]
# held here, since a program may replace the modules' own
_to_json = json.JSONEncoder(ensure_ascii=True).encode
_from_json = json.JSONDecoder().decode


class Unreadable(BaseException):
    """The other side ended or sent what is not an answer; no test that catches exceptions catches it."""


class Channel:
    """Messages over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._arrived = b""

    def send(self, message: Message) -> None:
        data = _to_json(message).encode("ascii")
        self._connection.sendall(len(data).to_bytes(8, "big") + data)

    def receive(self) -> Message:
        """Returns the next message.

        Raises:
            Unreadable: the other side has ended, or this is not a message.
        """
        length = int.from_bytes(self._read(8), "big")
        if length > LONGEST_MESSAGE:
            raise Unreadable("a message is too long")
        try:
            message = _from_json(self._read(length).decode("ascii"))
        except (ValueError, RecursionError) as error:
            raise Unreadable("a message is not JSON") from error
        if not isinstance(message, dict):
            raise Unreadable("a message is not an object")
        return message

    def _read(self, length: int) -> bytes:
        parts, arrived = [self._arrived], len(self._arrived)
        while arrived < length:
            try:
                part = self._connection.recv(1 << 16)
            except OSError as error:
                raise Unreadable("the other side has ended") from error
            if not part:
                raise Unreadable("the other side has ended")
            parts.append(part)
            arrived += len(part)
        content = b"".join(parts)
        self._arrived = content[length:]
        return content[:length]


class Peer:
    """One side of the calls: asks the other side, and serves it while it waits."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._own: dict[int, Any] = {}

    def ask(self, message: Message) -> Message:
        """Sends a request and returns its answer, serving the other side's requests until it comes."""
        self._channel.send(message)
        while True:
            received = self._channel.receive()
            if "do" not in received:
                return received
            self._channel.send(self.serve(received))

    def serve(self, request: Message) -> Message:
        raise NotImplementedError

    def _keep(self, value: Any) -> int:
        self._own[id(value)] = value
        return id(value)


def describe(error: BaseException) -> str:
    """Returns the type and message of an error, cut; a message that cannot be made is left out."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:  # a hostile __str__
        message = ""
    text = f"{name}: {message}" if message else name
    return text[:DETAIL_LIMIT].encode("utf-8", "replace").decode()


class ProgramSide(Peer):
    """Serves the tests from the program's process."""

    def __init__(self, channel: Channel, namespace: dict[str, Any], load: Callable[[str, str], None]) -> None:
        super().__init__(channel)
        self._namespace = namespace
        self._load = load

    def serve_until_the_end(self) -> None:
        while True:
            request = self._channel.receive()
            self._channel.send(self.serve(request))

    def serve(self, request: Message) -> Message:
        try:
            return self._do(request)
        except Unreadable:
            raise
        except BaseException as error:  # generated code may raise anything, SystemExit and MemoryError included
            return {"error": [kind.__name__ for kind in type(error).__mro__], "detail": describe(error)}

    def _do(self, request: Message) -> Message:
        kind = request["do"]
        if kind == "load":
            for part in ("setup", "solution"):
                self._load(str(request[part]), f"<{part}>")
            names = [name for name in request["names"] if name in self._namespace]
            return {"value": [[name, encode(self._namespace[name], self)] for name in names]}
        target = self._own[request["of"]]
        if kind == "call":
            return self._call(target, request)
        if kind == "attribute":
            return {"value": encode(getattr(target, request["name"]), self)}
        if kind == "set":
            setattr(target, request["name"], decode(request["value"], self))
            return {"value": None}
        if kind == "item":
            return {"value": encode(target[decode(request["value"], self)], self)}
        unary: dict[str, Callable[[Any], Any]] = {
            "iterate": iter, "next": next, "length": len, "truth": bool, "text": str, "repr": repr
        }  # fmt: skip
        return {"value": encode(unary[kind](target), self)}

    def _call(self, target: Any, request: Message) -> Message:
        given = [*request["arguments"], *request["options"].values()]
        arguments = [decode(argument, self) for argument in request["arguments"]]
        options = {name: decode(value, self) for name, value in request["options"].items()}
        result = target(*arguments, **options)
        answer: Message = {"value": encode(result, self)}
        passed = [*arguments, *options.values()]
        left = [encode(argument, self) if _may_change(told) else told for argument, told in zip(passed, given)]  # noqa: B905
        if left != given:
            answer["arguments"] = left
        same = [place for place, told in enumerate(given) if passed[place] is result and _may_change(told)]
        if same:
            answer["same"] = same[0]
        return answer

    def hold(self, value: Any) -> Encoded:
        return {"t": "program", "h": self._keep(value)}

    def held(self, name: Encoded) -> Any:
        if name["t"] == "program":
            return self._own[name["h"]]
        number = name["h"]

        def call_back(*arguments: Any, **options: Any) -> Any:
            found = self.ask({
                "do": "call", "of": number,
                "arguments": [encode(argument, self) for argument in arguments],
                "options": {name: encode(value, self) for name, value in options.items()},
            })  # fmt: skip
            if "error" in found:
                raise _raised(found, RuntimeError)
            return decode(found["value"], self)

        return call_back


def _may_change(told: Encoded) -> bool:
    return isinstance(told, list) or (isinstance(told, dict) and told["t"] not in ("int", "program", "tests", "type"))


class TestsSide(Peer):
    """Asks the program from the tests' process, and lets it call only the functions that a test gave it.

    Attributes:
        lost: set once the program's process ended or answered with anything but an answer.
    """

    __test__ = False

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._remotes: dict[int, ForeignObject] = {}
        self.lost: Unreadable | None = None

    def asked(self, message: Message, *, ends: bool = False) -> tuple[Any, Message]:
        """Returns the value of the program's answer and the answer.

        Raises:
            Unreadable: there is no program any more, or no answer.
            Exception: the program's own, as the nearest builtin type. `StopIteration` only where `ends`: raised by a
                function, it would end a loop over the cases of a test.
        """
        if self.lost is not None:
            raise self.lost
        try:
            found = self.ask(message)
            raised = _raised(found, StopIteration if ends else RuntimeError) if "error" in found else None
            value = None if raised else decode(found["value"], self)
        except (Unreadable, OSError) as error:
            self.lost = error if isinstance(error, Unreadable) else Unreadable("the other side has ended")
            raise self.lost from error
        except Exception as error:
            self.lost = Unreadable("an answer cannot be read")
            raise self.lost from error
        if raised is not None:
            raise raised
        return value, found

    def serve(self, request: Message) -> Message:
        target = self._own.get(request.get("of", 0))
        if request["do"] != "call" or target is None:
            raise Unreadable("a request that a program may not make")
        arguments = [decode(argument, self) for argument in request["arguments"]]
        options = {str(name): decode(value, self) for name, value in request["options"].items()}
        try:
            return {"value": encode(target(*arguments, **options), self)}
        except Exception as error:
            return {"error": [kind.__name__ for kind in type(error).__mro__], "detail": describe(error)}

    def hold(self, value: Any) -> Encoded:
        if isinstance(value, ForeignObject):
            return {"t": "program", "h": object.__getattribute__(value, "_number")}
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
            return {"t": "tests", "h": self._keep(value)}
        raise TypeError(f"a test may give a program data and functions, not {type(value).__name__}")

    def held(self, name: Encoded) -> Any:
        if name["t"] != "program":
            return self._own[name["h"]]
        number = int(name["h"])
        return self._remotes.setdefault(number, ForeignObject(self, number))


class ForeignObject:
    """An object of the program's process. It has no operators: what it is compared with stays in the tests' process."""

    __slots__ = ("_number", "_side")

    def __init__(self, side: TestsSide, number: int) -> None:
        object.__setattr__(self, "_side", side)
        object.__setattr__(self, "_number", number)

    def _of(self, kind: str, **content: Any) -> Any:
        side, number = object.__getattribute__(self, "_side"), object.__getattribute__(self, "_number")
        return side.asked({"do": kind, "of": number, **content}, ends=kind == "next")[0]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        side, number = object.__getattribute__(self, "_side"), object.__getattribute__(self, "_number")
        told = [encode(argument, side) for argument in arguments]
        named = {name: encode(value, side) for name, value in options.items()}
        request = {"do": "call", "of": number, "arguments": told, "options": named}
        value, answer = side.asked(request)
        passed = [*arguments, *options.values()]
        if isinstance(answer.get("arguments"), list):
            for argument, left in zip(passed, answer["arguments"], strict=False):
                replace_content(argument, decode(left, side))
        same = answer.get("same")
        return passed[same] if type(same) is int and 0 <= same < len(passed) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # numpy would read memory where a program's `__array_interface__` says
            raise AttributeError(name)
        return self._of("attribute", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        side = object.__getattribute__(self, "_side")
        self._of("set", name=name, value=encode(value, side))

    def __getitem__(self, key: Any) -> Any:
        return self._of("item", value=encode(key, object.__getattribute__(self, "_side")))

    def __iter__(self) -> Iterator[Any]:
        iterator = self._of("iterate")
        while True:
            try:
                item = ForeignObject._of(iterator, "next")
            except StopIteration:
                return
            yield item

    def __next__(self) -> Any:
        return self._of("next")

    def __len__(self) -> int:
        return int(self._of("length"))

    def __bool__(self) -> bool:
        return bool(self._of("truth"))

    def __str__(self) -> str:
        return str(self._of("text"))

    def __repr__(self) -> str:
        return str(self._of("repr"))


def _raised(found: Message, stop: type[Exception]) -> BaseException:
    """Returns an error of the other side as the nearest builtin type."""
    detail = str(found.get("detail", ""))[:DETAIL_LIMIT]
    for name in found["error"]:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            if issubclass(kind, StopIteration | StopAsyncIteration | GeneratorExit):
                return stop() if stop is StopIteration and kind is StopIteration else RuntimeError(detail)
            try:
                error: BaseException = kind(_without_name(detail, str(name)))
            except TypeError:  # such as UnicodeDecodeError, which takes five arguments
                continue
            return error
    return RuntimeError(detail)


def _without_name(detail: str, name: str) -> str:
    return detail.removeprefix(f"{name}: ").removeprefix(name)
