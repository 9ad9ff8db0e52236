// A hard disk. Its actuator takes the queued access with the shortest positioning time. Its track
// buffer reads ahead. Its write cache destages.
//
// Blocks lie on a spiral. Block b passes under the head at times congruent to b * block time modulo
// one revolution. So a sequential access never misses a turn. `media_rate` includes the skew of
// tracks and cylinders.
#include <algorithm>
#include <cmath>
#include <list>
#include <unordered_map>

#include "drive.hpp"

namespace striata {

namespace {

constexpr int64_t kTransitBlocks = 2048;  // buffer for writes that wait for the medium
constexpr int64_t kDestageBlocks = 64;    // longest access of the actuator for cached writes
constexpr int64_t kOldestRevolutions = 128;  // a read that waited this long goes first
constexpr size_t kPieces = 4;             // pieces of the track buffer
constexpr int64_t kGapBlocks = 64;        // the head passes over a gap rather than seek

class Hdd final : public Drive {
public:
    Hdd(const DriveFields& fields, ExpanderLink* expander)
        : Drive(fields, expander),
          block_ps_(transfer_time(kBlockBytes, fields.media_rate)),
          space_(fields.cache_blocks ? std::max<int64_t>(fields.cache_blocks, kMaxCommandBlocks)
                                     : kTransitBlocks) {}

private:
    // Blocks that wait for the medium. With tag -1 the host has its completion already.
    struct Run {
        int tag;
        int64_t block;
        int64_t count;
        uint64_t order;
    };
    // Blocks `first` .. `end` - 1 of the track buffer. Block b comes at
    // `start` + (b - first + 1) * block time. Only the newest piece may still grow.
    struct Piece {
        int64_t first;
        int64_t end;
        Ps start;
        Ps when(int64_t block, Ps block_ps) const { return start + (block - first + 1) * block_ps; }
    };
    enum Due { kAccessDone, kPromiseKept };
    using RunIterator = std::list<Run>::iterator;

    // Mechanics

    Ps access_time(int64_t block, bool write, Ps now) const {
        const int64_t distance = std::llabs(block - head_);
        Ps time = 0;
        if (distance * block_ps_ >= fields_.revolution_ps) {
            const double part = double(distance) / double(fields_.capacity);
            time = fields_.settle_ps + Ps(double(fields_.seek_root_ps) * std::sqrt(part)) +
                   Ps(double(fields_.seek_linear_ps) * part);
        }
        if (write && distance) time += fields_.write_settle_ps;
        const Ps turn = (block * block_ps_ - now - time) % fields_.revolution_ps;
        return time + (turn < 0 ? turn + fields_.revolution_ps : turn);
    }

    // Chooses what the actuator does next, if it is free.
    void move(Ps now) {
        if (moving_) return;
        if (now < promised_) {
            if (!waits_) schedule(promised_, kPromiseKept);
            waits_ = true;
            return;
        }
        size_t best_read = 0;
        Ps best = kNever;
        for (size_t i = 0; i < reads_.size() && i < size_t(fields_.read_window); ++i) {
            const Ps time = access_time(slot(reads_[i]).command.block, false, now);
            if (time < best) best = time, best_read = i;
        }
        if (!reads_.empty() &&
            now - slot(reads_[0]).since > kOldestRevolutions * fields_.revolution_ps) {
            best_read = 0;
            best = 0;
        }
        RunIterator best_run = runs_.end();
        if (reads_.empty() || urgent()) {
            int64_t left = fields_.write_window;
            for (RunIterator run = runs_.begin(); run != runs_.end() && left--; ++run) {
                const Ps time = access_time(run->block, true, now);
                if (time < best) best = time, best_run = run;
            }
        }
        if (best_run != runs_.end())
            start_write(best_run, now);
        else if (!reads_.empty())
            start_read(best_read, now);
    }

    bool urgent() const { return dirty_ * 2 > space_ || !flushes_.empty() || !fields_.cache_blocks; }

    void stop_reading_ahead(Ps now) {
        if (pieces_.empty()) return;
        Piece& piece = pieces_.back();
        const int64_t done = now < piece.start ? 0 : (now - piece.start) / block_ps_;
        piece.end = std::min(piece.end, piece.first + done);
        if (reading_ahead_) head_ = piece.end;
        if (piece.end == piece.first) pieces_.pop_back();
        reading_ahead_ = false;
    }

