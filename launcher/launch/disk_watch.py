"""The disk of a run's folder: a full disk is reported at once, and ends the run where it stays full for `FULL_S`."""

from __future__ import annotations

from contextlib import suppress

from launcher.core.events import Event, Waiting
from launcher.core.machine import free_disk_bytes
from launcher.runs.folder import Folder

ROOM = 2**16  # bytes that some events need
RESERVE = 2**19  # held by a file until nothing else is left, for what a run says at its end
LOOK_S = 1.0  # between two looks
FULL_S, LAST_S = 30.0, 2.0  # until a run gives up; then for its processes to hand on what they hold
NO_ROOM = "room on the disk of the run's folder, which is full; delete something there, and it goes on"


class DiskWatch:
    """Watches one attempt. `now` is any monotonic clock in seconds."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._reserve = folder, folder.path / "reserve"
        self._full_since: float | None = None
        self._looked = -LOOK_S
        self.gave_up = False
        with suppress(OSError):
            self._reserve.write_bytes(bytes(RESERVE))

    def look(self, now: float) -> list[Event]:
        """Events that report that the disk is full, or has room again."""
        if now - self._looked < LOOK_S:
            return []
        self._looked = now
        is_full = self._is_full()
        if is_full and self._full_since is not None and now - self._full_since > FULL_S:
            self.gave_up = True
            self.close()
        if self.gave_up or is_full == (self._full_since is not None):
            return []
        self._full_since = now if is_full else None
        return [Waiting(text=NO_ROOM if is_full else "")]

    def is_over(self, now: float) -> bool:
        """Whether the processes have had the time to hand on what they hold."""
        return self.gave_up and self._full_since is not None and now - self._full_since > FULL_S + LAST_S

    def close(self) -> None:
        """Give the reserve back."""
        with suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    def _is_full(self) -> bool:
        try:
            return free_disk_bytes(self._folder.path) < ROOM
        except OSError:  # a network drive that does not answer now
            return False
