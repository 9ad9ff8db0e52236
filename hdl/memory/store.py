"""The line store: every 4 KiB line, in banks that each read and write one beat a cycle."""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.config import Config, bits_for_count
from hdl.flow.line import ReadPort, write_beat, write_port
from hdl.kit.cut import Relay
from hdl.kit.disjoint import DISJOINT
from hdl.kit.simulation import SIMULATION
from hdl.memory.recent import RecentWrites

READ_LATENCY = 3
"""Cycles from a beat address taken to its beat: bank registers, memory, output registers."""

DWORD_BITS = 32


def write_delay(writers: int) -> int:
    """Cycles from a write taken to the first read that certainly sees it.

    The port's register, the winner's register and the bank's registers are three. The write is
    taken while the one of its port before it waits for its bank, for ``writers`` - 1 cycles at
    most, and then waits itself for as many.
    """
    return 3 + 2 * (writers - 1)


class BankArbiter(wiring.Component):
    """Who may use its bank in this cycle: one user a bank, as many banks as there are.

    A user loses only to a user of the same bank that is before it in the current order. The order
    turns whenever somebody lost, so a user waits at most ``users`` - 1 cycles, and sequential users
    that met once stay one bank apart and never meet again. Combinational.

    Parameters
    ----------
    users
        Competing ports.
    banks
        Banks, a power of two.
    """

    def __init__(self, *, users: int, banks: int):
        self._users = users
        self._banks = banks
        super().__init__(
            {
                "valid": In(users),
                "bank": In(bits_for_count(banks)).array(users),
                "ready": Out(users),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        users = self._users

        # Bit (a, b) of an order: user a is before user b when the turn is at user ``first``.
        def order(first: int) -> int:
            return sum(
                1 << (a * users + b)
                for a in range(users)
                for b in range(users)
                if (a - first) % users < (b - first) % users
            )

        turn = Signal(range(users))
        before = Signal(users * users, init=order(0))
        clash = {
            (a, b): self.valid[a] & self.valid[b] & (self.bank[a] == self.bank[b])
            for a in range(users)
            for b in range(a + 1, users)
        }
        for b in range(users):
            lost = [
                clash[min(a, b), max(a, b)] & before[a * users + b] for a in range(users) if a != b
            ]
            m.d.comb += self.ready[b].eq(~Cat(*lost).any())
        with m.If((self.valid & ~self.ready).any()):
            with m.Switch(turn):
                for first in range(users):
                    with m.Case(first):
                        following = (first + 1) % users
                        m.d.sync += [turn.eq(following), before.eq(order(following))]
        return m


class LineStore(wiring.Component):
    """Holds ``config.lines`` lines of 4 KiB; any beat can be read and written by every user.

    Beat b of every line lies in bank b mod ``config.banks``. Each bank is a simple dual-port memory
    with a write enable for each 32-bit word: it takes one read and one write a cycle. Users that
    move lines in order fall into step (see `BankArbiter`), so up to ``config.banks`` users of each
    direction move a beat a cycle each.

    A write is visible to every read taken `write_delay` cycles after it or later; what a read
    taken sooner returns of its words is undefined (`DISJOINT`), and of two writes of one word by
    different users less than that apart either may be the last. Both are errors of the users, and
    asserted not to happen in simulations (`RecentWrites`): who reports that a line is complete does
    so when it can be read. Contents are undefined until written.

    Parameters
    ----------
    config
        Sizes.
    readers, writers
        Number of ports.
    strict
        Users are held to the delay; the store's own test looks at what happens within it.

    Ports
    -----
    read
        `ReadPort`, seen from the store. A beat follows its address by `READ_LATENCY` cycles and
        cannot be refused. Back-pressure: a request waits while another user has its bank, at most
        ``readers`` - 1 cycles.
    write
        Beats to store. Back-pressure as for reads, at most ``writers`` - 1 cycles; ``ready`` is
        a flip-flop.
    busy
        A beat is on its way or waits.
    """

    def __init__(self, *, config: Config, readers: int, writers: int, strict: bool = True):
        for name, value in (("readers", readers), ("writers", writers)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self._config = config
        self._readers = readers
        self._writers = writers
        self._strict = strict
        super().__init__(
            {
                "read": In(ReadPort(config)).array(readers),
                "write": In(write_port(config)).array(writers),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self._config
        banks = config.banks
        bank_bits = bits_for_count(banks)
        row_bits = config.beat_address_bits - bank_bits

        m.submodules.read_arbiter = reading = BankArbiter(users=self._readers, banks=banks)
        m.submodules.write_arbiter = writing = BankArbiter(users=self._writers, banks=banks)
        for index, port in enumerate(self.read):
            m.d.comb += [
                reading.valid[index].eq(port.request.valid),
                reading.bank[index].eq(port.request.payload),
                port.request.ready.eq(reading.ready[index]),
            ]
        # A write's path is cut before and after the choice: its multiplexers are wide.
        relays, granted, grants = [], [], []
        for index, port in enumerate(self.write):
            relay = Relay(write_beat(config))
            m.submodules[f"relay_{index}"] = relay
            connect(m, flipped(port), relay.input)
            beat = relay.output
            m.d.comb += [
                writing.valid[index].eq(beat.valid),
                writing.bank[index].eq(beat.payload.address),
                beat.ready.eq(writing.ready[index]),
            ]
            winner = Signal(write_beat(config), reset_less=True, name=f"granted_{index}")
            bank_of = Signal(banks, name=f"bank_of_{index}")
            wins = beat.valid & writing.ready[index]
            m.d.sync += [
                winner.eq(beat.payload),
                bank_of.eq(Mux(wins, 1 << beat.payload.address[:bank_bits], 0)),
            ]
            relays.append(relay)
            granted.append(winner)
            grants.append(bank_of)

        # Stage 1: the winner's row, and for writes its beat, in the bank's registers.
        read_data = []
        for bank in range(banks):
            memory = Memory(
                shape=config.data_width, depth=1 << row_bits, init=[], attrs=DISJOINT
            )
            m.submodules[f"bank_{bank}"] = memory
            write_side = memory.write_port(granularity=DWORD_BITS)
            read_side = memory.read_port(transparent_for=())
            read_data.append(read_side.data)

            s1_row = Signal(row_bits, reset_less=True, name=f"s1_row_{bank}")
            s1_read = Signal(name=f"s1_read_{bank}")
            m.d.comb += [read_side.addr.eq(s1_row), read_side.en.eq(s1_read)]
            m.d.sync += s1_read.eq(0)
            for index, port in enumerate(self.read):
                address = port.request.payload
                chosen = port.request.valid & reading.ready[index]
                with m.If(chosen & (address[:bank_bits] == bank)):
                    m.d.sync += [s1_row.eq(address[bank_bits:]), s1_read.eq(1)]

            s1_write_row = Signal(row_bits, reset_less=True, name=f"s1_write_row_{bank}")
            s1_data = Signal(config.data_width, reset_less=True, name=f"s1_data_{bank}")
            s1_mask = Signal(config.beat_dwords, name=f"s1_mask_{bank}")
            m.d.comb += [
                write_side.addr.eq(s1_write_row),
                write_side.data.eq(s1_data),
                write_side.en.eq(s1_mask),
            ]
            # At most one user has the bank, so its beat is the disjunction of all that may.
            fields = [
                Mux(bank_of[bank], Cat(beat.address[bank_bits:], beat.data, beat.mask), 0)
                for beat, bank_of in zip(granted, grants, strict=True)
            ]
            m.d.sync += Cat(s1_write_row, s1_data, s1_mask).eq(reduce(or_, fields))

        # Stages 2 and 3: memory output, then the reader's register.
        moving = []
        for index, port in enumerate(self.read):
            s1_valid = Signal(name=f"s1_valid_{index}")
            s2_valid = Signal(name=f"s2_valid_{index}")
            s1_bank = Signal(bank_bits, reset_less=True, name=f"s1_bank_{index}")
            s2_bank = Signal(bank_bits, reset_less=True, name=f"s2_bank_{index}")
            s3_data = Signal(config.data_width, reset_less=True, name=f"s3_data_{index}")
            s3_valid = Signal(name=f"s3_valid_{index}")
            m.d.sync += [
                s1_valid.eq(port.request.valid & reading.ready[index]),
                s1_bank.eq(port.request.payload),
                s2_valid.eq(s1_valid),
                s2_bank.eq(s1_bank),
                s3_valid.eq(s2_valid),
            ]
            with m.If(s2_valid):
                with m.Switch(s2_bank):
                    for bank in range(banks):
                        with m.Case(bank):
                            m.d.sync += s3_data.eq(read_data[bank])
            m.d.comb += [port.response_valid.eq(s3_valid), port.response.eq(s3_data)]
            moving += [port.request.valid, s1_valid, s2_valid, s3_valid]
        moving += [port.valid for port in self.write]
        moving += [relay.busy for relay in relays]
        moving += [bank_of.any() for bank_of in grants]
        if self._strict and platform == SIMULATION:
            self._watch(m)
        wrote = Signal()
        m.d.sync += wrote.eq(Cat(*(bank_of.any() for bank_of in grants)).any())
        m.d.comb += self.busy.eq(Cat(*moving, wrote).any())
        return m

    def _watch(self, m: Module) -> None:
        """Holds the users to what is asked of them."""
        m.submodules.recent = recent = RecentWrites(
            config=self._config,
            readers=self._readers,
            writers=self._writers,
            delay=write_delay(self._writers),
        )
        for index, port in enumerate(self.read):
            m.d.comb += [
                recent.reads[index].eq(port.request.valid & port.request.ready),
                recent.read_address[index].eq(port.request.payload),
            ]
        for index, port in enumerate(self.write):
            m.d.comb += [
                recent.writes[index].eq(port.valid & port.ready),
                recent.write_address[index].eq(port.payload.address),
                recent.write_mask[index].eq(port.payload.mask),
            ]
