"""The change that the array tables make: what its states know of it, and how they end."""

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module, Signal, Value

from hdl.config import MAX_DRIVES, Config
from hdl.flow.manage import ManageStatus


@dataclass(frozen=True, kw_only=True)
class Access:
    """A table's own ports: ``read`` gives what it holds a cycle after the address."""

    read: Any
    write: Any


@dataclass(frozen=True, kw_only=True)
class Change:
    """Signals of `hdl.array.tables.tables.ArrayTables`, and the end of its states.

    Parameters
    ----------
    config
        Sizes.
    request, response
        What is asked for, and the answer.
    entry, vacant
        The entry of the array or volume table that is read; the one that is written, which is the
        answer's index as well.
    number
        The port whose entry of ``uses`` is read and written.
    position
        Which member of array ``vacant`` is read, and set to ``number`` if it is written.
    blocks
        Capacity of the drive at port ``number``, as it was looked up.
    shape
        Geometry of the array.
    arrays, volumes, uses, members
        The tables, at the addresses above.
    returns, copying
        The request is RE_ADD, COPY; 0 where the configuration has no such changes.
    edited
        A pulse: the tables change.
    """

    config: Config
    request: Any
    response: Any
    entry: Signal
    vacant: Signal
    number: Signal
    position: Signal
    blocks: Signal
    shape: Any
    arrays: Access
    volumes: Access
    uses: Access
    members: Access
    returns: Value
    copying: Value
    edited: Signal

    @property
    def port(self) -> Value:
        """``number``, as a port."""
        return self.number[: self.config.port_bits]

    @property
    def last_port(self) -> Value:
        """``number`` is the last of them."""
        return self.number == MAX_DRIVES - 1

    def answer(self, m: Module, status: ManageStatus) -> None:
        """Ends the change; used inside a state, of which it is the end."""
        m.d.sync += [self.response.status.eq(status), self.response.index.eq(self.vacant)]
        m.next = "RESPOND"
