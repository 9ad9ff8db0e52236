// What a drive has told to be written, but may forget when it is pulled: a journal of what each block
// held before, until a flush, or a write with FUA, has put it on the medium.
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

    // Blocks taken so far.
    int64_t taken() const { return taken_; }

    // Writes of a block that may still be forgotten.
    int64_t unflushed() const {
        return std::count_if(journal_.begin(), journal_.end(),
                             [](const Entry& entry) { return entry.block != kNone; });
    }

    void write(Storage& storage, int64_t block, const uint8_t* data) {
        if (on_) {
            journal_.push_back({block, taken_, {}});
            storage.read(block, journal_.back().before.data());
        }
        ++taken_;
        storage.write(block, data);
    }

    // What had been taken then is on the medium.
    void flush(int64_t taken) {
        while (!journal_.empty() && journal_.front().number < taken) journal_.pop_front();
    }
    void flush_block(int64_t block, int64_t taken) {
        for (Entry& entry : journal_) {
            if (entry.number >= taken) return;
            if (entry.block == block) entry.block = kNone;
        }
    }
    // Another drive is there.
    void clear() { journal_.clear(); }

    // The drive loses power. Newest first, writes are undone; an undone one has those of its block
    // before it undone or not, and one that was not protects them.
    void lose(Storage& storage) {
        for (size_t i = journal_.size(); i-- != 0;) {
            const Entry& entry = journal_[i];
            if (entry.block == kNone) continue;
            if (random_.below(2)) {
                storage.write(entry.block, entry.before.data());
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
        std::array<uint8_t, size_t(kBlockBytes)> before;
    };

    bool on_;
    int64_t taken_ = 0;
    std::deque<Entry> journal_;
    Random random_;
};

}  // namespace striata
