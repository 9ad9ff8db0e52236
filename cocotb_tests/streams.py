"""cocotb drivers and monitors for `amaranth.lib.stream` ports, packing of their payloads, and
tables behind read ports.

The sink and the source check the rules of streams as they go: a stream that withdraws ``valid`` or
changes a payload before it was taken fails the test.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

import cocotb
from amaranth.hdl import Shape
from amaranth.lib import data
from cocotb.clock import Clock
from cocotb.triggers import Event, RisingEdge
from cocotb.utils import get_sim_time

from cocotb_tests.fields import PAYLOAD, Fields, Unread, noting, reads

CLOCK_PERIOD_NS = 4
"""250 MHz."""

RESET_CYCLES = 4

SINK_IDLE_CYCLES = 8
"""Cycles without an offer after which a sink leaves its ``ready`` alone until the next one."""


def sample(handle) -> int:
    """The value of a signal, of one bit or many.

    ``int(handle.value)`` takes several times longer: it makes an array of four-valued bits on the
    way. The simulator knows two values only.
    """
    return int(handle._handle.get_signal_val_binstr(), 2)


def pack(layout, /, **fields) -> int:
    """The bits of ``layout`` with ``fields`` set and all others 0.

    A field is an integer, an enumeration member, a mapping for a nested structure, or a sequence
    for an array. Values that do not fit and unknown names are errors.
    """
    return _pack(layout, fields)


def unpack(layout, value: int) -> Any:
    """The value of bits: `Fields` of a structure, list of an array, enum member or integer.

    Fields without a bit, which a configuration leaves out, are not there. Bits that are no member
    of their enumeration are returned as an integer.
    """
    return _unpacker(layout)(value)


_UNPACKERS: dict[int, tuple[Any, Callable[[int], Any]]] = {}
"""By the identity of a shape: the shape, so that no other takes its identity, and its unpacker."""


def _unpacker(shape) -> Callable[[int], Any]:
    """A function that unpacks the lowest bits of an integer.

    It is made once for an object, since to look at a layout takes much longer than to unpack it.
    So whoever unpacks much keeps the layout instead of making it anew.
    """
    found = _UNPACKERS.get(id(shape))
    if found is None:
        found = _UNPACKERS[id(shape)] = shape, _make_unpacker(shape)
    return found[1]


def _make_unpacker(shape, path: str = "", unread: set[str] | None = None) -> Callable[[int], Any]:
    """The same, anew. Records take the paths of fields that are read out of ``unread``."""
    mask = (1 << Shape.cast(shape).width) - 1
    if isinstance(shape, type) and issubclass(shape, Enum):
        return partial(_member, shape, mask, {})
    inner = _layout(shape)
    if inner is None:
        if not Shape.cast(shape).signed:
            return lambda value: value & mask
        sign = (mask + 1) >> 1
        return lambda value: ((value & mask) ^ sign) - sign
    parts = []
    for name, field in _parts(inner):
        part = _unpacker(field.shape)
        if unread is not None:
            below = path if isinstance(inner, data.ArrayLayout) else f"{path}{name}."
            part = _make_unpacker(field.shape, below, unread)
        parts.append((name, field.offset, part))
    if isinstance(inner, data.ArrayLayout):
        return lambda value: [part(value >> offset) for _, offset, part in parts]
    kind = Fields
    if unread is not None:
        kind = noting({name: path + name for name, _ in _parts(inner)}, unread)
    new = kind.__new__

    def record(value: int) -> Fields:
        made = new(kind)
        made.__dict__ = {name: part(value >> offset) for name, offset, part in parts}
        return made

    return record


def _parts(layout: data.Layout) -> list[tuple[str, data.Field]]:
    """Those fields that have a bit, and all elements of an array."""
    return [
        (str(key), field)
        for key, field in layout
        if Shape.cast(field.shape).width or isinstance(layout, data.ArrayLayout)
    ]


def _paths(shape) -> dict[str, bool]:
    """Those of all fields of a structure that are none themselves, and whether each has a bit.

    Another shape is one field.
    """

    def below(shape, path: str) -> list[tuple[str, bool]]:
        inner = _layout(shape)
        if isinstance(inner, data.ArrayLayout):
            return below(inner.elem_shape, path)
        if inner is None:
            return [(path, Shape.cast(shape).width > 0)]
        return [
            found
            for key, field in inner
            for found in below(field.shape, f"{path}.{key}" if path else str(key))
        ]

    inner = None if shape is None else _layout(shape)
    if inner is None or isinstance(inner, data.ArrayLayout):
        return {PAYLOAD: True}
    return dict(below(inner, ""))


def _noting_unpacker(layout, unread: Unread | None) -> Callable[[int], Any]:
    """A function that unpacks a payload, and that has it noted which of its fields are read."""
    if unread is None or unread.whole:
        return _unpacker(layout)
    kinds = [
        (((1 << Shape.cast(field.shape).width) - 1) << field.offset, field.offset, field.shape)
        for _, field in _parts(_layout(layout))
        if isinstance(field.shape, type) and issubclass(field.shape, Enum)
    ]
    mask = sum(bits for bits, _, _ in kinds)
    found: dict[int, Callable[[int], Any]] = {}

    def record(value: int) -> Any:
        make = found.get(value & mask)
        if make is None:
            values = [_unpacker(shape)((value & bits) >> at) for bits, at, shape in kinds]
            names = [one.name if isinstance(one, Enum) else str(one) for one in values]
            make = found[value & mask] = _make_unpacker(layout, "", unread.of(names))
        return make(value)

    return record


def _member(shape, mask: int, known: dict[int, Any], value: int) -> Any:
    value &= mask
    found = known.get(value)
    if found is None:
        try:
            found = shape(value)
        except ValueError:
            found = value
        known[value] = found
    return found


def _layout(shape) -> data.Layout | None:
    if isinstance(shape, data.Layout):
        return shape
    if isinstance(shape, type) and issubclass(shape, (data.Struct, data.Union)):
        return data.Layout.cast(shape)
    return None


def _pack(shape, value) -> int:
    inner = _layout(shape)
    if inner is None or isinstance(value, int | Enum):
        width = Shape.cast(shape).width
        bits = int(value.value if isinstance(value, Enum) else value)
        if not -(1 << width) // 2 <= bits < 1 << width:
            raise ValueError(f"{value!r} does not fit into {width} bits")
        return bits & ((1 << width) - 1)
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    else:
        items = enumerate(value)
    result = 0
    for key, part in items:
        field = inner[key]
        result |= _pack(field.shape, part) << field.offset
    return result


MAPPINGS = frozenset((dict, Fields))
"""To look a type up here takes less long than to ask whether it is a `Mapping`."""


class Packing:
    """`pack` for one layout, for a model that packs much the same in every cycle.

    Fields must be hashable, or one of `MAPPINGS` of what is. Packing takes a hundred times longer
    than finding what was packed before.
    """

    def __init__(self, layout):
        self._layout = layout
        self._packed: dict[tuple, int] = {}

    def __call__(self, **fields) -> int:
        """The bits of the layout with ``fields`` set and all others 0."""
        parts = (tuple(v.items()) if type(v) in MAPPINGS else v for v in fields.values())
        key = (*fields, *parts)
        found = self._packed.get(key)
        if found is None:
            found = self._packed[key] = _pack(self._layout, fields)
        return found


async def start(dut) -> None:
    """Starts the clock and leaves reset; returns just after a rising edge."""
    Clock(dut.clk, CLOCK_PERIOD_NS, unit="ns").start()
    dut.rst.value = 1
    for _ in range(RESET_CYCLES):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    await RisingEdge(dut.clk)


async def wait_until(dut, condition: Callable[[], bool], *, cycles: int, what: str) -> int:
    """Waits until ``condition()`` holds; fails after ``cycles``. Returns the cycles waited."""
    for waited in range(cycles):
        if condition():
            return waited
        await RisingEdge(dut.clk)
    raise AssertionError(f"{what}: not within {cycles} cycles")


class _Cycles:
    """What waits for nothing but the clock, one after the other in one task."""

    def __init__(self, clock):
        self.processes: list[Iterator[None]] = []
        self.now = 0
        self.due: list[tuple[int, int, Event]] = []
        """A heap of who waits for which cycle. The numbers in the middle keep their order."""
        self.task = cocotb.start_soon(self._run(RisingEdge(clock)))

    async def passing(self, number: int) -> None:
        """Returns once so many edges have been counted."""
        passed = Event()
        heappush(self.due, (self.now + number, next(_NUMBERS), passed))
        await passed.wait()

    async def _run(self, edge) -> None:
        processes, due = self.processes, self.due
        while True:
            await edge
            self.now += 1
            while due and due[0][0] == self.now:
                heappop(due)[2].set()
            for process in processes:
                next(process)


_CYCLES: dict[Any, _Cycles] = {}
"""Of each clock, those of the test that runs."""


def _cycles_of(clock) -> _Cycles:
    cycles = _CYCLES.get(clock)
    if cycles is None or cycles.task.done():
        cycles = _CYCLES[clock] = _Cycles(clock)
    return cycles


_NUMBERS = count()


def every_cycle(clock, process: Iterator[None]) -> None:
    """Runs a generator from each rising edge of ``clock`` to its next ``yield``, and never ends.

    It begins at once, up to its first ``yield``. This costs less than to wake a coroutine for each
    model in each cycle.
    """
    cycles = _cycles_of(clock)
    next(process)
    cycles.processes.append(process)


async def cycles_pass(clock, number: int) -> None:
    """Returns after ``number`` rising edges of ``clock``, and wakes twice at most for all of them.

    An edge of this very moment does not count, also if it has not been counted yet.
    """
    if number <= 0:
        return
    cycles, called = _cycles_of(clock), get_sim_time()
    await cycles.passing(1)
    if get_sim_time() == called:
        await cycles.passing(1)
    if number > 1:
        await cycles.passing(number - 1)


def check_busy_after(dut, name: str, *, unless: str = "") -> None:
    """Checks from now on that the block is ``busy`` in the cycle after each payload of the stream
    was taken, or that the stream ``unless`` waits for its receiver then."""
    every_cycle(dut.clk, _busy_after(dut, name, unless))


def _busy_after(dut, name: str, unless: str) -> Iterator[None]:
    valid, ready = getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")
    reset, busy = dut.rst, dut.busy
    offered = getattr(dut, f"{unless}__valid") if unless else None
    accepted = getattr(dut, f"{unless}__ready") if unless else None
    taken = False
    while True:
        yield
        if sample(reset):
            taken = False
            continue
        if taken and not sample(busy):
            waits = unless and sample(offered) and not sample(accepted)
            assert waits, f"not busy after it has taken {name}"
        taken = bool(sample(valid) and sample(ready))


class _Port:
    """What a source and a sink have in common."""

    def __init__(self, dut, name: str, *, layout, active: float, seed: int | str | None):
        self.name = name
        self.layout = layout
        self._active = active
        self._paused = False
        self._clock = dut.clk
        self._reset = getattr(dut, "rst", None)
        self._random = random.Random(f"{cocotb.RANDOM_SEED if seed is None else seed}/{name}")
        self._valid = getattr(dut, f"{name}__valid")
        self._payload = getattr(dut, f"{name}__payload", None)
        self._ready = getattr(dut, f"{name}__ready")

    @property
    def active(self) -> float:
        """Chance of moving in a cycle. It may be changed at any time."""
        return self._active

    @active.setter
    def active(self, chance: float) -> None:
        self._active = chance
        self._changed()

    @property
    def paused(self) -> bool:
        """Whether the port begins nothing new. It may be changed at any time."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._changed()

    def _changed(self) -> None:
        """``active`` or ``paused`` has been set."""

    def _moves(self) -> bool:
        return not self._paused and (self._active >= 1.0 or self._random.random() < self._active)

    def _in_reset(self) -> bool:
        return self._reset is not None and bool(sample(self._reset))


