"""What becomes of the drives that did not store a block of a row, and of what the others stored."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import MAX_DRIVES, Config
from hdl.stripe.planning.program import migration_mask, program, target, target_bits, targets
from hdl.stripe.rows.dismissal import Dismissal
from hdl.stripe.rows.progress import Phase, progress


class Refusals(wiring.Component):
    """Judges the refused writes of a row when it ends. Combinational.

    A drive *refuses* a write if it is there and did not store the block. The row and its array are
    judged as they are now. Drives that have failed since the row began count as failed, whatever
    they have stored of it. A drive that refused is given up if row and array do without it
    (`Dismissal`). That comes before anything is said of the row, as what the drive has is old.

    - If the row does without the block and the array not without the drive, the block is made
      unreadable there (`Phase.BLANK`), and the row succeeds. A drive that does not even do that
      stays, too, and the commands fail.
    - If the row does not do without it, the commands fail. The row may now be old in part. What may
      be new is made unreadable (`Phase.SPOIL`), so that nothing is ever worked out from a mixture,
      and copies do not differ: the blocks that can be read are the old ones. If no copy is old for
      certain, one stays as it is. A drive that does not even do that is given up, unless it is
      essential and what it has can do no harm to other blocks.
    - A migration target is given up for a block, and nothing else comes of that, even if it is the
      member in the tables by then: the other drive has the row. Once that has failed, the target is
      the member, and is judged as any other. If the commands fail and the target has stored what
      the member has refused, it is given up, without redundancy as well: what the member has can
      still be read, and the two must not differ. So is one that settles and would have a block made
      unreadable, since no mark is written with FUA.
    - A drive that is being rebuilt does not count: what only it has of a host's write is not
      stored. A walk brings nothing that is new, and takes it for the good copy that it is.

    Without ``background`` no block can be made unreadable, and drives are given up at once if there
    is parity, or a good copy.

    Parameters
    ----------
    config
        Sizes.

    Ports
    -----
    program
        That of the row.
    progress
        That of the row. All targets of drives that have failed are in its ``lost`` and ``left``.
    synced
        Targets that hold all that they should of the row.
    migrated
        The target that migrates to another drive, one bit, or none.
    refusals
        Targets whose drive refused.
    needed
        Those of them that count for the row, which are all but the migration target while
        the member is there.
    spoilt
        Targets to make unreadable, if a drive stays that the row does not do without.
    differs
        The migration target is one of ``spoilt``, and is to be given up instead.
    number
        One of ``refusals``.
    target
        Where it lies.
    fault
        The commands of the row fail.
    essential, settled, impatient, waits, dismissed, kept
        Of that target's drive, as for `Dismissal`.
    """

    def __init__(self, *, config: Config):
        self._config = config
        count = targets(config)
        super().__init__(
            {
                "program": In(program(config)),
                "progress": In(progress(config)),
                "synced": In(count),
                "migrated": In(count),
                "refusals": Out(count),
                "needed": Out(count),
                "spoilt": Out(count),
                "differs": Out(1),
                "number": In(target_bits(config)),
                "target": In(target(config)),
                "fault": In(1),
                "essential": In(MAX_DRIVES),
                "settled": In(1),
                "impatient": In(1),
                "waits": Out(1),
                "dismissed": Out(1),
                "kept": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        config, program, progress = self._config, self.program, self.progress
        m = Module()
        m.submodules.dismissal = dismissal = Dismissal(config=config)
        protected = program.parities != 0
        migration_bit = migration_mask(config)
        # While the member is there, its migration target is not needed.
        spare = Mux((progress.left & self.migrated).any(), 0, migration_bit)
        does_without = Signal()
        m.d.comb += [
            self.refusals.eq(progress.lost & ~progress.left),
            self.needed.eq(self.refusals & ~spare),
            does_without.eq(
                Mux(protected, 1, progress.good.bit_select(self.target.strip, 1)) & ~self.fault
            ),
            dismissal.port.eq(self.target.port),
            dismissal.spared.eq(does_without),
            dismissal.synced.eq(1),
            dismissal.essential.eq(self.essential),
            dismissal.settled.eq(self.settled),
            dismissal.impatient.eq(self.impatient),
            self.waits.eq(dismissal.waits),
            self.dismissed.eq(dismissal.dismissed),
            self.kept.eq(dismissal.kept),
        ]
        if not config.background:
            with m.If(protected):
                m.d.comb += does_without.eq(1)
            return m

        own = Signal(targets(config))
        data_roles = Signal(config.ports)
        stored = program.write & ~progress.lost & self.synced & ~migration_bit
        # Parities that can be read, of what has been made unreadable for the most part.
        readable = progress.old | progress.lost
        parities = program.write & ~progress.left & readable & ~migration_bit & ~data_roles
        m.d.comb += [
            own.eq(1 << self.number),
            data_roles.eq((1 << program.data) - 1),
            dismissal.synced.eq((own & (self.synced | migration_bit) & ~spare).any()),
            dismissal.spoils.eq(progress.phase == Phase.SPOIL),
            dismissal.mixes.eq(protected & parities.any()),
        ]
        with m.If(program.walk.any & ~protected):
            m.d.comb += does_without.eq((program.read & ~progress.left).any() | stored.any())
        with m.If(progress.phase == Phase.BLANK):
            m.d.comb += does_without.eq(0)

        maybe_new = program.write & ~progress.left & ~progress.old
        # Of copies one stays that can be read.
        has_old = (self.needed & progress.old & self.synced).any()
        in_sync = maybe_new & self.synced
        one = Mux(program.mirrored & ~has_old, in_sync & -in_sync, 0)
        unknown = Mux(program.mirrored, self.needed & ~self.synced, 0)
        m.d.comb += self.spoilt.eq((maybe_new | unknown) & ~one)
        with m.If(~protected & ~program.mirrored):
            # Without redundancy only the two drives of a migration can differ.
            twin = Mux((self.needed & self.migrated).any(), migration_bit, 0)
            m.d.comb += self.spoilt.eq(maybe_new & twin)
        refuses = (self.needed & self.migrated).any()
        m.d.comb += self.differs.eq((self.spoilt & spare).any() & (refuses | program.settles))
        return m
