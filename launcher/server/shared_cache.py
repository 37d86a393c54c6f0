"""A cache that the threads of a server share: what was read of files, and results that are slow to compute."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

LOCKS = 64  # each for the keys of one remainder


class SharedCache:
    """Values by key, of at most `most` in all by `size_of`: the least recently used are evicted, and the newest stays
    even if it is larger. Each value is computed by one thread, for which others that ask for it wait."""

    def __init__(self, most: int, size_of: Callable[[Any], int]) -> None:
        self._most, self._size_of, self._values = most, size_of, OrderedDict[Hashable, Any]()
        self._lock, self._key_locks = threading.Lock(), [threading.Lock() for _ in range(LOCKS)]

    @property
    def size(self) -> int:
        with self._lock:
            return sum(map(self._size_of, self._values.values()))

    def update(self, key: Hashable, change: Callable[[Any], Any]) -> Any:
        """Store and return what `change` makes of the value, which is None where there is none."""
        with self._key_locks[hash(key) % LOCKS]:
            value = change(self._values.get(key))
            with self._lock:
                self._values[key] = value
                self._values.move_to_end(key)
                size = sum(map(self._size_of, self._values.values()))
                while size > self._most and len(self._values) > 1:
                    size -= self._size_of(self._values.popitem(last=False)[1])
        return value

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value, or what `make` gives where there is none."""
        return self.update(key, lambda value: make() if value is None else value)
