#include "axis.hpp"

namespace striata {

namespace {

constexpr uint32_t kLengthMask = 0x7FF;
constexpr int kTypeShift = 11;
constexpr uint32_t kTypeMask = 0xF;
constexpr uint32_t kTypeRead = 0;

// tuser, low 64 bits and what is above.
struct User {
    uint64_t low;
    uint32_t high;
};

uint64_t ones(int count) {
    constexpr int kWord = 64;
    return count >= kWord ? ~uint64_t(0) : (uint64_t(1) << count) - 1;
}

// Byte enables of a beat for the bytes from `first` up to `end`. The descriptor is before `first`.
uint64_t byte_enables(int first, int end) { return ones(end) & ~ones(first); }

}  // namespace

void PacketSink::broken(const std::string& what) const {
    throw ModelError((completer_ ? "CC: " : "RQ: ") + what);
}

void PacketSink::gap() const {
    broken(held_ ? "tvalid falls before tready" : "tvalid falls inside a packet");
}

void PacketSink::hold() {
    held_ = true;
    std::memcpy(beat_.data, pins_.data, size_t(beat_bytes_));
    beat_.user = user();
    beat_.keep = *pins_.keep;
    beat_.last = *pins_.last;
}

void PacketSink::compare() const {
    if (std::memcmp(beat_.data, pins_.data, size_t(beat_bytes_)) || beat_.user != user() ||
        beat_.keep != *pins_.keep || beat_.last != *pins_.last)
        broken("a beat changes before tready");
}

void PacketSink::take() {
    constexpr uint64_t kOffset = 7 << 8;  // RQ tuser[10:8]; dword aligned, so 0
    const uint64_t discontinue = completer_ ? 1 : 1 << 11;
    const uint64_t user = this->user();
    if (user & discontinue) broken("a packet is discontinued");
    if (!tlp_) {
        tlp_ = link_.allocate();
        filled_ = 0;
        if (!completer_) {
            if (user & kOffset) broken("addr_offset is not 0");
            tlp_->first_enable = user & 0xF;  // tuser[3:0], tuser[7:4]
            tlp_->last_enable = user >> 4 & 0xF;
            // tuser[27:24], tuser[61:60]
            number_ = uint8_t((pins_.user[3] & 0xF) | (pins_.user[7] >> 4 & 3) << 4);
            tlp_->offer = offer_;
        }
    }
    if (filled_ + beat_bytes_ > int(sizeof tlp_->raw)) broken("a packet is longer than 4 KiB");
    std::memcpy(tlp_->raw + filled_, pins_.data, size_t(beat_bytes_));
    filled_ += beat_bytes_;
    complete_ = *pins_.last;
    const auto keep = unsigned(*pins_.keep);
    last_dwords_ = __builtin_popcount(keep);
    if (!keep || keep & (keep + 1)) broken("tkeep is not a row of ones from bit 0");
    if (!complete_ && last_dwords_ != beat_bytes_ / 4)
        broken("tkeep is not full before the end of a packet");
}

void PacketSink::commit(Ps now) {
    if (!complete_) return;
    complete_ = false;
    Tlp* tlp = tlp_;
    tlp_ = nullptr;
    const int descriptor = completer_ ? kCompletionDescriptor : kRequestDescriptor;
    if (filled_ < descriptor) broken("a packet ends within its descriptor");
    const int length = int(word(tlp, completer_ ? 1 : 2) & kLengthMask) * 4;
    if (completer_) {
        tlp->kind = TlpKind::kCompletion;
        tlp->payload = length;
        tlp->address = 0;
    } else {
        const uint32_t type = word(tlp, 2) >> kTypeShift & kTypeMask;
        tlp->kind = type == kTypeRead ? TlpKind::kRead : TlpKind::kWrite;
        tlp->payload = type == kTypeRead ? 0 : length;
        tlp->tag = uint8_t(word(tlp, 3));
        tlp->address = (uint64_t(word(tlp, 1)) << 32 | word(tlp, 0)) & ~uint64_t(3);
    }
    tlp->bytes = descriptor + tlp->payload;
    const int sent = filled_ - beat_bytes_ + 4 * last_dwords_;
    if (sent != tlp->bytes)
        broken("a packet has " + std::to_string(sent) + " bytes where its descriptor says " +
               std::to_string(tlp->bytes));
    tlp->number = number_;
    if (tlp->kind == TlpKind::kRead && link_.read_credits() < 1)
        broken("a read is offered without a credit");
    link_.submit(tlp, now);
}

void PacketSink::forget() {
    if (tlp_) link_.release(tlp_);
    tlp_ = nullptr;
    held_ = complete_ = false;
    *pins_.ready = 0;
    if (sequence_) *sequence_->valid = 0;
}

void PacketSource::forget() {
    if (tlp_) link_.release(tlp_);
    tlp_ = nullptr;
    offered_ = false;
    *pins_.valid = 0;
}

void PacketSource::present() {
    const int left = tlp_->bytes - sent_;
    const int bytes = std::min(left, beat_bytes_);
    const bool first = sent_ == 0;
    const bool last = left <= beat_bytes_;
    const int descriptor = completion_ ? kCompletionDescriptor : kRequestDescriptor;
    const uint64_t enables = byte_enables(std::clamp(descriptor - sent_, 0, bytes), bytes);
    std::memcpy(pins_.data, tlp_->raw + sent_, size_t(beat_bytes_));
    const uint64_t keep = ones(bytes / 4);
    std::memcpy(pins_.keep, &keep, size_t((beat_bytes_ / 4 + 7) / 8));
    *pins_.last = last;
    *pins_.valid = 1;
    User user{};
    if (completion_) {
        // byte_en 31:0, is_sof_0 32, is_eof_0 37:34 (flag, then the last dword)
        user.low = enables | uint64_t(first) << 32;
        if (last) user.low |= uint64_t(1 | (bytes / 4 - 1) << 1) << 34;
        if (last && tlp_->discontinued) user.low |= kRcDiscontinue;
    } else {
        // first_be 3:0, last_be 7:4, byte_en 39:8, sop 40
        user.low = enables << 8 | uint64_t(first) << 40;
        if (first) user.low |= uint64_t(tlp_->first_enable) | uint64_t(tlp_->last_enable) << 4;
    }
    std::memcpy(pins_.user, &user, sizeof user.low + sizeof user.high);
    offered_ = true;
}

void PacketSource::commit(Ps now) {
    sent_ += beat_bytes_;
    if (sent_ < tlp_->bytes) return;
    link_.consumed(tlp_, now);
    tlp_ = nullptr;
}

}  // namespace striata
