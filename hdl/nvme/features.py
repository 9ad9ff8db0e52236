"""Get and Set Features (NVMe 1.4 sections 5.13, 5.21)."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.nvme.codes import STATUS_BITS, Feature, StatusCode, status_field
from hdl.nvme.records import FETCH_ENTRIES

FEATURES = 16
NO_LIMIT = 0xFFFF
"""A temperature threshold that is never reached, and a number of queues that is reserved."""

COALESCING_DISABLED = 1 << 16
"""CD of Interrupt Vector Configuration."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A feature's value after reset, and the bits that the host may change."""

    initial: int = 0
    changeable: int = 0


RULES = {
    Feature.ARBITRATION: Rule(initial=FETCH_ENTRIES.bit_length() - 1),
    Feature.POWER_MANAGEMENT: Rule(),
    Feature.TEMPERATURE_THRESHOLD: Rule(initial=NO_LIMIT, changeable=0xFFFF),
    Feature.ERROR_RECOVERY: Rule(),
    Feature.VOLATILE_WRITE_CACHE: Rule(initial=1, changeable=1),
    Feature.INTERRUPT_COALESCING: Rule(),
    Feature.WRITE_ATOMICITY: Rule(changeable=1),
    Feature.ASYNC_EVENT: Rule(changeable=0xFF),
}


class Features(wiring.Component):
    """Feature values.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    feature, saves, value
        FID, SV and CDW11 of the command, held from ``look`` on for 2 cycles.
    look, set
        A pulse: a command is at hand; it is a Set.
    status, result
        Hold 1 cycle after ``look``: the status field, and DW0 of the completion.
    io_queues
        I/O queues exist: their number cannot be changed any more.
    clear
        Back to initial values.
    write_through
        The host has switched the volatile write cache off.

    Errors: Invalid Field for a feature that is not there; Not Saveable; Not Changeable for a value
    that the controller cannot take; Command Sequence Error for Number of Queues too late.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "feature": In(8),
                "saves": In(1),
                "value": In(32),
                "look": In(1),
                "set": In(1),
                "status": Out(STATUS_BITS),
                "result": Out(32),
                "io_queues": In(1),
                "clear": In(1),
                "write_through": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        m.submodules.values = values = memory.Memory(shape=32, depth=FEATURES, init=[])
        read, write = values.read_port(), values.write_port()
        written = Signal(FEATURES)
        looked, setting = Signal(), Signal()
        initial, fixed = Signal(32), Signal(32)
        plain = Signal()
        pairs = config.queue_pairs - 1
        vector = self.value[:16]
        address = self.feature[: (FEATURES - 1).bit_length()]
        m.d.sync += [looked.eq(self.look), setting.eq(self.set)]
        m.d.comb += [
            read.addr.eq(address),
            write.addr.eq(address),
            write.data.eq(self.value),
            self.busy.eq(self.look | looked),
        ]

        def refuse(code: StatusCode):
            m.d.comb += self.status.eq(status_field(code))

        with m.Switch(self.feature):
            for feature, rule in RULES.items():
                with m.Case(feature.value):
                    m.d.comb += [
                        plain.eq(1),
                        initial.eq(rule.initial),
                        fixed.eq(~rule.changeable),
                    ]
        with m.If(setting & self.saves):
            refuse(StatusCode.FEATURE_NOT_SAVEABLE)
        with m.Elif(plain):
            with m.If(setting):
                with m.If(((self.value ^ initial) & fixed) != 0):
                    refuse(StatusCode.FEATURE_NOT_CHANGEABLE)
                with m.Elif(looked):
                    m.d.comb += write.en.eq(1)
                    m.d.sync += written.bit_select(address, 1).eq(1)
                    with m.If(self.feature == Feature.VOLATILE_WRITE_CACHE.value):
                        m.d.sync += self.write_through.eq(~self.value[0])
            with m.Else():
                m.d.comb += self.result.eq(Mux(written.bit_select(address, 1), read.data, initial))
        with m.Elif(self.feature == Feature.NUMBER_OF_QUEUES.value):
            m.d.comb += self.result.eq(Cat(Const(pairs, 16), Const(pairs, 16)))
            with m.If(setting):
                with m.If(self.io_queues):
                    refuse(StatusCode.COMMAND_SEQUENCE)
                with m.Elif((vector == NO_LIMIT) | (self.value[16:] == NO_LIMIT)):
                    refuse(StatusCode.INVALID_FIELD)
        with m.Elif(self.feature == Feature.INTERRUPT_VECTOR.value):
            with m.If(vector > config.queue_pairs):
                refuse(StatusCode.INVALID_FIELD)
            with m.Elif(~setting):
                m.d.comb += self.result.eq(Cat(vector, Const(1, 1)))
            with m.Elif(self.value[16:] != COALESCING_DISABLED >> 16):
                refuse(StatusCode.FEATURE_NOT_CHANGEABLE)
        with m.Else():
            refuse(StatusCode.INVALID_FIELD)

        with m.If(self.clear):
            m.d.sync += [written.eq(0), self.write_through.eq(0)]
        return m
