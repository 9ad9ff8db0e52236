"""``python -m powercut.exhaustive``: power goes at every moment that counts.

An array does a few commands one after the other: all sequences of them that are not too long. Each
sequence is done once to find the moments, and then again for each of them, up to there. When power
is back, all that the host was told must be there, as in ``python -m powercut``. The commands:

    full    the first blocks of the array, as many as one write has
    part    a block
    fua     a block, with Force Unit Access
    flush   a Flush
    lost    a drive is pulled
    anew    the array is deleted, and made again

A moment is one at which a drive has stored a block, perhaps in a cache that it may lose, or has
flushed, or at which the host has been told something. It is found within 40 ns. The last one is
0.2 ms after the last command, when the array is clean on its drives.
"""

import argparse
import itertools
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hdl.config import BLOCK_BYTES
from hdl.flow.geometry import Level
from powercut.lives import CONFIG, LEVELS, POLL_NS, TOLERATED, Known, Lives
from sim.cli import (
    INTERRUPTED,
    Heartbeat,
    Parser,
    add_campaign_arguments,
    in_order,
    positive,
    program,
)
from sim.native.build import build_controller, is_built
from sw.driver.card import SimulatedCard

STEPS = ("full", "part", "fua", "flush", "lost", "anew")
MOST_STEPS = 4
MOMENT_NS = 40
REST_NS = 200_000
"""How long nothing is done at the end."""

LOST_NS, BACK_NS = 1_000, 30_000
"""How long nothing is done after the loss of a drive, which is not written down by then, and after
it is back."""

STORED = ("written_blocks", "unflushed")
"""Counters of drives that tell that something has become durable."""

TOLD = ("blocks stored", "blocks cached", "flushes", "flushes refused", "arrays made",
        "arrays deleted")  # fmt: skip
"""What `Lives` has seen of that which the host has been told."""


@dataclass(frozen=True)
class Moment:
    """When something became durable or was told, and what `Drill` had counted by then."""

    time_ns: float
    stored: tuple[int, ...]


