"""Namespace Attachment (NVMe 1.4 section 5.19): which volumes are attached."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.flow.attachments import Attachments
from hdl.flow.host_memory import Kind, inbox_dwords
from hdl.nvme.codes import STATUS_BITS, StatusCode, status_field
from hdl.nvme.records import ParameterRead, assign

CONTROLLER_LIST = 1
"""The one controller list that is valid: one identifier (bits 15:0), which is 0 (bits 31:16)."""

ATTACH, DETACH = 0, 1
"""SEL of Namespace Attachment."""


class VolumeProbe(wiring.Signature):
    """Whether a volume exists, seen from who asks.

    Ports
    -----
    volume
        The volume.
    allocated
        One cycle later: it exists.
    """

    def __init__(self, config: Config):
        super().__init__({"volume": Out(config.volume_bits), "allocated": In(1)})


class NamespaceStates(wiring.Signature):
    """What is told of all namespaces, seen from the admin commands.

    Ports
    -----
    detached
        Bit a volume: its namespace is not attached to the controller.
    changed
        Bit a volume: its namespace has changed since the log of changes was begun that the host has
        read.
    """

    def __init__(self, config: Config):
        super().__init__({"detached": Out(config.volumes), "changed": Out(config.volumes)})


class Namespaces(wiring.Component):
    """Attaches and detaches volumes. A volume that is created is attached. One that is brought up
    is as it was. With `Config.metadata` a command ends once the drives say what it has changed.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    start
        A pulse: there is a Namespace Attachment command.
    nsid
        NSID of the command. This and the next two are held until ``done``.
    select
        SEL of the command.
    prp1
        PRP1 of the command.
    done
        A pulse: the command has ended.
    status
        With ``done``: its status field.
    created
        A pulse: ``created_volume`` was created, and so is attached.
    created_volume
        The volume.
    exists
        Bit a volume: it is there.
    probe
        Whether the volume exists.
    attachments
        Which volumes are not attached, to be stored with `Config.metadata`.
    changed
        A pulse: ``volume`` has been attached or detached.
    volume
        The volume.
    parameter_read
        The read of the first word of the controller list.
    busy
        Something moves without anybody else being waited for.

    Latency: that of a read from the host.

    Errors: Invalid Namespace for an NSID that cannot be. Invalid Field for one without a volume,
    for FFFFFFFFh and for another selection. Invalid PRP Offset. Data Transfer Error. Controller
    List Invalid for any list but that of controller 0. Already Attached, and Not Attached. Drive
    Unavailable if it is done, and no drive says so.
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
                "exists": In(config.volumes),
                "probe": Out(VolumeProbe(config)),
                "attachments": Out(Attachments(config)),
                "changed": Out(1),
                "volume": Out(config.volume_bits),
                "parameter_read": Out(ParameterRead(config)),
                "busy": Out(1),
            }
        )

        self._all_detached = self.attachments.detached
        self._detached = self._all_detached.bit_select(self.volume, 1)
        self._detaches = self.select == DETACH
        self._failed = Signal()

    def elaborate(self, platform) -> Module:
        m = Module()
        m.d.comb += [
            self.volume.eq(self.nsid - 1),
            self.probe.volume.eq(self.volume),
            *assign(
                self.parameter_read.request.payload,
                kind=Kind.PARAMETER,
                index=0,
                last=1,
                address=self.prp1,
                dwords=1,
                target=inbox_dwords(self._config),
            ),
        ]
        with m.If(self.created):
            m.d.sync += self._all_detached.bit_select(self.created_volume, 1).eq(0)
        with m.FSM(name="attach") as fsm:
            self._check(m)
            self._read_list(m)
            self._change(m)
            waits = (
                (fsm.ongoing("WAIT") & ~self.start)
                | (self.parameter_read.request.valid & ~self.parameter_read.request.ready)
                | (fsm.ongoing("LISTEN") & ~self.parameter_read.done)
                | (self.attachments.store.valid & ~self.attachments.store.ready)
                | (self.attachments.stored.ready & ~self.attachments.stored.valid)
            )
            m.d.comb += self.busy.eq(~waits | self.created)
        # The list of an array is written before anybody is told of a new volume. So the bit of one
        # that is not there is what that of a new one must be.
        if self._config.metadata:
            for bit, exists in zip(self._all_detached, self.exists, strict=True):
                with m.If(~exists):
                    m.d.sync += bit.eq(self.attachments.appears_detached)
        return m

    def _judge(self, m: Module, rules: tuple) -> None:
        """The status is that of the first rule that is broken."""
        m.d.sync += self.status.eq(0)
        for broken, code in reversed(rules):
            with m.If(broken):
                m.d.sync += self.status.eq(status_field(code))

    def _check(self, m: Module) -> None:
        """The states WAIT, CHECK and DECIDE: a command comes, and its fields are checked."""
        nsid, volumes = self.nsid, self._config.volumes
        with m.State("WAIT"):
            with m.If(self.start):
                m.next = "CHECK"

        with m.State("CHECK"):
            self._judge(
                m,
                (
                    (nsid[:32].all() | (self.select > DETACH), StatusCode.INVALID_FIELD),
                    ((nsid == 0) | (nsid > volumes), StatusCode.INVALID_NAMESPACE),
                    (~self.probe.allocated, StatusCode.INVALID_FIELD),
                    (self.prp1[:2].any(), StatusCode.INVALID_PRP_OFFSET),
                ),
            )
            m.next = "DECIDE"

        with m.State("DECIDE"):
            m.next = "ASK"
            with m.If(self.status != 0):
                m.next = "ANSWER"

    def _read_list(self, m: Module) -> None:
        """The states ASK, LISTEN and JUDGE: the controller list is read, and checked."""
        with m.State("ASK"):
            m.d.comb += self.parameter_read.request.valid.eq(1)
            with m.If(self.parameter_read.request.ready):
                m.next = "LISTEN"

        with m.State("LISTEN"):
            m.d.sync += self._failed.eq(self.parameter_read.error)
            with m.If(self.parameter_read.done):
                m.next = "JUDGE"

        with m.State("JUDGE"):
            detaches, detached = self._detaches, self._detached
            word = self.parameter_read.word
            self._judge(
                m,
                (
                    (self._failed, StatusCode.DATA_TRANSFER_ERROR),
                    (word != CONTROLLER_LIST, StatusCode.CONTROLLER_LIST_INVALID),
                    (detaches & detached, StatusCode.NAMESPACE_NOT_ATTACHED),
                    (~detaches & ~detached, StatusCode.NAMESPACE_ATTACHED),
                ),
            )
            m.next = "CHANGE"

    def _change(self, m: Module) -> None:
        """The states CHANGE, in which the volume is attached or detached, to ANSWER."""
        stores = self._config.metadata
        store, stored = self.attachments.store, self.attachments.stored
        m.d.comb += store.payload.eq(self.volume)
        with m.State("CHANGE"):
            m.next = "ANSWER"
            with m.If(self.status == 0):
                m.d.comb += self.changed.eq(1)
                m.d.sync += self._detached.eq(self._detaches)
                m.next = "STORE" if stores else "ANSWER"

        if stores:
            with m.State("STORE"):
                m.d.comb += store.valid.eq(1)
                with m.If(store.ready):
                    m.next = "STORED"

            with m.State("STORED"):
                m.d.comb += stored.ready.eq(1)
                with m.If(stored.valid):
                    self._judge(m, ((~stored.payload, StatusCode.DRIVE_UNAVAILABLE),))
                    m.next = "ANSWER"

        with m.State("ANSWER"):
            m.d.comb += self.done.eq(1)
            m.next = "WAIT"
