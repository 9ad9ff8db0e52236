// What a drive stores: blocks of 4 KiB. Blocks that were never written, or written with zeros, take
// no memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common.hpp"

namespace striata {

class Storage {
public:
    explicit Storage(bool keep) : keep_(keep) {}

    void read(int64_t block, uint8_t* data) const {
        const auto found = pages_.find(block);
        if (found == pages_.end())
            std::memset(data, 0, size_t(kBlockBytes));
        else
            std::memcpy(data, found->second, size_t(kBlockBytes));
    }

    void write(int64_t block, const uint8_t* data) {
        if (!bad_.empty()) {
            const auto bad = bad_.find(block);
            if (bad != bad_.end() && bad->second) bad_.erase(bad);
        }
        if (!keep_) return;
        const auto found = pages_.find(block);
        if (found != pages_.end()) {
            std::memcpy(found->second, data, size_t(kBlockBytes));
        } else if (!is_zero(data)) {
            uint8_t* page = new_page();
            std::memcpy(page, data, size_t(kBlockBytes));
            pages_.emplace(block, page);
        }
    }

    void wipe() {
        pages_.clear();
        bad_.clear();
        refused_.clear();
        slabs_.clear();
        left_ = 0;
    }

    // Reads of the block fail, until it is written (`curable`) or for good.
    void set_bad(int64_t block, bool curable) { bad_[block] = curable; }
    void clear_bad(int64_t block) { bad_.erase(block); }
    bool spoilt(int64_t block) const {
        const auto bad = bad_.find(block);
        return bad != bad_.end() && bad->second;
    }
    // The index of the first bad block of block .. block + count - 1, or `count` if there is none.
    int first_bad(int64_t block, int count) const {
        if (bad_.empty()) return count;
        for (int i = 0; i < count; ++i)
            if (bad_.count(block + i)) return i;
        return count;
    }

    // Writes of the block fail, and the block keeps what it holds.
    void refuse(int64_t block, bool refused) {
        if (refused)
            refused_.insert(block);
        else
            refused_.erase(block);
    }
    bool refuses(int64_t block) const { return !refused_.empty() && refused_.count(block); }

    const std::unordered_map<int64_t, uint8_t*>& pages() const { return pages_; }
    static bool is_zero(const uint8_t* data) {
        return data[0] == 0 && std::memcmp(data, data + 1, size_t(kBlockBytes) - 1) == 0;
    }

private:
    uint8_t* new_page() {
        constexpr int kSlabPages = 256;
        if (!left_) {
            slabs_.push_back(std::make_unique<uint8_t[]>(size_t(kSlabPages * kBlockBytes)));
            left_ = kSlabPages;
        }
        return slabs_.back().get() + --left_ * kBlockBytes;
    }

    bool keep_;
    std::unordered_map<int64_t, uint8_t*> pages_;
    std::unordered_map<int64_t, bool> bad_;
    std::unordered_set<int64_t> refused_;
    std::vector<std::unique_ptr<uint8_t[]>> slabs_;
    int64_t left_ = 0;
};

}  // namespace striata
