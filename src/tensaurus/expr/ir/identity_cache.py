"""A cache keyed by object identity, for objects that are expensive to compare, such as scopes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import ref

Value = TypeVar("Value")


class IdentityCache(Generic[Value]):
    """Maps objects to values.  An entry lives as long as its key, so its value must not refer to the key."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[Any], Value]] = {}

    def __contains__(self, item: object) -> bool:
        return id(item) in self._entries

    def __getitem__(self, item: object) -> Value:
        return self._entries[id(item)][1]

    def __setitem__(self, item: Any, value: Value) -> None:
        key = id(item)
        self._entries[key] = ref(item, lambda _: self._entries.pop(key, None)), value

    def __len__(self) -> int:
        return len(self._entries)
