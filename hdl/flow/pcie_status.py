"""The configuration space and link state that the PCIe hard block reports."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In


class PcieStatus(wiring.Signature):
    """The configuration space and link state that the hard block reports, seen from the controller.

    A 7-series block has the fields of Device Control 2 in ``cfg_dcommand2``. On UltraScale+ the
    configuration management interface reads them.

    Ports
    -----
    max_payload, max_read_request
        Device Control encoding (128 << n bytes).
    rcb
        Read completion boundary: 0 for 64 bytes, 1 for 128 bytes.
    bus_master, msix_enable, msix_mask
        Bus Master Enable, and Enable and Function Mask of MSI-X.
    function_reset
        A function level reset is under way (UltraScale+: ``cfg_flr_in_process``), until the
        controller says that it is done.
    extended_tag, relaxed_ordering
        Device Control bits 8 and 4.
    id_ordering, id_completion
        Device Control 2 bits 8 and 9.
    completion_timeout, timeout_disable
        Device Control 2 bits 3:0, and bit 4.
    link_reset
        The link is down or being reset (hot reset, PERST#, lost link): ``user_reset`` of the block,
        or not ``user_lnk_up``. It lasts at least a cycle of a clock that runs. It resets the host's
        side as a function level reset does, and ends transfers that are under way in the shim.
        Arrays stay, and drives go on. The controller's own reset must not depend on it.
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
