// Runs the verilated controller with its surroundings, one clock cycle at a time. Jumps over cycles
// in which nothing can move.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "assertions.hpp"
#include "axis.hpp"
#include "dut.hpp"
#include "port.hpp"
#include "straddle.hpp"

namespace striata {

class Harness {
public:
    Harness(const LinkFields& link, const std::vector<DriveFields>& drives,
            const std::vector<int64_t>& expander_rates, uint8_t* memory, int64_t memory_bytes,
            uint64_t seed);

    // Runs to the next event, to `until` (picoseconds, 0: no end), or until it has evaluated
    // `cycles` cycles (0: any number). Returns how many events it has written. Once a rule is
    // broken, every further run says so again.
    int64_t run(Ps until, int64_t cycles, Event* events, int64_t most);
    Ps now() const { return cycle_ * shape_.clock_ps; }

    Link& link() {
        streak_ = 0;
        return link_;
    }
    Drive& drive(int64_t port) { return *drives_[index(port)]; }
    // Pulls the drive. It comes back after `time`, or never if that is 0.
    void lose_power(int64_t port, Ps time);
    void set_present(int64_t port, bool present);
    void restart(int64_t port);
    void set_identity(int64_t port, uint64_t identity);
    // What the backup unit says.
    void set_backup(bool fails, uint32_t blocks);
    bool saved() const;
    void set_card(uint64_t identity, uint64_t nonce);
    // The time of the design's clock as it leaves reset, in cycles.
    void set_begin(uint64_t begin) { begin_ = begin; }
    void set_jumping(bool jumping) { jumping_ = jumping; }
    void set_status(const std::string& name, int64_t value);
    bool reset_done() const { return *pins_.reset_done; }
    const RunCounters& counters();

private:
    size_t index(int64_t port) const;
    int64_t run_on(Ps until, int64_t cycles, Event* events, int64_t most);
    void return_drives();
    void reset();
    void set_link(bool down);
    void step();
    bool drive_streams(Ps now);
    bool drive_credits();
    // Checks the assertions of the design after each evaluation.
    static void check_assertions();
    void jump(int64_t until_cycle);
    uint64_t time_mask() const { return (uint64_t(1) << shape_.time_bits) - 1; }
    uint64_t clock_time() const { return (uint64_t(cycle_) + begin_) & time_mask(); }
    int64_t next_cycle() const;
    int64_t cycle_at(Ps time) const {
        return time == kNever ? INT64_MAX : (time + shape_.clock_ps - 1) / shape_.clock_ps;
    }

    Shape shape_;
    Dut dut_;
    Pins pins_{};
    Link link_;
    std::vector<ExpanderLink> expanders_;
    std::vector<std::unique_ptr<Drive>> drives_;
    std::vector<std::unique_ptr<Port>> ports_;
    std::unique_ptr<PacketSink> rq_;
    std::unique_ptr<PacketSink> cc_;
    std::unique_ptr<BeatSource> rc_;
    std::unique_ptr<PacketSource> cq_;
    // The times of the ports lie side by side, so that a cycle reads little memory.
    int64_t wake_[kMaxPorts] = {};
    Ps due_[kMaxPorts] = {};
    int64_t return_[kMaxPorts];  // cycle in which the drive comes back
    int64_t next_return_ = INT64_MAX;
    std::string failure_;
    int64_t unsaid_[2] = {};  // reads taken in the last two cycles
    int64_t cycle_ = 0;
    uint64_t begin_ = 0;
    int streak_ = 0;  // cycles in a row in which nothing moved
    bool jumping_ = true;
};

}  // namespace striata
