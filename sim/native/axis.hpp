// The hard block's AXI streams (PG213, 64 to 256 bits, dword aligned, no straddling).
#pragma once

#include "pcie.hpp"
#include "pins.hpp"

namespace striata {

// RQ or CC: beats become packets.
class PacketSink {
public:
    PacketSink(const AxiPins& pins, Link& link, int beat_bytes, bool completer)
        : pins_(pins), link_(link), beat_bytes_(beat_bytes), completer_(completer) {
        *pins_.ready = 0;
    }

    // Sets `ready` for this cycle; true if it changed.
    bool drive() {
        const bool ready = tlp_ || link_.request_room();
        const bool changed = *pins_.ready != uint8_t(ready);
        *pins_.ready = ready;
        return changed;
    }
    // Before the clock edge: takes the beat if there is one.
    bool sample() {
        if (!*pins_.valid) return false;
        if (!*pins_.ready) {
            ++link_.counters().rq_stall_cycles;
            return false;
        }
        take();
        return true;
    }
    // After the clock edge.
    void commit(Ps now);

private:
    void take();

    AxiPins pins_;
    Link& link_;
    int beat_bytes_;
    bool completer_;
    Tlp* tlp_ = nullptr;
    int filled_ = 0;
    bool complete_ = false;
};

// RC or CQ: packets become beats.
class PacketSource {
public:
    PacketSource(const AxiPins& pins, Link& link, int beat_bytes, bool completion)
        : pins_(pins), link_(link), beat_bytes_(beat_bytes), completion_(completion) {
        *pins_.valid = 0;
    }

    bool drive() {
        if (offered_ || (!tlp_ && queue().empty())) {
            if (offered_ || !*pins_.valid) return false;
            *pins_.valid = 0;
            return true;
        }
        present();
        return true;
    }
    bool sample() {
        if (!offered_) return false;
        if (!*pins_.ready) {
            ++link_.counters().rc_stall_cycles;
            return false;
        }
        offered_ = false;
        return true;
    }
    // After the clock edge: the beat offered was taken.
    void commit(Ps now);
    bool offered() const { return offered_; }
    bool waiting() { return tlp_ || !queue().empty(); }

private:
    Ring<Tlp*>& queue() { return completion_ ? link_.completions() : link_.requests(); }
    void present();

    AxiPins pins_;
    Link& link_;
    int beat_bytes_;
    bool completion_;
    Tlp* tlp_ = nullptr;
    int sent_ = 0;
    bool offered_ = false;
};

}  // namespace striata
