"""The data that the blocks of a volume may hold while commands are outstanding, in plain Python.

NVMe orders nothing between commands that are outstanding at once, and a block is written whole or
not at all (NVMe 1.4 section 6.4). So a block may hold the data of any write, unless another write
began after that one had ended. The model keeps the data that is possible, and checks that a read
returns one of these values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

ANYTHING = b"anything"
"""The content of a block that nobody has written. It may have any value."""


class DataError(AssertionError):
    """A block is not what any order of the writes could have left."""


@dataclass(kw_only=True)
class Access:
    """A read or a write under way. For a read ``allowed`` has the values that each block may have.
    """

    first: int
    blocks: int
    begin: int
    data: list[bytes] = field(default_factory=list)
    allowed: list[set[bytes]] = field(default_factory=list)


class VolumeModel:
    """The blocks of a volume.

    Parameters
    ----------
    contents
        What the blocks hold at first.
    """

    def __init__(self, contents: Sequence[bytes]):
        # Of each block: the writes that may have come last, as (moment of completion, data).
        self._ended: list[list[tuple[int, bytes]]] = [[(0, block)] for block in contents]
        self._writes: list[Access] = []
        self._reads: list[Access] = []
        self._moment = 0

    def __len__(self) -> int:
        return len(self._ended)

    @property
    def idle(self) -> bool:
        """Whether no access is under way."""
        return not self._writes and not self._reads

    def possible(self, block: int) -> set[bytes]:
        """The values that ``block`` may have now."""
        result = {data for _, data in self._ended[block]}
        for write in self._writes:
            if 0 <= block - write.first < write.blocks:
                result.add(write.data[block - write.first])
        return result

    def begin_write(self, first: int, data: Sequence[bytes]) -> Access:
        """To be called before the command is sent."""
        write = Access(first=first, blocks=len(data), begin=self._tick(), data=list(data))
        self._writes.append(write)
        for read in self._reads:
            for place, allowed in enumerate(read.allowed):
                if 0 <= read.first + place - first < len(data):
                    allowed.add(data[read.first + place - first])
        return write

    def end_write(self, write: Access, *, done: bool = True) -> None:
        """``done``: the write has succeeded. Otherwise any of its blocks may have been written."""
        self._writes.remove(write)
        moment = self._tick()
        for place, data in enumerate(write.data):
            ended = self._ended[write.first + place]
            if done:
                ended[:] = [(when, other) for when, other in ended if when > write.begin]
            ended.append((moment, data))

    def begin_read(self, first: int, blocks: int) -> Access:
        """To be called before the command is sent."""
        allowed = [self.possible(first + place) for place in range(blocks)]
        read = Access(first=first, blocks=blocks, begin=self._tick(), allowed=allowed)
        self._reads.append(read)
        return read

    def end_read(self, read: Access, data: Sequence[bytes] | None) -> None:
        """Checks the blocks that a read returned. None: the read has failed."""
        self._reads.remove(read)
        for place, block in enumerate(data or ()):
            if not {block, ANYTHING} & read.allowed[place]:
                raise DataError(
                    f"block {read.first + place}, number {place} of {read.blocks} read, is wrong"
                    + self._source(block)
                )

    def abandon(self) -> None:
        """Ends every access without an answer. Any block of the writes may have been written."""
        for write in list(self._writes):
            self.end_write(write, done=False)
        self._reads.clear()

    def check(self, block: int, data: bytes, where: str) -> None:
        """Checks the contents of ``block`` on a drive."""
        if not {data, ANYTHING} & self.possible(block):
            raise DataError(f"block {block} in {where} is wrong" + self._source(data))

    def _source(self, data: bytes) -> str:
        holders = [n for n in range(len(self._ended)) if data in self.possible(n)]
        if holders:
            return f": it is block {holders[0]}"
        return f": it begins with {data[:8].hex()}"

    @property
    def moment(self) -> int:
        """Counts the accesses that have begun or ended."""
        return self._moment

    def _tick(self) -> int:
        self._moment += 1
        return self._moment
