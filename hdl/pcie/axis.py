"""AXI4-Stream interfaces of the UltraScale+ PCIe block, as plain named signals."""

from amaranth.lib.wiring import In, Out

from hdl.pcie.descriptors import (
    CompleterCompletionUser,
    CompleterRequestUser,
    RequesterCompletionUser,
    RequesterRequestUser,
)

SHIM_WIDTH = 256
"""The width of the block's interfaces that the shim is written for."""

SHIM_DWORDS = SHIM_WIDTH // 32

USERS = {
    "rq": RequesterRequestUser,
    "rc": RequesterCompletionUser,
    "cq": CompleterRequestUser,
    "cc": CompleterCompletionUser,
}


def axis_ports(prefix: str) -> dict:
    """Members ``<prefix>_tdata`` ... as the user's side sees them: RQ and CC leave, RC and CQ come.

    There is one ``tkeep`` bit for each 32-bit word.
    """
    forth, back = (Out, In) if prefix in ("rq", "cc") else (In, Out)
    return {
        f"{prefix}_tdata": forth(SHIM_WIDTH),
        f"{prefix}_tkeep": forth(SHIM_DWORDS),
        f"{prefix}_tlast": forth(1),
        f"{prefix}_tuser": forth(USERS[prefix].as_shape().size),
        f"{prefix}_tvalid": forth(1),
        f"{prefix}_tready": back(1),
    }
