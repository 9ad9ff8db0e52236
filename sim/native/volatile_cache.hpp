// What a drive has said to be written, or made unreadable, but may forget when it is pulled. A
// journal keeps what each block held before. A flush, or a write with FUA, puts the block on the
// medium and ends that.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>

#include "storage.hpp"

namespace striata {

class VolatileCache {
public:
    VolatileCache(bool on, uint64_t seed) : on_(on), random_(seed) {}

    // How many blocks it has taken so far.
    int64_t taken() const { return taken_; }

    // How many writes of a block it may still forget.
    int64_t unflushed() const {
        return std::count_if(journal_.begin(), journal_.end(),
                             [](const Entry& entry) { return entry.block != kNone; });
    }

    void write(Storage& storage, int64_t block, const uint8_t* data) {
        note(storage, block);
        storage.write(block, data);
    }

    // Reads of the block fail until it is written.
    void spoil(Storage& storage, int64_t block) {
        note(storage, block);
        storage.set_bad(block, true);
    }

    // Reads of the block do not fail any more, whichever of its writes is forgotten.
    void heal(Storage& storage, int64_t block) {
        for (Entry& entry : journal_)
            if (entry.block == block) entry.spoilt = false;
        storage.clear_bad(block);
    }

    // The first `taken` blocks are on the medium.
    void flush(int64_t taken) {
        while (!journal_.empty() && journal_.front().number < taken) journal_.pop_front();
    }
    void flush_block(int64_t block, int64_t taken) {
        for (Entry& entry : journal_) {
            if (entry.number >= taken) return;
            if (entry.block == block) entry.block = kNone;
        }
    }
    // Another drive is there now.
    void clear() { journal_.clear(); }

    // The drive loses power. Goes through the writes from the newest one on, and undoes some. A
    // write that is kept protects the earlier ones of its block. After one that is undone each of
    // them may be undone or kept.
    void lose(Storage& storage) {
        for (size_t i = journal_.size(); i-- != 0;) {
            const Entry& entry = journal_[i];
            if (entry.block == kNone) continue;
            if (random_.below(2)) {
                storage.write(entry.block, entry.before.data());
                if (entry.spoilt) storage.set_bad(entry.block, true);
            } else {
                for (size_t j = 0; j != i; ++j)
                    if (journal_[j].block == entry.block) journal_[j].block = kNone;
            }
        }
        journal_.clear();
    }

private:
    static constexpr int64_t kNone = -1;
    struct Entry {
        int64_t block;
        int64_t number;
        bool spoilt;  // it could not be read before
        std::array<uint8_t, size_t(kBlockBytes)> before;
    };

    void note(const Storage& storage, int64_t block) {
        if (on_) {
            journal_.push_back({block, taken_, storage.spoilt(block), {}});
            storage.read(block, journal_.back().before.data());
        }
        ++taken_;
    }

    bool on_;
    int64_t taken_ = 0;
    std::deque<Entry> journal_;
    Random random_;
};

}  // namespace striata
