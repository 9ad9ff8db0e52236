// PCIe link between the hard block and the host bridge, with host memory behind it: TLPs take their
// time on the wire, consume and return credits, and reads come back as completions.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "common.hpp"
#include "parameters.hpp"
#include "phases.hpp"
#include "wire.hpp"

namespace striata {

constexpr int kMaxPayload = 4096;
constexpr int kRequestDescriptor = 16;     // PG213: RQ and CQ descriptors
constexpr int kCompletionDescriptor = 12;  // PG213: RC and CC descriptors
constexpr int64_t kMsiWindow = 1 << 20;
constexpr int kTags = 256;
constexpr int kBarApertureBits = 14;

enum class TlpKind : uint8_t { kRead, kWrite, kCompletion };

// A packet with its descriptor in front of its payload, as on the AXI streams.
struct Tlp {
    TlpKind kind;
    uint8_t tag;
    uint8_t first_enable;
    uint8_t last_enable;
    int bytes;    // descriptor and payload
    int payload;  // bytes
    uint64_t address;
    Ps time;         // when it was ready to send, then when it arrives
    uint64_t order;  // posted packets submitted before it
    alignas(32) uint8_t raw[kRequestDescriptor + kMaxPayload + 64];
};

enum class EventKind : int64_t { kTime, kInterrupt, kMmio, kIdle, kError };

struct Event {
    int64_t kind;
    int64_t value;
    int64_t time;
};

class Link {
public:
    Link(const LinkFields& fields, uint8_t* memory, int64_t memory_bytes);

    // The hard block's user side.
    bool request_room() const { return up_count_ < fields_.transmit_tlps; }
    Tlp* allocate();
    void release(Tlp* tlp) { free_.push_back(tlp); }
    // Takes a complete packet of RQ or CC; it must hold its descriptor and payload.
    void submit(Tlp* tlp, Ps now);
    // Packets that arrived for RC and CQ. Whoever takes one calls `consumed`.
    Ring<Tlp*>& completions() { return completions_; }
    Ring<Tlp*>& requests() { return requests_; }
    void consumed(Tlp* tlp, Ps now);

    // The host's side.
    void mmio_write(uint64_t offset, uint64_t value, int bytes, Ps now);
    void mmio_read(uint64_t offset, int bytes, Ps now);
    Ring<Event>& events() { return events_; }
    // More host memory, at a bus address, that the caller keeps; and none but the first again.
    void map_memory(uint64_t address, int64_t bytes, uint8_t* data);
    void unmap_memory() { windows_.resize(1); }

    Ps next_event() const { return next_event_; }
    void advance(Ps now);

    const LinkFields& fields() const { return fields_; }
    RunCounters& counters() { return counters_; }
    Phases& phases() { return phases_; }
    void count_wires();

private:
    struct Read {
        uint64_t address;
        int64_t left;
        Ps ready;
        uint8_t tag;
        bool reachable;
    };
    struct Window {
        uint64_t address;
        uint64_t bytes;
        uint8_t* data;
    };
    struct Credit {
        Ps time;
        int posted;
        int data;
        int non_posted;
    };

    bool start_up(Ps now);
    bool start_down(Ps now);
    void start_completion(size_t index, Ps start);
    void arrive_at_host(Tlp* tlp);
    void arrive_at_device(Tlp* tlp);
    void land_write(const Tlp* tlp);
    void answer_mmio(const Tlp* tlp);
    uint8_t* host(uint64_t address, int64_t bytes) const;
    Ps wire_send(Serialiser& wire, const Tlp* tlp, Ps ready);
    void check_request(const Tlp* tlp) const;
    Tlp* mmio_request(TlpKind kind, uint64_t offset, int bytes, Ps now);
    size_t pick_read(Ps start);
    Ps first_ready() const;
    void update_next(Ps now);

    LinkFields fields_;
    std::vector<Window> windows_;  // of host memory, which do not overlap
    Serialiser up_;
    Serialiser down_;
    Random random_;
    double dllp_per_tlp_;
    int64_t completion_bytes_;

    std::vector<std::unique_ptr<Tlp>> pool_;
    std::vector<Tlp*> free_;

    Ring<Tlp*> up_posted_;      // memory writes and completions: may pass reads, never each other
    Ring<Tlp*> up_non_posted_;
    Ring<Tlp*> up_flight_;
    Ring<Credit> up_credits_;
    int64_t up_count_ = 0;
    int64_t posted_headers_;
    int64_t posted_data_;
    int64_t non_posted_headers_;
    uint64_t posted_submitted_ = 0;
    uint64_t posted_sent_ = 0;
    Ps up_credit_time_ = 0;
    bool up_blocked_ = false;

    Ring<Tlp*> down_queue_;
    Ring<Tlp*> down_flight_;
    Ring<Credit> down_credits_;
    int64_t device_posted_;
    int64_t device_non_posted_;
    Ps down_credit_time_ = 0;
    bool down_blocked_ = false;

    std::vector<Read> reads_;
    bool outstanding_[kTags] = {};
    bool ordered_;
    Ring<Tlp*> completions_;
    Ring<Tlp*> requests_;
    int64_t completion_headers_ = 0;
    int64_t completion_data_ = 0;

    uint8_t mmio_tag_ = 0;
    Ring<Event> events_;
    RunCounters counters_;
    Phases phases_{counters_};
    Ps next_event_ = kNever;
};

// Descriptor fields (PG213, 32-bit words, little endian).
inline uint32_t word(const Tlp* tlp, int index) {
    uint32_t value;
    std::memcpy(&value, tlp->raw + 4 * index, 4);
    return value;
}
inline void set_word(Tlp* tlp, int index, uint32_t value) {
    std::memcpy(tlp->raw + 4 * index, &value, 4);
}

}  // namespace striata