class Drill(Lives):
    """A card with an array of a level, full of blocks. It does the same again and again.

    Parameters
    ----------
    level
        Of the array, which has the fewest drives.
    seed
        Of what drives forget.
    component
        As for `Lives`.
    """

    def __init__(self, level: Level, seed: int, **options):
        super().__init__(seed, **options)
        self._ended_ns = 0.0
        self._is_as_prepared = False
        self._seen_before: Counter = Counter()
        self._target = Known(level=level, ports=[*range(LEVELS[level])])
        self.arrays.append(self._target)
        with self.power() as card:
            card.run(self._prepare(card))
        self._begin = (self.images, self.arrays, self._numbers, self.seen["lives"])

    async def _prepare(self, card: SimulatedCard) -> None:
        array = self._target
        await card.nvme.start(queue_pairs=1)
        await self.make(card, array)
        address = card.transport.memory.allocate(BLOCK_BYTES)
        for block in range(array.blocks):
            await self.put(card, array, block, address, fua=True)
        while not (await self._state(card, array)).in_sync:
            await card.transport.sleep(POLL_NS)
        await self.shut_down(card)

    def rehearse(self, steps: Sequence[str]) -> list[Moment]:
        """Does these steps on the drives as they were, and looks at what is left. Power goes at the
        end. Returns the moments that count."""
        return self._perform(lambda card: self._find(card, steps))

    def cut(self, steps: Sequence[str], moment: Moment) -> None:
        """The same, but power goes at a moment that a rehearsal has found."""
        self._perform(lambda card: self._repeat(card, steps, moment))

    def _perform(self, life: Callable[[SimulatedCard], Coroutine[Any, Any, Any]]) -> Any:
        images, arrays, self._numbers, self.seen["lives"] = self._begin
        self.images = [dict(image) for image in images]
        self.arrays = deepcopy(arrays)
        with self.power() as card:
            found = card.run(life(card))
        self.wake()
        self.seen["cuts"] += 1
        return found

    async def _find(self, card: SimulatedCard, steps: Sequence[str]) -> list[Moment]:
        await self._begin_steps(card, steps)
        found: list[Moment] = []
        stored = self._stored(card)
        while not self._ended_ns or card.transport.now_ns < self._ended_ns + REST_NS:
            await card.transport.sleep(MOMENT_NS)
            if self._stored(card) != stored:
                time_ns = card.transport.now_ns
                # What happens at this very time has its turn.
                await card.transport.sleep(1)
                stored = self._stored(card)
                found.append(Moment(time_ns, stored))
        return found

    async def _repeat(self, card: SimulatedCard, steps: Sequence[str], moment: Moment) -> None:
        await self._begin_steps(card, steps)
        await card.transport.sleep(moment.time_ns - card.transport.now_ns)
        await card.transport.sleep(1)  # as in the rehearsal
        assert self._stored(card) == moment.stored, "another run than the rehearsal"

    async def _begin_steps(self, card: SimulatedCard, steps: Sequence[str]) -> None:
        self._is_as_prepared = True
        await self._wake(card)
        self._is_as_prepared = False
        (self._target,) = self.arrays
        self._ended_ns, self._seen_before = 0.0, self.seen.copy()
        card.transport.spawn(self._do(card, steps))

    async def check(self, card: SimulatedCard, array: Known) -> None:
        """As for `Lives`. Drives that are as they were prepared are not read anew each time."""
        if not self._is_as_prepared:
            await super().check(card, array)

    def _stored(self, card: SimulatedCard) -> tuple[int, ...]:
        """What changes with everything that becomes durable, or that the host is told."""
        drives = (card.harness.drive_statistics(port) for port in range(CONFIG.ports))
        told = (self.seen[what] - self._seen_before[what] for what in TOLD)
        known = (count for one in self.arrays for count in (one.refused, len(one.volumes)))
        return (*(drive[name] for drive in drives for name in STORED), *told, *known)

    async def _do(self, card: SimulatedCard, steps: Sequence[str]) -> None:
        address = card.transport.memory.allocate(CONFIG.transfer_blocks * BLOCK_BYTES)
        for step in steps:
            array = self._target
            match step:
                case "full":
                    blocks = min(CONFIG.transfer_blocks, array.blocks)
                    await self.put(card, array, 0, address, fua=False, blocks=blocks)
                case "part" | "fua":
                    await self.put(card, array, array.blocks // 2, address, fua=step == "fua")
                case "flush":
                    await self.flush(card, array)
                case "lost":
                    await self._lose(card, array)
                case "anew":
                    await self._make_anew(card, array)
        self._ended_ns = card.transport.now_ns

    async def _lose(self, card: SimulatedCard, array: Known) -> None:
        """The first drive of the array that is there goes."""
        role = min(set(range(len(array.ports))) - array.lost, default=None)
        if role is not None:
            array.lost.add(role)
            array.failed = len(array.lost) > TOLERATED.get(array.level, 0)
            card.harness.remove(array.ports[role])
            await card.transport.sleep(LOST_NS)

    async def _make_anew(self, card: SimulatedCard, array: Known) -> None:
        """The array goes, and another one takes its drives, of which all are there."""
        for role in array.lost:
            card.harness.insert(array.ports[role])
        await card.transport.sleep(BACK_NS)
        await self.delete(card, array)
        self.arrays.remove(array)
        self._target = Known(level=array.level, ports=array.ports)
        self.arrays.append(self._target)
        await self.make(card, self._target)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A sequence of steps on an array of a level. With ``moment`` power goes then only."""

    level: Level
    steps: tuple[str, ...]
    seed: int
    moment: int = 0


@dataclass(frozen=True, kw_only=True)
class Done:
    """What has become of a task, which has so many ``moments``. ``error`` and ``trace`` tell of the
    first failure, at ``moment``."""

    seen: Counter
    moments: int = 0
    moment: int = 0
    error: str = ""
    trace: str = ""


def drill(task: Task) -> Done:
    """Does a task. What fails is returned, not raised."""
    moment = task.moment
    seen: Counter = Counter()  # of nothing, if it cannot be prepared
    try:
        one = Drill(task.level, task.seed)
        seen = one.seen
        moments = one.rehearse(task.steps)
        if moment > len(moments):
            return Done(seen=seen, moments=len(moments))
        numbers = [moment] if moment else range(1, len(moments) + 1)
        for moment in numbers:
            one.cut(task.steps, moments[moment - 1])
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return Done(seen=seen, moment=moment, error=told, trace=traceback.format_exc())
    return Done(seen=seen, moments=len(moments))


def sequences(longest: int) -> list[tuple[str, ...]]:
    """All sequences of steps up to a length, short ones first."""
    return [
        steps
        for length in range(1, longest + 1)
        for steps in itertools.product(STEPS, repeat=length)
    ]


def words(names: Sequence[str], kind: str):
    """Type of an argument: some of these names, with commas between."""

    def parse(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in names:
                raise argparse.ArgumentTypeError(
                    f"no {kind} is called {name!r}: take some of {','.join(names)}"
                )
        return found

    return parse


def report(seen: Counter, sequences_done: int, seconds: float, verdict: str) -> None:
    """Prints the counts."""
    print(f"{sequences_done} sequences, {seen['cuts']} cuts in {seconds:.0f} s; {verdict}")
    counts = sorted((what, n) for what, n in seen.items() if n and what not in ("cuts", "lives"))
    if counts:
        print("seen: " + ", ".join(f"{count} {what}" for what, count in counts))


def main() -> int:
    """Cuts the power; 0 when nothing was lost."""
    parser = Parser(
        prog="powercut.exhaustive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    levels = [level.name for level in LEVELS]
    parser.add_argument(
        "--levels", metavar="A,B", type=words(levels, "level"), default=levels,
        help=f"default: {','.join(levels)}",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--longest", metavar="N", type=int, choices=range(1, MOST_STEPS + 1), default=1,
        help=f"steps of a sequence, at most {MOST_STEPS} (1)",
    )  # fmt: skip
    which.add_argument(
        "--steps", metavar="A,B", type=words(STEPS, "step"), help="only this sequence"
    )
    parser.add_argument(
        "--moment", metavar="N", type=positive, default=0,
        help="only this moment of --steps, and their end",
    )  # fmt: skip
    add_campaign_arguments(parser, "sequence")
    arguments = parser.parse_args()
    if arguments.moment and not arguments.steps:
        parser.error("argument --moment: it is one of --steps")
    chosen = [tuple(arguments.steps)] if arguments.steps else sequences(arguments.longest)
    todo = [
        Task(level=Level[level], steps=steps, seed=arguments.seed, moment=arguments.moment)
        for steps in chosen
        for level in arguments.levels
    ]
    print(f"SEED={arguments.seed}", flush=True)
    heartbeat = Heartbeat()
    seen: Counter = Counter()
    done = failed = 0
    began = time.monotonic()
    try:
        if not is_built(CONFIG):
            print("building a controller, which takes minutes", flush=True)
        build_controller(CONFIG)  # before several processes need it
        with in_order(drill, todo, arguments.processes) as ended:
            for task, one in zip(todo, ended, strict=True):
                seen += one.seen
                done += 1
                what = f"{task.level.name}: {','.join(task.steps)}"
                if one.error:
                    failed += 1
                    print(one.trace if arguments.verbose else one.error, file=sys.stderr)
                    again = f"--levels {task.level.name} --steps {','.join(task.steps)}"
                    moment = f" --moment {one.moment}" if one.moment else ""
                    print(
                        f"repeat with: python -m powercut.exhaustive {again}{moment} "
                        f"--seed {task.seed}",
                        file=sys.stderr,
                        flush=True,
                    )
                    if not arguments.keep_going:
                        report(seen, done, time.monotonic() - began, "one has failed")
                        return 1
                elif arguments.moment > one.moments:
                    parser.error(f"argument --moment: {what} has {one.moments} moments")
                elif arguments.verbose:
                    print(f"{what}: {one.seen['cuts']} cuts", flush=True)
                else:
                    heartbeat.print(f"{done} of {len(todo)} sequences, {seen['cuts']} cuts")
    except KeyboardInterrupt:
        report(seen, done, time.monotonic() - began, "interrupted")
        return INTERRUPTED
    verdict = f"{failed} have failed" if failed else "nothing lost"
    report(seen, done, time.monotonic() - began, verdict)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(program("powercut.exhaustive", main))