class StreamSource(_Port):
    """Drives stream input ``name`` of ``dut``; starts by itself.

    Parameters
    ----------
    layout
        Payload shape; `send` then takes fields as well as integers.
    active
        Chance of offering the next payload in a cycle in which none is offered; may be changed at
        any time. ``paused`` set to True offers nothing new.
    seed
        Of the pauses; by default the simulation's seed.
    """

    def __init__(self, dut, name: str, *, layout=None, active: float = 1.0, seed=None):
        super().__init__(dut, name, layout=layout, active=active, seed=seed)
        self.sent = 0
        self._queue: deque[int] = deque()
        self._offering = False
        self._wake = Event()
        self._valid.value = 0
        if self._payload is not None:
            self._payload.value = 0
        cocotb.start_soon(self._run())

    @property
    def idle(self) -> bool:
        """Whether everything sent has been taken."""
        return not self._queue and not self._offering

    @property
    def waiting(self) -> int:
        """Payloads not taken yet."""
        return len(self._queue) + self._offering

    def send(self, value: Any = None, /, **fields) -> None:
        """Queues a payload: an integer or mapping, or fields by name."""
        if value is None:
            value = fields
        elif fields:
            raise TypeError("give a value or fields, not both")
        if not isinstance(value, int) or isinstance(value, Enum):
            if self.layout is None:
                raise TypeError(f"{self.name} has no layout to pack {value!r}")
            value = _pack(self.layout, value)
        self._queue.append(value)
        self._wake.set()

    def send_all(self, values: Iterable[Any]) -> None:
        """Queues each of ``values``."""
        for value in values:
            self.send(value)

    async def drained(self, *, cycles: int = 100_000) -> None:
        """Returns once everything queued has been taken; fails after ``cycles``."""
        for _ in range(cycles):
            if self.idle:
                return
            await RisingEdge(self._clock)
        raise AssertionError(f"{self.name}: {self.waiting} not taken within {cycles} cycles")

    async def _run(self) -> None:
        while True:
            if not self._queue and not self._offering:
                self._wake.clear()
                await self._wake.wait()
            if not self._offering and self._queue and not self._in_reset() and self._moves():
                if self._payload is not None:
                    self._payload.value = self._queue[0]
                self._queue.popleft()
                self._valid.value = 1
                self._offering = True
            await RisingEdge(self._clock)
            if self._offering and sample(self._ready) and not self._in_reset():
                self._offering = False
                self.sent += 1
                self._valid.value = 0


