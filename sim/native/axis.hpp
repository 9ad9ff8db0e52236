// The hard block's AXI streams (PG213, 64 to 256 bits, dword aligned, no straddling).
#pragma once

#include "pcie.hpp"
#include "pins.hpp"

namespace striata {

// RQ or CC: beats become packets.
class PacketSink {
public:
    // `sequence`: where the sequence number of a request comes back; none for completions.
    PacketSink(const AxiPins& pins, Link& link, int beat_bytes, const SequencePins* sequence)
        : pins_(pins),
          link_(link),
          beat_bytes_(beat_bytes),
          completer_(!sequence),
          sequence_(sequence) {
        *pins_.ready = 0;
        if (sequence_) *sequence_->valid = 0;
    }

    // Sets `ready` for this cycle, and the number of the request that was complete before it, which
    // the link keeps in order with completions; true if something changed.
    bool drive() {
        const bool ready = tlp_ || link_.request_room();
        bool changed = *pins_.ready != uint8_t(ready);
        *pins_.ready = ready;
        if (sequence_) {
            changed |= *sequence_->valid != uint8_t(returns_);
            *sequence_->valid = returns_;
            *sequence_->number = number_;
            returns_ = false;
        }
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
    const SequencePins* sequence_;
    Tlp* tlp_ = nullptr;
    int filled_ = 0;
    uint8_t number_ = 0;
    bool returns_ = false;
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
