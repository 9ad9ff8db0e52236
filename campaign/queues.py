"""The host aborts commands, and deletes queues and creates them again, under load.

An Abort that says that it has aborted a command ends after that command. The command ends with
Command Abort Requested and may have been done in part. When a queue is deleted, commands that were
fetched from it end first, and the rest is dropped. A host may also delete a queue without a look at
the completions in it.
"""

import random

from campaign.card import Card, Group

SHARE = 0.5
"""Share of rounds in which this happens."""

PAUSE_NS = (1_000, 10_000, 100_000)
"""Pause between two changes of the queues."""

RENEWS = 0.15
"""Share of changes that renew a queue. The others abort a command."""

DEAF = 0.3
"""Share of deletions without a look at the completions."""


class Queues:
    """Changes the queues of a card.

    Parameters
    ----------
    card
        The card.
    features, choose
        Features of the campaign and random choices.
    """

    def __init__(self, card: Card, features: frozenset[str], choose: random.Random):
        self._card = card
        self._choose = choose
        self._renews = "queues" in features
        self._aborts = "aborts" in features

    async def work(self, load: Group) -> None:
        """Sometimes changes queues, as long as there is load."""
        card, choose = self._card, self._choose
        if not (self._renews or self._aborts) or choose.random() >= SHARE:
            return
        asked, ended = 0, card.outcome.seen["commands aborted"]
        pause_ns = choose.choice(PAUSE_NS)
        while not load.ended:
            await card.sleep(choose.uniform(0, 2 * pause_ns))
            if self._renews and (not self._aborts or choose.random() < RENEWS):
                await self.renew(choose.randrange(len(card.nvme.queues)))
            elif self._aborts:
                asked += await self._abort()
        # Workers see it a moment later.
        await card.sleep(PAUSE_NS[0])
        ended = card.outcome.seen["commands aborted"] - ended
        assert ended == asked, f"{asked} commands were said to be aborted, and {ended} were"

    async def renew(self, queue: int) -> None:
        """Deletes a queue and creates it again."""
        card = self._card
        deaf = self._choose.random() < DEAF
        with card.renewing(queue):
            await card.nvme.renew_queue(queue, deaf=deaf)
        card.outcome.seen["queues deleted unseen" if deaf else "queues deleted"] += 1

    async def renew_all(self) -> None:
        """Renews all queues, one after the other."""
        for queue in range(len(self._card.nvme.queues)):
            await self.renew(queue)

    async def _abort(self) -> bool:
        """Aborts a command, if there is one and the card has Abort."""
        card, choose = self._card, self._choose
        number = choose.randrange(len(card.nvme.queues))
        queue = card.nvme.queues[number]
        commands = queue.commands
        if not commands:
            return False
        identifier = choose.choice(sorted(commands))
        aborted = await card.nvme.abort(number, identifier)
        await queue.take()
        if aborted:
            left = queue.commands.get(identifier)
            assert left is not commands[identifier], "an Abort ends before the command"
        card.outcome.seen["commands aborted too late"] += not aborted
        return aborted
