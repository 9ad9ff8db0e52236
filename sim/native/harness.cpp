#include "harness.hpp"

#include <algorithm>

namespace striata {

namespace {

constexpr int kResetCycles = 8;
constexpr int kQuietCycles = 2;  // nothing moved for so long before a jump
constexpr int64_t kNoCycle = INT64_MAX;
constexpr int64_t kCyclesAway = 64;  // a drive that has lost power is away for no less

uint8_t encode_size(int64_t bytes) {  // Device Control: 128 << n
    uint8_t code = 0;
    while ((int64_t(128) << code) < bytes) ++code;
    return code;
}

}  // namespace

Harness::Harness(const LinkFields& link, const std::vector<DriveFields>& drives,
                 const std::vector<int64_t>& expander_rates, uint8_t* memory,
                 int64_t memory_bytes, uint64_t seed)
    : shape_(kShape), link_(link, memory, memory_bytes) {
    dut_.bind(pins_);
    for (const int64_t rate : expander_rates) expanders_.push_back({rate, 0, 0});
    ports_.reserve(drives.size());
    for (size_t i = 0; i < drives.size(); ++i) {
        const int64_t expander = drives[i].expander;
        drives_.push_back(
            make_drive(drives[i], expander < 0 ? nullptr : &expanders_.at(size_t(expander))));
        ports_.push_back(std::make_unique<Port>(pins_.drives[i], *drives_.back(), shape_));
        drives_.back()->set_seed(seed * kMaxPorts + i);
        due_[i] = kNever;
        return_[i] = kNoCycle;
    }
    rq_ = std::make_unique<PacketSink>(pins_.rq, link_, shape_.beat_bytes, &pins_.sequence[0]);
    cc_ = std::make_unique<PacketSink>(pins_.cc, link_, shape_.beat_bytes, nullptr);
    *pins_.sequence[1].valid = 0;
    if (shape_.straddle)
        rc_ = std::make_unique<StraddledSource>(pins_.rc, link_);
    else
        rc_ = std::make_unique<PacketSource>(pins_.rc, link_, shape_.beat_bytes, true);
    cq_ = std::make_unique<PacketSource>(pins_.cq, link_, shape_.beat_bytes, false);
    for (int i = 0; i < pins_.status_count; ++i) *pins_.status[i].pin = 0;
    set_status("max_payload", encode_size(link.max_payload));
    set_status("max_read_request", encode_size(link.max_read_request));
    set_status("rcb", link.rcb == 128);
    set_status("bus_master", 1);
    set_status("msix_enable", 1);
    set_status("extended_tag", 1);
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
        check_assertions();
    }
    *pins_.reset = 0;
}

void Harness::check_assertions() {
    if (assertions.failed()) throw ModelError("assertion in " + assertions.take());
}

void Harness::step() {
    *pins_.now = clock_time();
    const Ps begin = now();
    const bool up = !link_.down();
    bool active = up && drive_streams(begin);
    const size_t ports = ports_.size();
    for (size_t i = 0; i < ports; ++i) {
        if (wake_[i] > cycle_) continue;
        active |= ports_[i]->drive_pins(cycle_);
        wake_[i] = ports_[i]->wake();
    }
    *pins_.clock = 0;
    dut_.eval();

    const bool rq = up && rq_->sample();
    const bool cc = up && cc_->sample();
    const bool rc = up && rc_->sample();
    const bool cq = up && cq_->sample();
    uint32_t moved = 0;
    for (size_t i = 0; i < ports; ++i) moved |= uint32_t(ports_[i]->sample()) << i;
    active |= rq | cc | rc | cq | (moved != 0) | !*pins_.quiet;

    *pins_.clock = 1;
    dut_.eval();
    check_assertions();
    ++cycle_;
    ++link_.counters().cycles_evaluated;

    const Ps time = now();
    const int64_t credits = link_.read_credits();
    if (rq) rq_->commit(time);
    unsaid_[cycle_ & 1] = credits - link_.read_credits();
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

bool Harness::drive_streams(Ps now) {
    bool active = rq_->drive(now);
    active |= drive_credits();
    active |= cc_->drive(now);
    active |= rc_->drive(now);
    active |= cq_->drive(now);
    return active;
}

// While the link is down, what stands on the streams means nothing.
void Harness::set_link(bool down) {
    link_.set_down(down, now());
    if (!down) return;
    rq_->forget();
    cc_->forget();
    rc_->forget();
    cq_->forget();
    *pins_.read_credits = 0;
    unsaid_[0] = unsaid_[1] = 0;
}

// PG213, "Avoiding Head-of-Line Blocking for Posted Requests". The pins do not count the requests
// of the last two cycles yet.
bool Harness::drive_credits() {
    constexpr int64_t kMost = 15;
    const int64_t credits = link_.read_credits() + unsaid_[0] + unsaid_[1];
    const auto said = uint8_t(std::min(credits, kMost));
    const bool changed = *pins_.read_credits != said || unsaid_[0] || unsaid_[1];
    *pins_.read_credits = said;
    return changed;
}

// The first cycle in which something happens if nothing moves before.
int64_t Harness::next_cycle() const {
    const uint64_t none = time_mask();
    int64_t next = cycle_at(link_.next_event());
    const uint64_t deadline = *pins_.deadline & none;
    // The time wraps, so only the distance counts.
    if (deadline != none)
        next = std::min(next, cycle_ + int64_t((deadline - clock_time()) & none));
    for (size_t i = 0; i < ports_.size(); ++i) {
        next = std::min(next, wake_[i]);
        next = std::min(next, cycle_at(due_[i]));
    }
    return std::min(next, next_return_);
}

void Harness::jump(int64_t until_cycle) {
    const int64_t target = std::min(next_cycle(), until_cycle);
    if (target <= cycle_ || target == kNoCycle) return;
    RunCounters& counters = link_.counters();
    counters.cycles_skipped += target - cycle_;
    ++counters.jumps;
    link_.rules().idle(target - cycle_);
    cycle_ = target;
    // The cycle of the deadline is evaluated like any other. The next jump comes after that.
    streak_ = 0;
}

int64_t Harness::run(Ps until, int64_t cycles, Event* events, int64_t most) {
    if (!failure_.empty()) throw ModelError(failure_);
    try {
        return run_on(until, cycles, events, most);
    } catch (const ModelError& error) {
        failure_ = "cycle " + std::to_string(cycle_) + ": " + error.what();
    }
    throw ModelError(failure_);
}

int64_t Harness::run_on(Ps until, int64_t cycles, Event* events, int64_t most) {
    const int64_t until_cycle = until ? cycle_at(until) : kNoCycle;
    int64_t cycles_left = cycles ? cycles : kNoCycle;
    Ring<Event>& queue = link_.events();
    for (;;) {
        const Ps time = now();
        if (link_.next_event() <= time) link_.advance(time);
        if (next_return_ <= cycle_) return_drives();
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
            events[0] = {int64_t(EventKind::kTime), 0, time, 0};
            return 1;
        }
        step();
        if (streak_ < kQuietCycles) continue;
        if (jumping_) jump(until_cycle);
        if (until_cycle == kNoCycle && next_cycle() == kNoCycle && streak_ >= kQuietCycles) {
            events[0] = {int64_t(EventKind::kIdle), 0, now(), 0};
            return 1;
        }
    }
}

