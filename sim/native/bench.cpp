#include "bench.hpp"

#include <algorithm>

#include "checks.hpp"

namespace striata {

namespace {

constexpr int64_t kMemory = 1 << 20;
constexpr uint64_t kPage = 4096;
constexpr uint32_t kWriteType = 1u << 11;

std::vector<uint8_t> pattern() {
    std::vector<uint8_t> memory(kMemory);
    Random random(7);
    for (uint8_t& byte : memory) byte = uint8_t(random.next() >> 32);
    return memory;
}

Tlp* request(Link& link, TlpKind kind, uint64_t address, int64_t bytes, int tag) {
    Tlp* tlp = link.allocate();
    const bool write = kind == TlpKind::kWrite;
    tlp->kind = kind;
    tlp->tag = uint8_t(tag);
    tlp->first_enable = 0xF;
    tlp->last_enable = bytes > 4 ? 0xF : 0;
    tlp->payload = write ? int(bytes) : 0;
    tlp->bytes = kRequestDescriptor + tlp->payload;
    tlp->address = address;
    set_word(tlp, 0, uint32_t(address));
    set_word(tlp, 1, uint32_t(address >> 32));
    set_word(tlp, 2, uint32_t(bytes / 4) | (write ? kWriteType : 0));
    set_word(tlp, 3, uint32_t(tag));
    tlp->offer = link.rules().offer();
    return tlp;
}

}  // namespace

BenchResult bench_write(const LinkFields& fields, int64_t bytes, int64_t count) {
    check_link(fields);
    if (bytes < 4 || bytes > kMaxPayload || bytes % 4 || count < 1)
        throw ModelError("bench: writes of " + std::to_string(bytes) + " bytes, " +
                         std::to_string(count) + " times");
    std::vector<uint8_t> memory(kMemory);
    const std::vector<uint8_t> source = pattern();
    Link link(fields, memory.data(), kMemory);
    BenchResult result;
    Ps now = 0;
    int64_t issued = 0;
    while (link.counters().memory_writes < count) {
        while (issued < count && link.request_room()) {
            const uint64_t offset = uint64_t(issued++ * bytes % kMemory);
            Tlp* tlp = request(link, TlpKind::kWrite, uint64_t(fields.memory_base) + offset, bytes,
                               0);
            std::memcpy(tlp->raw + kRequestDescriptor, source.data() + offset, size_t(bytes));
            link.submit(tlp, now);
        }
        if (link.next_event() == kNever) throw ModelError("bench: the link stopped");
        now = std::max(now, link.next_event());
        link.advance(now);
    }
    result.bytes = count * bytes;
    result.time_ps = now - fields.propagation_ps;
    for (int64_t i = 0; i < std::min(kMemory, count * bytes); ++i)
        result.errors += memory[size_t(i)] != source[size_t(i)];
    return result;
}

BenchResult bench_read(const LinkFields& fields, int64_t bytes, int64_t offset,
                       int64_t outstanding, int64_t count) {
    check_link(fields);
    if (bytes < 4 || bytes % 4 || offset < 0 || offset % 4 || bytes + offset > kMemory ||
        outstanding < 1 || outstanding > kTags || count < 1)
        throw ModelError("bench: reads of " + std::to_string(bytes) + " bytes at " +
                         std::to_string(offset) + ", " + std::to_string(outstanding) +
                         " at once, " + std::to_string(count) + " times");
    std::vector<uint8_t> memory = pattern();
    Link link(fields, memory.data(), kMemory);
    BenchResult result;
    struct Pending {
        uint64_t address;
        int64_t left;
        int64_t order;
    };
    std::vector<Pending> pending(size_t(outstanding), Pending{0, 0, 0});
    Ps now = 0;
    Ps first = 0;
    int64_t issued = 0;
    int64_t ended = 0;
    while (ended < count) {
        for (int tag = 0; tag < outstanding && issued < count; ++tag) {
            Pending& slot = pending[size_t(tag)];
            if (slot.left || !link.request_room()) continue;
            const uint64_t page = uint64_t(issued) * kPage % uint64_t(kMemory);
            slot = {page + uint64_t(offset), bytes, issued++};
            link.submit(request(link, TlpKind::kRead, uint64_t(fields.memory_base) + slot.address,
                                bytes, tag), now);
        }
        if (link.next_event() == kNever) throw ModelError("bench: the link stopped");
        now = std::max(now, link.next_event());
        link.advance(now);
        while (!link.completions().empty()) {
            Tlp* tlp = link.completions().front();
            link.completions().pop();
            Pending& slot = pending[word(tlp, 2) & 0xFF];
            if (!first) first = now;
            ++result.completions;
            for (const Pending& other : pending)
                if (other.left && other.order < slot.order) {
                    ++result.out_of_order;
                    break;
                }
            const bool last = tlp->payload == slot.left;
            result.errors += (word(tlp, 0) & 0xFFF) != (slot.address & 0xFFF);
            result.errors += int64_t(word(tlp, 0) >> 16 & 0x1FFF) != slot.left;
            result.errors += (word(tlp, 0) >> 30 & 1) != uint32_t(last);
            result.errors += int64_t(word(tlp, 1) & 0x7FF) * 4 != tlp->payload;
            result.errors += !last && (slot.address + uint64_t(tlp->payload)) % uint64_t(fields.rcb);
            result.errors += std::memcmp(tlp->raw + kCompletionDescriptor,
                                         memory.data() + slot.address, size_t(tlp->payload)) != 0;
            slot.address += uint64_t(tlp->payload);
            slot.left -= tlp->payload;
            result.bytes += tlp->payload;
            ended += slot.left == 0;
            link.consumed(tlp, now);
        }
    }
    result.time_ps = now - first;
    return result;
}

}  // namespace striata
