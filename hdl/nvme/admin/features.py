"""Get and Set Features (NVMe 1.4 sections 5.13, 5.21)."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import enum, memory, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.nvme.admin.events import CONFIGURATION_BITS
from hdl.nvme.codes import (
    BROADCAST_NSID,
    STATUS_BITS,
    WARNING_KELVIN,
    Feature,
    StatusCode,
    status_field,
)
from hdl.nvme.records import FETCH_ENTRIES

FEATURES = 16
UNDER_THRESHOLD = 0x0F
"""Place in the memory of the under temperature threshold; the over threshold is at its FID."""

ALL_SENSORS = 0xF
"""TMPSEL of a Set Features for every temperature sensor that there is."""

NO_COUNT = 0xFFFF
"""A number of queues that is reserved."""

BURST_BITS = 3
DISABLED_BIT = 16
"""CD of Interrupt Vector Configuration."""


class Select(enum.Enum, shape=3):
    """SEL of Get Features (figure 180)."""

    CURRENT = 0
    DEFAULT = 1
    SAVED = 2
    SUPPORTED = 3


CHANGEABLE = 1 << 2
"""Supported capabilities: not saveable, not namespace specific, changeable."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A feature's value after reset, and the bits that the host may change."""

    initial: int = 0
    changeable: int = 0


RULES = {
    Feature.ARBITRATION: Rule(initial=FETCH_ENTRIES.bit_length() - 1, changeable=0xFFFF_FF07),
    Feature.POWER_MANAGEMENT: Rule(changeable=0xE0),
    Feature.TEMPERATURE_THRESHOLD: Rule(initial=WARNING_KELVIN, changeable=0x3F_FFFF),
    Feature.ERROR_RECOVERY: Rule(),
    Feature.VOLATILE_WRITE_CACHE: Rule(initial=1, changeable=1),
    Feature.INTERRUPT_COALESCING: Rule(changeable=0xFFFF),
    Feature.WRITE_ATOMICITY: Rule(changeable=1),
    Feature.ASYNC_EVENT: Rule(changeable=(1 << CONFIGURATION_BITS) - 1),
}


