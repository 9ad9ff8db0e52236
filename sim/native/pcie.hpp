// The PCIe link between the hard block and the host bridge, with host memory behind it. TLPs take
// their time on the wire. They consume and return credits. Reads come back as completions.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "common.hpp"
#include "holds.hpp"
#include "parameters.hpp"
#include "phases.hpp"
#include "rules.hpp"
#include "wire.hpp"

namespace striata {

constexpr int kMaxPayload = 4096;
constexpr int kRequestDescriptor = 16;     // PG213: RQ and CQ descriptors
constexpr int kCompletionDescriptor = 12;  // PG213: RC and CC descriptors
constexpr int64_t kMsiWindow = 1 << 20;
constexpr int kTags = 256;
constexpr int kBarApertureBits = 14;
constexpr int64_t kPercent = 100;

enum class TlpKind : uint8_t { kRead, kWrite, kCompletion };

// A packet with its descriptor in front of its payload, as on the AXI streams.
struct Tlp {
    TlpKind kind;
    uint8_t tag;
    uint8_t first_enable;
    uint8_t last_enable;
    int bytes;    // descriptor and payload
    int payload;  // bytes
    bool discontinued;  // of a completion: the memory of the hard block has an error
    uint64_t address;
    Ps time;         // when it was ready to send, then when it arrives
    uint64_t order;  // posted packets submitted before it
    Offer offer;     // of a request of the device: what held as it was offered
    uint8_t number;  // its sequence number
    alignas(32) uint8_t raw[kRequestDescriptor + kMaxPayload + 64];
};

// How a read of host memory fails, and which reads do.
enum class ReadEnd : int64_t {
    kGood,
    kUnsupported,  // UR
    kAborted,      // CA
    kPoisoned,     // the data is corrupt, and marked as such
    kLost,         // nothing comes; the hard block says so late in its range
    kTimeout,      // nothing comes; the hard block says so as soon as it may
    kDiscontinued, // the data came, and the memory of the hard block lost it
    kCount
};
struct ReadFault {
    ReadEnd end;
    int64_t reads;      // how many reads it will still hit
    uint64_t address;   // it hits reads that touch `bytes` from here; 0 bytes: any
    uint64_t bytes;
    bool late;          // it shows in the last completion, not in the first
};

enum class EventKind : int64_t { kTime, kInterrupt, kMmio, kIdle, kError };

struct Event {
    int64_t kind;
    int64_t value;
    int64_t time;
    int64_t tag;  // that of a register read
};

class Link {
public:
    Link(const LinkFields& fields, uint8_t* memory, int64_t memory_bytes);

    // The hard block's user side.
    bool request_room() const { return up_count_ < fields_.transmit_tlps; }
    // The same for CC. If RQ and CC have queues of their own, RQ does not fill that of CC.
    bool reply_room() const { return fields_.in_order || request_room(); }
    // How many reads the credits that are left allow at once.
    int64_t read_credits() const { return non_posted_headers_ - int64_t(up_non_posted_.size()); }
    // Sequence numbers of requests that no completion can pass any more, in order.
    Ring<uint8_t>& returned() { return returned_; }
    // Whether RQ or CC is ready in a cycle in which it offers something (`offered`) or not.
    bool ready(Flow flow, bool offered, Ps now) {
        if (holds_.held(flow, now)) return false;
        const bool always = !offered || fields_.ready_percent == kPercent;
        return always || int64_t(random_.below(kPercent)) < fields_.ready_percent;
    }
    bool always_ready() const { return fields_.ready_percent == kPercent; }
    Rules& rules() { return rules_; }
    Tlp* allocate();
    void release(Tlp* tlp) { free_.push_back(tlp); }
    // Takes a complete packet of RQ or CC. It must hold its descriptor and payload.
    void submit(Tlp* tlp, Ps now);
    // Packets that arrived for RC and CQ. Whoever takes one calls `consumed`.
    Ring<Tlp*>& completions() { return completions_; }
    // The request that CQ shows next, or null. Reads wait for credits of `pcie_cq_np_req`.
    Tlp* next_request(Ps now);
    bool has_request() const { return !posted_requests_.empty() || !non_posted_requests_.empty(); }
    Tlp* next_completion() {
        Tlp* tlp = completions_.front();
        completions_.pop();
        return tlp;
    }
    void consumed(Tlp* tlp, Ps now);

