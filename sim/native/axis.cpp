#include "axis.hpp"

namespace striata {

namespace {

constexpr uint32_t kLengthMask = 0x7FF;
constexpr int kTypeShift = 11;
constexpr uint32_t kTypeMask = 0xF;
constexpr uint32_t kTypeRead = 0;
constexpr uint32_t kTypeWrite = 1;

// tuser, low 64 bits and what is above.
struct User {
    uint64_t low;
    uint32_t high;
};

uint64_t ones(int count) {
    constexpr int kWord = 64;
    return count >= kWord ? ~uint64_t(0) : (uint64_t(1) << count) - 1;
}

// Byte enables of a beat: bytes from `first` (descriptor before it) up to `end`.
uint64_t byte_enables(int first, int end) { return ones(end) & ~ones(first); }

}  // namespace

void PacketSink::take() {
    if (!tlp_) {
        tlp_ = link_.allocate();
        filled_ = 0;
        if (!completer_) {
            tlp_->first_enable = pins_.user[0] & 0xF;  // tuser[3:0], tuser[7:4]
            tlp_->last_enable = pins_.user[0] >> 4;
            // tuser[27:24], tuser[61:60]
            number_ = uint8_t((pins_.user[3] & 0xF) | (pins_.user[7] >> 4 & 3) << 4);
        }
    }
    if (filled_ + beat_bytes_ > int(sizeof tlp_->raw))
        throw ModelError("RQ or CC: a packet is longer than 4 KiB");
    std::memcpy(tlp_->raw + filled_, pins_.data, size_t(beat_bytes_));
    filled_ += beat_bytes_;
    complete_ = *pins_.last;
}

void PacketSink::commit(Ps now) {
    if (!complete_) return;
    complete_ = false;
    Tlp* tlp = tlp_;
    tlp_ = nullptr;
    const int descriptor = completer_ ? kCompletionDescriptor : kRequestDescriptor;
    const int length = int(word(tlp, completer_ ? 1 : 2) & kLengthMask) * 4;
    if (completer_) {
        tlp->kind = TlpKind::kCompletion;
        tlp->payload = length;
        tlp->address = 0;
    } else {
        const uint32_t type = word(tlp, 2) >> kTypeShift & kTypeMask;
        if (type != kTypeRead && type != kTypeWrite)
            throw ModelError("RQ: request type " + std::to_string(type) + " is not supported");
        tlp->kind = type == kTypeWrite ? TlpKind::kWrite : TlpKind::kRead;
        tlp->payload = type == kTypeWrite ? length : 0;
        tlp->tag = uint8_t(word(tlp, 3));
        tlp->address = (uint64_t(word(tlp, 1)) << 32 | word(tlp, 0)) & ~uint64_t(3);
    }
    tlp->bytes = descriptor + tlp->payload;
    if (filled_ != (tlp->bytes + beat_bytes_ - 1) / beat_bytes_ * beat_bytes_)
        throw ModelError("RQ or CC: a packet has " + std::to_string(filled_ / beat_bytes_) +
                         " beats for " + std::to_string(tlp->bytes) + " bytes");
    returns_ = !completer_;
    link_.submit(tlp, now);
}

void PacketSource::present() {
    if (!tlp_) {
        tlp_ = queue().front();
        queue().pop();
        sent_ = 0;
    }
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
