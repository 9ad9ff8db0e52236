// A drive port's pins: the link core between a drive and the controller.
#pragma once

#include <cmath>

#include "drive.hpp"
#include "pins.hpp"

namespace striata {

constexpr int kMostBeatBytes = 32;

class Port {
public:
    Port(const DrivePins& pins, Drive& drive, const Shape& shape);

    // Sets the pins for `cycle`. Returns whether one changed. Only needed once `wake` has come.
    bool drive_pins(int64_t cycle);
    // The next cycle in which `drive_pins` has something to do by itself.
    int64_t wake() const { return wake_; }
    void poke() { wake_ = 0; }

    // Is called before the clock edge. Notes what is transferred. Returns whether something is.
    bool sample() {
        const bool waits = *pins_.write_data.valid & uint8_t(write_ready_ ^ 1);
        if (held_ | waits) watch(waits);
        const int moved = (*pins_.command.valid) | (read_valid_ & *pins_.read_data.ready) << 1 |
                          (write_ready_ & *pins_.write_data.valid) << 2 |
                          (grant_valid_ & *pins_.grant.ready) << 3 |
                          (completion_valid_ & *pins_.completion.ready) << 4 |
                          *pins_.abort << 5 | (*pins_.reset != in_reset_) << 6;
        if (!moved) return false;
        capture(moved);
        return true;
    }
    // Is called after the clock edge. Passes on to the drive what was transferred.
    void commit(int64_t cycle);
    // Whether in that cycle a command left, and whether a beat of read data was taken.
    bool gave_command() const;
    bool took_data() const;

    void set_present(bool present, int64_t cycle);
    void restart(int64_t cycle);
    void set_identity(uint64_t identity) {
        if (pins_.identity) *pins_.identity = identity;
    }
    Drive& drive() { return drive_; }

private:
    void watch(bool waits);
    void capture(int moved);
    void begin_again(Ps now);
    bool drive_read(int64_t cycle);
    bool drive_write(int64_t cycle);
    int64_t cycle_of(double time) const { return int64_t(std::ceil(time * cycles_per_ps_)); }

    DrivePins pins_;
    Drive& drive_;
    Shape shape_;
    int beats_;
    double cycles_per_ps_;
    int64_t wake_ = 0;

    uint8_t read_valid_ = 0;
    uint8_t write_ready_ = 0;
    uint8_t grant_valid_ = 0;
    uint8_t completion_valid_ = 0;
    uint8_t in_reset_ = 0;
    uint8_t restarts_ = 0;  // the drive says that it has lost what was not flushed
    int aborted_ = 0;
    int moved_ = 0;
    DriveCommand command_{};

    bool frame_loaded_ = false;
    int read_beat_ = 0;
    double read_start_ = 0;  // cycles
    double read_step_ = 0;

    Ring<int> inbound_;  // tags of grants taken, oldest first
    bool inbound_started_ = false;
    int write_beat_ = 0;
    double write_start_ = 0;  // cycles
    double write_step_ = 0;
    alignas(32) uint8_t block_[kBlockBytes];

    bool held_ = false;  // write data was offered in the last cycle, and not taken
    uint8_t beat_[kMostBeatBytes + 1];
};

}  // namespace striata
