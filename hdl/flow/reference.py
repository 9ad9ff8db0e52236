"""References to volumes and arrays: who begins and ends to refer to one."""

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.kit.pulse import Pulse


def reference(config: Config) -> data.StructLayout:
    """An array or volume that nothing may refer to any more.

    It is array ``number`` if ``of_array``, else volume ``number``. ``goes``: the array has no
    volumes and no job, and will be deleted. Then rows that are to be mended are waited for as well.
    """
    return data.StructLayout({"of_array": 1, "goes": 1, "number": 8})


def command_begin(config: Config) -> data.StructLayout:
    """A host command of ``volume`` has got command slot ``slot``.

    ``late``: the command was submitted before the volume was told that it has lost data
    (`hdl.background.debts.Debts`).
    """
    return data.StructLayout(
        {"slot": config.slot_bits, "volume": config.volume_bits, "late": 1}
    )


def telling(config: Config) -> data.StructLayout:
    """With ``any`` the end of a command tells ``volume`` that it has lost data."""
    return data.StructLayout({"any": 1, "volume": config.volume_bits})


def answer(config: Config) -> data.StructLayout:
    """The end of a command that was to tell ``volume`` has come to completion queue ``queue``.

    With ``posted`` it has a completion queue entry. Otherwise there is none, since the controller
    has been disabled.
    """
    return data.StructLayout(
        {"volume": config.volume_bits, "posted": 1, "queue": range(config.queue_pairs + 1)}
    )


class SlotEvents(wiring.Signature):
    """Host commands that get and leave their command slots, seen from the slot table.

    Ports
    -----
    begun
        A command gets a slot, before its volume matters.
    cached
        A write ends with success, and what it has written may be in volatile caches. Its completion
        leaves the slot table in this cycle, so those of commands that have ``ended`` by now leave
        before it.
    ended
        The slot of a command is free again. Its completion has left the slot table.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "begun": Out(Pulse(command_begin(config))),
                "cached": Out(Pulse(config.slot_bits)),
                "ended": Out(Pulse(config.slot_bits)),
            }
        )


class Hearing(wiring.Signature):
    """What becomes of the ends of commands that tell volumes something, seen from the queues.

    Ports
    -----
    answered
        The end of a command that was to tell the host has come to its completion queue.
    heard
        One bit per completion queue, a pulse. The host has taken all its entries that tell.
    unheard
        One bit per completion queue, a pulse. The queue has gone.
    """

    def __init__(self, config: Config):
        queues = config.queue_pairs + 1
        super().__init__(
            {
                "answered": Out(Pulse(answer(config))),
                "heard": Out(queues),
                "unheard": Out(queues),
            }
        )


class Tellings(wiring.Signature):
    """How the host is told that a volume has lost data, seen from the queues.

    Ports
    -----
    tells
        Whom the end of the command tells whose slot ends (`SlotEvents`).
    told
        One bit per volume, a pulse. Now the host has been told.
    hearing
        What becomes of those ends.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "tells": In(telling(config)),
                "told": In(config.volumes),
                "hearing": Out(Hearing(config)),
            }
        )


class Blame(wiring.Signature):
    """A Flush that is refused since its volume has lost data, seen from who refuses it.

    Ports
    -----
    blames
        A pulse. A Flush is refused. The volume is told as the Flush ends.
    volume
        With ``blames``: the volume.
    slot
        With ``blames``: the command slot of the Flush.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "blames": Out(1),
                "volume": Out(config.volume_bits),
                "slot": Out(config.slot_bits),
            }
        )


def row_begin(config: Config) -> data.StructLayout:
    """A row of ``array`` has got row slot ``slot``. ``mends``: `Mends` asked for the row."""
    return data.StructLayout(
        {"slot": config.row_slot_bits, "array": config.array_bits, "mends": 1}
    )
