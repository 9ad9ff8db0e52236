"""Get and Set Features (NVMe 1.4 sections 5.13, 5.21)."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.kit.table import Table
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
"""Where the under temperature threshold is in the table. The over threshold is at its FID."""

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


class Settings(wiring.Signature):
    """Values of features that parts of the front end heed, seen from `Features`.

    Ports
    -----
    over
        Temperature threshold in kelvin, for what is at least as warm.
    under
        Temperature threshold in kelvin, for what is at most as warm.
    burst
        Arbitration Burst: log2 of the entries that are fetched at once, 7 for no limit.
    threshold
        Interrupt Coalescing: entries - 1.
    delay
        Interrupt Coalescing: time in 100 us.
    uncoalesced
        Bit a vector: its interrupts must not wait.
    write_through
        The host has switched the volatile write cache off.
    """

    def __init__(self, config: Config):
        super().__init__(
            {
                "over": Out(16, init=WARNING_KELVIN),
                "under": Out(16),
                "burst": Out(BURST_BITS, init=RULES[Feature.ARBITRATION].initial),
                "threshold": Out(8),
                "delay": Out(8),
                "uncoalesced": Out(config.queue_pairs + 1),
                "write_through": Out(1),
            }
        )


class Features(wiring.Component):
    """Feature values.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    feature
        FID of the command. This and the next four are held from ``look`` on for 2 cycles.
    select
        SEL of the command.
    saves
        SV of the command.
    value
        CDW11 of the command.
    nsid
        NSID of the command.
    look
        A pulse: a command is at hand.
    set
        With ``look``: it is a Set Features, else a Get Features.
    status
        The status field, 1 cycle after ``look``.
    result
        DW0 of the completion, 1 cycle after ``look``.
    io_queues
        I/O queues exist. Their number cannot be changed any more.
    clear
        All features go back to their initial values.
    stores
        A pulse with ``status``: the host switches the volatile write cache off by this command, so
        what is in the caches must be stored.
    events
        Asynchronous Event Configuration.
    settings
        Values that parts of the front end heed.
    busy
        A command is being looked at.

    Errors: Invalid Field for a feature, selection, sensor or vector that is not there, and for bits
    that are reserved. Not Saveable. Not Changeable for Error Recovery. Not Namespace Specific for a
    Set of one namespace. Command Sequence Error for a Number of Queues that comes too late.
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
                "stores": Out(1),
                "events": Out(CONFIGURATION_BITS),
                "settings": Out(Settings(config)),
                "busy": Out(1),
            }
        )

        # Values.
        self._values = Table(32, FEATURES)
        self._written = Signal(FEATURES)  # a bit a value
        self._address = Signal(range(FEATURES))  # of the feature's value
        # The command.
        self._looked = Signal()  # it came in the last cycle
        self._setting = Signal()  # it is a Set
        self._current = self.select == Select.CURRENT.value  # of a Get: of the current value

        # The rule of the feature.
        self._ruled = Signal()  # there is one
        self._settled = Signal()  # nothing may be changed
        self._initial = Signal(32)  # its value after a reset
        self._fixed = Signal(32)  # bits that may not be changed
        self._is_vector = self._is(Feature.INTERRUPT_VECTOR)
        self._is_queues = self._is(Feature.NUMBER_OF_QUEUES)
        # The threshold is the one for what is too cold, not for what is too warm.
        self._is_under = self._is(Feature.TEMPERATURE_THRESHOLD) & self.value[20]
        self._vector = self.value[:16]
        self._vector_bit = self._vector[: config.queue_pairs.bit_length()]

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.values = self._values
        m.d.sync += [self._looked.eq(self.look), self._setting.eq(self.set)]
        m.d.comb += self.busy.eq(self.look | self._looked)
        self._find_value(m)
        self._find_rule(m)
        self._answer(m)
        with m.If(self.clear):
            m.d.sync += [
                Cat(self._written, self.settings.write_through).eq(0),
                Cat(self.settings.under, self.events).eq(0),
                Cat(self.settings.threshold, self.settings.delay, self.settings.uncoalesced).eq(0),
                self.settings.over.eq(WARNING_KELVIN),
                self.settings.burst.eq(RULES[Feature.ARBITRATION].initial),
            ]
        return m

    def _is(self, feature: Feature) -> Value:
        """The command is of ``feature``."""
        return self.feature == feature.value

    def _find_value(self, m: Module) -> None:
        """Where the feature's value is kept."""
        m.d.comb += [
            self._address.eq(self.feature),
            self._values.reads[0].address.eq(self._address),
            self._values.write.address.eq(self._address),
            self._values.write.data.eq(self.value),
        ]
        with m.If(self._is_under):
            m.d.comb += self._address.eq(UNDER_THRESHOLD)

    def _find_rule(self, m: Module) -> None:
        """What may be changed of the feature."""
        with m.Switch(self.feature):
            for feature, rule in RULES.items():
                with m.Case(feature.value):
                    m.d.comb += [
                        self._ruled.eq(1),
                        self._settled.eq(rule.changeable == 0),
                        self._initial.eq(rule.initial),
                        self._fixed.eq(~rule.changeable),
                    ]
        with m.If(self._is_under):
            m.d.comb += self._initial.eq(0)

    def _refuse(self, m: Module, code: StatusCode) -> None:
        """The command ends with ``code``."""
        m.d.comb += self.status.eq(status_field(code))

    def _answer(self, m: Module) -> None:
        """Checks the command, the first reason to refuse it counts, and does it."""
        setting, ruled = self._setting, self._ruled
        of_namespace = (self.nsid != 0) & (self.nsid != BROADCAST_NSID)
        # Temperature thresholds: two, of one sensor.
        sensor, side = self.value[16:20], self.value[20:22]
        no_sensor = self._is(Feature.TEMPERATURE_THRESHOLD) & (
            side[1] | ((sensor != 0) & ~(setting & (sensor == ALL_SENSORS)))
        )
        no_vector = self._is_vector & (self._vector > self._config.queue_pairs)
        with m.If(~(ruled | self._is_vector | self._is_queues)):
            self._refuse(m, StatusCode.INVALID_FIELD)
        with m.Elif(setting & self.saves):
            self._refuse(m, StatusCode.FEATURE_NOT_SAVEABLE)
        with m.Elif(setting & of_namespace):
            self._refuse(m, StatusCode.FEATURE_NOT_NAMESPACE_SPECIFIC)
        with m.Elif(~setting & self.select[2]):
            self._refuse(m, StatusCode.INVALID_FIELD)
        with m.Elif(~setting & (self.select == Select.SUPPORTED.value)):
            m.d.comb += self.result.eq(Mux(self._settled, 0, CHANGEABLE))
        with m.Elif(no_sensor | no_vector):
            self._refuse(m, StatusCode.INVALID_FIELD)
        with m.Elif(ruled & setting):
            self._set_value(m)
        with m.Elif(ruled):
            self._get_value(m)
        with m.Elif(self._is_queues):
            self._answer_queues(m)
        with m.Elif(setting):
            self._set_vector(m)
        with m.Else():
            disabled = self.settings.uncoalesced.bit_select(self._vector_bit, 1) & self._current
            m.d.comb += self.result.eq(Cat(self._vector, disabled))

    def _set_value(self, m: Module) -> None:
        """Set Features of a feature with a rule."""
        value, is_threshold = self.value, self._is(Feature.TEMPERATURE_THRESHOLD)
        compared = Mux(is_threshold, 0, self._initial)
        with m.If(((value ^ compared) & self._fixed) != 0):
            self._refuse(m, StatusCode.INVALID_FIELD)
            with m.If(self._settled):
                self._refuse(m, StatusCode.FEATURE_NOT_CHANGEABLE)
        with m.Elif(self._looked):
            m.d.comb += self._values.store()
            m.d.sync += self._written.bit_select(self._address, 1).eq(1)
            with m.Switch(self.feature):
                with m.Case(Feature.ARBITRATION.value):
                    m.d.sync += self.settings.burst.eq(value)
                with m.Case(Feature.TEMPERATURE_THRESHOLD.value):
                    with m.If(value[20]):
                        m.d.sync += self.settings.under.eq(value)
                    with m.Else():
                        m.d.sync += self.settings.over.eq(value)
                with m.Case(Feature.VOLATILE_WRITE_CACHE.value):
                    m.d.sync += self.settings.write_through.eq(~value[0])
                    m.d.comb += self.stores.eq(~value[0])
                with m.Case(Feature.INTERRUPT_COALESCING.value):
                    m.d.sync += Cat(self.settings.threshold, self.settings.delay).eq(value)
                with m.Case(Feature.ASYNC_EVENT.value):
                    m.d.sync += self.events.eq(value)

    def _get_value(self, m: Module) -> None:
        """Get Features of a feature with a rule."""
        known = self._written.bit_select(self._address, 1) & self._current
        m.d.comb += self.result.eq(Mux(known, self._values.reads[0].data, self._initial))
        with m.If(self._is(Feature.TEMPERATURE_THRESHOLD)):
            m.d.comb += self.result[16:].eq(0)

    def _answer_queues(self, m: Module) -> None:
        """Number of Queues: as many as there are, whatever is asked for."""
        pairs = self._config.queue_pairs - 1
        m.d.comb += self.result.eq(Cat(Const(pairs, 16), Const(pairs, 16)))
        with m.If(self._setting):
            with m.If(self.io_queues):
                self._refuse(m, StatusCode.COMMAND_SEQUENCE)
            with m.Elif((self.value[:16] == NO_COUNT) | (self.value[16:] == NO_COUNT)):
                self._refuse(m, StatusCode.INVALID_FIELD)

    def _set_vector(self, m: Module) -> None:
        """Set Features of Interrupt Vector Configuration."""
        with m.If(self.value[DISABLED_BIT + 1 :].any()):
            self._refuse(m, StatusCode.INVALID_FIELD)
        with m.Elif(self._looked):
            m.d.sync += self.settings.uncoalesced.bit_select(self._vector_bit, 1).eq(
                self.value[DISABLED_BIT]
            )
