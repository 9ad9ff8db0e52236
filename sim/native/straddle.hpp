// RC with the straddle option (PG213, "Straddle Option on RC Interface", 256 bits). Completions are
// a continuous stream. One may begin in the upper half of the beat in which another one ends.
#pragma once

#include "axis.hpp"

namespace striata {

// A beat of RC. It has the low 64 bits of tuser. Above them is only parity, which nobody uses.
struct RcBeat {
    static constexpr int kBytes = 32;
    uint8_t data[kBytes];
    uint64_t user;
    uint8_t keep;
    uint8_t last;
};

// Checks the rules of a straddled stream: where completions start and end, their byte enables, and
// what `discontinue` forbids.
class StraddleRules {
public:
    void check(const RcBeat& beat);
    // Whether a completion began behind the end of another one in the last beat.
    bool shared() const { return shared_; }

private:
    int words_ = 0;  // words of the completion that has begun and not ended
    uint32_t counts_ = 0;  // its second word
    bool shared_ = false;
};

// Turns completions into straddled beats, at `straddle_percent` of the occasions.
class StraddledSource final : public BeatSource {
public:
    StraddledSource(const AxiPins& pins, Link& link)
        : pins_(pins), link_(link), random_(uint64_t(link.fields().seed)) {
        *pins_.valid = 0;
    }

    bool drive(Ps now) override;
    bool sample() override;
    void commit(Ps now) override;
    void forget() override;

private:
    static constexpr int kMostEnds = 2;

    bool begin(bool behind);
    void present();

    AxiPins pins_;
    Link& link_;
    Random random_;
    StraddleRules rules_;
    Tlp* tlp_ = nullptr;
    int sent_ = 0;
    Tlp* ended_[kMostEnds] = {};  // completions that end in the beat on offer
    int ends_ = 0;
    bool offered_ = false;
};

}  // namespace striata
