"""Namespace Attachment (NVMe 1.4 section 5.19): which volumes are attached."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.host_memory import Kind, inbox_dwords, read_request
from hdl.nvme.codes import STATUS_BITS, StatusCode, status_field
from hdl.nvme.records import assign

CONTROLLER_LIST = 1
"""The one controller list that is valid: one identifier (bits 15:0), which is 0 (bits 31:16)."""

ATTACH, DETACH = 0, 1
"""SEL of Namespace Attachment."""


class Namespaces(wiring.Component):
    """Attaches and detaches volumes; a volume that is created is attached.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    start, nsid, select, prp1
        A pulse: a Namespace Attachment command; its fields are held until ``done``.
    done, status
        A pulse with the status field.
    created, created_volume
        A pulse: a volume was created, and so is attached.
    probe, allocated
        ``allocated`` follows ``probe`` by one cycle: the volume exists.
    detached
        A bit per volume: it is not attached.
    changed, volume
        A pulse: a volume has been attached or detached.
    read_request, read_done, read_error, parameter
        The read of the first word of the controller list, a pulse when it has ended, and the word.

    Latency: that of a read from the host.

    Errors: Invalid Namespace for an NSID that cannot be; Invalid Field for one without a volume,
    for FFFFFFFFh and for another selection; Invalid PRP Offset; Data Transfer Error; Controller
    List Invalid for any list but that of controller 0; Already Attached, Not Attached.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "nsid": In(32),
                "select": In(4),
                "prp1": In(64),
                "done": Out(1),
                "status": Out(STATUS_BITS),
                "created": In(1),
                "created_volume": In(config.volume_bits),
                "probe": Out(config.volume_bits),
                "allocated": In(1),
                "detached": Out(config.volumes),
                "changed": Out(1),
                "volume": Out(config.volume_bits),
                "read_request": Out(stream.Signature(read_request(config))),
                "read_done": In(1),
                "read_error": In(1),
                "parameter": In(32),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        detached = self.detached.bit_select(self.volume, 1)
        detaches = self.select == DETACH
        m.d.comb += [
            self.volume.eq(self.nsid - 1),
            self.probe.eq(self.volume),
            *assign(
                self.read_request.payload,
                kind=Kind.PARAMETER,
                index=0,
                last=1,
                address=self.prp1,
                dwords=1,
                target=inbox_dwords(config),
            ),
        ]
        with m.If(self.created):
            m.d.sync += self.detached.bit_select(self.created_volume, 1).eq(0)

        failed = Signal()
        checks = (
            (self.nsid[:32].all() | (self.select > DETACH), StatusCode.INVALID_FIELD),
            ((self.nsid == 0) | (self.nsid > config.volumes), StatusCode.INVALID_NAMESPACE),
            (~self.allocated, StatusCode.INVALID_FIELD),
            (self.prp1[:2].any(), StatusCode.INVALID_PRP_OFFSET),
        )
        verdicts = (
            (failed, StatusCode.DATA_TRANSFER_ERROR),
            (self.parameter != CONTROLLER_LIST, StatusCode.CONTROLLER_LIST_INVALID),
            (detaches & detached, StatusCode.NAMESPACE_NOT_ATTACHED),
            (~detaches & ~detached, StatusCode.NAMESPACE_ATTACHED),
        )

        def judge(rules):
            m.d.sync += self.status.eq(0)
            for condition, code in reversed(rules):
                with m.If(condition):
                    m.d.sync += self.status.eq(status_field(code))

        with m.FSM(name="attach") as fsm:
            with m.State("WAIT"):
                with m.If(self.start):
                    m.next = "CHECK"

            with m.State("CHECK"):
                judge(checks)
                m.next = "DECIDE"

            with m.State("DECIDE"):
                m.next = "ASK"
                with m.If(self.status != 0):
                    m.next = "ANSWER"

            with m.State("ASK"):
                m.d.comb += self.read_request.valid.eq(1)
                with m.If(self.read_request.ready):
                    m.next = "LISTEN"

            with m.State("LISTEN"):
                m.d.sync += failed.eq(self.read_error)
                with m.If(self.read_done):
                    m.next = "JUDGE"

            with m.State("JUDGE"):
                judge(verdicts)
                m.next = "CHANGE"

            with m.State("CHANGE"):
                with m.If(self.status == 0):
                    m.d.comb += self.changed.eq(1)
                    m.d.sync += detached.eq(detaches)
                m.next = "ANSWER"

            with m.State("ANSWER"):
                m.d.comb += self.done.eq(1)
                m.next = "WAIT"

            waits = (
                (fsm.ongoing("WAIT") & ~self.start)
                | (self.read_request.valid & ~self.read_request.ready)
                | (fsm.ongoing("LISTEN") & ~self.read_done)
            )
            m.d.comb += self.busy.eq(~waits | self.created)
        return m
