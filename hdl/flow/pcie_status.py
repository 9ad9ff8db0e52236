"""What the PCIe hard block reports of its configuration space."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In


class PcieStatus(wiring.Signature):
    """What the hard block reports of its configuration space, seen from the controller.

    ``max_payload``, ``max_read_request``: Device Control encoding (128 << n bytes). ``rcb``: read
    completion boundary, 0 for 64 and 1 for 128 bytes. ``function_reset``: a function level reset
    is under way (UltraScale+: ``cfg_flr_in_process``), until it is said to be done.
    ``extended_tag``, ``relaxed_ordering``: Device Control bits 8 and 4; ``id_ordering``,
    ``id_completion``: Device Control 2 bits 8 and 9; ``completion_timeout``: its bits 3:0,
    ``timeout_disable``: its bit 4. A 7-series block has them in ``cfg_dcommand2``; of UltraScale+
    its configuration management interface reads them.

    ``link_reset``: the link is down or being reset (hot reset, PERST#, lost link): the block's
    ``user_reset``, or not ``user_lnk_up``. At least a cycle of a clock that runs. It resets what
    belongs to the host, as a function level reset does, and ends what is under way in the shim;
    arrays and what drives are doing stay. The controller's own reset must not depend on it.
    """

    def __init__(self):
        super().__init__(
            {
                "max_payload": In(3),
                "max_read_request": In(3),
                "rcb": In(1),
                "bus_master": In(1),
                "msix_enable": In(1),
                "msix_mask": In(1),
                "function_reset": In(1),
                "extended_tag": In(1),
                "relaxed_ordering": In(1),
                "id_ordering": In(1),
                "id_completion": In(1),
                "completion_timeout": In(4),
                "timeout_disable": In(1),
                "link_reset": In(1),
            }
        )