    // The host's side.
    void mmio_write(uint64_t offset, uint64_t value, int bytes, Ps now);
    int mmio_read(uint64_t offset, int bytes, Ps now);  // returns its tag
    void hold(Flow flow, Ps time, Ps now);
    // The link goes down, or comes up again. Nothing that is on its way as it goes down arrives, on
    // either side. While it is down the host reads all ones.
    void set_down(bool down, Ps now);
    bool down() const { return is_down_; }
    void fail_reads(const ReadFault& fault);
    Ring<Event>& events() { return events_; }
    // Adds host memory at a bus address. The caller keeps the memory. `unmap_memory` takes away all
    // but the first.
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
        ReadEnd end;
        bool late;
    };
    // A register read of the host that has no answer yet.
    struct Asked {
        bool active = false;
        uint64_t address = 0;
        int dwords = 0;
        int lower = 0;  // lower bits of its address, to the byte
        int bytes = 0;  // from the first byte asked for to the last
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
    void send_up(Tlp* tlp, Ps ready);
    bool start_down(Ps now);
    void start_completion(size_t index, Ps start);
    void arrive_at_host(Tlp* tlp);
    void arrive_at_device(Tlp* tlp);
    void land_write(const Tlp* tlp);
    void answer_mmio(const Tlp* tlp);
    uint8_t* host(uint64_t address, int64_t bytes) const;
    Ps wire_send(Serialiser& wire, const Tlp* tlp, Ps ready);
    void check_request(const Tlp* tlp);
    void check_completion(const Tlp* tlp);
    Tlp* mmio_request(TlpKind kind, uint64_t offset, int bytes, Ps now);
    void drop(Ring<Tlp*>& queue);
    void no_answer(int tag, Ps now);
    bool send_request(Flow flow, Ps now);
    void send_down(Tlp* tlp, Ps ready);
    ReadEnd end_of(uint64_t address, int64_t bytes, bool* late);
    int64_t completion_end(const Read& read);
    size_t pick_read(Ps start);
    Ps first_ready() const;
    void update_next(Ps now);

    LinkFields fields_;
    std::vector<Window> windows_;  // of host memory, which do not overlap
    Serialiser up_;
    Serialiser down_;
    Random random_;
    Rules rules_;
    Holds holds_;
    double dllp_per_tlp_;

    std::vector<std::unique_ptr<Tlp>> pool_;
    std::vector<Tlp*> free_;

    Ring<Tlp*> up_posted_;      // memory writes and completions: they pass reads, never each other
    Ring<Tlp*> up_non_posted_;
    Ring<Tlp*> up_replies_;     // completions, if they have a queue of their own
    Ring<uint8_t> returned_;
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

    // Register accesses. Writes pass reads. Nothing passes writes, not even completions of reads.
    Ring<Tlp*> down_posted_;
    Ring<Tlp*> down_non_posted_;
    Ring<Tlp*> down_flight_;
    Ring<Credit> down_credits_;
    int64_t device_posted_;
    int64_t device_non_posted_;
    uint64_t down_submitted_ = 0;  // posted ones
    uint64_t down_sent_ = 0;
    Ps down_credit_time_ = 0;
    bool down_blocked_ = false;

    std::vector<Read> reads_;
    bool outstanding_[kTags] = {};
    std::vector<ReadFault> faults_;
    bool ordered_;
    Ring<Tlp*> completions_;
    Ring<Tlp*> posted_requests_;
    Ring<Tlp*> non_posted_requests_;
    uint64_t served_ = 0;  // register writes that CQ has shown
    Ps np_credit_ = 0;  // when `pcie_cq_np_req` gives the next one
    int64_t completion_headers_ = 0;
    int64_t completion_data_ = 0;

    bool is_down_ = false;
    uint8_t mmio_tag_ = 0;
    Asked asked_[kTags];
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
