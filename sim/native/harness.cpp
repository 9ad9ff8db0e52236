#include "harness.hpp"

#include <algorithm>

namespace striata {

namespace {

constexpr int kResetCycles = 8;
constexpr int kQuietCycles = 2;  // nothing moved for so long before a jump
constexpr int64_t kNoCycle = INT64_MAX;

uint8_t encode_size(int64_t bytes) {  // Device Control: 128 << n
    uint8_t code = 0;
    while ((int64_t(128) << code) < bytes) ++code;
    return code;
}

}  // namespace

Harness::Harness(const LinkFields& link, const std::vector<DriveFields>& drives,
                 const std::vector<int64_t>& expander_rates, uint8_t* memory,
                 int64_t memory_bytes)
    : shape_(kShape), link_(link, memory, memory_bytes) {
    dut_.bind(pins_);
    for (const int64_t rate : expander_rates) expanders_.push_back({rate, 0, 0});
    ports_.reserve(drives.size());
    for (size_t i = 0; i < drives.size(); ++i) {
        const int64_t expander = drives[i].expander;
        drives_.push_back(
            make_drive(drives[i], expander < 0 ? nullptr : &expanders_.at(size_t(expander))));
        ports_.push_back(std::make_unique<Port>(pins_.drives[i], *drives_.back(), shape_));
        due_[i] = kNever;
    }
    rq_ = std::make_unique<PacketSink>(pins_.rq, link_, shape_.beat_bytes, false);
    cc_ = std::make_unique<PacketSink>(pins_.cc, link_, shape_.beat_bytes, true);
    rc_ = std::make_unique<PacketSource>(pins_.rc, link_, shape_.beat_bytes, true);
    cq_ = std::make_unique<PacketSource>(pins_.cq, link_, shape_.beat_bytes, false);
    *pins_.status.max_payload = encode_size(link.max_payload);
    *pins_.status.max_read_request = encode_size(link.max_read_request);
    *pins_.status.rcb = link.rcb == 128;
    *pins_.status.bus_master = 1;
    *pins_.status.msix_enable = 1;
    *pins_.status.msix_mask = 0;
    *pins_.status.extended_tag = 1;
    reset();
}

void Harness::reset() {
    *pins_.now = 0;
    *pins_.reset = 1;
    for (int i = 0; i < kResetCycles; ++i) {
        *pins_.clock = 0;
        dut_.eval();
        *pins_.clock = 1;
        dut_.eval();
    }
    *pins_.reset = 0;
}

void Harness::step() {
    const uint64_t time_mask = (uint64_t(1) << shape_.time_bits) - 1;
    *pins_.now = uint64_t(cycle_) & time_mask;
    bool active = rq_->drive();
    active |= cc_->drive();
    active |= rc_->drive();
    active |= cq_->drive();
    const size_t ports = ports_.size();
    for (size_t i = 0; i < ports; ++i) {
        if (wake_[i] > cycle_) continue;
        active |= ports_[i]->drive_pins(cycle_);
        wake_[i] = ports_[i]->wake();
    }
    *pins_.clock = 0;
    dut_.eval();

    const bool rq = rq_->sample();
    const bool cc = cc_->sample();
    const bool rc = rc_->sample();
    const bool cq = cq_->sample();
    uint32_t moved = 0;
    for (size_t i = 0; i < ports; ++i) moved |= uint32_t(ports_[i]->sample()) << i;
    active |= rq | cc | rc | cq | (moved != 0) | !*pins_.quiet;

    *pins_.clock = 1;
    dut_.eval();
    ++cycle_;
    ++link_.counters().cycles_evaluated;

    const Ps time = now();
    if (rq) rq_->commit(time);
    if (cc) cc_->commit(time);
    if (rc) rc_->commit(time);
    if (cq) cq_->commit(time);
    for (; moved; moved &= moved - 1) {
        const auto i = size_t(__builtin_ctz(moved));
        ports_[i]->commit(cycle_);
        if (ports_[i]->gave_command()) link_.phases().mark(Moment::kCommand, time);
        if (ports_[i]->took_data()) link_.phases().mark(Moment::kData, time);
        wake_[i] = 0;
        due_[i] = drives_[i]->next_event();
    }
    streak_ = active ? 0 : streak_ + 1;
}

// The first cycle in which something happens if nothing moves before.
int64_t Harness::next_cycle() const {
    const uint64_t none = (uint64_t(1) << shape_.time_bits) - 1;
    int64_t next = cycle_at(link_.next_event());
    const uint64_t deadline = *pins_.deadline & none;
    if (deadline != none) next = std::min(next, int64_t(deadline));
    for (size_t i = 0; i < ports_.size(); ++i) {
        next = std::min(next, wake_[i]);
        next = std::min(next, cycle_at(due_[i]));
    }
    return next;
}

void Harness::jump(int64_t until_cycle) {
    const int64_t target = std::min(next_cycle(), until_cycle);
    if (target <= cycle_ || target == kNoCycle) return;
    RunCounters& counters = link_.counters();
    counters.cycles_skipped += target - cycle_;
    ++counters.jumps;
    cycle_ = target;
    // The deadline itself is a cycle like any other: look again before the next jump.
    streak_ = 0;
}

int64_t Harness::run(Ps until, int64_t cycles, Event* events, int64_t most) {
    const int64_t until_cycle = until ? cycle_at(until) : kNoCycle;
    int64_t cycles_left = cycles ? cycles : kNoCycle;
    Ring<Event>& queue = link_.events();
    for (;;) {
        const Ps time = now();
        if (link_.next_event() <= time) link_.advance(time);
        for (size_t i = 0; i < ports_.size(); ++i) {
            if (due_[i] > time) continue;
            drives_[i]->advance(time);
            due_[i] = drives_[i]->next_event();
            wake_[i] = 0;
        }
        if (!queue.empty()) {
            int64_t count = 0;
            for (; count < most && !queue.empty(); queue.pop()) events[count++] = queue.front();
            return count;
        }
        if (cycle_ >= until_cycle || cycles_left-- == 0) {
            events[0] = {int64_t(EventKind::kTime), 0, time};
            return 1;
        }
        step();
        if (streak_ < kQuietCycles) continue;
        if (jumping_) jump(until_cycle);
        if (until_cycle == kNoCycle && next_cycle() == kNoCycle && streak_ >= kQuietCycles) {
            events[0] = {int64_t(EventKind::kIdle), 0, now()};
            return 1;
        }
    }
}

void Harness::set_present(int64_t port, bool present) {
    ports_.at(size_t(port))->set_present(present, cycle_);
    due_[port] = drives_[size_t(port)]->next_event();
    wake_[port] = 0;
    streak_ = 0;
}

void Harness::set_card(uint64_t identity, uint64_t nonce) {
    if (pins_.identity) *pins_.identity = identity;
    if (pins_.nonce) *pins_.nonce = nonce;
}

void Harness::set_identity(int64_t port, uint64_t identity) {
    ports_.at(size_t(port))->set_identity(identity);
    streak_ = 0;
}

void Harness::set_status(const std::string& name, int64_t value) {
    const StatusPins& status = pins_.status;
    const auto code = uint8_t(value);
    streak_ = 0;
    if (name == "max_payload") *status.max_payload = code;
    else if (name == "max_read_request") *status.max_read_request = code;
    else if (name == "rcb") *status.rcb = code;
    else if (name == "bus_master") *status.bus_master = code;
    else if (name == "msix_enable") *status.msix_enable = code;
    else if (name == "msix_mask") *status.msix_mask = code;
    else if (name == "function_reset") *status.function_reset = code;
    else if (name == "extended_tag") *status.extended_tag = code;
    else throw ModelError("status has no input named " + name);
}

const RunCounters& Harness::counters() {
    link_.count_wires();
    return link_.counters();
}

}  // namespace striata
