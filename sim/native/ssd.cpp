// A solid-state drive. It has parallel dies and a write buffer. Reads go before programs.
#include <algorithm>

#include "drive.hpp"

namespace striata {

namespace {

constexpr size_t kStreams = 16;         // sequential streams that it recognises in each direction
constexpr int64_t kStreamReach = 512;   // blocks by which a stream may run ahead or behind

// Recognises commands that continue one of the latest streams.
class Streams {
public:
    bool continues(int64_t block, int blocks) {
        for (int64_t& next : next_) {
            if (block >= next - kStreamReach && block <= next + kStreamReach) {
                next = std::max(next, block + blocks);
                return true;
            }
        }
        next_[turn_++ % kStreams] = block + blocks;
        return false;
    }
    Streams() { std::fill(std::begin(next_), std::end(next_), -kStreamReach * 4); }

private:
    int64_t next_[kStreams];
    size_t turn_ = 0;
};

class Ssd final : public Drive {
public:
    Ssd(const DriveFields& fields, ExpanderLink* expander)
        : Drive(fields, expander), dies_(size_t(fields.dies)) {
        const Ps time = fields.program_ps + (fields.dirty_random ? fields.random_program_ps : 0);
        for (; used_ < fields.dirty_blocks; ++used_)
            dies_[size_t(used_ % fields.dies)].programs.push({-1, 0, time});
        for (size_t number = 0; number < dies_.size(); ++number) start(number, 0);
    }

private:
    struct Page {
        int tag;
        int index;
        Ps time;  // how long it keeps the die busy
    };
    struct Die {
        bool busy = false;
        bool programming = false;
        Page page{};
        Ring<Page> reads{4};
        Ring<Page> programs{4};
    };

    // A group of consecutive pages is spread over all dies. The next group begins half way further
    // on. So no stride keeps to a part of the dies.
    size_t die_of(int64_t block) const {
        const int64_t turn = block / fields_.dies * (fields_.dies / 2 + 1);
        return size_t((block + turn) % fields_.dies);
    }

    void read(int tag, Ps now) override {
        const DriveCommand& command = slot(tag).command;
        const bool stream = read_streams_.continues(command.block, command.blocks);
        const Ps time = fields_.read_ps + (stream ? 0 : fields_.random_read_ps);
        for (int i = 0; i < command.blocks; ++i) {
            const size_t number = die_of(command.block + i);
            const Ps lookup = i == 0 && !stream ? fields_.lookup_ps : 0;
            dies_[number].reads.push({tag, i, time + lookup});
            start(number, now);
        }
    }

    void write(int tag, Ps) override {
        waiting_.push(tag);
        admit();
    }

    // Asks for the data of waiting writes while the buffer has room for them.
    void admit() {
        while (!waiting_.empty()) {
            const DriveCommand& command = slot(waiting_.front()).command;
            if (used_ + command.blocks > fields_.cache_blocks) return;
            used_ += command.blocks;
            const bool stream = write_streams_.continues(command.block, command.blocks);
            random_[command.tag] = !stream;
            ask(command.tag);
            waiting_.pop();
        }
    }

    void received(int tag, int index, Ps now) override {
        const Slot& s = slot(tag);
        const Ps time = fields_.program_ps + (random_[tag] ? fields_.random_program_ps : 0);
        const size_t number = die_of(s.command.block + index);
        const bool waits = !fields_.power_safe && s.command.fua;
        dies_[number].programs.push({waits ? tag : -1, index, time});
        if (!waits && s.received == s.command.blocks) finish(tag, DriveStatus::kGood, now);
        start(number, now);
    }

    void flush(int tag, Ps now) override {
        if (fields_.power_safe || !used_)
            finish(tag, DriveStatus::kGood, now);
        else
            flushes_.push(tag);
    }

    void start(size_t number, Ps now) {
        Die& die = dies_[number];
        if (die.busy || (die.reads.empty() && die.programs.empty())) return;
        die.programming = die.reads.empty();
        Ring<Page>& queue = die.programming ? die.programs : die.reads;
        die.page = queue.front();
        queue.pop();
        die.busy = true;
        counters_.medium_busy_ps += die.page.time;
        schedule(now + die.page.time, int(number));
    }

    void due(int number, Ps now) override {
        Die& die = dies_[size_t(number)];
        die.busy = false;
        if (die.programming)
            programmed(die.page, now);
        else
            ready_at(die.page.tag, die.page.index, now);
        start(size_t(number), now);
    }

    void programmed(const Page& page, Ps now) {
        --used_;
        if (page.tag >= 0 && --slot(page.tag).remaining == 0)
            finish(page.tag, DriveStatus::kGood, now);
        for (; !used_ && !flushes_.empty(); flushes_.pop())
            finish(flushes_.front(), DriveStatus::kGood, now);
        admit();
    }

    void forget() override {
        for (Die& die : dies_) {
            die.busy = false;
            die.reads.clear();
            die.programs.clear();
        }
        waiting_.clear();
        flushes_.clear();
        used_ = 0;
    }

    std::vector<Die> dies_;
    Streams read_streams_;
    Streams write_streams_;
    bool random_[kMaxTags] = {};
    Ring<int> waiting_;
    Ring<int> flushes_;
    int64_t used_ = 0;
};

}  // namespace

std::unique_ptr<Drive> make_ssd(const DriveFields& fields, ExpanderLink* expander) {
    return std::make_unique<Ssd>(fields, expander);
}

}  // namespace striata
