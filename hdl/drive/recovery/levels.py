"""What of a drive port is no stream."""

from amaranth.hdl import Module
from amaranth.lib.wiring import In

from hdl.config import Config
from hdl.flow.drive_port import DrivePort


def pass_levels(m: Module, inner, outer, *, config: Config) -> None:
    """Passes the levels and pulses of a drive port on, each in its direction; combinational.

    ``inner`` is the port as the controller sees it, ``outer`` as the link core sees it.
    """
    for name, member in DrivePort(config).members.items():
        if member.is_port:
            near, far = getattr(inner, name), getattr(outer, name)
            m.d.comb += near.eq(far) if member.flow == In else far.eq(near)