class StreamSink(_Port):
    """Takes from stream output ``name`` of ``dut``; starts by itself.

    While nothing is offered ``ready`` changes for `SINK_IDLE_CYCLES` and then stays as it is, so
    that a stream at rest costs the simulation nothing.

    Parameters
    ----------
    layout
        Payload shape; payloads are then unpacked, else they are integers.
    active
        Chance of being ready in a cycle; may be changed at any time. ``paused`` refuses.
    callback
        Called with each payload in the cycle it is taken, instead of queueing it.
    ignores
        Why the test need not look at the payload; or why at some of its fields, by name.
    """

    def __init__(
        self,
        dut,
        name: str,
        *,
        layout=None,
        active: float = 1.0,
        seed=None,
        callback: Callable[[Any], None] | None = None,
        ignores: Mapping[str, str] | str | None = None,
    ):
        super().__init__(dut, name, layout=layout, active=active, seed=seed)
        self.received = 0
        self._looks = callback is not None and reads(callback)
        self._whole: set[str] | None = None
        self._unread = Unread(name, _paths(layout), ignores) if self._payload is not None else None
        self._unpack = None if layout is None else _noting_unpacker(layout, self._unread)
        self._resting = False
        self._callback = callback
        self._items: deque[Any] = deque()
        self._ready.value = 0
        self._task = cocotb.start_soon(self._run())

    def _changed(self) -> None:
        if self._resting:
            self._resting = False
            self._task.cancel()
            self._task = cocotb.start_soon(self._run())

    def stop(self) -> None:
        """Takes nothing any more, and does not look at what is offered."""
        self._task.cancel()
        self._resting = False
        self._ready.value = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def idle(self) -> bool:
        """Whether nothing taken waits for `receive`, and nothing is offered."""
        return not self._items and not sample(self._valid)

    def receive_now(self) -> Any:
        """The oldest payload not yet received; there must be one."""
        if self._whole:
            self._whole.clear()
        return self._items.popleft()

    async def receive(self, *, cycles: int = 100_000) -> Any:
        """The oldest payload not yet received; waits for it, fails after ``cycles``."""
        for _ in range(cycles):
            if self._items:
                return self.receive_now()
            await RisingEdge(self._clock)
        raise AssertionError(f"{self.name}: nothing within {cycles} cycles")

    async def receive_all(self, count: int, *, cycles: int = 100_000) -> list[Any]:
        """The next ``count`` payloads; each may take ``cycles``."""
        return [await self.receive(cycles=cycles) for _ in range(count)]

    def _begin(self) -> None:
        """Something has been taken for the first time."""
        if self._unread is not None and self._unread.whole:
            self._whole = self._unread.of(())
            if self._looks:
                self._whole.clear()

    async def _run(self) -> None:
        refused: int | None = None
        shown: bool | None = None
        clock, offered = RisingEdge(self._clock), self._valid
        begins, unpack_it = RisingEdge(offered), self._unpack
        ready, idle = False, 0
        while True:
            if idle < SINK_IDLE_CYCLES:
                ready = self._moves()
                # Most cycles of most streams have nothing new: what costs time is left out.
                if ready != shown:
                    shown = ready
                    self._ready.value = int(ready)
            else:
                self._resting = True
                await begins
                self._resting = False
                idle = 0
            await clock
            valid = sample(offered)
            if not valid and refused is None:
                idle += 1
                continue
            idle = 0
            if self._in_reset():
                refused = None
                continue
            payload = sample(self._payload) if self._payload is not None and valid else 0
            if refused is not None:
                assert valid, f"{self.name}: valid withdrawn before ready"
                assert payload == refused, (
                    f"{self.name}: payload changed before ready, {refused:#x} to {payload:#x}"
                )
            refused = payload if valid and not ready else None
            if valid and ready:
                if not self.received:
                    self._begin()
                self.received += 1
                value = payload if unpack_it is None else unpack_it(payload)
                if self._callback is not None:
                    self._callback(value)
                else:
                    self._items.append(value)


class TableServer:
    """Answers table reads of ``dut`` one cycle after the address, as a synchronous memory does."""

    def __init__(self, dut, name: str, answer):
        self._address = getattr(dut, f"{name}__address")
        self._data = getattr(dut, f"{name}__data")
        self._answer = answer
        self._data.value = 0
        every_cycle(dut.clk, self._run())

    def _run(self) -> Iterator[None]:
        shown = 0
        address = self._address
        while True:
            yield
            found = self._answer(sample(address))
            if found != shown:
                self._data.value = shown = found
