// A drive: commands, its link, completions. What happens on the medium is in the derived classes.
#pragma once

#include <memory>
#include <queue>
#include <vector>

#include "common.hpp"
#include "parameters.hpp"
#include "storage.hpp"
#include "volatile_cache.hpp"

namespace striata {

constexpr int kMaxTags = 32;
constexpr int kMaxCommandBlocks = 64;
constexpr size_t kLinkFrames = 4;    // blocks that the link core buffers towards the controller
constexpr size_t kGrantsAhead = 16;  // blocks of write data asked for at once
constexpr int kHistogramBins = 64;

enum class Operation : uint8_t { kRead = 0, kWrite = 1, kFlush = 2, kSpoil = 3 };
enum class DriveStatus : uint8_t { kGood = 0, kMediumError = 1, kAborted = 2, kGone = 3 };

struct DriveCommand {
    int tag;
    Operation operation;
    bool fua;
    int64_t block;
    int blocks;
};

// The wide link that drives behind an expander share, each way.
struct ExpanderLink {
    int64_t rate = 0;
    Ps out_free = 0;
    Ps in_free = 0;
};

// What is wrong with a drive: so many commands that begin (-1: all) are not ended, or late.
struct Fault {
    int64_t commands = 0;
    bool at_end = false;   // their data moves
    bool deaf = false;     // aborts do not end them
    bool lasting = false;  // a reset does not cure the drive
    Ps delay = 0;          // they end so much later, if not 0
};

// A block on its way to the controller: byte n is there at start + (end - start) * n / 4096.
struct Frame {
    int tag;
    bool last;  // of its command
    Ps start;
    Ps end;
    alignas(32) uint8_t data[kBlockBytes];
};

struct Completion {
    int tag;
    DriveStatus status;
};

class Drive {
public:
    // `set_seed` before the first command.
    Drive(const DriveFields& fields, ExpanderLink* expander);
    void set_seed(uint64_t seed);
    virtual ~Drive() = default;

    // Time: `advance` does everything due until `now`.
    Ps next_event() const { return events_.empty() ? kNever : events_.top().time; }
    void advance(Ps now);

    // Commands and their ends.
    void submit(const DriveCommand& command, Ps now);
    Ring<Completion>& completions() { return completions_; }
    void completion_taken();

    // Read data: the frame at the front is on the link, or about to be.
    bool frame_waiting() const { return frame_count_ != 0; }
    Frame& frame() { return frames_[frame_first_]; }
    void frame_taken(Ps now);

    // Write data: tags whose next block is asked for, in order. `inbound` reserves the link for a
    // block (its beats come evenly from `start` to `end`); `block_received` ends it.
    Ring<int>& grants() { return grants_; }
    void grant_taken();
    void inbound(Ps now, Ps* start, Ps* end);
    void block_received(int tag, const uint8_t* data, Ps now);

    // The controller wants a command ended, and all of them forgotten.
    void abort(int tag, Ps now);
    void reset(Ps now);
    // From now on; replaces what was before.
    void set_fault(const Fault& fault) { fault_ = fault; }

    // `frame_started`, `grant_offered`: the front of that queue is on the pins and must stay.
    void set_present(bool present, bool frame_started, bool grant_offered, Ps now);
    // It begins anew by itself: what it has ends as aborted, and what it had not flushed may be gone.
    void restart(bool frame_started, bool grant_offered, Ps now);
    // A command just submitted was offered as the drive began anew.
    void abort_unbegun(int tag);
    bool present() const { return present_; }
    // Another drive of the same make takes its place, with nothing on it and nothing wrong.
    void replace();

