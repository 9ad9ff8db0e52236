#include "direct.hpp"

#include <algorithm>

#include "checks.hpp"

namespace striata {

namespace {

class Host {
public:
    Host(const DriveFields& fields, const LoadFields& load)
        : drive_(make_drive(fields, nullptr)),
          load_(load),
          random_(uint64_t(load.seed)),
          next_(load.first) {}

    LoadResult run() {
        const int tags = int(load_.depth);
        for (int tag = 0; tag < tags; ++tag) issue(tag, 0);
        const Ps end = load_.warm_up_ps + load_.measure_ps;
        for (Ps now = 0; now < end; now = next_time(now)) step(now);
        if (result_.commands) result_.latency_ps /= result_.commands;
        result_.read_ahead_hits = drive_->counters().read_ahead_hits;
        result_.medium_busy_ps = drive_->counters().medium_busy_ps;
        return result_;
    }

private:
    void issue(int tag, Ps now) {
        const bool read = int64_t(random_.below(100)) < load_.read_percent;
        int64_t block = next_;
        if (load_.sequential) {
            next_ += load_.blocks;
            if (next_ + load_.blocks > load_.first + load_.range) next_ = load_.first;
        } else {
            block = load_.first + int64_t(random_.below(uint64_t(load_.range - load_.blocks)));
        }
        since_[tag] = now;
        drive_->submit({tag, read ? Operation::kRead : Operation::kWrite, false, block,
                        int(load_.blocks)}, now);
    }

    // Takes a frame when its last byte is there. Sends data as soon as the drive asks for it.
    void step(Ps now) {
        drive_->advance(now);
        while (drive_->frame_waiting() && drive_->frame().end <= now) drive_->frame_taken(now);
        if (receiving_ && now >= receive_end_) {
            receiving_ = false;
            drive_->block_received(receive_tag_, zeros_, now);
        }
        if (!receiving_ && !drive_->grants().empty()) {
            Ps start;
            receive_tag_ = drive_->grants().front();
            drive_->grant_taken();
            drive_->inbound(now, &start, &receive_end_);
            receiving_ = true;
        }
        while (!drive_->completions().empty()) {
            const int tag = drive_->completions().front().tag;
            drive_->completion_taken();
            if (now >= load_.warm_up_ps) {
                ++result_.commands;
                result_.latency_ps += now - since_[tag];
            }
            issue(tag, now);
        }
    }

    Ps next_time(Ps now) {
        Ps next = drive_->next_event();
        if (drive_->frame_waiting()) next = std::min(next, drive_->frame().end);
        if (receiving_) next = std::min(next, receive_end_);
        return std::max(next, now);
    }

    std::unique_ptr<Drive> drive_;
    LoadFields load_;
    Random random_;
    int64_t next_;
    Ps since_[kMaxTags] = {};
    bool receiving_ = false;
    int receive_tag_ = 0;
    Ps receive_end_ = 0;
    uint8_t zeros_[kBlockBytes] = {};
    LoadResult result_;
};

}  // namespace

LoadResult run_load(const DriveFields& drive, const LoadFields& load) {
    check_drive(drive, 0);
    check_load(load, drive);
    return Host(drive, load).run();
}

}  // namespace striata