    // Reading

    void read(int tag, Ps now) override {
        if (serve_from_buffer(tag, now)) return;
        reads_.push_back(tag);
        move(now);
    }

    void start_read(size_t index, Ps now) {
        const int tag = reads_[index];
        reads_.erase(reads_.begin() + int64_t(index));
        const DriveCommand& command = slot(tag).command;
        const Ps access = access_time(command.block, false, now);
        stop_reading_ahead(now);
        // A read that continues the buffer keeps it. Any other read empties it.
        if (pieces_.empty() || pieces_.back().end != command.block) pieces_.clear();
        add_piece({command.block, command.block + command.blocks, now + access});
        for (int i = 0; i < command.blocks; ++i)
            ready_at(tag, i, now + access + (i + 1) * block_ps_);
        occupy(access, command.block, command.blocks, now);
        in_service_ = -1;
        reading_ = true;
    }

    void add_piece(const Piece& piece) {
        if (pieces_.size() == kPieces) pieces_.erase(pieces_.begin());
        pieces_.push_back(piece);
    }

    bool serve_from_buffer(int tag, Ps now) {
        const DriveCommand& command = slot(tag).command;
        const int64_t end = command.block + command.blocks;
        if (pieces_.empty() || command.block < pieces_.front().first) return false;
        if (reading_ahead_) {
            const bool wanted = runs_.empty() || !urgent();
            if (wanted && command.block <= pieces_.back().end + kGapBlocks)
                extend(end, now);
        }
        if (end > pieces_.back().end) return false;
        Ps last = now;
        for (int i = 0; i < command.blocks; ++i) {
            const int64_t block = command.block + i;
            for (const Piece& piece : pieces_)
                if (block >= piece.first && block < piece.end) {
                    last = std::max(last, piece.when(block, block_ps_));
                    ready_at(tag, i, last);
                }
        }
        if (reading_ahead_) promised_ = std::max(promised_, last);
        ++counters_.read_ahead_hits;
        return true;
    }

    // Lets the head read on past block `needed` - 1. If the head has stopped, it waits for the next
    // turn. It does so only once half of the buffer is free.
    void extend(int64_t needed, Ps now) {
        int64_t end = std::min(needed + fields_.read_ahead_blocks, fields_.capacity);
        Piece& piece = pieces_.back();
        const Ps stopped = piece.start + (piece.end - piece.first) * block_ps_;
        if (end <= piece.end) return;
        if (now <= stopped) {
            piece.end = end;
        } else if (end - piece.end >= fields_.read_ahead_blocks / 2 || needed > piece.end) {
            const Ps turns = (now - stopped + fields_.revolution_ps - 1) / fields_.revolution_ps;
            add_piece({piece.end, end, stopped + turns * fields_.revolution_ps});
        }
        head_ = pieces_.back().end;
    }

    // Writing

    void write(int tag, Ps) override {
        waiting_.push(tag);
        admit();
    }

    // Asks for the data of waiting writes while the buffer has room for them.
    void admit() {
        while (!waiting_.empty()) {
            const DriveCommand& command = slot(waiting_.front()).command;
            if (dirty_ + command.blocks > space_) return;
            dirty_ += command.blocks;
            ask(command.tag);
            waiting_.pop();
        }
    }

    void received(int tag, int index, Ps now) override {
        const Slot& s = slot(tag);
        if (s.received < s.command.blocks) return;
        (void)index;
        const bool through = s.command.fua || !fields_.cache_blocks;
        add_run(through ? tag : -1, s.command.block, s.command.blocks);
        drop_buffer(s.command.block, s.command.blocks);
        if (!through) finish(tag, DriveStatus::kGood, now);
        move(now);
    }

    void add_run(int tag, int64_t block, int64_t count) {
        if (tag < 0) {
            const auto found = run_ends_.find(block);
            if (found != run_ends_.end()) {
                const RunIterator run = found->second;
                run_ends_.erase(found);
                run->count += count;
                run_ends_[run->block + run->count] = run;
                return;
            }
        }
        runs_.push_back({tag, block, count, order_++});
        if (tag < 0) run_ends_[block + count] = std::prev(runs_.end());
    }

