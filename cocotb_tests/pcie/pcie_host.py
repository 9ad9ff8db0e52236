"""A host around a device under test: root complex and UltraScale+ block of cocotbext-pcie.

    host = PcieHost(dut)
    await host.start()
    address, memory = host.allocate(1 << 20)
    await host.write_register(0x14, 1, 4)

The device under test has the ports of `hdl.pcie.phy.ultrascale.UltrascaleShim` (``rq_``, ``rc_``,
``cq_``, ``cc_``), ``status__*`` of `hdl.flow.pcie_status.PcieStatus`, ``now``, ``clk`` and ``rst``.
The model drives clock and reset.
"""

import logging
import random
from collections.abc import Iterator
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiStreamBus
from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpType
from cocotbext.pcie.core.utils import PcieId
from cocotbext.pcie.xilinx.us.tlp import ErrorCode, Tlp_us

from cocotb_tests.pcie.axis_rules import UltrascaleRules
from cocotb_tests.pcie.hard_block import (
    CLOCK_HZ,
    HIGH_MEMORY,
    HIGH_MEMORY_BYTES,
    HardBlock,
    Host,
)
from cocotb_tests.streams import every_cycle, sample
from hdl.config import STRADDLE_WIDTH, TIME_BITS
from hdl.flow.pcie_status import PcieStatus
from hdl.flow.register_bus import BAR_BITS

STATUS_PERIOD = 4
"""Cycles between updates of the status inputs that the model does not drive itself."""
DRAIN_CYCLES = 64
"""Cycles in which a TLP that has begun to leave has left, and the hard block has sent it."""
LINK_CYCLES = 250
"""Longer than a TLP is on the link."""
SPLIT_TIMEOUT = (round(50e-6 * CLOCK_HZ), round(50e-3 * CLOCK_HZ))
"""The default range of the completion timeout (PCIe base specification 7.8.16)."""
POLL_CYCLES = 16


