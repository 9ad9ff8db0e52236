#include "pcie.hpp"

namespace striata {

namespace {

constexpr uint32_t kMemoryRead = 0;  // PG213 request types
constexpr uint32_t kMemoryWrite = 1;
constexpr uint32_t kUnsupportedRequest = 1;  // completion status
constexpr uint32_t kCompleterAbort = 4;
constexpr uint32_t kPoisonedCode = 1;  // PG213: RC error codes
constexpr uint32_t kBadStatusCode = 2;
constexpr uint32_t kTimeoutCode = 9;
constexpr Ps kCompletionTimeout = 10 * kSecond / 1000;  // default of PCIe 2.8
constexpr Ps kLateTimeout = 45 * kSecond / 1000;        // the range ends at 50 ms
constexpr uint32_t kRequester = 0x0100;  // bus 1, device 0, function 0: whose register accesses
constexpr uint64_t kFourGigabytes = uint64_t(1) << 32;
constexpr uint64_t kPage = 4096;
constexpr int kReadsBound = 4096;
constexpr uint64_t kBarBytes = uint64_t(1) << kBarApertureBits;
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
      rules_(fields),
      holds_(fields.hold_every, fields.hold_ps),
      dllp_per_tlp_((fields.ack_every ? double(kDllpBytes) / double(fields.ack_every) : 0.0) +
                    (fields.update_every ? double(kDllpBytes) / double(fields.update_every) : 0)),
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

// Where a request to host memory goes. It is null if no memory is there.
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

void Link::check_request(const Tlp* tlp) {
    uint32_t words[kRequestDescriptor / 4];
    std::memcpy(words, tlp->raw, sizeof words);
    rules_.check(tlp->offer, words, tlp->first_enable, tlp->last_enable);
    if (tlp->kind == TlpKind::kRead) {
        if (outstanding_[tlp->tag])
            throw ModelError("RQ: tag " + std::to_string(tlp->tag) +
                             " is reused while outstanding");
    } else if (tlp->address - uint64_t(fields_.msi_base) < uint64_t(kMsiWindow)) {
        rules_.check_message(tlp->offer, tlp->address, word(tlp, kRequestDescriptor / 4),
                             tlp->payload, tlp->first_enable);
    }
}

// PCIe base specification 2.2.9; PG213, completer completion descriptor.
void Link::check_completion(const Tlp* tlp) {
    const int tag = int(word(tlp, 2) & 0xFF);
    const std::string name = "CC: the completion of register read " + std::to_string(tag) + " ";
    const auto check = [&](const char* field, int64_t value, int64_t expected) {
        if (value != expected)
            throw ModelError(name + "has " + field + " " + std::to_string(value) + ", not " +
                             std::to_string(expected));
    };
    Asked& asked = asked_[tag];
    if (!asked.active) throw ModelError(name + "answers no request, or for the second time");
    check("status", word(tlp, 1) >> 11 & 7, 0);
    check("length", word(tlp, 1) & 0x7FF, asked.dwords);
    check("byte count", word(tlp, 0) >> 16 & 0x1FFF, asked.bytes);
    check("lower address", word(tlp, 0) & 0x7F, asked.lower & 0x7F);
    check("address type", word(tlp, 0) >> 8 & 3, 0);
    check("poisoned", word(tlp, 1) >> 14 & 1, 0);
    check("locked", word(tlp, 0) >> 29 & 1, 0);
    check("requester", word(tlp, 1) >> 16, kRequester);
    check("traffic class", word(tlp, 2) >> 25 & 7, 0);
    check("attributes", word(tlp, 2) >> 28 & 3, 0);  // the third bit is the completer's own
    asked.active = false;
}

void Link::hold(Flow flow, Ps time, Ps now) {
    holds_.hold(flow, now + time);
    next_event_ = std::min(next_event_, now + time);
}

void Link::drop(Ring<Tlp*>& queue) {
    for (; !queue.empty(); queue.pop()) release(queue.front());
}

void Link::set_down(bool down, Ps now) {
    is_down_ = down;
    if (!down) return;
    for (Ring<Tlp*>* queue : {&up_posted_, &up_non_posted_, &up_replies_, &up_flight_,
                              &down_posted_, &down_non_posted_, &down_flight_, &completions_,
                              &posted_requests_, &non_posted_requests_})
        drop(*queue);
    returned_.clear();
    up_credits_.clear();
    down_credits_.clear();
    up_count_ = 0;
    posted_headers_ = fields_.posted_headers;
    posted_data_ = fields_.posted_data;
    non_posted_headers_ = fields_.non_posted_headers;
    device_posted_ = fields_.device_posted_headers;
    device_non_posted_ = fields_.device_non_posted_headers;
    posted_submitted_ = posted_sent_ = down_submitted_ = down_sent_ = served_ = 0;
    up_blocked_ = down_blocked_ = false;
    completion_headers_ = completion_data_ = 0;
    np_credit_ = now;
    reads_.clear();
    std::fill(std::begin(outstanding_), std::end(outstanding_), false);
    for (int tag = 0; tag < kTags; ++tag)
        if (asked_[tag].active) no_answer(tag, now);
    rules_.forget();
    update_next(now);
}

// Ends a register read without a completion.
void Link::no_answer(int tag, Ps now) {
    asked_[tag].active = false;
    events_.push({int64_t(EventKind::kMmio), -1, now, tag});
}

void Link::fail_reads(const ReadFault& fault) {
    if (fault.end <= ReadEnd::kGood || fault.end >= ReadEnd::kCount)
        throw ModelError("a read cannot fail in this way");
    if (fault.reads < 1) throw ModelError("at least one read must fail");
    ordered_ = false;  // other reads pass a read that gets no answer
    faults_.push_back(fault);
}

// How the read that arrives will end.
ReadEnd Link::end_of(uint64_t address, int64_t bytes, bool* late) {
    for (size_t i = 0; i < faults_.size(); ++i) {
        ReadFault& fault = faults_[i];
        const bool meant = !fault.bytes || (address < fault.address + fault.bytes &&
                                            fault.address < address + uint64_t(bytes));
        if (!meant) continue;
        const ReadEnd end = fault.end;
        *late = fault.late;
        if (!--fault.reads) faults_.erase(faults_.begin() + int64_t(i));
        ++counters_.reads_failed;
        return end;
    }
    return ReadEnd::kGood;
}

void Link::submit(Tlp* tlp, Ps now) {
    if (tlp->kind == TlpKind::kCompletion)
        check_completion(tlp);
    else
        check_request(tlp);
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
    } else if (tlp->kind == TlpKind::kCompletion && fields_.in_order) {
        up_replies_.push(tlp);
    } else {
        ++posted_submitted_;
        up_posted_.push(tlp);
    }
    // From here on the packet keeps its order with completions. So its number can go back at once.
    if (tlp->kind != TlpKind::kCompletion && !fields_.in_order) returned_.push(tlp->number);
    next_event_ = std::min(next_event_, std::max(now, up_.free_at()));
}

Ps Link::wire_send(Serialiser& wire, const Tlp* tlp, Ps ready) {
    const Ps end = wire.send(kTlpFraming + header_bytes(tlp) + tlp->payload, ready);
    Serialiser& other = &wire == &up_ ? down_ : up_;
    other.owe(dllp_per_tlp_);
    return end;
}

// Sends at most one packet upstream. Returns whether it did.
bool Link::start_up(Ps now) {
    if (up_.free_at() > now) return false;
    if (!up_replies_.empty()) {
        Tlp* reply = up_replies_.front();
        up_replies_.pop();
        send_up(reply, reply->time);
        return true;
    }
    const bool reads_first = !up_non_posted_.empty() &&
                             up_non_posted_.front()->order <= posted_sent_;
    const bool read_goes = reads_first && non_posted_headers_ > 0 &&
                           !holds_.waits(Flow::kReads, now, random_);
    if (fields_.in_order && reads_first && !read_goes) {
        up_blocked_ = true;
        return false;
    }
    Tlp* tlp = nullptr;
    if (read_goes) {
        tlp = up_non_posted_.front();
        up_non_posted_.pop();
        --non_posted_headers_;
    } else if (!up_posted_.empty()) {
        tlp = up_posted_.front();
        if (tlp->kind == TlpKind::kWrite) {
            const int units = data_credits(tlp->payload);
            if (posted_headers_ < 1 || posted_data_ < units ||
                holds_.waits(Flow::kPosted, now, random_)) {
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
    Ps ready = up_blocked_ ? std::max(tlp->time, up_credit_time_) : tlp->time;
    up_blocked_ = false;
    if (tlp->kind == TlpKind::kRead) ready = std::max(ready, holds_.until(Flow::kReads));
    if (tlp->kind == TlpKind::kWrite) ready = std::max(ready, holds_.until(Flow::kPosted));
    if (fields_.in_order) returned_.push(tlp->number);
    send_up(tlp, ready);
    return true;
}

void Link::send_up(Tlp* tlp, Ps ready) {
    --up_count_;
    tlp->time = wire_send(up_, tlp, ready) + fields_.propagation_ps;
    ++counters_.up_tlps;
    counters_.up_payload_bytes += tlp->payload;
    up_flight_.push(tlp);
}

void Link::land_write(const Tlp* tlp) {
    const uint8_t* data = tlp->raw + kRequestDescriptor;
    const uint64_t window = tlp->address - uint64_t(fields_.msi_base);
    if (window < uint64_t(kMsiWindow)) {
        uint32_t vector;
        std::memcpy(&vector, data, 4);
        ++counters_.interrupts;
        events_.push({int64_t(EventKind::kInterrupt), int64_t(window << 32 | vector), tlp->time,
                      0});
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
    uint64_t value = 0;
    std::memcpy(&value, tlp->raw + kCompletionDescriptor, size_t(std::min(8, tlp->payload)));
    events_.push({int64_t(EventKind::kMmio), int64_t(value), tlp->time,
                  int64_t(word(tlp, 2) & 0xFF)});
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
        bool late = false;
        const ReadEnd end = faults_.empty() ? ReadEnd::kGood
                                            : end_of(tlp->address, bytes, &late);
        const Ps wait = end == ReadEnd::kTimeout ? kCompletionTimeout
                        : end == ReadEnd::kLost  ? kLateTimeout
                                                 : fields_.memory_read_ps;
        reads_.push_back({tlp->address, bytes, tlp->time + wait + jitter, tlp->tag, known, end,
                          late});
        counters_.reads_outstanding_most =
            std::max(counters_.reads_outstanding_most, int64_t(reads_.size()));
        if (reads_.size() > kReadsBound) throw ModelError("host: too many reads");
        if (!fields_.late_credits) up_credits_.push({credit_time, 0, 0, 1});
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

// Where the next completion of `read` ends. The root complex cuts at multiples of a size, or at
// random multiples of the read completion boundary.
int64_t Link::completion_end(const Read& read) {
    const Settings& settings = rules_.settings();
    const int64_t wanted = fields_.completion_bytes ? fields_.completion_bytes : settings.max_payload;
    const int64_t most = std::max<int64_t>(settings.rcb,
                                           std::min<int64_t>(wanted, settings.max_payload));
    const int64_t room =
        std::min(read.left, most - int64_t(read.address % uint64_t(most)));
    const int64_t first = settings.rcb - int64_t(read.address % uint64_t(settings.rcb));
    if (!fields_.random_splits || room <= first) return room;
    const int64_t more = (room - first + settings.rcb - 1) / settings.rcb;
    return std::min(room, first + settings.rcb * int64_t(random_.below(uint64_t(more + 1))));
}

void Link::start_completion(size_t index, Ps start) {
    Read& read = reads_[index];
    // The memory may have been unmapped since the read arrived.
    const uint8_t* source = host(read.address, read.left);
    read.reachable &= source != nullptr;
    const int64_t part = completion_end(read);
    const bool hit = !read.late || part == read.left;
    const ReadEnd end = !read.reachable ? ReadEnd::kUnsupported : hit ? read.end : ReadEnd::kGood;
    const bool spoiled = end == ReadEnd::kPoisoned || end == ReadEnd::kDiscontinued;
    const bool data = end == ReadEnd::kGood || spoiled;
    const int64_t bytes = data ? part : 0;
    const bool last = bytes == read.left || !data;
    Tlp* tlp = allocate();
    tlp->kind = TlpKind::kCompletion;
    tlp->tag = read.tag;
    tlp->payload = int(bytes);
    tlp->bytes = kCompletionDescriptor + int(bytes);
    tlp->discontinued = end == ReadEnd::kDiscontinued;
    tlp->address = 0;
    uint32_t code = 0;
    uint32_t status = 0;
    uint32_t poisoned = 0;
    if (end == ReadEnd::kTimeout || end == ReadEnd::kLost) {
        code = kTimeoutCode;
    } else if (!data) {
        code = kBadStatusCode;
        status = end == ReadEnd::kAborted ? kCompleterAbort : kUnsupportedRequest;
    } else if (end == ReadEnd::kPoisoned) {
        code = kPoisonedCode;
        poisoned = 1;
    }
    set_word(tlp, 0, uint32_t(read.address & 0xFFF) | code << 12 |
                         uint32_t(read.left & 0x1FFF) << 16 | uint32_t(last) << 30);
    set_word(tlp, 1, uint32_t(bytes / 4) | status << 11 | poisoned << 14);
    set_word(tlp, 2, read.tag);
    uint8_t* target = tlp->raw + kCompletionDescriptor;
    if (bytes) std::memcpy(target, source, size_t(bytes));
    if (spoiled)
        for (int64_t i = 0; i < bytes; ++i) target[i] = uint8_t(~target[i]);
    tlp->time = wire_send(down_, tlp, start) + fields_.propagation_ps;
    ++counters_.down_tlps;
    counters_.down_payload_bytes += bytes;
    down_flight_.push(tlp);
    read.address += uint64_t(bytes);
    read.left -= bytes;
    if (hit && spoiled) read.end = ReadEnd::kGood;
    // The device may use the tag again only after the last completion.
    if (!last) return;
    if (fields_.late_credits)
        up_credits_.push({start + fields_.credit_return_ps, 0, 0, 1});
    reads_.erase(reads_.begin() + int64_t(index));
}

void Link::send_down(Tlp* tlp, Ps ready) {
    tlp->time = wire_send(down_, tlp, ready) + fields_.propagation_ps;
    ++counters_.down_tlps;
    down_flight_.push(tlp);
}

// Sends the oldest register access of a kind if it has credit. Returns whether it did.
bool Link::send_request(Flow flow, Ps now) {
    const bool posted = flow == Flow::kRegisterWrites;
    Ring<Tlp*>& queue = posted ? down_posted_ : down_non_posted_;
    if (queue.empty() || queue.front()->time > now) return false;
    Tlp* tlp = queue.front();
    if (!posted && tlp->order > down_sent_) return false;
    int64_t& credit = posted ? device_posted_ : device_non_posted_;
    if (credit <= 0 || holds_.waits(flow, now, random_)) {
        down_blocked_ = true;
        return false;
    }
    --credit;
    queue.pop();
    down_sent_ += posted;
    const Ps ready = down_blocked_ ? std::max(tlp->time, down_credit_time_) : tlp->time;
    down_blocked_ = false;
    send_down(tlp, std::max(ready, holds_.until(flow)));
    return true;
}

// Sends at most one packet downstream. Returns whether it did.
bool Link::start_down(Ps now) {
    if (down_.free_at() > now) return false;
    if (send_request(Flow::kRegisterReads, now) || send_request(Flow::kRegisterWrites, now))
        return true;
    // A completion does not pass a write that waits for credits (PCIe base specification 2.4.1).
    if (!down_posted_.empty() && down_posted_.front()->time <= now) return false;
    if (reads_.empty()) return false;
    const Ps ready = first_ready();
    if (ready > now || holds_.waits(Flow::kCompletions, now, random_)) return false;
    const Ps start = std::max({ready, down_.free_at(), holds_.until(Flow::kCompletions)});
    start_completion(pick_read(start), start);
    return true;
}

void Link::arrive_at_device(Tlp* tlp) {
    if (tlp->kind != TlpKind::kCompletion) {
        (tlp->kind == TlpKind::kWrite ? posted_requests_ : non_posted_requests_).push(tlp);
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

Tlp* Link::next_request(Ps now) {
    const bool readable = !non_posted_requests_.empty() &&
                          non_posted_requests_.front()->order <= served_ && now >= np_credit_;
    if (readable) {
        Tlp* tlp = non_posted_requests_.front();
        non_posted_requests_.pop();
        np_credit_ = now + fields_.np_req_ps;
        if (fields_.np_req_ps) next_event_ = std::min(next_event_, np_credit_);
        return tlp;
    }
    if (posted_requests_.empty()) return nullptr;
    Tlp* tlp = posted_requests_.front();
    posted_requests_.pop();
    ++served_;
    return tlp;
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
        for (int i = 0; i < tlp->payload / 4; ++i)
            rules_.written(offset + uint64_t(4 * i), word(tlp, kRequestDescriptor / 4 + i),
                           i ? tlp->last_enable : tlp->first_enable);
        const Ps time = now + fields_.credit_return_ps;
        down_credits_.push({time, posted, 0, !posted});
        next_event_ = std::min(next_event_, time);
    }
    release(tlp);
}

Tlp* Link::mmio_request(TlpKind kind, uint64_t offset, int bytes, Ps now) {
    const int size = bytes == 8 ? 4 : bytes;
    if ((bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) || offset % uint64_t(size) ||
        offset >= kBarBytes || offset % kPage + uint64_t(bytes) > kPage)
        throw ModelError("a register access of " + std::to_string(bytes) + " bytes at offset " +
                         std::to_string(int64_t(offset)) + " is not one of 1, 2, 4 or 8 aligned "
                         "bytes of BAR 0");
    const bool write = kind == TlpKind::kWrite;
    if (!write && asked_[mmio_tag_].active) throw ModelError("too many register reads at once");
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
    tlp->order = down_submitted_;
    set_word(tlp, 0, uint32_t(tlp->address));
    set_word(tlp, 1, uint32_t(tlp->address >> 32));
    set_word(tlp, 2, uint32_t(length / 4) | (write ? kMemoryWrite : kMemoryRead) << 11 |
                         kRequester << 16);
    set_word(tlp, 3, tlp->tag | uint32_t(kBarApertureBits) << 19);
    if (write) {
        ++down_submitted_;
        down_posted_.push(tlp);
    } else {
        asked_[tlp->tag] = {true, tlp->address, length / 4, int(offset), bytes};
        down_non_posted_.push(tlp);
    }
    next_event_ = std::min(next_event_, std::max(now, down_.free_at()));
    return tlp;
}

void Link::mmio_write(uint64_t offset, uint64_t value, int bytes, Ps now) {
    if (is_down_) return;
    Tlp* tlp = mmio_request(TlpKind::kWrite, offset, bytes, now);
    value <<= 8 * (offset & 3);
    std::memcpy(tlp->raw + kRequestDescriptor, &value, size_t(tlp->payload));
    ++counters_.mmio_writes;
}

int Link::mmio_read(uint64_t offset, int bytes, Ps now) {
    if (is_down_) {
        no_answer(mmio_tag_, now);
        return mmio_tag_++;
    }
    ++counters_.mmio_reads;
    return mmio_request(TlpKind::kRead, offset, bytes, now)->tag;
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
    // A packet that waits for credits needs no event. It is tried again when they return.
    if ((!up_posted_.empty() || !up_non_posted_.empty() || !up_replies_.empty()) &&
        up_.free_at() > now)
        next = std::min(next, up_.free_at());
    if ((!down_posted_.empty() || !down_non_posted_.empty()) && down_.free_at() > now)
        next = std::min(next, down_.free_at());
    if (!non_posted_requests_.empty() && np_credit_ > now) next = std::min(next, np_credit_);
    next = std::min(next, holds_.next(now));
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
