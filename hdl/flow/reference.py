"""Who begins and ends to refer to a volume or an array."""

from amaranth.lib import data

from hdl.config import Config


def reference(config: Config) -> data.StructLayout:
    """What is to have nothing inside any more: array ``number`` if ``of_array``, else that volume.

    ``goes``: the array has no volumes and no job, and will be deleted; so rows that are to be
    mended are waited for as well.
    """
    return data.StructLayout({"of_array": 1, "goes": 1, "number": 8})


def command_begin(config: Config) -> data.StructLayout:
    """A host command of ``volume`` has got ``slot``. ``late``: it was submitted before the volume
    was told that it has lost something (`hdl.background.debts.Debts`)."""
    return data.StructLayout(
        {"slot": config.slot_bits, "volume": config.volume_bits, "late": 1}
    )


def telling(config: Config) -> data.StructLayout:
    """With ``any`` the end of a command tells ``volume`` that it has lost something."""
    return data.StructLayout({"any": 1, "volume": config.volume_bits})


def answer(config: Config) -> data.StructLayout:
    """An end that was to tell ``volume`` has come to completion queue ``queue``: its entry is
    ``posted``, or there is none, since the controller has been disabled."""
    return data.StructLayout(
        {"volume": config.volume_bits, "posted": 1, "queue": range(config.queue_pairs + 1)}
    )


def row_begin(config: Config) -> data.StructLayout:
    """A row of ``array`` has got row slot ``slot``; ``mends``: it was asked for by `Mends`."""
    return data.StructLayout(
        {"slot": config.row_slot_bits, "array": config.array_bits, "mends": 1}
    )