class PcieHost:
    """Root complex, hard block and device under test, connected.

    ``TRACKS``: the hard block has a table of the reads that it waits for (PG213, "Tag Management
    for Non-Posted Transactions").

    Parameters
    ----------
    max_payload, max_read_request
        Bytes: the link's maximum payload and the device's maximum read request.
    rcb
        Read completion boundary, 64 or 128 bytes.
    generation, lanes
        Of the hard block.
    slot_lanes
        Lanes of the slot, if fewer: the link is as wide as the narrower of the two.
    straddle
        RC has the straddle option, at the widths that have it.
    drive_now
        Count clock cycles on the device's ``now``.
    split_timeout
        Shortest and longest time, in cycles of ``now``, from the last sign of a read until the hard
        block's own timer ends it.
    device_options
        More arguments of `UltraScalePlusPcieDevice`, for example its MSI-X table.

    Attributes
    ----------
    rc, device, function
        The models. ``rc.reads`` is the `ReadBehaviour`.
    rules
        What the streams are held to, always (`cocotb_tests.pcie.axis_rules`).
    """

    TRACKS = True

    def __init__(
        self,
        dut,
        *,
        seed: int = 1,
        max_payload: int = 256,
        max_read_request: int = 512,
        rcb: int = 64,
        generation: int = 3,
        lanes: int = 8,
        slot_lanes: int | None = None,
        straddle: bool = True,
        drive_now: bool = True,
        split_timeout: tuple[int, int] = SPLIT_TIMEOUT,
        **device_options,
    ):
        self.dut = dut
        self._straddled = straddle and hasattr(dut, "rc_tdata") and (
            len(dut.rc_tdata) >= STRADDLE_WIDTH
        )
        self.cycle = 0
        self._max_read_request = max_read_request
        self._drive_now = drive_now
        self._split_timeout = split_timeout
        self._bar: Any = None
        self.pci: Any = None
        self._withheld = False  # bus mastering is off for the device already
        self.request_beats = 0
        dut.now.value = 0
        # The models log every TLP (slower than simulating it), and warn of the faults planted.
        logging.getLogger("cocotb.pcie").setLevel(logging.ERROR)
        for name in PcieStatus().members:
            getattr(dut, f"status__{name}").value = 0
        self.rc = Host(seed=seed)
        high = self.rc.mem_address_space.create_pool(HIGH_MEMORY, HIGH_MEMORY_BYTES)
        self.pools = [self.rc.mem_pool, high]
        self._rng = random.Random(f"{seed}/pools")
        self.rc.max_payload_size = (max_payload // 128 - 1).bit_length()
        self.rc.read_completion_boundary = rcb == 128
        self.device = HardBlock(
            dut=dut,
            seed=seed,
            pcie_generation=generation,
            pcie_link_width=lanes,
            user_clk_frequency=CLOCK_HZ,
            alignment="dword",
            max_payload_size=max_payload,
            enable_client_tag=True,
            enable_extended_tag=True,
            user_clk=dut.clk,
            user_reset=dut.rst,
            rq_bus=self._bus("rq"),
            rc_bus=self._bus("rc"),
            cq_bus=self._bus("cq"),
            cc_bus=self._bus("cc"),
            rc_straddle=self._straddled,
            rc_4tlp_straddle=self._straddled and len(dut.rc_tdata) > STRADDLE_WIDTH,
            cfg_max_payload=dut.status__max_payload,
            cfg_max_read_req=dut.status__max_read_request,
            **device_options,
        )
        for bus in (
            self.device.rq_sink,
            self.device.rc_source,
            self.device.cq_source,
            self.device.cc_sink,
        ):
            assert bus is not None
            bus.log.setLevel(logging.WARNING)
        self.function = self.device.functions[0]
        self.function.configure_bar(0, 1 << BAR_BITS, ext=True)
        slot = self.rc.make_port()
        slot.downstream_port.max_link_width = slot_lanes
        slot.connect(self.device)
        self.rc.on_lost = self._forget
        self.rc.on_discontinued = self.device.discontinued.add
        self._resets = dut.rst, dut.status__link_reset
        self.rules = self._watch()

    def _watch(self) -> Any:
        """Begins to hold the streams to their rules."""
        return UltrascaleRules(
            self.dut, limits=self.limits, straddled=self._straddled, reset=self.resetting
        )

    def resetting(self) -> bool:
        """The link is down, or everything is being reset."""
        return any(sample(reset) for reset in self._resets)

    def limits(self) -> tuple[int, int, bool]:
        """Maximum payload and read request in bytes, and whether extended tags are enabled."""
        control = self.function.pcie_cap
        return (
            128 << control.max_payload_size,
            128 << control.max_read_request_size,
            bool(control.extended_tag_field_enable),
        )

    def _bus(self, prefix: str) -> Any:
        return AxiStreamBus.from_prefix(self.dut, prefix)

    def _beats_left(self) -> int:
        """Beats of requests that left in the last cycle."""
        return sample(self.dut.rq_tvalid) & sample(self.dut.rq_tready)

    def _forget(self, tag: int) -> None:
        """No answer comes any more. A block that keeps a table of tags has the tag until its own
        timer runs out, and says so."""
        request = self.device.active_request[tag]
        if self.TRACKS and request is not None:
            cocotb.start_soon(self._time_out(tag, request))
        else:
            self.device.active_request[tag] = None

    async def _time_out(self, tag: int, request) -> None:
        dut, mask = self.dut, (1 << TIME_BITS) - 1
        patience = self._rng.randrange(*self._split_timeout)
        began = sample(dut.now)
        while (sample(dut.now) - began) & mask < patience:
            await ClockCycles(dut.clk, POLL_CYCLES)
        # It has not been reset meanwhile, nor told of the tag.
        if self.device.active_request[tag] is request:
            self._terminate(tag, request, ErrorCode.TIMEOUT)

    async def start(self) -> None:
        """Leaves reset, enumerates, and allows bus mastering."""
        every_cycle(self.dut.clk, self._run())
        await RisingEdge(self.dut.rst)
        while sample(self.dut.rst):
            await RisingEdge(self.dut.clk)
        await self.rc.enumerate()
        device: Any = self.rc.find_device(self.function.pcie_id)
        await device.enable_device()
        await device.set_master()
        await device.set_readrq((self._max_read_request // 128 - 1).bit_length())
        self._bar = device.bar_window[0]
        self.pci = device
        for _ in range(2 * STATUS_PERIOD):
            await RisingEdge(self.dut.clk)

    async def withdraw_bus_master(self) -> None:
        """Ends bus mastering as the hard block does: it still sends what it has taken."""
        dut, device = self.dut, self.device
        self._withheld = True
        dut.status__bus_master.value = 0
        for _ in range(DRAIN_CYCLES):
            await RisingEdge(dut.clk)
        assert device.rq_sink is not None
        while not device.rq_sink.empty() or not device.rq_np_queue.empty():
            await RisingEdge(dut.clk)
        self.function.bus_master_enable = False
        self.request_beats = 0

    def hide_bus_master(self, hidden: bool) -> None:
        """The card sees bus mastering off, or as it is; the block sends what it takes."""
        self._withheld = hidden

    async def restore_bus_master(self) -> None:
        """Allows bus mastering again."""
        self.function.bus_master_enable = True
        self._withheld = False
        for _ in range(2 * STATUS_PERIOD):
            await RisingEdge(self.dut.clk)

    async def reset_function(self, *, terminate: bool) -> int:
        """A function level reset up to its end, without bus mastering; the cycles it took.

        ``terminate``: the hard block ends the outstanding reads by itself (PG213, error code 8 of
        the RC descriptor) and no completion is passed on; else they come in time.
        """
        dut, function, device = self.dut, self.function, self.device
        began = self.cycle
        dut.status__function_reset.value = 1
        await self.withdraw_bus_master()
        function.msix_cap.msix_enable = False
        function.msix_cap.msix_function_mask = False
        if terminate:
            for tag, request in enumerate(device.active_request):
                if request is not None:
                    self._terminate(tag, request, ErrorCode.FLR)
        while not sample(dut.reset_done):
            await RisingEdge(dut.clk)
        took = self.cycle - began
        assert not self.outstanding, "the reset was done with reads outstanding"
        for _ in range(DRAIN_CYCLES):
            await RisingEdge(dut.clk)
            assert sample(dut.reset_done), "done was taken back"
        dut.status__function_reset.value = 0
        return took

    def stall_requests(self, stalls: bool) -> None:
        """The block takes no request, until it does again."""
        assert self.device.rq_sink is not None
        self.device.rq_sink.pause = stalls

    async def reset_link(self, *, cycles: int, discard=None) -> None:
        """The link is reset: nothing that was on its way arrives, on either side.

        ``discard``: a signal that is to follow the reset, as `hdl.pcie.endpoint.Endpoint` asks.
        Bus mastering and MSI-X are off afterwards.
        """
        dut, device, function = self.dut, self.device, self.function
        self._withheld = True
        dut.status__link_reset.value = 1
        await RisingEdge(dut.clk)
        if discard is not None:
            discard.value = 1
        dut.status__bus_master.value = 0
        function.bus_master_enable = False
        function.msix_cap.msix_enable = False
        function.msix_cap.msix_function_mask = False
        # What the models hold is lost; completions that they have sent belong to nobody.
        await RisingEdge(dut.clk)
        self._forget_streams()
        self.rules.forget()
        device.active_request[:] = [None] * len(device.active_request)
        device.cpld_credit_count = 0
        for _ in range(cycles):
            await RisingEdge(dut.clk)
        sources: list[Any] = [device.rc_source, device.cq_source]
        while not all(source.idle() for source in sources):
            await RisingEdge(dut.clk)
        for _ in range(STATUS_PERIOD):
            await RisingEdge(dut.clk)
        dut.status__link_reset.value = 0
        # Reads that were on the link are answered by nobody.
        for _ in range(3):
            self.rc.forget()
            for _ in range(LINK_CYCLES):
                await RisingEdge(dut.clk)

    def _forget_streams(self) -> None:
        """What has come of a packet is no packet."""
        sink: Any = self.device.rq_sink
        if self.rules.rq.words:
            self.rules.rq.words.clear()
            end = sink._transaction_obj()
            end.tlast, end.tuser = 1, 1 << sink.discontinue_offset
            sink.sample_obj = end
            sink.sample_sync.set()

    def _terminate(self, tag: int, request, error: ErrorCode) -> None:
        """The block ends a read by itself."""
        self.device.active_request[tag] = None
        end = Tlp_us(Tlp.create_completion_for_tlp(request, PcieId(0, 0, 0), False, CplStatus.SC))
        end.error_code = error
        end.request_completed = True
        self.device.rx_buf_cplh_fc_count += 1
        self.device.rc_queue.put_nowait(end)

    def allocate(self, size: int) -> tuple[int, Any]:
        """Host memory: its bus address, and its contents as a mutable buffer.

        At random below 4 GiB or above.
        """
        memory = self._rng.choice(self.pools).alloc_region(size)
        address = memory.get_absolute_address(0)
        assert address is not None
        return address, memory

    async def read_register(self, address: int, size: int = 4) -> int:
        """An access to BAR 0."""
        return int.from_bytes(await self._bar.read(address, size), "little")

    async def write_register(self, address: int, value: int, size: int = 4) -> None:
        """An access to BAR 0."""
        await self._bar.write(address, value.to_bytes(size, "little"))

    async def request(self, tlp_type: TlpType, address: int, **fields) -> list[Tlp]:
        """Sends any request at a BAR 0 address and returns its completions (none if posted)."""
        tlp = Tlp()
        tlp.fmt_type = tlp_type
        tlp.requester_id = PcieId(0, 0, 0)
        tlp.address = self.bar_address + address
        for name, value in fields.items():
            if name == "data":
                tlp.set_data(value)
            else:
                setattr(tlp, name, value)
        if tlp_type in (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64):
            await self.rc.perform_posted_operation(tlp)
            return []
        return await self.rc.perform_nonposted_operation(tlp, timeout=20_000, timeout_unit="ns")

    @property
    def bar_address(self) -> int:
        """Bus address of BAR 0."""
        return self.pci.bar_addr[0]

    @property
    def outstanding(self) -> int:
        """Reads of the device that the block still waits for."""
        return sum(request is not None for request in self.device.active_request)

    def _status(self) -> dict[str, int]:
        """What the hard block says of its configuration space."""
        function, control = self.function, self.function.pcie_cap
        return {
            "bus_master": int(function.bus_master_enable and not self._withheld),
            "rcb": int(self.rc.read_completion_boundary),
            "msix_enable": int(function.msix_cap.msix_enable),
            "msix_mask": int(function.msix_cap.msix_function_mask),
            "extended_tag": int(control.extended_tag_field_enable),
            "relaxed_ordering": int(control.enable_relaxed_ordering),
            "id_ordering": int(control.ido_request_enable),
            "id_completion": int(control.ido_completion_enable),
        }

    def _run(self) -> Iterator[None]:
        dut = self.dut
        now = dut.now
        status = {name: getattr(dut, f"status__{name}") for name in self._status()}
        while True:
            yield
            self.cycle += 1
            self.request_beats += self._beats_left()
            if self._drive_now:
                now.value = self.cycle & ((1 << TIME_BITS) - 1)
            if self.cycle % STATUS_PERIOD == 0:
                for name, value in self._status().items():
                    if sample(status[name]) != value:
                        status[name].value = value
