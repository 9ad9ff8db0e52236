"""The blocks that `python -m synth` builds: those of `hdl.core.Core`, with its parameters."""

from collections.abc import Callable
from importlib import import_module

from amaranth.lib import wiring

from hdl.config import LINE_RETURNS, LINE_USERS, Config

Build = Callable[[Config], wiring.Component]

WHOLE = "core"
"""The name of the whole controller."""


def _block(path: str, **parameters) -> Build:
    """Builds class ``package.module:Class``, imported only when it is wanted."""
    module, name = path.split(":")

    def build(config: Config) -> wiring.Component:
        return getattr(import_module(module), name)(config=config, **parameters)

    return build


def _allocator(config: Config) -> wiring.Component:
    build = _block(
        "hdl.memory.allocator:LineAllocator",
        users=LINE_USERS,
        returns=LINE_RETURNS,
        reserves=config.line_reserves,
    )
    return build(config)


BLOCKS: dict[str, Build] = {
    "endpoint": _block("hdl.pcie.endpoint:Endpoint"),
    "front_end": _block("hdl.nvme.front_end:NvmeFrontEnd"),
    "tables": _block(
        "hdl.array.tables.tables:ArrayTables",
        geometry_readers=5,
        member_readers=3,
        volume_readers=2,
    ),
    "tracker": _block("hdl.array.tracker:Tracker"),
    "mapper": _block("hdl.array.mapping.mapper:Mapper"),
    "dispatch": _block("hdl.stripe.dispatch:Dispatch"),
    "gather": _block("hdl.stripe.gather.gather:Gather"),
    "sequencer": _block("hdl.stripe.rows.sequencer:Sequencer"),
    "parity": _block("hdl.parity.runner:ParityPass"),
    "drives": _block("hdl.drive.drives:Drives"),
    "store": _block("hdl.memory.store:LineStore", readers=4, writers=5),
    "allocator": _allocator,
    WHOLE: _block("hdl.core:Core"),
}
