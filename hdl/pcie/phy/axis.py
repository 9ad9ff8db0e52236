"""AXI4-Stream interfaces of the UltraScale+ PCIe block, as plain named signals."""

from amaranth.hdl import Assert, Module, Signal, Value
from amaranth.lib.wiring import In, Out

from hdl.pcie.phy.sideband import user_shape

BUSES = ("rq", "rc", "cq", "cc")


def axis_ports(prefix: str, width: int) -> dict:
    """Members ``<prefix>_tdata`` ... as the user's side sees them: RQ and CC leave, RC and CQ come.

    ``width`` is that of the data, 64 to 512 bits. There is one ``tkeep`` bit for each 32-bit word.
    """
    forth, back = (Out, In) if prefix in ("rq", "cc") else (In, Out)
    return {
        f"{prefix}_tdata": forth(width),
        f"{prefix}_tkeep": forth(width // 32),
        f"{prefix}_tlast": forth(1),
        f"{prefix}_tuser": forth(user_shape(prefix, width).as_shape().size),
        f"{prefix}_tvalid": forth(1),
        f"{prefix}_tready": back(1),
    }


def all_axis_ports(width: int) -> dict:
    """The members of all four interfaces."""
    return {name: port for bus in BUSES for name, port in axis_ports(bus, width).items()}


def watch_packets(
    m: Module, *, name: str, valid: Value, ready: Value, last: Value, beat: Value, reset: Value
) -> None:
    """Asserts, in simulation, the rules of a stream that leaves for a hard block (PG213, PG054).

    ``valid`` stays 1 from the first beat of a packet to its last; a beat stays as it is until it
    has been taken. ``reset`` ends every packet: the link is down.
    """
    inside = Signal(name=f"{name}_inside")
    refused = Signal(name=f"{name}_refused")
    before = Signal(len(beat), name=f"{name}_before")
    m.d.sync += [
        refused.eq(valid & ~ready & ~reset),
        before.eq(beat),
        Assert(valid | ~inside | reset, f"{name}: valid falls within a packet"),
        Assert(valid | ~refused | reset, f"{name}: valid falls before ready"),
        Assert((beat == before) | ~refused | reset, f"{name}: a beat changes before ready"),
    ]
    with m.If(reset):
        m.d.sync += inside.eq(0)
    with m.Elif(valid & ready):
        m.d.sync += inside.eq(~last)
