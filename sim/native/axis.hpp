// The hard block's AXI streams (PG213, 64 to 256 bits, dword aligned). An RC that straddles is in
// straddle.hpp.
#pragma once

#include "pcie.hpp"
#include "pins.hpp"

namespace striata {

// RQ or CC: turns beats into packets. A beat must stay as it is until it is taken. A packet must
// come without a gap. Every beat but its last must be full (PG213, requester and completer).
class PacketSink {
public:
    // `sequence` are the pins for the sequence number of a request. CC has none.
    PacketSink(const AxiPins& pins, Link& link, int beat_bytes, const SequencePins* sequence)
        : pins_(pins),
          link_(link),
          beat_bytes_(beat_bytes),
          completer_(!sequence),
          sequence_(sequence) {
        *pins_.ready = 0;
        if (sequence_) *sequence_->valid = 0;
    }

    // Sets `ready` for this cycle, and the number of a request that no completion can pass any
    // more. Returns whether something changed or may change again.
    bool drive(Ps now) {
        const bool offered = *pins_.valid;
        const bool room = tlp_ || (completer_ ? link_.reply_room() : link_.request_room());
        const bool ready = room && link_.ready(completer_ ? Flow::kCc : Flow::kRq, offered, now);
        bool changed = *pins_.ready != uint8_t(ready);
        *pins_.ready = ready;
        if (sequence_) {
            Ring<uint8_t>& returned = link_.returned();
            const bool returns = !returned.empty();
            changed |= *sequence_->valid != uint8_t(returns);
            *sequence_->valid = returns;
            if (returns) {
                *sequence_->number = returned.front();
                returned.pop();
            }
        }
        return changed || (offered && !link_.always_ready());
    }
    // Is called before the clock edge. Takes the beat if there is one.
    bool sample() {
        if (!*pins_.valid) {
            if (tlp_ || held_) gap();
            if (!completer_) link_.rules().idle(1);
            return false;
        }
        if (held_) compare();
        else if (!tlp_) begin();
        if (!*pins_.ready) {
            if (!held_) hold();
            ++link_.counters().rq_stall_cycles;
            return false;
        }
        held_ = false;
        take();
        return true;
    }
    // Is called after the clock edge.
    void commit(Ps now);
    // The link is down. Forgets the packet that has come in part.
    void forget();

private:
    static constexpr int kMostBytes = 32;
    struct Beat {
        uint8_t data[kMostBytes];
        uint64_t user;
        uint8_t keep;
        uint8_t last;
    };

    void begin() {
        if (!completer_) offer_ = link_.rules().offer();
    }
    void hold();
    void compare() const;
    [[noreturn]] void gap() const;
    [[noreturn]] void broken(const std::string& what) const;
    uint64_t user() const {
        uint64_t user;
        std::memcpy(&user, pins_.user, sizeof user);
        return user;
    }
    void take();

    AxiPins pins_;
    Link& link_;
    int beat_bytes_;
    bool completer_;
    const SequencePins* sequence_;
    bool held_ = false;  // a beat was offered in the last cycle, and not taken
    Beat beat_{};        // that beat
    Offer offer_{};
    Tlp* tlp_ = nullptr;
    int filled_ = 0;
    int last_dwords_ = 0;
    uint8_t number_ = 0;
    bool complete_ = false;
};

constexpr uint64_t kRcDiscontinue = uint64_t(1) << 42;  // a bit of tuser

// RC or CQ: turns packets into beats.
class BeatSource {
public:
    virtual ~BeatSource() = default;
    // Sets the pins for this cycle. Returns whether something changed.
    virtual bool drive(Ps now) = 0;
    // Is called before the clock edge. Returns whether a beat is taken.
    virtual bool sample() = 0;
    // Is called after the clock edge, if the beat on offer was taken.
    virtual void commit(Ps now) = 0;
    // The link is down. Offers nothing, and forgets the packet that has begun.
    virtual void forget() = 0;
};

// No packet begins in a beat in which another one ends.
class PacketSource final : public BeatSource {
public:
    PacketSource(const AxiPins& pins, Link& link, int beat_bytes, bool completion)
        : pins_(pins), link_(link), beat_bytes_(beat_bytes), completion_(completion) {
        *pins_.valid = 0;
    }

    bool drive(Ps now) override {
        if (offered_) return false;
        if (!tlp_ && !begin(now)) {
            if (!*pins_.valid) return false;
            *pins_.valid = 0;
            return true;
        }
        present();
        return true;
    }
    bool sample() override {
        if (!offered_) return false;
        if (!*pins_.ready) {
            ++link_.counters().rc_stall_cycles;
            return false;
        }
        offered_ = false;
        return true;
    }
    void commit(Ps now) override;
    void forget() override;

private:
    bool begin(Ps now) {
        if (completion_ ? link_.completions().empty() : !link_.has_request()) return false;
        tlp_ = completion_ ? link_.next_completion() : link_.next_request(now);
        sent_ = 0;
        return tlp_;
    }
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
