"""The host's changes: those of the tables, and arrays that it wants to have."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.manage import Changes, ManageOpcode, manage_response


class Import(data.Struct):
    """The array is wanted that the drive at ``port`` belongs to. With ``degraded`` also if drives
    are missing that nobody has given up, and with ``assumed`` also if what these held may be worked
    out wrongly. With ``preview`` the host only wants to know what would be written."""

    port: 8
    degraded: 1
    assumed: 1
    preview: 1


class Imports(wiring.Signature):
    """Imports of arrays, seen from who asks for them.

    Ports
    -----
    request
        Imports, one at a time.
    response
        One answer to each, as `hdl.metadata.bring_up.BringUp` has them.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "request": Out(stream.Signature(Import)),
                "response": In(stream.Signature(manage_response(config))),
            }
        )


class HostChanges(wiring.Component):
    """Takes imports out of the host's changes. Combinational. There is one change at a time.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    host
        The host's changes.
    changes
        Those of the tables, and drives that are to be cleared.
    imports
        The others.
    busy
        An import is taken, or answered.
    """

    def __init__(self, *, config: Config):
        super().__init__(
            {
                "host": In(Changes(config)),
                "changes": Out(Changes(config)),
                "imports": Out(Imports(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        host, changes, imports = self.host, self.changes, self.imports
        is_import, imported = Signal(), Signal()
        takes = host.request.valid & host.request.ready
        m.d.comb += [
            is_import.eq(
                (host.request.payload.opcode == ManageOpcode.FOREIGN) & ~host.request.payload.clear
            ),
            changes.request.payload.eq(host.request.payload),
            changes.request.valid.eq(host.request.valid & ~is_import),
            imports.request.payload.port.eq(host.request.payload.port),
            imports.request.payload.degraded.eq(host.request.payload.degraded),
            imports.request.payload.assumed.eq(host.request.payload.assumed),
            imports.request.payload.preview.eq(host.request.payload.preview),
            imports.request.valid.eq(host.request.valid & is_import),
        ]
        with m.If(is_import):
            m.d.comb += host.request.ready.eq(imports.request.ready)
        with m.Else():
            m.d.comb += host.request.ready.eq(changes.request.ready)
        with m.If(takes):
            m.d.sync += imported.eq(is_import)
        for user, is_own in ((imports, imported), (changes, ~imported)):
            with m.If(is_own):
                m.d.comb += [
                    host.response.payload.eq(user.response.payload),
                    host.response.valid.eq(user.response.valid),
                    user.response.ready.eq(host.response.ready),
                ]
        answers = host.response.valid & host.response.ready
        m.d.comb += self.busy.eq(takes | answers)
        return m
