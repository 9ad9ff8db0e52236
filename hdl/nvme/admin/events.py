"""Asynchronous events: requests held for them, and what is reported (NVMe 1.4 section 5.2)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.kit.pick import lowest_set
from hdl.nvme.codes import EventType, LogPage
from hdl.nvme.pages.facts import WARNING_BITS

PLACES = {event: place for place, event in enumerate(EventType)}
"""Types in the order in which they are told, and their places in vectors of a bit a type."""

TYPES = len(PLACES)

NAMESPACE_NOTICE = 8
"""Bit of Asynchronous Event Configuration (section 5.21.1.11); those below are warnings."""

CONFIGURATION_BITS = NAMESPACE_NOTICE + 1

INVALID_REGISTER, INVALID_VALUE = 0, 1
"""Information of error events: Write to Invalid Doorbell Register, Invalid Doorbell Write Value."""

SPARE_WARNING, TEMPERATURE_WARNING = 0, 1
"""Bits of Critical Warning with an event information of their own; that of others is 0."""

LOGS = {
    EventType.ERROR: LogPage.ERROR,
    EventType.HEALTH: LogPage.SMART,
    EventType.NOTICE: LogPage.CHANGED_NAMESPACES,
    EventType.VENDOR: LogPage.ARRAY_STATES,
}
"""The log page that an event of each type names, and that clears it."""


def report() -> data.StructLayout:
    """The end of an Asynchronous Event Request, by an event or an Abort; ``result`` is DW0."""
    return data.StructLayout({"identifier": 16, "aborted": 1, "result": 32})


class Events(wiring.Component):
    """Holds Asynchronous Event Requests and answers one for each event.

    Once an event has been reported, others of its type wait until the host has read the type's log
    page without Retain Asynchronous Event; that forgets those that have not been reported yet. What
    comes or is reported after that page was begun need not be in it, so reading it forgets nothing
    of that (NVMe 1.4, 5.2). Any part of the page will do: a host may read it by several commands,
    of which only the last one is without Retain Asynchronous Event (5.14). The first of them is
    that which begins with the page's first byte.

    Parameters
    ----------
    config
        Sizes: ``async_event_limit`` requests are held.

    Ports
    -----
    hold, identifier
        A pulse: a request to hold. Only while not ``full``, and not during ``abort``.
    full
        No more can be held.
    abort, aborted, found
        A level until ``aborted``: end the request that has ``identifier``, as aborted. ``aborted``
        pulses with ``found`` once its entry has been posted (NVMe 1.4, 5.1.1), or without once it
        has been looked for, or its entry had no room: then it is still held. While ``stalled`` it
        is not looked for: the Abort may have the place that the report waits for.
    misuse, misuse_value
        A pulse: a doorbell was misused, by its value or (0) by writing it at all.
    warning
        Critical Warning, a level. A bit that appears is an event, if it is configured.
    changed, namespace
        A pulse: a namespace has changed, which is an event, if it is configured.
    news
        A pulse: the state of an array has changed, which is a vendor specific event.
    changes
        Namespaces that have changed since the log of them was begun that the host has read, a bit
        each.
    configuration
        Asynchronous Event Configuration.
    begun, cleared
        For each type: its log page is about to be built, with everything that was told here before
        (it may be 1 for longer); a pulse: that page has been read.
    anew
        With ``begun``: the page is read from its first byte on.
    clear
        The controller is being reset: everything is forgotten.
    report, posted, stalled
        Ended requests; that the one that is being taken gets an entry; and that one waits for room
        in the admin completion queue, which no aborted one does.

    Latency: 3 cycles from an event to ``report``; ``abort`` takes 2 cycles for each request that
    can be held, and then what ``report`` takes. Events are never refused.
    """

    def __init__(self, *, config: Config):
        self._config = config
        super().__init__(
            {
                "hold": In(1),
                "identifier": In(16),
                "full": Out(1),
                "abort": In(1),
                "aborted": Out(1),
                "found": Out(1),
                "misuse": In(1),
                "misuse_value": In(1),
                "warning": In(WARNING_BITS),
                "changed": In(1),
                "news": In(1),
                "namespace": In(config.volume_bits),
                "changes": Out(config.volumes),
                "configuration": In(CONFIGURATION_BITS),
                "begun": In(TYPES),
                "anew": In(1),
                "cleared": In(TYPES),
                "clear": In(1),
                "report": Out(stream.Signature(report())),
                "posted": In(1),
                "stalled": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config = self._config
        m = Module()
        limit = config.async_event_limit
        place_bits = bits_for_count(limit)
        m.submodules.requests = requests = memory.Memory(shape=16, depth=max(2, limit), init=[])
        read, write = requests.read_port(), requests.write_port()
        held = Signal(limit)
        place = Signal(place_bits)
        vacant = lowest_set(m, ~held, "vacant")
        oldest = lowest_set(m, held, "oldest")
        m.d.comb += [
            self.full.eq(held.all()),
            write.addr.eq(vacant),
            write.data.eq(self.identifier),
            write.en.eq(self.hold),
        ]
        with m.If(self.hold):
            m.d.sync += held.bit_select(vacant, 1).eq(1)

        # What has happened, what has been told; which of that after the type's page was begun.
        pending, masked = Signal(TYPES), Signal(TYPES)
        fresh_events, told = Signal(TYPES), Signal(TYPES)
        listed = Signal(config.volumes)
        by_value = Signal()
        by_heat, by_spare = Signal(), Signal()
        seen = Signal(WARNING_BITS)
        now = Signal(WARNING_BITS)
        fresh = Signal(WARNING_BITS)
        m.d.comb += [
            now.eq(self.warning & self.configuration[:WARNING_BITS]),
            fresh.eq(now & ~seen),
        ]
        m.d.sync += [
            seen.eq(now),
            pending.eq(pending & ~(self.cleared & ~fresh_events)),
            masked.eq(masked & ~(self.cleared & ~told)),
            fresh_events.eq(fresh_events & ~Mux(self.anew, self.begun, 0)),
            told.eq(told & ~self.begun),
        ]

        def happens(event: EventType) -> None:
            m.d.sync += [pending[PLACES[event]].eq(1), fresh_events[PLACES[event]].eq(1)]

        with m.If(self.misuse):
            happens(EventType.ERROR)
            with m.If(~fresh_events[PLACES[EventType.ERROR]]):
                m.d.sync += by_value.eq(self.misuse_value)
        with m.If(fresh.any()):
            happens(EventType.HEALTH)
            with m.If(~fresh_events[PLACES[EventType.HEALTH]]):
                m.d.sync += [
                    by_heat.eq(fresh[TEMPERATURE_WARNING]),
                    by_spare.eq(fresh[SPARE_WARNING]),
                ]
        with m.If(self.begun[PLACES[EventType.NOTICE]] & self.anew):
            m.d.sync += listed.eq(self.changes)
        with m.If(self.cleared[PLACES[EventType.NOTICE]]):
            m.d.sync += self.changes.eq(self.changes & ~listed)
        with m.If(self.changed):
            m.d.sync += [
                self.changes.bit_select(self.namespace, 1).eq(1),
                listed.bit_select(self.namespace, 1).eq(0),
            ]
            with m.If(self.configuration[NAMESPACE_NOTICE]):
                happens(EventType.NOTICE)

        with m.If(self.news):
            happens(EventType.VENDOR)

        ready = Signal(TYPES)
        m.d.comb += ready.eq(pending & ~masked & ~self.cleared)
        kind = lowest_set(m, ready, "kind")
        information = Signal(2)
        log = Signal(8)
        code = Signal(EventType)
        with m.Switch(kind):
            for event, page in LOGS.items():
                with m.Case(PLACES[event]):
                    m.d.comb += [log.eq(page.value), code.eq(event)]
        with m.Switch(kind):
            with m.Case(PLACES[EventType.ERROR]):
                m.d.comb += information.eq(by_value)
            with m.Case(PLACES[EventType.HEALTH]):
                m.d.comb += information.eq(Mux(by_spare, 2, by_heat))

        out = self.report.payload
        with m.FSM(name="events") as fsm:
            with m.State("WAIT"):
                m.d.sync += [out.aborted.eq(0), place.eq(oldest)]
                with m.If(self.abort):
                    m.d.sync += place.eq(0)
                    m.next = "LOOK"
                with m.Elif(ready.any() & held.any()):
                    m.d.sync += [
                        out.result.eq(
                            Cat(code.as_value(), Const(0, 5), information, Const(0, 6), log)
                        ),
                        masked.bit_select(kind, 1).eq(1),
                        told.bit_select(kind, 1).eq(1),
                        pending.bit_select(kind, 1).eq(0),
                        fresh_events.bit_select(kind, 1).eq(0),
                    ]
                    m.next = "LOAD"

            with m.State("LOAD"):
                m.d.comb += read.addr.eq(place)
                m.next = "TAKE"

            with m.State("TAKE"):
                m.d.sync += [out.identifier.eq(read.data), held.bit_select(place, 1).eq(0)]
                m.next = "REPORT"

            with m.State("REPORT"):
                m.d.comb += [self.report.valid.eq(1), self.aborted.eq(self.abort & self.stalled)]
                with m.If(self.report.ready):
                    m.next = "WAIT"

            # Abort: every place is looked at.
            with m.State("LOOK"):
                m.d.comb += read.addr.eq(place)
                m.next = "COMPARE"

            with m.State("COMPARE"):
                hit = held.bit_select(place, 1) & (read.data == self.identifier)
                m.next = "LOOK"
                with m.If(hit):
                    m.d.sync += [
                        out.result.eq(0),
                        out.aborted.eq(1),
                        out.identifier.eq(read.data),
                    ]
                    m.next = "END"
                with m.Else():
                    m.d.sync += place.eq(place + 1)
                    with m.If(place == limit - 1):
                        m.d.comb += self.aborted.eq(1)
                        m.next = "WAIT"

            with m.State("END"):
                m.d.comb += [
                    self.report.valid.eq(1),
                    self.aborted.eq(self.report.ready),
                    self.found.eq(self.posted),
                ]
                with m.If(self.report.ready):
                    with m.If(self.posted):
                        m.d.sync += held.bit_select(place, 1).eq(0)
                    m.next = "WAIT"

            waits = (
                fsm.ongoing("WAIT")
                & ~(ready.any() & held.any())
                & ~self.abort
                & (now == seen)
                & ~self.cleared.any()
            ) | (self.report.valid & ~self.report.ready & ~self.aborted)
            m.d.comb += self.busy.eq(
                ~waits | self.hold | self.misuse | self.changed | self.news
            )
        with m.If(self.clear):
            m.d.sync += Cat(
                held, pending, masked, fresh_events, told, seen, self.changes, listed
            ).eq(0)
        return m