size_t Harness::index(int64_t port) const {
    if (port < 0 || port >= int64_t(ports_.size()))
        throw ModelError("there is no port " + std::to_string(port) + " of " +
                         std::to_string(ports_.size()));
    return size_t(port);
}

void Harness::set_present(int64_t port, bool present) {
    const size_t i = index(port);
    ports_[i]->set_present(present, cycle_);
    return_[i] = kNoCycle;
    due_[i] = drives_[i]->next_event();
    wake_[i] = 0;
    streak_ = 0;
}

void Harness::restart(int64_t port) {
    const size_t i = index(port);
    ports_[i]->restart(cycle_);
    due_[i] = drives_[i]->next_event();
    wake_[i] = 0;
    streak_ = 0;
}

void Harness::lose_power(int64_t port, Ps time) {
    const size_t i = index(port);
    if (!drives_[i]->present() && return_[i] == kNoCycle) return;  // the port has no drive
    set_present(port, false);
    if (!time) return;
    // The drive stays away long enough for the controller to see it.
    return_[i] = std::max(cycle_at(now() + time), cycle_ + kCyclesAway);
    next_return_ = std::min(next_return_, return_[i]);
}

void Harness::return_drives() {
    for (size_t i = 0; i < ports_.size(); ++i)
        if (return_[i] <= cycle_) set_present(int64_t(i), true);
    next_return_ = *std::min_element(return_, return_ + ports_.size());
}

void Harness::set_card(uint64_t identity, uint64_t nonce) {
    if (pins_.identity) *pins_.identity = identity;
    if (pins_.nonce) *pins_.nonce = nonce;
}

void Harness::set_backup(bool fails, uint32_t blocks) {
    if (!pins_.power_fail) throw ModelError("the controller has no backup unit");
    *pins_.power_fail = fails;
    *pins_.energy_blocks = blocks;
    streak_ = 0;
}

bool Harness::saved() const {
    if (!pins_.saved) throw ModelError("the controller has no backup unit");
    return *pins_.saved;
}

void Harness::set_identity(int64_t port, uint64_t identity) {
    ports_[index(port)]->set_identity(identity);
    streak_ = 0;
}

void Harness::set_status(const std::string& name, int64_t value) {
    for (int i = 0; i < pins_.status_count; ++i) {
        const StatusPin& status = pins_.status[i];
        if (name != status.name) continue;
        if (value < 0 || value > status.most)
            throw ModelError("status: " + name + " must be 0.." + std::to_string(status.most) +
                             ", not " + std::to_string(value));
        link_.rules().set(name, value);
        *status.pin = uint8_t(value);
        if (name == "link_reset") set_link(value);
        streak_ = 0;
        return;
    }
    throw ModelError("status has no input named " + name);
}

const RunCounters& Harness::counters() {
    link_.count_wires();
    return link_.counters();
}

}  // namespace striata
