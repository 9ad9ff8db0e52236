#include "straddle.hpp"

namespace striata {

namespace {

constexpr int kWords = RcBeat::kBytes / 4;
constexpr int kHalf = kWords / 2;
constexpr int kDescriptorWords = kCompletionDescriptor / 4;
constexpr uint32_t kLengthMask = 0x7FF;
constexpr int kStart = 32;        // is_sof_0, is_sof_1
constexpr int kEnd = 34;          // is_eof_0, is_eof_1: a flag, then the last word
constexpr int kEndBits = 4;
constexpr uint64_t kEnableMask = 0xFFFF'FFFF;
constexpr uint64_t kEndMask = (1 << kEndBits) - 1;

[[noreturn]] void broken(const std::string& what) { throw ModelError("RC: " + what); }

}  // namespace

void StraddleRules::check(const RcBeat& beat) {
    if (beat.keep != 0xFF) broken("tkeep is not all ones");
    if (beat.last) broken("tlast is not 0");
    const unsigned sof = beat.user >> kStart & 3;
    const uint64_t eof[] = {beat.user >> kEnd & kEndMask, beat.user >> (kEnd + kEndBits) & kEndMask};
    const bool discontinue = beat.user & kRcDiscontinue;
    if (sof == 2) broken("is_sof_1 without is_sof_0");
    if (!(eof[0] & 1) && eof[1] & 1) broken("is_eof_1 without is_eof_0");
    if (sof == 3 && words_) broken("two completions start behind a third one");
    int starts = int(sof & 1) + int(sof >> 1);
    int place = words_ ? kHalf : 0;  // where the next completion starts
    int ends = 0;
    uint64_t enables = 0;
    shared_ = false;
    for (int word = 0; word < kWords; ++word) {
        if (!words_) {
            if (!starts || word != place) continue;
            if (ends && discontinue) broken("a completion starts in a beat with discontinue");
            --starts;
            place = kHalf;
            shared_ = ends;
        }
        if (words_ >= kDescriptorWords) enables |= uint64_t(0xF) << 4 * word;
        if (words_ == 1) std::memcpy(&counts_, beat.data + 4 * word, sizeof counts_);
        ++words_;
        if (ends < 2 && eof[ends] & 1 && int(eof[ends] >> 1) == word) {
            ++ends;
            const int due = kDescriptorWords + int(counts_ & kLengthMask);
            if (words_ < kDescriptorWords || words_ != due)
                broken("a completion has " + std::to_string(words_) +
                       " words where its descriptor says " + std::to_string(due));
            words_ = 0;
        }
    }
    if (starts) broken("a completion starts within another one");
    if (ends != int(eof[0] & 1) + int(eof[1] & 1)) broken("an end without a completion");
    if (!ends && !words_) broken("a beat without a completion");
    if (!ends && discontinue) broken("discontinue without an end");
    if ((beat.user & kEnableMask) != enables) broken("byte enables are not those of the payload");
}

bool StraddledSource::drive(Ps) {
    if (offered_) return false;
    if (!tlp_ && link_.completions().empty()) {
        if (!*pins_.valid) return false;
        *pins_.valid = 0;
        return true;
    }
    present();
    return true;
}

bool StraddledSource::sample() {
    if (!offered_) return false;
    if (!*pins_.ready) {
        ++link_.counters().rc_stall_cycles;
        return false;
    }
    offered_ = false;
    return true;
}

// Takes the next completion if there is one and it may begin here.
bool StraddledSource::begin(bool behind) {
    if (link_.completions().empty()) return false;
    if (behind) {
        const Tlp* next = link_.completions().front();
        if (next->discontinued && next->bytes <= RcBeat::kBytes / 2) return false;
        const int64_t percent = link_.fields().straddle_percent;
        if (percent < kPercent && int64_t(random_.below(kPercent)) >= percent) return false;
    }
    tlp_ = link_.next_completion();
    sent_ = 0;
    return true;
}

void StraddledSource::present() {
    RcBeat beat;
    // Random bytes lie beside completions, so nobody can rely on them.
    const uint64_t noise = random_.next();
    for (int i = 0; i < RcBeat::kBytes; i += int(sizeof noise))
        std::memcpy(beat.data + i, &noise, sizeof noise);
    beat.keep = 0xFF;
    beat.last = 0;
    beat.user = 0;
    ends_ = 0;
    int starts = 0;
    for (int place = 0; place < RcBeat::kBytes;) {
        if (!tlp_) {
            if (!begin(place)) break;
            beat.user |= uint64_t(1) << (kStart + starts++);
        }
        const int bytes = std::min(tlp_->bytes - sent_, RcBeat::kBytes - place);
        std::memcpy(beat.data + place, tlp_->raw + sent_, size_t(bytes));
        const int first = place + std::clamp(kCompletionDescriptor - sent_, 0, bytes);
        for (int i = first; i < place + bytes; ++i) beat.user |= uint64_t(1) << i;
        sent_ += bytes;
        place += bytes;
        if (sent_ < tlp_->bytes) break;
        beat.user |= (1 | uint64_t(place / 4 - 1) << 1) << (kEnd + kEndBits * ends_);
        ended_[ends_++] = tlp_;
        if (tlp_->discontinued) beat.user |= kRcDiscontinue;
        const bool alone = tlp_->discontinued;
        tlp_ = nullptr;
        if (alone || place > RcBeat::kBytes / 2) break;
        place = RcBeat::kBytes / 2;
    }
    rules_.check(beat);
    link_.counters().rc_shared_beats += rules_.shared();
    std::memcpy(pins_.data, beat.data, sizeof beat.data);
    std::memcpy(pins_.user, &beat.user, sizeof beat.user);
    *pins_.keep = beat.keep;
    *pins_.last = beat.last;
    *pins_.valid = 1;
    offered_ = true;
}

void StraddledSource::commit(Ps now) {
    for (int i = 0; i < ends_; ++i) link_.consumed(ended_[i], now);
    ends_ = 0;
}

void StraddledSource::forget() {
    if (tlp_) link_.release(tlp_);
    for (int i = 0; i < ends_; ++i) link_.release(ended_[i]);
    tlp_ = nullptr;
    ends_ = 0;
    rules_ = {};
    offered_ = false;
    *pins_.valid = 0;
}

}  // namespace striata
