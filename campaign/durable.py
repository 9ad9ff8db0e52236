"""The contents that the blocks of a volume may have after all drives have lost power, in plain
Python.

A write is durable when it has succeeded with FUA, or when a Flush that began after it had ended has
succeeded (NVMe 1.4 section 6.8). After a loss of power a block may hold the data of any write,
whether it succeeded or not. There is one exception: a write that ended before a durable write began
cannot come back. What a read with FUA has returned is durable as well (section 6.9).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sim.card.volume_model import ANYTHING, Access, VolumeModel


@dataclass(kw_only=True)
class Entry:
    """A write of a block that may come back. ``done``: it has succeeded."""

    begin: int
    end: int
    data: bytes
    done: bool


class DurableModel(VolumeModel):
    """The blocks of a volume with the contents that may come back.

    Parameters
    ----------
    contents
        What each block holds at first, durably. It is one of these.
    """

    def __init__(self, contents: Sequence[Iterable[bytes]]):
        super().__init__([b""] * len(contents))
        for block, choices in enumerate(contents):
            self.settle(block, choices)

    def settle(self, block: int, choices: Iterable[bytes]) -> None:
        """From now on the block holds one of these contents, durably."""
        moment = self._tick()
        different = sorted(set(choices))
        self._ended[block] = [(moment, data) for data in different]
        if not hasattr(self, "_saved"):
            self._saved: list[list[Entry]] = [[] for _ in self._ended]
            self._unsettled: set[int] = set()
        self._saved[block] = [
            Entry(begin=moment, end=moment, data=data, done=True) for data in different
        ]
        self._unsettled.discard(block)

    def end_write(self, write: Access, *, done: bool = True, fua: bool = False) -> None:
        """Ends a write, as in the volume model. ``fua``: if it succeeded, it is durable."""
        super().end_write(write, done=done)
        for place, data in enumerate(write.data):
            block = write.first + place
            entry = Entry(begin=write.begin, end=self._moment, data=data, done=done)
            self._saved[block].append(entry)
            self._unsettled.add(block)
            if done and fua:
                self._drop(block, write.begin)

    def begin_flush(self) -> int:
        """To be called before the command is sent. Its result is for `end_flush`."""
        return self._tick()

    def end_flush(self, begun: int) -> None:
        """The Flush has succeeded."""
        for block in sorted(self._unsettled):
            durable = [e.begin for e in self._saved[block] if e.done and e.end <= begun]
            if durable:
                self._drop(block, max(durable))

    def stored(self, first: int, data: Sequence[bytes]) -> None:
        """A read with FUA has returned this, from block ``first`` on."""
        for block, content in enumerate(data, first):
            begins = [entry.begin for entry in self._saved[block] if entry.data == content]
            if begins:
                self._drop(block, min(begins))

    def _drop(self, block: int, begin: int) -> None:
        """A write that began at this moment is durable. Writes that had ended before cannot come
        back."""
        self._saved[block] = [entry for entry in self._saved[block] if entry.end >= begin]
        if len(self._saved[block]) == 1:
            self._unsettled.discard(block)

    def kept(self, block: int, moment: int) -> set[bytes] | None:
        """What a block may hold after a loss of power. None if that is anything, or if a write of
        it has ended well since ``moment``."""
        entries = self._saved[block]
        if any(entry.data == ANYTHING or (entry.done and entry.end > moment) for entry in entries):
            return None
        return {entry.data for entry in entries}

    def lose_power(self) -> None:
        """All drives have lost power, and no access is under way."""
        assert self.idle
        for block in range(len(self)):
            self.settle(block, [entry.data for entry in self._saved[block]])
