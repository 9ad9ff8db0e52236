"""The host disables, shuts down or resets the controller under load, or the link is reset. Then it
starts the controller again.

Every command that was inside has then ended or never will. No byte of the host's memory changes any
more. A write whose end the host does not know has happened or has not. Arrays, volumes and
acknowledged data stay. Drives may have faults meanwhile.
"""

import random
import zlib

from campaign.array import Array
from campaign.bounds import given_up_ns
from campaign.card import STOPPED, Card, Stuck
from campaign.faults import FAULT_TIME_NS, Faults
from sw.driver.commands import Register
from sw.driver.nvme import CC_ENABLE, CSTS_READY

SHARE = 0.3
WITH_FAULTS = 0.4
WITHOUT_MASTER = 0.4
"""Share of disables while bus mastering is off. What waits to be sent is then dropped for good."""
POLL_NS = 2_000

SHUTDOWNS = (1 << 14, 2 << 14)
"""CC.SHN: normal, abrupt (NVMe 1.4, 3.1.5)."""

SHST, SHUT_DOWN = 3 << 2, 2 << 2
LANDING_NS = 5_000
"""After a function level reset, writes that have left the card may be on the link for so long."""

DOWN_NS = (0, 20, 1_000, 100_000)
"""How long the link is down."""

QUIET_NS = (5_000, 200_000)


async def status(card: Card, mask: int, wanted: int) -> None:
    """Returns once CSTS has this value. It must come in the time that drives which hang may take.
    """
    until = card.harness.now_ns + (card.config.ports + 1) * given_up_ns(card.config)
    while (found := await card.transport.read32(Register.CSTS)) & mask != wanted:
        if card.harness.now_ns > until:
            raise Stuck(f"CSTS is {found:#x}, and should have {wanted:#x} of {mask:#x}")
        await card.sleep(POLL_NS)


async def disable(card: Card) -> None:
    """The host disables the controller."""
    await card.transport.write32(Register.CC, 0)
    await status(card, CSTS_READY, 0)


async def reset_function(card: Card, choose: random.Random) -> None:
    """A function level reset."""
    card.harness.reset_function()
    card.harness.set_status("bus_master", 1)
    await card.sleep(LANDING_NS)
    await status(card, CSTS_READY, 0)


async def reset_link(card: Card, choose: random.Random) -> None:
    """Resets the link. Packets on their way are lost. Nothing leaves until the host allows it."""
    harness, memory = card.harness, card.harness.memory
    before = zlib.crc32(memory)
    harness.reset_link(choose.choice(DOWN_NS))
    await card.sleep(choose.choice(QUIET_NS))
    harness.set_status("bus_master", 1)
    await status(card, CSTS_READY, 0)
    assert zlib.crc32(memory) == before, "the host's memory changed after a reset of the link"


UNEXPECTED = {"reset_function": reset_function, "reset_link": reset_link}
"""Resets that the queues do not expect."""


class Resets:
    """Resets the controller.

    Parameters
    ----------
    card, arrays
        The card and all its arrays.
    features, choose, faults
        Features of the campaign, random choices, and faults.
    """

    def __init__(
        self,
        card: Card,
        arrays: list[Array],
        features: frozenset[str],
        choose: random.Random,
        faults: Faults,
    ):
        self._card = card
        self._arrays = arrays
        self._features = features
        self._choose = choose
        self._faults = faults
        self._sound: list[Array] = []

    async def work(self) -> None:
        """Sometimes resets the controller under load."""
        card, choose = self._card, self._choose
        if "resets" not in self._features or choose.random() >= SHARE:
            return
        self._sound = [a for a in self._arrays if a.healthy and not a.budget.bad]
        for array in self._arrays:
            if choose.random() < WITH_FAULTS:
                self._faults.plant_one(array)
                self._sound = [other for other in self._sound if other is not array]
        load = card.spawn(
            array.load(allowed=(*array.allowed(), STOPPED)) for array in self._arrays
        )
        await card.sleep(choose.uniform(0, FAULT_TIME_NS))
        way = choose.choice(("disable", "shut_down", *UNEXPECTED))
        card.stops = True
        silent = way == "disable" and "master" in self._features
        if silent and choose.random() < WITHOUT_MASTER:
            card.harness.set_status("bus_master", 0)
            card.outcome.seen["disabled without bus mastering"] += 1
        if way == "disable":
            await disable(card)
        elif way == "shut_down":
            await self._shut_down()
        else:
            await UNEXPECTED[way](card, choose)
        # Its queues go, and whoever waits on one is told.
        await card.nvme.stop()
        await load.join()
        before = zlib.crc32(card.harness.memory)
        card.harness.set_status("bus_master", 1)
        await card.sleep(choose.choice(QUIET_NS))
        assert zlib.crc32(card.harness.memory) == before, "the host's memory changed after a reset"
        await card.nvme.start(queue_pairs=card.config.queue_pairs)
        card.stops = False
        card.outcome.seen[way] += 1
        for array in self._arrays:
            await array.load(share=0.3)
            await array.rest()

    async def _shut_down(self) -> None:
        card = self._card
        shutdown = self._choose.choice(SHUTDOWNS)
        await card.transport.write32(Register.CC, CC_ENABLE | shutdown)
        if self._choose.random() < 0.8:
            await status(card, SHST, SHUT_DOWN)
            await self._check_flushed()
        await disable(card)

    async def _check_flushed(self) -> None:
        """After a shutdown the drives have flushed all their data, unless a job goes on."""
        for array in self._sound:
            for port in array.ports:
                count = self._card.harness.drive_statistics(port)["unflushed"]
                assert not count, f"{array}: port {port} has not stored {count} blocks"
            self._card.outcome.seen["arrays shut down"] += 1
