"""The line store: every 4 KiB line, in banks that each read and write one beat a cycle."""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Module, Mux, Signal, Value
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
    turns whenever somebody lost, so a user waits ``users`` - 1 cycles at most. Sequential users
    that met once stay one bank apart and never meet again. Combinational.

    Parameters
    ----------
    users
        Competing ports.
    banks
        Banks, a power of two.

    Ports
    -----
    valid
        A bit a user: it wants a bank.
    bank
        The bank that each user wants.
    ready
        A bit a user: it may use its bank if it wants it.
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

    A write is visible to every read taken `write_delay` cycles after it or later. What a read
    taken sooner returns of its words is undefined (`DISJOINT`). If two users write one word less
    than that apart, either write may be the last. Both are errors of the users, and simulations
    assert that they do not happen (`RecentWrites`). So whoever reports that a line is complete does
    so when it can be read. Contents are undefined until written.

    Parameters
    ----------
    config
        Sizes.
    readers
        Number of ports that read.
    writers
        Number of ports that write.
    strict
        Users are held to the delay. The store's own test looks at what happens within it.

    Ports
    -----
    read
        `ReadPort`, seen from the store. A beat follows its address by `READ_LATENCY` cycles and
        cannot be refused. A request waits while another user has its bank, ``readers`` - 1 cycles
        at most.
    write
        Beats to store. One waits while another user has its bank, ``writers`` - 1 cycles at most.
        ``ready`` is a flip-flop.
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

        banks = range(config.banks)
        self._bank_bits = bits_for_count(config.banks)
        self._row_bits = config.beat_address_bits - self._bank_bits
        self._reading = BankArbiter(users=readers, banks=config.banks)
        self._writing = BankArbiter(users=writers, banks=config.banks)
        self._relays = [Relay(write_beat(config)) for _ in range(writers)]
        # The beat of each writer that has won its bank, and which bank that is, a bit each.
        self._granted = [
            Signal(write_beat(config), reset_less=True, name=f"granted_{index}")
            for index in range(writers)
        ]
        self._bank_of = [
            Signal(config.banks, name=f"bank_of_{index}") for index in range(writers)
        ]
        self._memories = [
            Memory(
                shape=config.data_width, depth=1 << self._row_bits, init=[], attrs=DISJOINT
            )
            for _ in banks
        ]
        self._read_ports = [memory.read_port(transparent_for=()) for memory in self._memories]

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.read_arbiter = self._reading
        m.submodules.write_arbiter = self._writing
        moving: list[Value] = []
        for index in range(self._writers):
            moving += self._take_write(m, index)
        for index, port in enumerate(self.read):
            moving += self._take_read(m, index, port)
        for bank, memory in enumerate(self._memories):
            m.submodules[f"bank_{bank}"] = memory
            self._read_bank(m, bank)
            self._write_bank(m, bank)
        if self._strict and platform == SIMULATION:
            self._watch(m)
        wrote = Signal()
        m.d.sync += wrote.eq(Cat(bank_of.any() for bank_of in self._bank_of).any())
        m.d.comb += self.busy.eq(Cat(*moving, wrote).any())
        return m

    def _take_write(self, m: Module, index: int) -> list[Value]:
        """A writer's beats, up to the bank. Returns what is under way.

        A write's path is cut before and after the choice, as its multiplexers are wide.
        """
        port, relay = self.write[index], self._relays[index]
        writing, bank_of = self._writing, self._bank_of[index]
        m.submodules[f"relay_{index}"] = relay
        connect(m, flipped(port), relay.input)
        beat = relay.output
        m.d.comb += [
            writing.valid[index].eq(beat.valid),
            writing.bank[index].eq(beat.payload.address),
            beat.ready.eq(writing.ready[index]),
        ]
        wins = beat.valid & writing.ready[index]
        m.d.sync += [
            self._granted[index].eq(beat.payload),
            bank_of.eq(Mux(wins, 1 << beat.payload.address[: self._bank_bits], 0)),
        ]
        return [port.valid, relay.busy, bank_of.any()]

    def _take_read(self, m: Module, index: int, port) -> list[Value]:
        """A reader's requests, and its beats: stage 1 is the bank's register, 2 the memory's
        output, 3 the reader's register. Returns what is under way."""
        config, reading = self._config, self._reading
        s1_valid = Signal(name=f"s1_valid_{index}")
        s2_valid = Signal(name=f"s2_valid_{index}")
        s1_bank = Signal(self._bank_bits, reset_less=True, name=f"s1_bank_{index}")
        s2_bank = Signal(self._bank_bits, reset_less=True, name=f"s2_bank_{index}")
        s3_data = Signal(config.data_width, reset_less=True, name=f"s3_data_{index}")
        s3_valid = Signal(name=f"s3_valid_{index}")
        m.d.comb += [
            reading.valid[index].eq(port.request.valid),
            reading.bank[index].eq(port.request.payload),
            port.request.ready.eq(reading.ready[index]),
            port.response_valid.eq(s3_valid),
            port.response.eq(s3_data),
        ]
        m.d.sync += [
            s1_valid.eq(port.request.valid & reading.ready[index]),
            s1_bank.eq(port.request.payload),
            s2_valid.eq(s1_valid),
            s2_bank.eq(s1_bank),
            s3_valid.eq(s2_valid),
        ]
        with m.If(s2_valid):
            with m.Switch(s2_bank):
                for bank, read_port in enumerate(self._read_ports):
                    with m.Case(bank):
                        m.d.sync += s3_data.eq(read_port.data)
        return [port.request.valid, s1_valid, s2_valid, s3_valid]

    def _read_bank(self, m: Module, bank: int) -> None:
        """Stage 1 of reads: the row that the winner wants, in the bank's register."""
        read_port = self._read_ports[bank]
        s1_row = Signal(self._row_bits, reset_less=True, name=f"s1_row_{bank}")
        s1_read = Signal(name=f"s1_read_{bank}")
        m.d.comb += [read_port.addr.eq(s1_row), read_port.en.eq(s1_read)]
        m.d.sync += s1_read.eq(0)
        for index, port in enumerate(self.read):
            address = port.request.payload
            chosen = port.request.valid & self._reading.ready[index]
            with m.If(chosen & (address[: self._bank_bits] == bank)):
                m.d.sync += [s1_row.eq(address[self._bank_bits :]), s1_read.eq(1)]

    def _write_bank(self, m: Module, bank: int) -> None:
        """Stage 1 of writes: the winner's row and beat, in the bank's registers."""
        config = self._config
        write_port = self._memories[bank].write_port(granularity=DWORD_BITS)
        s1_write_row = Signal(self._row_bits, reset_less=True, name=f"s1_write_row_{bank}")
        s1_data = Signal(config.data_width, reset_less=True, name=f"s1_data_{bank}")
        s1_mask = Signal(config.beat_dwords, name=f"s1_mask_{bank}")
        m.d.comb += [
            write_port.addr.eq(s1_write_row),
            write_port.data.eq(s1_data),
            write_port.en.eq(s1_mask),
        ]
        # At most one user has the bank, so its beat is the disjunction of all that may.
        fields = [
            Mux(bank_of[bank], Cat(beat.address[self._bank_bits :], beat.data, beat.mask), 0)
            for beat, bank_of in zip(self._granted, self._bank_of, strict=True)
        ]
        m.d.sync += Cat(s1_write_row, s1_data, s1_mask).eq(reduce(or_, fields))

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
