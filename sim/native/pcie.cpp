#include "pcie.hpp"

namespace striata {

namespace {

constexpr uint32_t kMemoryRead = 0;  // PG213 request types
constexpr uint32_t kMemoryWrite = 1;
constexpr uint32_t kUnsupportedRequest = 1;
constexpr uint64_t kFourGigabytes = uint64_t(1) << 32;
constexpr uint64_t kPage = 4096;
constexpr int kReadsBound = 4096;
constexpr uint64_t kDoorbells = 0x1000;   // offsets in BAR 0; of each pair the SQ comes first
constexpr uint64_t kDoorbellsEnd = 0x2000;
constexpr uint64_t kCqDoorbell = 4;
constexpr int kCompletionEntry = 16;      // NVMe: bytes; a larger write is data

int data_credits(int payload) { return (payload + kCreditBytes - 1) / kCreditBytes; }

int header_bytes(const Tlp* tlp) {
    return tlp->kind == TlpKind::kCompletion || tlp->address < kFourGigabytes ? kHeader3
                                                                              : kHeader4;
}

}  // namespace

Link::Link(const LinkFields& fields, uint8_t* memory, int64_t memory_bytes)
    : fields_(fields),
      windows_{{uint64_t(fields.memory_base), uint64_t(memory_bytes), memory}},
      up_(fields.generation, fields.lanes, fields.skip),
      down_(fields.generation, fields.lanes, fields.skip),
      random_(uint64_t(fields.seed)),
      dllp_per_tlp_((fields.ack_every ? double(kDllpBytes) / double(fields.ack_every) : 0.0) +
                    (fields.update_every ? double(kDllpBytes) / double(fields.update_every) : 0)),
      completion_bytes_(fields.completion_bytes ? fields.completion_bytes : fields.max_payload),
      posted_headers_(fields.posted_headers),
      posted_data_(fields.posted_data),
      non_posted_headers_(fields.non_posted_headers),
      device_posted_(fields.device_posted_headers),
      device_non_posted_(fields.device_non_posted_headers),
      ordered_(!fields.shuffle && !fields.read_jitter_ps) {
    reads_.reserve(kTags);
}

Tlp* Link::allocate() {
    if (free_.empty()) {
        pool_.push_back(std::make_unique<Tlp>());
        return pool_.back().get();
    }
    Tlp* tlp = free_.back();
    free_.pop_back();
    return tlp;
}

// Where a request to host memory goes; null if there is no memory.
uint8_t* Link::host(uint64_t address, int64_t bytes) const {
    for (const Window& window : windows_) {
        const uint64_t offset = address - window.address;
        if (offset < window.bytes && offset + uint64_t(bytes) <= window.bytes)
            return window.data + offset;
    }
    return nullptr;
}

void Link::map_memory(uint64_t address, int64_t bytes, uint8_t* data) {
    windows_.push_back({address, uint64_t(bytes), data});
}

void Link::check_request(const Tlp* tlp) const {
    const int64_t bytes = int64_t(word(tlp, 2) & 0x7FF) * 4;
    if (!bytes || tlp->address % kPage + uint64_t(bytes) > kPage)
        throw ModelError("RQ: a request is empty or crosses 4 KiB");
    if (tlp->kind == TlpKind::kWrite && bytes > fields_.max_payload)
        throw ModelError("RQ: a write exceeds Max_Payload_Size");
    if (tlp->kind == TlpKind::kRead && bytes > fields_.max_read_request)
        throw ModelError("RQ: a read exceeds Max_Read_Request_Size");
    if (tlp->kind == TlpKind::kRead && outstanding_[tlp->tag])
        throw ModelError("RQ: tag " + std::to_string(tlp->tag) + " is reused while outstanding");
    if (!tlp->first_enable || (bytes > 4) != (tlp->last_enable != 0))
        throw ModelError("RQ: byte enables do not fit the length");
}

void Link::submit(Tlp* tlp, Ps now) {
    if (tlp->kind != TlpKind::kCompletion) check_request(tlp);
    tlp->time = now;
    if (tlp->kind == TlpKind::kRead) phases_.mark(Moment::kFetch, now);
    if (tlp->kind == TlpKind::kWrite && tlp->payload > kCompletionEntry)
        phases_.mark(Moment::kSent, now);
    if (tlp->kind == TlpKind::kWrite &&
        tlp->address - uint64_t(fields_.msi_base) < uint64_t(kMsiWindow))
        phases_.mark(Moment::kInterrupt, now);
    ++up_count_;
    if (tlp->kind == TlpKind::kRead) {
        outstanding_[tlp->tag] = true;
        tlp->order = posted_submitted_;
        up_non_posted_.push(tlp);
    } else {
        ++posted_submitted_;
        up_posted_.push(tlp);
    }
    next_event_ = std::min(next_event_, std::max(now, up_.free_at()));
}

Ps Link::wire_send(Serialiser& wire, const Tlp* tlp, Ps ready) {
    const Ps end = wire.send(kTlpFraming + header_bytes(tlp) + tlp->payload, ready);
    Serialiser& other = &wire == &up_ ? down_ : up_;
    other.owe(dllp_per_tlp_);
    return end;
}

// Sends at most one packet upstream; true if it did.
bool Link::start_up(Ps now) {
    if (up_.free_at() > now) return false;
    Tlp* tlp = nullptr;
    if (!up_non_posted_.empty() && up_non_posted_.front()->order <= posted_sent_ &&
        non_posted_headers_ > 0) {
        tlp = up_non_posted_.front();
        up_non_posted_.pop();
        --non_posted_headers_;
    } else if (!up_posted_.empty()) {
        tlp = up_posted_.front();
        if (tlp->kind == TlpKind::kWrite) {
            const int units = data_credits(tlp->payload);
            if (posted_headers_ < 1 || posted_data_ < units) {
                up_blocked_ = true;
                return false;
            }
            --posted_headers_;
            posted_data_ -= units;
        }
        up_posted_.pop();
        ++posted_sent_;
    } else {
        up_blocked_ = !up_non_posted_.empty();
        return false;
    }
    const Ps ready = up_blocked_ ? std::max(tlp->time, up_credit_time_) : tlp->time;
    up_blocked_ = false;
    --up_count_;
    tlp->time = wire_send(up_, tlp, ready) + fields_.propagation_ps;
    ++counters_.up_tlps;
    counters_.up_payload_bytes += tlp->payload;
    up_flight_.push(tlp);
    return true;
}

void Link::land_write(const Tlp* tlp) {
    const uint8_t* data = tlp->raw + kRequestDescriptor;
    const uint64_t window = tlp->address - uint64_t(fields_.msi_base);
    if (window < uint64_t(kMsiWindow)) {
        uint32_t vector;
        std::memcpy(&vector, data, 4);
        ++counters_.interrupts;
        events_.push({int64_t(EventKind::kInterrupt), int64_t(window << 32 | vector), tlp->time});
        return;
    }
    uint8_t* target = host(tlp->address, tlp->payload);
    if (!target) {
        ++counters_.stray_writes;
        return;
    }
    ++counters_.memory_writes;
    if (tlp->first_enable == 0xF && (tlp->last_enable == 0xF || tlp->payload == 4)) {
        std::memcpy(target, data, size_t(tlp->payload));
        return;
    }
    for (int i = 0; i < tlp->payload; ++i) {
        const bool last = i >= tlp->payload - 4 && tlp->payload > 4;
        const int enable = i < 4 ? tlp->first_enable : last ? tlp->last_enable : 0xF;
        if (enable >> (i & 3) & 1) target[i] = data[i];
    }
}

void Link::answer_mmio(const Tlp* tlp) {
    constexpr uint32_t kStatusMask = 7;
    uint64_t value = ~uint64_t(0);
    if ((word(tlp, 1) >> 11 & kStatusMask) == 0) {
        value = 0;
        std::memcpy(&value, tlp->raw + kCompletionDescriptor, size_t(std::min(8, tlp->payload)));
    }
    events_.push({int64_t(EventKind::kMmio), int64_t(value), tlp->time});
}

void Link::arrive_at_host(Tlp* tlp) {
    const Ps credit_time = tlp->time + fields_.credit_return_ps;
    if (tlp->kind == TlpKind::kWrite) {
        land_write(tlp);
        up_credits_.push({credit_time, 1, data_credits(tlp->payload), 0});
    } else if (tlp->kind == TlpKind::kCompletion) {
        answer_mmio(tlp);
    } else {
        const int64_t bytes = int64_t(word(tlp, 2) & 0x7FF) * 4;
        const Ps jitter =
            fields_.read_jitter_ps ? Ps(random_.below(uint64_t(fields_.read_jitter_ps))) : 0;
        const bool known = host(tlp->address, bytes);
        ++(known ? counters_.memory_reads : counters_.stray_reads);
        reads_.push_back({tlp->address, bytes, tlp->time + fields_.memory_read_ps + jitter,
                          tlp->tag, known});
        counters_.reads_outstanding_most =
            std::max(counters_.reads_outstanding_most, int64_t(reads_.size()));
        if (reads_.size() > kReadsBound) throw ModelError("host: too many reads");
        up_credits_.push({credit_time, 0, 0, 1});
    }
    release(tlp);
}

Ps Link::first_ready() const {
    if (ordered_) return reads_.front().ready;
    Ps first = kNever;
    for (const Read& read : reads_) first = std::min(first, read.ready);
    return first;
}

// Which of the reads that are ready at `start` is answered next.
size_t Link::pick_read(Ps start) {
    if (ordered_) return 0;
    if (!fields_.shuffle) {
        size_t best = 0;
        for (size_t i = 1; i < reads_.size(); ++i)
            if (reads_[i].ready < reads_[best].ready) best = i;
        return best;
    }
    size_t count = 0;
    for (const Read& read : reads_) count += read.ready <= start;
    size_t chosen = random_.below(count);
    for (size_t i = 0;; ++i)
        if (reads_[i].ready <= start && chosen-- == 0) return i;
}

void Link::start_completion(size_t index, Ps start) {
    Read& read = reads_[index];
    // The memory may have been unmapped since the read arrived.
    const uint8_t* source = host(read.address, read.left);
    read.reachable &= source != nullptr;
    const int64_t room = completion_bytes_ - int64_t(read.address % uint64_t(completion_bytes_));
    const int64_t bytes = read.reachable ? std::min(read.left, room) : 0;
    const bool last = bytes == read.left || !read.reachable;
    Tlp* tlp = allocate();
    tlp->kind = TlpKind::kCompletion;
    tlp->tag = read.tag;
    tlp->payload = int(bytes);
    tlp->bytes = kCompletionDescriptor + int(bytes);
    tlp->address = 0;
    const uint32_t status = read.reachable ? 0 : kUnsupportedRequest;
    // Error code 2: the completion carries a status other than success.
    set_word(tlp, 0, uint32_t(read.address & 0xFFF) | (read.reachable ? 0u : 2u << 12) |
                         uint32_t(read.left & 0x1FFF) << 16 | uint32_t(last) << 30);
    set_word(tlp, 1, uint32_t(bytes / 4) | status << 11);
    set_word(tlp, 2, read.tag);
    if (bytes)
        std::memcpy(tlp->raw + kCompletionDescriptor, source, size_t(bytes));
    tlp->time = wire_send(down_, tlp, start) + fields_.propagation_ps;
    ++counters_.down_tlps;
    counters_.down_payload_bytes += bytes;
    down_flight_.push(tlp);
    read.address += uint64_t(bytes);
    read.left -= bytes;
    // The tag is free for the device once it has seen the last completion, not before.
    if (last) reads_.erase(reads_.begin() + int64_t(index));
}

// Sends at most one packet downstream; true if it did.
bool Link::start_down(Ps now) {
    if (down_.free_at() > now) return false;
    if (!down_queue_.empty()) {
        Tlp* tlp = down_queue_.front();
        int64_t& credit = tlp->kind == TlpKind::kWrite ? device_posted_ : device_non_posted_;
        if (tlp->time <= now && credit > 0) {
            --credit;
            down_queue_.pop();
            const Ps ready = down_blocked_ ? std::max(tlp->time, down_credit_time_) : tlp->time;
            down_blocked_ = false;
            tlp->time = wire_send(down_, tlp, ready) + fields_.propagation_ps;
            ++counters_.down_tlps;
            down_flight_.push(tlp);
            return true;
        }
        down_blocked_ = credit <= 0;
    }
    if (reads_.empty()) return false;
    const Ps ready = first_ready();
    if (ready > now) return false;
    const Ps start = std::max(ready, down_.free_at());
    start_completion(pick_read(start), start);
    return true;
}

void Link::arrive_at_device(Tlp* tlp) {
    if (tlp->kind != TlpKind::kCompletion) {
        requests_.push(tlp);
        return;
    }
    ++completion_headers_;
    completion_data_ += tlp->payload;
    counters_.most_completion_headers =
        std::max(counters_.most_completion_headers, completion_headers_);
    counters_.most_completion_bytes = std::max(counters_.most_completion_bytes, completion_data_);
    if (completion_headers_ > fields_.completion_headers ||
        completion_data_ > fields_.completion_data)
        throw ModelError("RC: the hard block's completion buffer overflows: " +
                         std::to_string(completion_headers_) + " headers, " +
                         std::to_string(completion_data_) + " bytes");
    if (word(tlp, 0) >> 30 & 1) outstanding_[tlp->tag] = false;
    completions_.push(tlp);
}

void Link::consumed(Tlp* tlp, Ps now) {
    if (tlp->kind == TlpKind::kCompletion) {
        --completion_headers_;
        completion_data_ -= tlp->payload;
        phases_.mark(Moment::kEntry, now);
    } else {
        const uint64_t offset = tlp->address - uint64_t(fields_.bar_base);
        if (offset >= kDoorbells && offset < kDoorbellsEnd && !(offset & kCqDoorbell))
            phases_.mark(Moment::kDoorbell, now);
        const bool posted = tlp->kind == TlpKind::kWrite;
        const Ps time = now + fields_.credit_return_ps;
        down_credits_.push({time, posted, 0, !posted});
        next_event_ = std::min(next_event_, time);
    }
    release(tlp);
}

Tlp* Link::mmio_request(TlpKind kind, uint64_t offset, int bytes, Ps now) {
    const bool write = kind == TlpKind::kWrite;
    Tlp* tlp = allocate();
    tlp->kind = kind;
    tlp->tag = write ? 0 : mmio_tag_++;
    const int length = bytes < 4 ? 4 : bytes;
    tlp->first_enable = uint8_t((bytes < 4 ? (1 << bytes) - 1 : 0xF) << (offset & 3));
    tlp->last_enable = bytes > 4 ? 0xF : 0;
    tlp->payload = write ? length : 0;
    tlp->bytes = kRequestDescriptor + tlp->payload;
    tlp->address = uint64_t(fields_.bar_base) + (offset & ~uint64_t(3));
    tlp->time = now;
    set_word(tlp, 0, uint32_t(tlp->address));
    set_word(tlp, 1, uint32_t(tlp->address >> 32));
    set_word(tlp, 2, uint32_t(length / 4) | (write ? kMemoryWrite : kMemoryRead) << 11);
    set_word(tlp, 3, tlp->tag | uint32_t(kBarApertureBits) << 19);
    down_queue_.push(tlp);
    next_event_ = std::min(next_event_, std::max(now, down_.free_at()));
    return tlp;
}

void Link::mmio_write(uint64_t offset, uint64_t value, int bytes, Ps now) {
    Tlp* tlp = mmio_request(TlpKind::kWrite, offset, bytes, now);
    value <<= 8 * (offset & 3);
    std::memcpy(tlp->raw + kRequestDescriptor, &value, size_t(tlp->payload));
    ++counters_.mmio_writes;
}

void Link::mmio_read(uint64_t offset, int bytes, Ps now) {
    mmio_request(TlpKind::kRead, offset, bytes, now);
    ++counters_.mmio_reads;
}

void Link::advance(Ps now) {
    for (bool moved = true; moved;) {
        moved = false;
        while (!up_credits_.empty() && up_credits_.front().time <= now) {
            const Credit& credit = up_credits_.front();
            posted_headers_ += credit.posted;
            posted_data_ += credit.data;
            non_posted_headers_ += credit.non_posted;
            up_credit_time_ = credit.time;
            up_credits_.pop();
        }
        while (!down_credits_.empty() && down_credits_.front().time <= now) {
            device_posted_ += down_credits_.front().posted;
            device_non_posted_ += down_credits_.front().non_posted;
            down_credit_time_ = down_credits_.front().time;
            down_credits_.pop();
        }
        while (!up_flight_.empty() && up_flight_.front()->time <= now) {
            arrive_at_host(up_flight_.front());
            up_flight_.pop();
            moved = true;
        }
        while (!down_flight_.empty() && down_flight_.front()->time <= now) {
            arrive_at_device(down_flight_.front());
            down_flight_.pop();
        }
        moved |= start_up(now);
        moved |= start_down(now);
    }
    update_next(now);
}

void Link::update_next(Ps now) {
    Ps next = kNever;
    if (!up_credits_.empty()) next = std::min(next, up_credits_.front().time);
    if (!down_credits_.empty()) next = std::min(next, down_credits_.front().time);
    if (!up_flight_.empty()) next = std::min(next, up_flight_.front()->time);
    if (!down_flight_.empty()) next = std::min(next, down_flight_.front()->time);
    // A packet that waits for credits is tried again when they return: no event of its own.
    if ((!up_posted_.empty() || !up_non_posted_.empty()) && up_.free_at() > now)
        next = std::min(next, up_.free_at());
    if (!down_queue_.empty() && down_.free_at() > now) next = std::min(next, down_.free_at());
    if (!reads_.empty()) {
        const Ps ready = std::max(first_ready(), down_.free_at());
        if (ready > now) next = std::min(next, ready);
    }
    next_event_ = next;
}

void Link::count_wires() {
    counters_.up_wire_bytes = up_.wire_bytes();
    counters_.up_busy_ps = up_.busy_ps();
    counters_.down_wire_bytes = down_.wire_bytes();
    counters_.down_busy_ps = down_.busy_ps();
}

}  // namespace striata