    // The track buffer must not answer with old data.
    void drop_buffer(int64_t block, int64_t count) {
        if (pieces_.empty() || block >= pieces_.back().end || block + count <= pieces_.front().first)
            return;
        pieces_.clear();
        reading_ahead_ = false;
    }

    void start_write(RunIterator run, Ps now) {
        const Ps access = access_time(run->block, true, now);
        stop_reading_ahead(now);
        serving_ = run;
        in_service_ = std::min(run->count, kDestageBlocks);
        if (run->tag >= 0) in_service_ = run->count;
        occupy(access, run->block, in_service_, now);
        reading_ = false;
    }

    void flush(int tag, Ps now) override {
        if (runs_.empty() && !moving_write()) {
            finish(tag, DriveStatus::kGood, now);
            return;
        }
        // Later writes do not join the runs that the flush waits for.
        run_ends_.clear();
        flushes_.push({tag, order_});
        move(now);
    }

    bool moving_write() const { return moving_ && !reading_; }

    void occupy(Ps access, int64_t block, int64_t count, Ps now) {
        moving_ = true;
        const Ps time = access + count * block_ps_;
        counters_.medium_busy_ps += time;
        head_ = block + count;
        schedule(now + time, kAccessDone);
    }

    void due(int what, Ps now) override {
        if (what == kPromiseKept) {
            waits_ = false;
        } else {
            moving_ = false;
            if (reading_)
                read_on(now);
            else
                end_write(now);
        }
        move(now);
    }

    // Is called after a read. The buffer serves queued reads that the head will reach anyway.
    void read_on(Ps now) {
        if (!fields_.read_ahead_blocks || pieces_.empty() || (!runs_.empty() && urgent())) return;
        reading_ahead_ = true;
        for (bool served = true; served;) {
            served = false;
            for (size_t i = 0; i < reads_.size();) {
                if (serve_from_buffer(reads_[i], now)) {
                    reads_.erase(reads_.begin() + int64_t(i));
                    served = true;
                } else {
                    ++i;
                }
            }
        }
        if (reads_.empty()) extend(pieces_.back().end, now);
    }

    void end_write(Ps now) {
        const RunIterator run = serving_;
        dirty_ -= in_service_;
        run->block += in_service_;
        run->count -= in_service_;
        if (!run->count) {
            if (run->tag >= 0) finish(run->tag, DriveStatus::kGood, now);
            const auto found = run_ends_.find(run->block);
            if (found != run_ends_.end() && found->second == run) run_ends_.erase(found);
            runs_.erase(run);
        }
        while (!flushes_.empty() && flushed(flushes_.front().order)) {
            finish(flushes_.front().tag, DriveStatus::kGood, now);
            flushes_.pop();
        }
        admit();
    }

    bool flushed(uint64_t order) const { return runs_.empty() || runs_.front().order >= order; }

    void forget() override {
        reads_.clear();
        runs_.clear();
        run_ends_.clear();
        waiting_.clear();
        flushes_.clear();
        pieces_.clear();
        dirty_ = 0;
        promised_ = 0;
        moving_ = reading_ahead_ = waits_ = false;
    }

    struct Flush {
        int tag;
        uint64_t order;
    };

    Ps block_ps_;
    int64_t space_;
    int64_t head_ = 0;
    bool moving_ = false;
    bool reading_ = false;
    bool reading_ahead_ = false;  // the newest piece may still grow
    bool waits_ = false;
    Ps promised_ = 0;  // the head stays until then, as reads rely on it
    std::vector<int> reads_;
    std::vector<Piece> pieces_;
    std::list<Run> runs_;
    std::unordered_map<int64_t, RunIterator> run_ends_;
    RunIterator serving_;
    int64_t in_service_ = 0;
    uint64_t order_ = 0;
    int64_t dirty_ = 0;
    Ring<int> waiting_;
    Ring<Flush> flushes_;
};

}  // namespace

std::unique_ptr<Drive> make_hdd(const DriveFields& fields, ExpanderLink* expander) {
    return std::make_unique<Hdd>(fields, expander);
}

}  // namespace striata
