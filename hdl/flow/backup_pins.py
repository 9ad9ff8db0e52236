"""The pins of the backup unit."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

ENERGY_BITS = 32


class BackupPins(wiring.Signature):
    """Between the controller and the supply of the board, seen from the controller.

    Only with ``Config.backup_blocks``.

    Ports
    -----
    power_fail
        A level: the power is about to go. Once it has risen the card saves what is not on the
        drives, and does nothing else until it is reset.
    energy_blocks
        A level: how many blocks the flash can store with the energy that there is. It is 0 while
        that is not known.
    saved
        A level, after ``power_fail``: all is saved that had to be, and the power may go. It stays
        0 if the unit has failed, or the flash has not stored the record.
    """

    def __init__(self):
        super().__init__(
            {"power_fail": In(1), "energy_blocks": In(ENERGY_BITS), "saved": Out(1)}
        )
