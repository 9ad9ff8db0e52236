"""A cooperative event loop over simulated time.

Coroutines await `LoopEvent` objects. When none can run, the loop asks its `Machine` to run to the
next interrupt or to the next sleeper's time.
"""

import heapq
from collections import deque
from collections.abc import Coroutine, Generator
from itertools import count
from typing import Any, Protocol


class Machine(Protocol):
    """The simulated machine. It knows the time and runs until something happens."""

    @property
    def now_ns(self) -> float:
        """Simulated time."""
        ...

    def advance(self, until_ns: float | None) -> list[int]:
        """Runs to the next interrupt or to ``until_ns``. Returns the interrupt vectors that came.

        Without a vector ``until_ns`` is reached, within the machine's resolution. Raises an
        exception when nothing will ever happen and ``until_ns`` is None.
        """
        ...


class LoopEvent:
    """A level that coroutines wait for."""

    __slots__ = ("_flag", "_loop", "_waiters")

    def __init__(self, loop: "Loop"):
        self._loop = loop
        self._flag = False
        self._waiters: list[Coroutine[Any, Any, None]] = []

    def set(self) -> None:
        """Wakes every waiter. Later waits return at once."""
        self._flag = True
        if self._waiters:
            self._loop.ready.extend(self._waiters)
            self._waiters.clear()

    def clear(self) -> None:
        """Later waits block again."""
        self._flag = False

    async def wait(self) -> None:
        """Returns once the event is set."""
        if not self._flag:
            await self

    def __await__(self) -> Generator["LoopEvent", None, None]:
        yield self

    def add_waiter(self, task: Coroutine[Any, Any, None]) -> None:
        """Resumes ``task`` when the event is set."""
        self._waiters.append(task)


class Loop:
    """Runs coroutines against a `Machine`.

    Parameters
    ----------
    machine
        The machine whose time passes when no coroutine can run.
    """

    def __init__(self, machine: Machine):
        self._machine = machine
        self.ready: deque[Coroutine[Any, Any, None]] = deque()
        self._tasks: set[Coroutine[Any, Any, None]] = set()
        self._sleepers: list[tuple[float, int, LoopEvent]] = []
        self._order = count()
        self._interrupts: dict[int, LoopEvent] = {}

    def event(self) -> LoopEvent:
        """A new event, clear."""
        return LoopEvent(self)

    def interrupt(self, vector: int) -> LoopEvent:
        """The event that an interrupt on ``vector`` sets."""
        event = self._interrupts.get(vector)
        if event is None:
            event = self._interrupts[vector] = LoopEvent(self)
        return event

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside the others."""
        self._tasks.add(coroutine)
        self.ready.append(coroutine)

    def close(self) -> None:
        """Ends every coroutine that still runs, at the point where it waits. Nothing is run any
        more."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.close()

    async def sleep(self, nanoseconds: float) -> None:
        """Returns after ``nanoseconds`` of simulated time."""
        event = LoopEvent(self)
        wake = self._machine.now_ns + nanoseconds
        heapq.heappush(self._sleepers, (wake, next(self._order), event))
        await event

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs until ``main`` returns, and returns its result. An exception in any coroutine
        propagates."""
        result: list[Any] = []

        async def wrapper() -> None:
            result.append(await main)

        self.spawn(wrapper())
        while True:
            self._run_ready()
            if result:
                return result[0]
            until = self._sleepers[0][0] if self._sleepers else None
            vectors = self._machine.advance(until)
            for vector in vectors:
                self.interrupt(vector).set()
            reached = self._machine.now_ns
            if until is not None and not vectors:
                reached = max(reached, until)
            while self._sleepers and self._sleepers[0][0] <= reached:
                heapq.heappop(self._sleepers)[2].set()

    def _run_ready(self) -> None:
        ready = self.ready
        while ready:
            task = ready.popleft()
            try:
                task.send(None).add_waiter(task)
            except StopIteration:
                self._tasks.discard(task)
