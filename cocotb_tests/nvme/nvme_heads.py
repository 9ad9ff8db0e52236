"""A card that releases submission slots too early, for tests that must find it."""

from hdl.nvme.queues.entries import EntryRing


class TellsWhatWasAskedFor(EntryRing):
    """A planted bug: an entry counts as arrived when its read is asked for."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += [
            self.arrived.valid.eq(self.begin.valid),
            self.arrived.payload.queue.eq(self.begin.payload.queue),
            self.arrived.payload.head.eq(self.begin.payload.head),
        ]
        return m
