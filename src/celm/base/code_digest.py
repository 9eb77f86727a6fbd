"""A digest of code, so that an object whose code has changed is not mistaken for the earlier one."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import MISSING, fields, is_dataclass
from types import CodeType, FunctionType
from typing import Any

_LENGTH = 12
_KNOWN_PACKAGES = ("abc", "builtins", "celm", "torch", "typing")
"""Top-level packages of base classes that are not part of the user's code."""


def short_digest(*parts: str | bytes) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of all parts.

    >>> short_digest("a", b"b") == short_digest("ab")
    False
    """
    sha256 = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        sha256.update(len(content).to_bytes(8, "big"))
        sha256.update(content)
    return sha256.hexdigest()[:_LENGTH]


def code_digest(target: Any) -> str:
    """Return a digest of the code of a function or class, or of the class of an object.

    A class counts with its own base classes, its fields and their defaults. Code that it calls does not count.
    """
    if isinstance(target, FunctionType):
        return short_digest(_function_code(target))
    if not isinstance(target, type) and callable(getattr(target, "func", None)):  # functools.partial
        arguments = repr((getattr(target, "args", ()), getattr(target, "keywords", {})))
        return short_digest(code_digest(target.func), arguments)
    cls = target if isinstance(target, type) else type(target)
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in _KNOWN_PACKAGES]
    return short_digest(*(part for base in own or [cls] for part in _class_code(base)))


def _class_code(cls: type) -> list[str]:
    parts = [cls.__qualname__]
    if is_dataclass(cls):
        parts += [
            f"{f.name}: {f.type} = {'' if f.default is MISSING else repr(f.default)}" for f in fields(cls)
        ]
    for name, member in sorted(vars(cls).items()):
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        # The code of methods that a dataclass generates has no file; its fields are already counted.
        if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith("<string>"):
            parts += [name, _function_code(function)]
    return parts


def _function_code(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed into an interpreter that keeps no source
        return _describe_bytecode(function.__code__)


def _describe_bytecode(code: CodeType) -> str:
    constants = [_describe_bytecode(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {code.co_names} {constants}"
