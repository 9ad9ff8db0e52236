// One direction of a PCIe link. It says what a TLP costs on the wire (PCIe base specification 4.2).
#pragma once

#include <algorithm>

#include "common.hpp"

namespace striata {

// Generations 1, 2: STP, 2 bytes sequence number, LCRC, END. From 3 on: 4 bytes STP with the
// sequence number, LCRC.
constexpr int kTlpFraming = 8;
// SDP, 6 bytes, END; or 2 bytes SDP, 6 bytes.
constexpr int kDllpBytes = 8;
constexpr int kHeader3 = 12;
constexpr int kHeader4 = 16;
constexpr int kCreditBytes = 16;

class Serialiser {
public:
    Serialiser(int64_t generation, int64_t lanes, bool skip) {
        constexpr double kGigatransfers[] = {2.5, 5.0, 8.0, 16.0, 32.0};
        const bool old = generation < 3;
        const double bits = old ? 10.0 : 8.0 * 130.0 / 128.0;
        // SKP ordered sets: 4 symbols every 1538, or a block of 16 symbols every 375 blocks.
        const double overhead = !skip ? 1.0 : old ? 1.0 + 4.0 / 1538.0 : 1.0 + 1.0 / 375.0;
        byte_ps_ = bits * 1000.0 / kGigatransfers[generation - 1] / double(lanes) * overhead;
    }

    // Sends `bytes` that were there at `ready`. Returns when the last bit leaves.
    Ps send(int64_t bytes, Ps ready) {
        const double start = std::max(free_at_, double(ready));
        owed_ = std::max(0.0, owed_ - (start - free_at_) / byte_ps_);
        const double time = (owed_ + double(bytes)) * byte_ps_;
        wire_bytes_ += owed_ + double(bytes);
        busy_ps_ += time;
        owed_ = 0;
        free_at_ = start + time;
        return Ps(free_at_);
    }

    // DLLPs that leave with the next TLP, or in the gap before it.
    void owe(double bytes) { owed_ += bytes; }

    Ps free_at() const { return Ps(free_at_); }
    double byte_ps() const { return byte_ps_; }
    int64_t wire_bytes() const { return int64_t(wire_bytes_); }
    Ps busy_ps() const { return Ps(busy_ps_); }

private:
    double byte_ps_;
    double free_at_ = 0;
    double owed_ = 0;
    double wire_bytes_ = 0;
    double busy_ps_ = 0;
};

}  // namespace striata