    Storage& storage() { return storage_; }
    // Past the controller: what is stored is on the medium.
    void store(int64_t block, const uint8_t* data) {
        cache_.flush_block(block, cache_.taken());
        storage_.write(block, data);
    }
    const DriveFields& fields() const { return fields_; }
    DriveCounters counters() const {
        DriveCounters counters = counters_;
        counters.unflushed = cache_.unflushed();
        return counters;
    }
    const int64_t* histogram() const { return histogram_; }

protected:
    struct Slot {
        bool active = false;
        bool doomed = false;  // the drive went away, or
        bool anew = false;    // began anew
        bool faulty = false;  // `fault_` has hit it: it ends so much later, or never (0)
        Ps delay = 0;
        bool stuck = false;   // it will not end by itself
        DriveCommand command{};
        Ps since = 0;
        uint64_t ready = 0;    // blocks that came off the medium
        uint64_t looked_at = 0;  // blocks that did, or could not
        int emitted = 0;       // blocks handed to the link
        int taken = 0;         // blocks that the controller has
        bool failed = false;   // the next block cannot be read
        bool ended = false;    // and that has been said
        int error_at = 0;      // first block that cannot be read
        int asked = 0;         // grants made
        int in_flight = 0;     // grants taken whose data is not here yet
        int received = 0;
        int remaining = 0;     // blocks that a derived class still has to write
        bool refused = false;  // one of its blocks cannot be written
        int64_t written_before = 0;  // blocks that the cache had taken: of a flush when it began,
                                     // of a write when its last one was there
    };

    // Derived classes: a command begins; a block of write data is here; an event of theirs is due.
    virtual void read(int tag, Ps now) = 0;
    virtual void write(int tag, Ps now) = 0;
    virtual void flush(int tag, Ps now) = 0;
    virtual void received(int tag, int index, Ps now) = 0;
    virtual void due(int argument, Ps now) = 0;
    virtual void forget() = 0;

    // For derived classes.
    void schedule(Ps time, int argument) { push_event(time, kDerived, argument, 0); }
    void ready_at(int tag, int index, Ps time) { push_event(time, kReady, tag, index); }
    void ask(int tag);  // asks for all write data of a command
    void finish(int tag, DriveStatus status, Ps now);
    Slot& slot(int tag) { return slots_[size_t(tag)]; }

    DriveFields fields_;
    DriveCounters counters_;

private:
    enum EventType : uint8_t { kBegin, kReady, kDone, kDerived };
    struct TimedEvent {
        Ps time;
        uint64_t order;
        EventType type;
        int argument;
        int index;
        bool operator<(const TimedEvent& other) const {
            return time != other.time ? time > other.time : order > other.order;
        }
    };
    struct Outbound {
        int tag;
        int index;
        Ps ready;
    };

    void push_event(Ps time, EventType type, int argument, int index) {
        events_.push({time, order_++, type, argument, index});
    }
    void begin(int tag, Ps now);
    void block_ready(int tag, int index, Ps now);
    void send();
    void grant_more();
    void complete(int tag, DriveStatus status, Ps now);
    void end_failed(int tag, Ps now);
    void end_doomed(int tag, Ps now);
    void end_all(bool anew, bool frame_started, bool grant_offered, Ps now);
    Ps reserve(Ps start, Ps* shared_free, int64_t* busy);

    bool present_ = true;
    Fault fault_;
    Storage storage_;
    VolatileCache cache_;
    ExpanderLink* expander_;
    Slot slots_[kMaxTags];
    std::priority_queue<TimedEvent> events_;
    uint64_t order_ = 0;
    Ps controller_free_ = 0;
    Ps out_free_ = 0;
    Ps in_free_ = 0;
    Ps space_time_ = 0;
    bool space_blocked_ = false;

    Ring<Outbound> outbound_;
    Frame frames_[kLinkFrames];
    size_t frame_first_ = 0;
    size_t frame_count_ = 0;
    Ring<int> asking_;  // commands whose data is asked for, oldest first
    Ring<int> grants_;
    size_t grants_out_ = 0;
    Ring<Completion> completions_;
    int64_t histogram_[kHistogramBins] = {};
};

std::unique_ptr<Drive> make_ideal(const DriveFields& fields, ExpanderLink* expander);
std::unique_ptr<Drive> make_hdd(const DriveFields& fields, ExpanderLink* expander);
std::unique_ptr<Drive> make_ssd(const DriveFields& fields, ExpanderLink* expander);
std::unique_ptr<Drive> make_drive(const DriveFields& fields, ExpanderLink* expander);

}  // namespace striata
