"""Which volumes are attached, and that this is stored."""

from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config


class Attachments(wiring.Signature):
    """Which volumes are attached, seen from who attaches them. Only with `Config.metadata`.

    Ports
    -----
    detached
        Bit a volume: its namespace is not attached to the controller.
    store
        A volume. The drives of its array are to say whether it is attached.
    stored
        One answer to each. It is 0 if no drive says so, as that of an array that has FAILED.
    appears_detached
        A level. A volume that is there from now on is not attached.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "detached": Out(config.volumes),
                "store": Out(stream.Signature(config.volume_bits)),
                "stored": In(stream.Signature(1)),
                "appears_detached": In(1),
            }
        )
