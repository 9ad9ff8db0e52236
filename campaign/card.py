"""The simulated card of a run, the outstanding commands of the host, and their times."""

import random
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from campaign.bounds import given_up_ns, ladder_ns
from hdl.background.pace import WHOLE
from hdl.background.supervisor import DEFAULT_RATE
from hdl.config import BLOCK_BYTES, DATA_OFFSET_BLOCKS, Config
from sim.native.parameters import DriveParameters, LinkParameters
from sw.driver.card import SimulatedCard
from sw.driver.commands import NvmeError
from sw.driver.native import NativeTransport
from sw.driver.queue import QueueStoppedError
from sw.driver.transport import PAGE_BYTES

if TYPE_CHECKING:
    from campaign.array import Array
    from campaign.volume import Volume

STOPPED = -1
"""The queue has gone before the command ended, by a deletion or a reset of the controller."""

MEMORY_BYTES = 1 << 30
"""Of the host. Each command slot may have the longest transfer. What nobody touches costs nothing.
"""

GUARD = b"\xa5"
WATCH_NS = 500_000
AGAIN_NS = 400
"""How soon drives restart once more, at most. The first restart is judged then, or the host told of
it."""


class Stuck(AssertionError):
    """A command has not ended in the time in which it must."""


@dataclass(kw_only=True)
class Outcome:
    """The events of a run: faults by kind, and their effects."""

    title: str
    faults: Counter = field(default_factory=Counter)
    seen: Counter = field(default_factory=Counter)
    commands: int = 0
    slowest: float = 0.0
    """Longest time of a command, as a share of the time in which it had to end."""
    slowest_job: float = 0.0
    """The same of background work."""


@dataclass(eq=False)
class Begun:
    """A command that is outstanding."""

    volume: "Volume"
    what: str
    queue: int
    since_ns: float


class Group:
    """Tasks that run at once.

    Parameters
    ----------
    transport
        The transport that runs them.
    tasks
        The tasks. They begin at once.
    """

    def __init__(self, transport: NativeTransport, tasks: list[Coroutine]):
        self._running = len(tasks)
        self._done = transport.event()
        if not tasks:
            self._done.set()
        for task in tasks:
            transport.spawn(self._watched(task))

    @property
    def ended(self) -> bool:
        """Whether all have ended."""
        return not self._running

    async def join(self) -> None:
        """Returns once all have ended."""
        await self._done.wait()

    async def _watched(self, task: Coroutine) -> None:
        await task
        self._running -= 1
        if not self._running:
            self._done.set()


