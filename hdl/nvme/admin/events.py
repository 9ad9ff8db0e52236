"""Asynchronous events: requests held for them, and what is reported (NVMe 1.4 section 5.2)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config, bits_for_count
from hdl.kit.pick import lowest_bit
from hdl.kit.pulse import Pulse
from hdl.kit.table import Table
from hdl.nvme.codes import EventType, LogPage
from hdl.nvme.pages.facts import WARNING_BITS

PLACES = {event: place for place, event in enumerate(EventType)}
"""Types in the order in which they are told, and their places in vectors of a bit a type."""

TYPES = len(PLACES)

NAMESPACE_NOTICE = 8
"""Bit of Asynchronous Event Configuration (section 5.21.1.11). Those below are warnings."""

CONFIGURATION_BITS = NAMESPACE_NOTICE + 1

INVALID_REGISTER, INVALID_VALUE = 0, 1
"""Information of error events: Write to Invalid Doorbell Register, Invalid Doorbell Write Value."""

SPARE_WARNING, TEMPERATURE_WARNING = 0, 1
"""Bits of Critical Warning with an event information of their own. That of others is 0."""

LOGS = {
    EventType.ERROR: LogPage.ERROR,
    EventType.HEALTH: LogPage.SMART,
    EventType.NOTICE: LogPage.CHANGED_NAMESPACES,
    EventType.VENDOR: LogPage.ARRAY_STATES,
}
"""The log page that an event of each type names, and that clears it."""


def report() -> data.StructLayout:
    """The end of an Asynchronous Event Request, by an event or by an Abort.

    ``result`` is DW0 of its completion queue entry.
    """
    return data.StructLayout({"identifier": 16, "aborted": 1, "result": 32})


class Reports(wiring.Signature):
    """Ends of Asynchronous Event Requests, seen from `Events`.

    Ports
    -----
    ended
        Requests that end.
    posted
        The one that is being taken gets a completion queue entry.
    stalled
        One waits for room in the admin completion queue. No aborted one does.
    """

    def __init__(self):
        super().__init__(
            {"ended": Out(stream.Signature(report())), "posted": In(1), "stalled": In(1)}
        )


class EventSources(wiring.Signature):
    """What is told to the host as an event, seen from who knows of it.

    Ports
    -----
    misuse
        A doorbell was misused. It is 1 if by its value, else by writing it at all.
    warning
        Critical Warning, a level. A bit that appears is an event, if it is configured.
    news
        A pulse: the state of an array has changed, which is a vendor specific event.
    """

    def __init__(self):
        super().__init__({"misuse": Out(Pulse(1)), "warning": Out(WARNING_BITS), "news": Out(1)})


class LogReads(wiring.Signature):
    """The host reads log pages of events, seen from the admin commands. A bit a type of event.

    Ports
    -----
    begun
        A pulse or longer: the log page is about to be built. The page will have everything that was
        told before.
    anew
        One bit. With ``begun``: the page is read from its first byte on.
    cleared
        A pulse: the log page has been read without Retain Asynchronous Event.
    """

    def __init__(self):
        super().__init__({"begun": Out(TYPES), "anew": Out(1), "cleared": Out(TYPES)})


class Events(wiring.Component):
    """Holds Asynchronous Event Requests and answers one for each event.

    Once an event has been reported, others of its type wait until the host has read the type's log
    page without Retain Asynchronous Event. That read also forgets the events that have not been
    reported yet. What comes or is reported after that page was begun need not be in it, so reading
    it forgets nothing of that (NVMe 1.4, 5.2). Any part of the page will do. A host may read it by
    several commands, of which only the last one is without Retain Asynchronous Event (5.14). The
    first of them is the one that begins with the page's first byte.

    Parameters
    ----------
    config
        Sizes: ``async_event_limit`` requests are held.

    Ports
    -----
    hold
        A pulse: a request to hold. Only while not ``full``, and not during ``abort``.
    identifier
        Of the request to hold, or of the one to abort.
    full
        No more requests can be held.
    abort
        A level until ``aborted``: end the request that has ``identifier``, as aborted. While
        ``reports.stalled`` it is not looked for, as the Abort may have the place that the report
        waits for.
    aborted
        A pulse. With ``found`` the entry of the request has been posted (NVMe 1.4, 5.1.1). Without,
        it has been looked for, or its entry had no room. Then it is still held.
    found
        With ``aborted``: the request has ended as aborted.
    sources
        What may be an event, besides namespaces that change.
    changed
        The namespace of this volume has changed, which is an event, if it is configured.
    appeared
        Bit a volume, a pulse: its namespace is there without a command, which is such an event too.
    changes
        Bit a volume: its namespace has changed since the log of changes was begun that the host has
        read.
    configuration
        Asynchronous Event Configuration.
    logs
        Log pages that are read. They will have what was told here before they were begun.
    clear
        The controller is being reset. Everything is forgotten.
    reports
        Requests that end.
    busy
        Something moves without anybody else being waited for.

    Latency: 3 cycles from an event to ``reports``. ``abort`` takes 2 cycles for each request that
    can be held, and then what ``reports`` takes. Events are never refused.
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
                "sources": In(EventSources()),
                "changed": In(Pulse(config.volume_bits)),
                "appeared": In(config.volumes),
                "changes": Out(config.volumes),
                "configuration": In(CONFIGURATION_BITS),
                "logs": In(LogReads()),
                "clear": In(1),
                "reports": Out(Reports()),
                "busy": Out(1),
            }
        )

        # The requests that are held.
        limit = config.async_event_limit
        self._requests = Table(16, max(2, limit))  # their identifiers
        self._has_request = Signal(limit)  # a bit a place
        self._request_place = Signal(bits_for_count(limit))  # of the request at hand
        self._identifier = self._requests.reads[0].data  # of the request at hand, a cycle later

        # Bits a type.
        self._pending = Signal(TYPES)  # an event has not been told
        self._masked = Signal(TYPES)  # others wait until the host has read the page
        self._fresh = Signal(TYPES)  # the event came after the page was begun
        self._told = Signal(TYPES)  # an event was told after the page was begun
        self._ready = Signal(TYPES)  # an event may be told

        # What is told of events.
        self._by_value = Signal()  # a doorbell was misused by its value
        self._by_heat = Signal()  # the warning is one of temperature
        self._by_spare = Signal()  # the warning is one of spare
        self._warns = Signal(WARNING_BITS)  # warnings that are configured
        self._warned = Signal(WARNING_BITS)  # the same a cycle before
        self._listed = Signal(config.volumes)  # namespaces in the page that was begun

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.requests = self._requests
        vacant = lowest_bit(m, ~self._has_request, "vacant")
        oldest = lowest_bit(m, self._has_request, "oldest")
        self._hold(m, vacant)
        self._follow_pages(m)
        self._follow_errors(m)
        self._follow_namespaces(m)
        with m.If(self.sources.news):
            self._happens(m, EventType.VENDOR)
        m.d.comb += self._ready.eq(self._pending & ~self._masked & ~self.logs.cleared)
        kind = lowest_bit(m, self._ready, "kind")
        result = self._describe(m, kind)
        tells = self._ready.any() & self._has_request.any()
        with m.FSM(name="events") as fsm:
            self._wait(m, tells, oldest, kind, result)
            self._report(m)
            self._look(m)
            self._end(m)
            waits = (
                fsm.ongoing("WAIT")
                & ~tells
                & ~self.abort
                & (self._warns == self._warned)
                & ~self.logs.cleared.any()
            ) | (self.reports.ended.valid & ~self.reports.ended.ready & ~self.aborted)
        sources = self.sources
        m.d.comb += self.busy.eq(
            ~waits | self.hold | sources.misuse.valid | self.changed.valid | sources.news
            | self.appeared.any()
        )
        with m.If(self.clear):
            pending, masked, fresh, told = self._pending, self._masked, self._fresh, self._told
            kept = (self._has_request, pending, masked, fresh, told, self._warned)
            m.d.sync += Cat(*kept, self.changes, self._listed).eq(0)
        return m

    def _hold(self, m: Module, vacant: Value) -> None:
        """A request gets a place."""
        m.d.comb += [
            self.full.eq(self._has_request.all()),
            self._requests.write.address.eq(vacant),
            self._requests.write.data.eq(self.identifier),
            self._requests.write.enable.eq(self.hold),
        ]
        with m.If(self.hold):
            m.d.sync += self._has_request.bit_select(vacant, 1).eq(1)

    def _follow_pages(self, m: Module) -> None:
        """What log pages that were begun, or have been read, do to the events of their types."""
        m.d.sync += [
            self._pending.eq(self._pending & ~(self.logs.cleared & ~self._fresh)),
            self._masked.eq(self._masked & ~(self.logs.cleared & ~self._told)),
            self._fresh.eq(self._fresh & ~Mux(self.logs.anew, self.logs.begun, 0)),
            self._told.eq(self._told & ~self.logs.begun),
        ]

    def _happens(self, m: Module, event: EventType) -> None:
        """There is an event of this type."""
        place = PLACES[event]
        m.d.sync += [self._pending[place].eq(1), self._fresh[place].eq(1)]

    def _follow_errors(self, m: Module) -> None:
        """Events of doorbells that are misused, and of warnings that appear."""
        appears = Signal(WARNING_BITS)
        m.d.comb += [
            self._warns.eq(self.sources.warning & self.configuration[:WARNING_BITS]),
            appears.eq(self._warns & ~self._warned),
        ]
        m.d.sync += self._warned.eq(self._warns)
        with m.If(self.sources.misuse.valid):
            self._happens(m, EventType.ERROR)
            with m.If(~self._fresh[PLACES[EventType.ERROR]]):
                m.d.sync += self._by_value.eq(self.sources.misuse.payload)
        with m.If(appears.any()):
            self._happens(m, EventType.HEALTH)
            with m.If(~self._fresh[PLACES[EventType.HEALTH]]):
                m.d.sync += [
                    self._by_heat.eq(appears[TEMPERATURE_WARNING]),
                    self._by_spare.eq(appears[SPARE_WARNING]),
                ]

    def _follow_namespaces(self, m: Module) -> None:
        """Events of namespaces that change, and which have changed since the host was told."""
        notice = PLACES[EventType.NOTICE]
        with m.If(self.logs.begun[notice] & self.logs.anew):
            m.d.sync += self._listed.eq(self.changes)
        with m.If(self.logs.cleared[notice]):
            m.d.sync += self.changes.eq(self.changes & ~self._listed)
        with m.If(self.changed.valid):
            m.d.sync += [
                self.changes.bit_select(self.changed.payload, 1).eq(1),
                self._listed.bit_select(self.changed.payload, 1).eq(0),
            ]
            with m.If(self.configuration[NAMESPACE_NOTICE]):
                self._happens(m, EventType.NOTICE)
        if self._config.metadata:
            for change, listed, appeared in zip(
                self.changes, self._listed, self.appeared, strict=True
            ):
                with m.If(appeared):
                    m.d.sync += [change.eq(1), listed.eq(0)]
            with m.If(self.appeared.any() & self.configuration[NAMESPACE_NOTICE]):
                self._happens(m, EventType.NOTICE)

    def _describe(self, m: Module, kind: Value) -> Value:
        """DW0 of the request that tells the event of type ``kind``."""
        information = Signal(2)
        log = Signal(8)
        code = Signal(EventType)
        with m.Switch(kind):
            for event, page in LOGS.items():
                with m.Case(PLACES[event]):
                    m.d.comb += [log.eq(page.value), code.eq(event)]
        with m.Switch(kind):
            with m.Case(PLACES[EventType.ERROR]):
                m.d.comb += information.eq(self._by_value)
            with m.Case(PLACES[EventType.HEALTH]):
                m.d.comb += information.eq(Mux(self._by_spare, 2, self._by_heat))
        return Cat(code.as_value(), Const(0, 5), information, Const(0, 6), log)

    def _wait(self, m: Module, tells: Value, oldest: Value, kind: Value, result: Value) -> None:
        """The state WAIT, in which an Abort or an event of type ``kind`` is taken."""
        out = self.reports.ended.payload
        with m.State("WAIT"):
            m.d.sync += [out.aborted.eq(0), self._request_place.eq(oldest)]
            with m.If(self.abort):
                m.d.sync += self._request_place.eq(0)
                m.next = "LOOK"
            with m.Elif(tells):
                m.d.sync += [
                    out.result.eq(result),
                    self._masked.bit_select(kind, 1).eq(1),
                    self._told.bit_select(kind, 1).eq(1),
                    self._pending.bit_select(kind, 1).eq(0),
                    self._fresh.bit_select(kind, 1).eq(0),
                ]
                m.next = "LOAD"

    def _report(self, m: Module) -> None:
        """The states LOAD and TAKE, in which the oldest request is taken, and REPORT, in which it
        ends. An Abort that comes while the report is stalled is not looked for."""
        with m.State("LOAD"):
            m.d.comb += self._requests.reads[0].address.eq(self._request_place)
            m.next = "TAKE"

        with m.State("TAKE"):
            m.d.sync += [
                self.reports.ended.payload.identifier.eq(self._identifier),
                self._has_request.bit_select(self._request_place, 1).eq(0),
            ]
            m.next = "REPORT"

        with m.State("REPORT"):
            m.d.comb += [
                self.reports.ended.valid.eq(1),
                self.aborted.eq(self.abort & self.reports.stalled),
            ]
            with m.If(self.reports.ended.ready):
                m.next = "WAIT"

    def _look(self, m: Module) -> None:
        """The states LOOK and COMPARE: an Abort looks at every place."""
        request_place, out = self._request_place, self.reports.ended.payload
        with m.State("LOOK"):
            m.d.comb += self._requests.reads[0].address.eq(request_place)
            m.next = "COMPARE"

        with m.State("COMPARE"):
            there = self._has_request.bit_select(request_place, 1)
            m.next = "LOOK"
            with m.If(there & (self._identifier == self.identifier)):
                m.d.sync += [
                    out.result.eq(0),
                    out.aborted.eq(1),
                    out.identifier.eq(self._identifier),
                ]
                m.next = "END"
            with m.Else():
                m.d.sync += request_place.eq(request_place + 1)
                with m.If(request_place == self._config.async_event_limit - 1):
                    m.d.comb += self.aborted.eq(1)
                    m.next = "WAIT"

    def _end(self, m: Module) -> None:
        """The state END: the request that an Abort has found ends, if its entry has room."""
        with m.State("END"):
            m.d.comb += [
                self.reports.ended.valid.eq(1),
                self.aborted.eq(self.reports.ended.ready),
                self.found.eq(self.reports.posted),
            ]
            with m.If(self.reports.ended.ready):
                with m.If(self.reports.posted):
                    m.d.sync += self._has_request.bit_select(self._request_place, 1).eq(0)
                m.next = "WAIT"
