// A drive: its commands, its link, its completions. The derived classes model the medium.
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
constexpr size_t kGrantsAhead = 16;  // blocks of write data that it asks for at once
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

// The wide link that the drives behind an expander share. Each direction is free from a time on.
struct ExpanderLink {
    int64_t rate = 0;
    Ps out_free = 0;
    Ps in_free = 0;
};

// What is wrong with a drive. The next `commands` commands (-1: all) end late or never.
struct Fault {
    int64_t commands = 0;
    bool at_end = false;   // their data moves all the same
    bool deaf = false;     // aborts do not end them
    bool lasting = false;  // a reset does not cure the drive
    Ps delay = 0;          // they end so much later; 0: they never end
};

// A block on its way to the controller. Byte n arrives at start + (end - start) * n / 4096.
struct Frame {
    int tag;
    bool last;  // it is the last block of its command
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
    // The caller calls `set_seed` before the first command.
    Drive(const DriveFields& fields, ExpanderLink* expander);
    void set_seed(uint64_t seed);
    virtual ~Drive() = default;

    // Time. `advance` does everything that is due until `now`.
    Ps next_event() const { return events_.empty() ? kNever : events_.top().time; }
    void advance(Ps now);

    // Commands and their ends.
    void submit(const DriveCommand& command, Ps now);
    Ring<Completion>& completions() { return completions_; }
    void completion_taken();

    // Read data. The frame at the front is on the link, or will be there next.
    bool frame_waiting() const { return frame_count_ != 0; }
    Frame& frame() { return frames_[frame_first_]; }
    void frame_taken(Ps now);

    // Write data. `grants` are the tags whose next block the drive asks for, in order. `inbound`
    // reserves the link for a block. The beats of the block come evenly from `start` to `end`.
    // `block_received` ends the block.
    Ring<int>& grants() { return grants_; }
    void grant_taken();
    void inbound(Ps now, Ps* start, Ps* end);
    void block_received(int tag, const uint8_t* data, Ps now);

    // `abort`: the controller wants a command to end. `reset`: the drive forgets all commands.
    void abort(int tag, Ps now);
    void reset(Ps now);
    // The fault holds from now on. It replaces the one before.
    void set_fault(const Fault& fault) { fault_ = fault; }

    // With `frame_started` or `grant_offered` the front of that queue is on the pins and must stay.
    void set_present(bool present, bool frame_started, bool grant_offered, Ps now);
    // The drive restarts by itself. Its commands end as aborted. What is not flushed may be lost.
    void restart(bool frame_started, bool grant_offered, Ps now);
    // The command was offered as the drive restarted. It ends as aborted.
    void abort_unbegun(int tag);
    bool present() const { return present_; }
    // An empty drive of the same make, without a fault, takes the place of this one.
    void replace();

    Storage& storage() { return storage_; }
    // Stores a block on the medium, past the controller.
    void store(int64_t block, const uint8_t* data) {
        cache_.flush_block(block, cache_.taken());
        storage_.write(block, data);
    }
    // The block has found another place on the medium.
    void heal(int64_t block) { cache_.heal(storage_, block); }
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
        bool doomed = false;  // the drive went away or restarted
        bool anew = false;    // it restarted
        bool faulty = false;  // `fault_` has hit it: it ends `delay` later, or never if that is 0
        Ps delay = 0;
        bool stuck = false;   // it will not end by itself
        DriveCommand command{};
        Ps since = 0;
        uint64_t ready = 0;    // blocks that came off the medium
        uint64_t looked_at = 0;  // blocks that did, or could not be read
        int emitted = 0;       // blocks handed to the link
        int taken = 0;         // blocks that the controller has
        bool failed = false;   // the next block cannot be read
        bool ended = false;    // the completion has said so
        int error_at = 0;      // first block that cannot be read
        int asked = 0;         // grants made
        int in_flight = 0;     // grants taken whose data has not come yet
        int received = 0;
        int remaining = 0;     // blocks that a derived class still has to write
        bool refused = false;  // one of its blocks cannot be written
        int64_t written_before = 0;  // blocks that the cache had taken when a flush began, or
                                     // when the last block of a write had come
    };

    // Derived classes act on these: a command begins, write data has come, their own event is due.
    virtual void read(int tag, Ps now) = 0;
    virtual void write(int tag, Ps now) = 0;
    virtual void flush(int tag, Ps now) = 0;
    virtual void received(int tag, int index, Ps now) = 0;
    virtual void due(int argument, Ps now) = 0;
    virtual void forget() = 0;

    // Derived classes call these.
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
    Ring<int> asking_;  // commands whose data the drive asks for, oldest first
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