class Features(wiring.Component):
    """Feature values.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    feature, select, saves, value, nsid
        FID, SEL, SV, CDW11 and NSID of the command, held from ``look`` on for 2 cycles.
    look, set
        A pulse: a command is at hand; it is a Set.
    status, result
        Hold 1 cycle after ``look``: the status field, and DW0 of the completion.
    io_queues
        I/O queues exist: their number cannot be changed any more.
    clear
        Back to initial values.
    write_through, stores
        The host has switched the volatile write cache off; a pulse with ``status``: by this
        command, so that what is in the caches must be stored.
    over, under
        Temperature thresholds in kelvin.
    events
        Asynchronous Event Configuration.
    burst
        Arbitration Burst: log2 of the entries fetched at once, 7 for no limit.
    threshold, delay
        Interrupt Coalescing: entries - 1, and time in 100 us.
    uncoalesced
        Vectors whose interrupts must not wait.

    Errors: Invalid Field for a feature, selection, sensor or vector that is not there, and for bits
    that are reserved; Not Saveable; Not Changeable for Error Recovery; Not Namespace Specific for a
    Set of one namespace; Command Sequence Error for Number of Queues too late.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "feature": In(8),
                "select": In(3),
                "saves": In(1),
                "value": In(32),
                "nsid": In(32),
                "look": In(1),
                "set": In(1),
                "status": Out(STATUS_BITS),
                "result": Out(32),
                "io_queues": In(1),
                "clear": In(1),
                "write_through": Out(1),
                "stores": Out(1),
                "over": Out(16, init=WARNING_KELVIN),
                "under": Out(16),
                "events": Out(CONFIGURATION_BITS),
                "burst": Out(BURST_BITS, init=RULES[Feature.ARBITRATION].initial),
                "threshold": Out(8),
                "delay": Out(8),
                "uncoalesced": Out(config.queue_pairs + 1),
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
        plain, settled = Signal(), Signal()
        pairs = config.queue_pairs - 1
        address = Signal(range(FEATURES))
        m.d.sync += [looked.eq(self.look), setting.eq(self.set)]
        m.d.comb += [
            address.eq(self.feature),
            read.addr.eq(address),
            write.addr.eq(address),
            write.data.eq(self.value),
            self.busy.eq(self.look | looked),
        ]

        def refuse(code: StatusCode):
            m.d.comb += self.status.eq(status_field(code))

        def is_(feature: Feature):
            return self.feature == feature.value

        # Temperature thresholds: two, of one sensor.
        sensor, side = self.value[16:20], self.value[20:22]
        no_sensor = is_(Feature.TEMPERATURE_THRESHOLD) & (
            side[1] | ((sensor != 0) & ~(setting & (sensor == ALL_SENSORS)))
        )
        with m.If(is_(Feature.TEMPERATURE_THRESHOLD) & side[0]):
            m.d.comb += address.eq(UNDER_THRESHOLD)

        with m.Switch(self.feature):
            for feature, rule in RULES.items():
                with m.Case(feature.value):
                    m.d.comb += [
                        plain.eq(1),
                        settled.eq(rule.changeable == 0),
                        initial.eq(rule.initial),
                        fixed.eq(~rule.changeable),
                    ]
        with m.If(is_(Feature.TEMPERATURE_THRESHOLD) & side[0]):
            m.d.comb += initial.eq(0)
        compared = Mux(is_(Feature.TEMPERATURE_THRESHOLD), 0, initial)

        vector = self.value[:16]
        vector_bit = vector[: (config.queue_pairs).bit_length()]
        is_vector = is_(Feature.INTERRUPT_VECTOR)
        is_queues = is_(Feature.NUMBER_OF_QUEUES)
        current = self.select == Select.CURRENT.value
        of_namespace = (self.nsid != 0) & (self.nsid != BROADCAST_NSID)

        with m.If(~(plain | is_vector | is_queues)):
            refuse(StatusCode.INVALID_FIELD)
        with m.Elif(setting & self.saves):
            refuse(StatusCode.FEATURE_NOT_SAVEABLE)
        with m.Elif(setting & of_namespace):
            refuse(StatusCode.FEATURE_NOT_NAMESPACE_SPECIFIC)
        with m.Elif(~setting & self.select[2]):
            refuse(StatusCode.INVALID_FIELD)
        with m.Elif(~setting & (self.select == Select.SUPPORTED.value)):
            m.d.comb += self.result.eq(Mux(settled, 0, CHANGEABLE))
        with m.Elif(no_sensor | (is_vector & (vector > config.queue_pairs))):
            refuse(StatusCode.INVALID_FIELD)
        with m.Elif(plain & setting):
            with m.If(((self.value ^ compared) & fixed) != 0):
                refuse(StatusCode.INVALID_FIELD)
                with m.If(settled):
                    refuse(StatusCode.FEATURE_NOT_CHANGEABLE)
            with m.Elif(looked):
                m.d.comb += write.en.eq(1)
                m.d.sync += written.bit_select(address, 1).eq(1)
                with m.Switch(self.feature):
                    with m.Case(Feature.ARBITRATION.value):
                        m.d.sync += self.burst.eq(self.value)
                    with m.Case(Feature.TEMPERATURE_THRESHOLD.value):
                        with m.If(side[0]):
                            m.d.sync += self.under.eq(self.value)
                        with m.Else():
                            m.d.sync += self.over.eq(self.value)
                    with m.Case(Feature.VOLATILE_WRITE_CACHE.value):
                        m.d.sync += self.write_through.eq(~self.value[0])
                        m.d.comb += self.stores.eq(~self.value[0])
                    with m.Case(Feature.INTERRUPT_COALESCING.value):
                        m.d.sync += Cat(self.threshold, self.delay).eq(self.value)
                    with m.Case(Feature.ASYNC_EVENT.value):
                        m.d.sync += self.events.eq(self.value)
        with m.Elif(plain):
            known = written.bit_select(address, 1) & current
            m.d.comb += self.result.eq(Mux(known, read.data, initial))
            with m.If(is_(Feature.TEMPERATURE_THRESHOLD)):
                m.d.comb += self.result[16:].eq(0)
        with m.Elif(is_queues):
            m.d.comb += self.result.eq(Cat(Const(pairs, 16), Const(pairs, 16)))
            with m.If(setting):
                with m.If(self.io_queues):
                    refuse(StatusCode.COMMAND_SEQUENCE)
                with m.Elif((vector == NO_COUNT) | (self.value[16:] == NO_COUNT)):
                    refuse(StatusCode.INVALID_FIELD)
        with m.Elif(setting):
            with m.If(self.value[DISABLED_BIT + 1 :].any()):
                refuse(StatusCode.INVALID_FIELD)
            with m.Elif(looked):
                m.d.sync += self.uncoalesced.bit_select(vector_bit, 1).eq(self.value[DISABLED_BIT])
        with m.Else():
            disabled = self.uncoalesced.bit_select(vector_bit, 1) & current
            m.d.comb += self.result.eq(Cat(vector, disabled))

        with m.If(self.clear):
            m.d.sync += [
                Cat(written, self.write_through, self.under, self.events).eq(0),
                Cat(self.threshold, self.delay, self.uncoalesced).eq(0),
                self.over.eq(WARNING_KELVIN),
                self.burst.eq(RULES[Feature.ARBITRATION].initial),
            ]
        return m
