"""The number that tells a page whether anything changed since it last asked."""

import threading


class Revision:
    """Counts changes. Every thread that changes what a page shows calls `bump` after the change."""

    def __init__(self) -> None:
        self._number, self._lock = 1, threading.Lock()

    @property
    def number(self) -> int:
        with self._lock:
            return self._number

    def bump(self) -> None:
        with self._lock:
            self._number += 1
