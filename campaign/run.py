"""One run of a campaign: random arrays under random load, while their drives fail at random times.

The load is checked against the golden model as it goes, and each command against the time in which
it must end. Faults are chosen so that each level tolerates all of them at once. At the end of a run
some go past that. Then every row's parity and every copy must be right on the drives, and every
block must hold the data that was written.
"""

import random

from campaign.array import Array
from campaign.card import MEMORY_BYTES, Card, Group, Outcome, Stuck
from campaign.faults import Faults
from campaign.features import ALL
from campaign.jobs import Jobs
from campaign.lifetimes import Lifetimes
from campaign.links import link_of, placed
from campaign.masks import Masks
from campaign.mastering import Mastering
from campaign.members import Members
from campaign.past import Past
from campaign.places import Places
from campaign.power import Power
from campaign.queues import Queues
from campaign.refusals import Refusals
from campaign.resets import Resets
from campaign.ruined import Ruined
from campaign.salvage import Salvage
from campaign.shapes import layout_of_most, turn_rows
from campaign.sizes import config_of, size_of
from campaign.told import Told
from campaign.torn import Torn
from campaign.unfinished import Unfinished
from hdl.background.pace import WHOLE
from hdl.config import DATA_OFFSET_BLOCKS, TIME_BITS
from sim.native.parameters import MICROSECOND, DriveParameters, Ideal, Ssd, link_rate
from sw.driver import background

__all__ = ["Outcome", "Run", "Stuck"]

ROUNDS = (2, 3)
FAULTS = (4, 8)
"""Faults of an array in a round, fewest and most."""

MOST_ARRAYS = 3
ROWS, MOST_ROWS = 24, 96
"""Of most arrays, and of some that have one drive more rows than others."""

BESIDE, BESIDE_NS = 0.1, 100_000
"""Load on an array without a fault, while others wait for their drives: share and pauses."""

PAST, ENDS = 0.5, {"past", "failing", "salvage"}
"""Share of runs that go past what a level tolerates, and what happens then."""

FORGETS = 0.25
"""Share of runs on drives that have lost their cache when their port is reset."""

WRAPS = 0.25
WRAP_NS = 10_000_000
"""Share of runs in which the card's clock wraps, and until when it does."""


