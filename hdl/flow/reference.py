"""References to volumes and arrays: who begins and ends to refer to one."""

from amaranth.lib import data

from hdl.config import Config


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


def row_begin(config: Config) -> data.StructLayout:
    """A row of ``array`` has got row slot ``slot``. ``mends``: `Mends` asked for the row."""
    return data.StructLayout(
        {"slot": config.row_slot_bits, "array": config.array_bits, "mends": 1}
    )