class Card:
    """A card with its driver; a context manager.

    Parameters
    ----------
    config
        Sizes of the controller.
    drive
        The drive at every port.
    link
        The link to the host.
    seed
        Of contents, and of the data that drives forget.
    outcome
        Counts of events.
    begin
        Time of the card's clock, in cycles.
    """

    def __init__(
        self,
        config: Config,
        drive: DriveParameters,
        link: LinkParameters,
        *,
        seed: int,
        outcome: Outcome,
        begin: int = 0,
    ):
        self.config = config
        self.drive = drive
        self.outcome = outcome
        self.random = random.Random(f"{seed}/contents")
        self.chance = random.Random(f"{seed}/fetch")
        """Chooses which data of writes the host cannot give."""
        self.whim = random.Random(f"{seed}/others")
        """Chooses when commands are other than Read, Write and Flush."""
        self.hints = random.Random(f"{seed}/ranges")
        """Chooses ranges of Dataset Management."""
        self._card = SimulatedCard(
            config,
            [drive] * config.ports,
            link=link,
            memory_bytes=MEMORY_BYTES,
            seed=seed,
            begin=begin,
        )
        self.harness = self._card.harness
        self.nvme = self._card.nvme
        self.transport = self._card.transport
        self.run = self._card.run
        self.ladder_ns = ladder_ns(config)
        """Longest time of a command in a drive port."""
        self.unusable: set[int] = set()
        """Ports whose drives are pulled, or were failed."""
        self.troubled: set[int] = set()
        """Ports whose drives have ever had a fault that takes the ladder."""
        self.arrays: list[Array] = []
        self.stops = False
        """The controller is about to be reset, and no more commands are sent."""
        self.renewed: set[int] = set()
        """Queues that are being deleted and created again. A command that waits for one waits for
        all of that."""
        self._outstanding: list[Begun] = []
        self._buffers: list[int] = []
        self._pauses = 0
        self._rest_ns = self._rest_until_ns = 0.0
        self._admin_idle_ns = 0.0  # when no admin command was outstanding last
        self._paused_ns = 0.0
        self._done = False
        self.run(self.nvme.start(queue_pairs=config.queue_pairs))

    def __enter__(self) -> "Card":
        return self

    def __exit__(self, *_) -> None:
        self._card.close()

    # Time

    async def sleep(self, nanoseconds: float) -> None:
        """Lets simulated time pass."""
        await self.transport.sleep(nanoseconds)

    async def together(self, tasks: Iterable[Coroutine]) -> None:
        """Runs these tasks at once, until all have ended."""
        await self.spawn(tasks).join()

    def spawn(self, tasks: Iterable[Coroutine]) -> "Group":
        """Begins these tasks."""
        return Group(self.transport, list(tasks))

    def held_up_ns(self) -> float:
        """Longest time for which drives hold up background work: one after the other hangs until it
        is given up, and another one for a while."""
        ports = {port for array in self.arrays for port in array.troubled}
        return len(ports) * given_up_ns(self.config) + self.ladder_ns

    def rest_before_ns(self) -> float:
        """How long a rest may last that follows a batch of an earlier job, which drives held up. To
        be called whenever a job is waited for."""
        held, now = self.held_up_ns(), self.harness.now_ns
        if now > self._rest_until_ns:
            self._rest_ns = 0.0
        before, self._rest_ns = self._rest_ns, max(self._rest_ns, held)
        self._rest_until_ns = max(self._rest_until_ns, now + held * (1 + WHOLE / DEFAULT_RATE))
        return before

    async def watch(self) -> None:
        """Fails when a command takes longer than it may, or an admin command seems to have no end.

        A deletion waits for commands that are inside, which every drive of the card may hold up.
        """
        most = (self.config.ports + 1) * given_up_ns(self.config)
        self._done = False
        self._admin_idle_ns = self.harness.now_ns
        while not self._done:
            await self.sleep(WATCH_NS)
            if self._pauses or not self.nvme.admin_outstanding:
                self._admin_idle_ns = self.harness.now_ns
            elif self.harness.now_ns - self._admin_idle_ns > most:
                raise Stuck(f"an admin command has taken {most / 1e6:.0f} ms")
            for begun in self._outstanding:
                self._in_time(begun)

    def end_watch(self) -> None:
        """Commands that follow are not watched any more."""
        self._done = True

    def _in_time(self, begun: Begun) -> None:
        # A controller that is being disabled posts no more completions.
        if self.stops or self._pauses or begun.queue in self.renewed:
            return
        took = self.harness.now_ns - begun.since_ns
        most = begun.volume.array.longest_ns()
        self.outcome.slowest = max(self.outcome.slowest, took / most)
        if took > most:
            ports = {port for array in self.arrays for port in array.troubled}
            own = len(begun.volume.array.troubled)
            raise Stuck(
                f"{begun.what} of {begun.volume} has taken {took / 1e6:.2f} ms, and may take"
                f" {most / 1e6:.2f} ms, with faults of {own} of its drives, and of"
                f" {len(ports) - own} of others"
            )

    async def timed(self, volume: "Volume", what: str, command: Coroutine, queue: int) -> int:
        """The status of a command of a queue, which must end in time, or `STOPPED`."""
        begun = Begun(volume, what, queue, self.harness.now_ns)
        self._outstanding.append(begun)
        self.outcome.commands += 1
        status = 0
        try:
            await command
        except NvmeError as error:
            status = error.status
        except QueueStoppedError:
            status = STOPPED
        # Not in a `finally`: a run that has failed leaves its commands where they are.
        self._outstanding.remove(begun)
        self._in_time(begun)
        return status

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The host keeps the card from sending. That time is not the card's, and counts for no
        command."""
        if not self._pauses:
            self._paused_ns = self.harness.now_ns
        self._pauses += 1
        yield
        self._pauses -= 1
        if self._pauses:
            return
        now = self.harness.now_ns
        for begun in self._outstanding:
            begun.since_ns += now - max(self._paused_ns, begun.since_ns)

    @contextmanager
    def renewing(self, queue: int) -> Iterator[None]:
        """A queue is being deleted and created again."""
        self.renewed.add(queue)
        yield
        self.renewed.discard(queue)

    # Memory

    def take_buffer(self) -> int:
        """A buffer for the longest transfer at any offset in a page."""
        return self._buffers.pop() if self._buffers else self.new_buffer()

    def new_buffer(self) -> int:
        """A buffer that no command has had before."""
        length = (self.config.command_blocks + 2) * BLOCK_BYTES
        return self.transport.memory.allocate(length)

    def give_buffer(self, address: int) -> None:
        """Frees a buffer."""
        self._buffers.append(address)

    def guard(self, address: int, length: int) -> tuple[int, int]:
        """Fills the pages around a buffer of a read, for `check_guard`."""
        page = address - address % PAGE_BYTES
        end = -(-(address + length) // PAGE_BYTES) * PAGE_BYTES
        self.transport.memory.write(page, GUARD * (end - page))
        return page, end

    def check_guard(self, address: int, length: int, pages: tuple[int, int]) -> None:
        """Checks that nothing around the buffer has changed."""
        memory, (page, end) = self.transport.memory, pages
        around = memory.read(page, address - page)
        around += memory.read(address + length, end - address - length)
        assert not around.strip(GUARD), f"bytes around a read at {address:#x} changed"

    # Drives, past the controller

    def store(self, port: int, row: int, data: bytes) -> None:
        """Stores a block of a member."""
        self.harness.write_drive(port, DATA_OFFSET_BLOCKS + row, data)

    def stored(self, port: int, row: int) -> bytes:
        """Reads a block of a member."""
        return self.harness.read_drive(port, DATA_OFFSET_BLOCKS + row)

    def scribble(self, port: int, rows: int) -> None:
        """Stores random data on a drive."""
        for row in range(rows):
            self.store(port, row, self.random.randbytes(BLOCK_BYTES))

    def pull(self, port: int) -> None:
        """Removes a drive."""
        self.harness.remove(port)
        self.unusable.add(port)

    def restart(self, ports: Iterable[int]) -> None:
        """Restarts drives at once. They lose what their caches have not stored."""
        for port in ports:
            self.harness.restart_drive(port)

    async def restart_again(self, ports: Iterable[int], choose: random.Random) -> None:
        """Restarts drives that have just restarted."""
        await self.sleep(choose.uniform(0, AGAIN_NS))
        self.restart(ports)
        self.outcome.seen["restarts that followed another"] += 1

    async def rests(self, ports: Iterable[int]) -> None:
        """Returns when these drives have ended every command, also those that no host waits for."""
        statistics = self.harness.drive_statistics
        until = self.harness.now_ns + 2 * given_up_ns(self.config)
        while any(statistics(port)["outstanding"] for port in ports):
            if self.harness.now_ns > until:
                raise Stuck("a drive has had a command for longer than the ladder allows")
            await self.sleep(WATCH_NS / 4)

    def idle(self) -> None:
        """Checks that nothing moves any more and nothing is outstanding."""
        events = self.harness.run()
        while events != [("idle",)]:
            assert all(event[0] == "interrupt" for event in events), events
            events = self.harness.run()
        # Marks of rows and superblocks may be due a long time after the host's last command.
        self._admin_idle_ns = self.harness.now_ns
        for queue in self.nvme.queues:
            assert not queue.outstanding, f"queue {queue.identifier}: commands are outstanding"