class Run:
    """A run on a card of its own.

    Parameters
    ----------
    seed
        Of everything.
    features
        Features of the campaign (`campaign.features`).
    tamper
        Changes a block of a drive before the last check, which must find the change.
    """

    def __init__(self, seed: int, *, features: frozenset[str] = ALL, tamper: bool = False):
        self._seed = seed
        self._features = features
        self._tamper = tamper
        choose = self._choose = random.Random(f"{seed}/campaign")
        self.size = size_of(seed, others="sizes" in features)
        self._config = config_of(seed, others="sizes" in features)
        self._layouts = self._draw_layouts()
        longest = max(turn_rows(layout) for layout, _ in self._layouts)
        most = MOST_ROWS if choose.random() < 0.1 else max(ROWS, longest)
        rows = longest * choose.randint(1, most // longest)
        capacity = DATA_OFFSET_BLOCKS + rows
        kinds: tuple[DriveParameters, ...] = (
            Ideal(capacity=capacity, latency_ps=choose.choice((1, 5, 20)) * MICROSECOND),
            Ssd(capacity=capacity, rate=link_rate(12), dies=4),
        )
        drive = choose.choice(kinds)
        self._link = link_of(seed, troubled="link" in features)
        if "memory" in features:
            self._link = placed(self._link, self._generator("memory"), MEMORY_BYTES)
        self.outcome = Outcome(title=f"seed {seed}, {self.size}")
        self._drive = drive.changed(volatile_cache=True, reset_loses_cache=self._draw_forgets())
        if self._link.hold_every:
            self.outcome.title += ", a troubled link"
        self.outcome.title += f", memory at {self._link.memory_base:#x}"
        self._begin = self._draw_begin()

    def _draw_forgets(self) -> bool:
        """Whether drives have lost their cache when their port is reset."""
        if "forget" not in self._features or self._generator("forget").random() >= FORGETS:
            return False
        self.outcome.title += ", drives that forget"
        return True

    def _draw_begin(self) -> int:
        """Time of the card's clock as the run begins, in cycles."""
        choose = self._generator("clock")
        if "wrap" not in self._features or choose.random() >= WRAPS:
            return 0
        self.outcome.title += ", the clock wraps"
        return (1 << TIME_BITS) - choose.randrange(1, WRAP_NS * self._config.clock_hz // 10**9)

    def _draw_layouts(self) -> list[tuple]:
        """Draws layouts and ports of the arrays. A few ports stay free."""
        config, choose = self._config, self._choose
        ports = list(range(config.ports))
        choose.shuffle(ports)
        # Without shares an array waits for the drives of others.
        several = "several" in self._features and config.array_shares
        count = choose.randint(1, MOST_ARRAYS) if several else 1
        layouts = []
        for number in range(min(count, config.arrays)):
            most = len(ports) - (number == 0 and count > 1) * 2
            if most < 1:
                break
            layout = layout_of_most(choose, config, max(most, 2))
            if layout.drives > len(ports):
                break
            layouts.append((layout, sorted(ports[: layout.drives])))
            ports = ports[layout.drives :]
        return layouts

    def run(self) -> Outcome:
        """The whole run. Raises `AssertionError` when data is lost or wrong, or a command is stuck.
        """
        made = Card(
            self._config,
            self._drive,
            self._link,
            seed=self._seed,
            outcome=self.outcome,
            begin=self._begin,
        )
        with made as card:
            arrays = [
                Array(
                    card,
                    layout,
                    ports,
                    layout.rows([self._drive.capacity] * layout.drives),
                    self._features,
                    random.Random(f"{self._seed}/array {number}"),
                )
                for number, (layout, ports) in enumerate(self._layouts)
            ]
            card.arrays = arrays
            self.outcome.title += f": {'; '.join(map(str, arrays))}"
            card.run(self._main(card, arrays))
            if self._tamper:
                self._change_a_block(card, arrays[0])
            card.idle()
            for array in arrays:
                array.check()
            if self._features & ENDS and self._choose.random() < PAST:
                card.run(self._past(card, arrays))
                card.idle()
            for port in range(self._config.ports):
                counters = card.harness.drive_statistics(port)
                for name in ("faults", "errors", "aborts", "resets"):
                    self.outcome.seen[name] += counters[name]
        return self.outcome

    async def _past(self, card: Card, arrays: list[Array]) -> None:
        card.transport.spawn(card.watch())
        salvage, past = Salvage(self._generator("salvage")), Past(self._choose)
        for array in arrays:
            await salvage.work(array)
        if card.config.background:
            # A job of one array does not rest as long as there are commands to others.
            await background.set_rate(card.nvme, WHOLE)
        await card.together(past.work(array) for array in arrays)
        card.end_watch()

    def _generator(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    async def _main(self, card: Card, arrays: list[Array]) -> None:
        features, choose = self._features, self._choose
        faults = Faults(features, self._generator("faults"))
        lifetimes = Lifetimes(features, self._generator("lifetimes"), faults)
        refusals = Refusals(card, features, self._generator("refusals"))
        members = Members(card, arrays, features, self._generator("members"), faults, refusals)
        jobs = Jobs(card, features, self._generator("jobs"), faults)
        queues = Queues(card, features, self._generator("queues"))
        mastering = Mastering(card, features, self._generator("mastering"))
        masks = Masks(card, features, self._generator("masks"))
        unfinished = Unfinished(members, features, self._generator("unfinished"))
        told = Told(features, self._generator("told"))
        torn = Torn(features, self._generator("torn"), queues)
        power = Power(card, arrays, lifetimes, features, self._generator("power"))
        places = Places(card, power, features, self._generator("places"))
        ruined = Ruined(card, power, features, self._generator("ruined"))
        resets = Resets(card, arrays, features, self._generator("resets"), faults)
        card.transport.spawn(card.watch())
        for array in arrays:
            if not await unfinished.begin(array):
                await lifetimes.begin(array)
        for _ in range(choose.randint(*ROUNDS)):
            await members.offer_spares()
            # An array without a fault must not feel those of the others.
            hit = [array for array in arrays if len(arrays) == 1 or choose.random() < 0.7]
            faults.plant(hit, choose.randint(*FAULTS))
            load = card.spawn(array.load() for array in hit)
            beside = [self._beside(card, a, load) for a in arrays if a not in hit]
            changes = [work.work(load) for work in (queues, mastering, masks)]
            await card.together([*beside, *changes])
            await load.join()
            for array in arrays:
                await array.rest()
            await members.withdraw_spares()
            await members.erase()
            for array in arrays:
                await members.work(array)
            for array in arrays:
                await jobs.work(array)
            for array in arrays:
                await told.work(array)
            for array in arrays:
                await torn.work(array)
            for array in arrays:
                await lifetimes.work(array)
            await resets.work()
            await power.work()
            for array in arrays:
                await ruined.work(array)
            for array in arrays:
                await places.work(array)
        for array in arrays:
            for volume in array.volumes:
                await volume.read_all(allowed=array.allowed())
        card.end_watch()

    async def _beside(self, card: Card, array: Array, others: Group) -> None:
        """Load on an array without a fault, as long as there is load on the others."""
        await array.load()
        while not others.ended:
            await array.load(share=BESIDE)
            await card.sleep(BESIDE_NS)

    def _change_a_block(self, card: Card, array: Array) -> None:
        port = next(port for port in array.ports if port not in card.unusable)
        row = self._choose.randrange(array.rows)
        data = bytearray(card.stored(port, row))
        data[self._choose.randrange(len(data))] ^= 1 << self._choose.randrange(8)
        card.store(port, row, bytes(data))
