// What the function may send: what its configuration space and its MSI-X table allow. The same
// settings go to the controller's `status` and to the link, so that there is one truth.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common.hpp"
#include "parameters.hpp"

namespace striata {

// Device Control and its like (PCIe base specification 7.5.3), as `PcieStatus` has them.
struct Settings {
    int max_payload;  // bytes
    int max_read_request;
    int rcb;
    bool extended_tag;
    bool relaxed_ordering;
    bool id_ordering;
};

// How far RQ is: packets that have been offered, and cycles without any.
struct Progress {
    int64_t packets = 0;
    int64_t idle = 0;
};

// Something that may be sent or not. What is on its way when it is forbidden may still leave: so
// many packets, of which none may come out of a pipeline that has been empty for so long.
class Gate {
public:
    explicit Gate(bool open) : open_(open) {}
    void set(bool open, const Progress& now) {
        if (open_ && !open) closed_ = now;
        open_ = open;
    }
    // Nothing may still leave.
    void shut() {
        open_ = false;
        closed_ = Progress{-kAhead - 1, -kIdle - 1};
    }
    bool open() const { return open_; }
    bool allows(const Progress& offered) const {
        return open_ || (offered.packets - closed_.packets <= kAhead &&
                         offered.idle - closed_.idle <= kIdle);
    }

private:
    static constexpr int64_t kAhead = 4;
    static constexpr int64_t kIdle = 16;
    bool open_;
    Progress closed_{-kAhead - 1, -kIdle - 1};  // as if long ago
};

// As it was when the packet was offered for the first time.
struct Offer {
    Progress progress;
    Settings settings;
};

class Rules {
public:
    // As the host leaves it after enumeration; with `Harness`, `set` follows for every setting.
    explicit Rules(const LinkFields& fields)
        : check_vectors_(fields.check_vectors),
          settings_{int(fields.max_payload), int(fields.max_read_request), int(fields.rcb), true,
                    false, false} {}

    // Sets what `name` of `PcieStatus` says; names that mean nothing here are ignored.
    void set(const std::string& name, int64_t value);
    const Settings& settings() const { return settings_; }
    // A link reset: from now on nothing may leave until it is allowed anew.
    void forget();

    // RQ offers nothing in so many cycles; it offers a packet for the first time.
    void idle(int64_t cycles) { progress_.idle += cycles; }
    Offer offer();

    // A request, by the first words of its descriptor and its byte enables.
    void check(const Offer& offer, const uint32_t* words, int first_enable,
               int last_enable) const;
    // An interrupt message: `bytes` at `address`.
    void check_message(const Offer& offer, uint64_t address, uint32_t data, int64_t bytes,
                       int first_enable) const;
    // The host has written a word of BAR 0, whose byte enables are `enable`.
    void written(uint64_t offset, uint32_t value, int enable);

private:
    struct Entry {
        uint64_t address = 0;
        uint32_t data = 0;
    };
    struct Vector {
        Entry now;
        Entry before;  // when it was masked
        Gate unmasked{false};
        bool masked = true;
    };

    void mask(Vector& vector, bool masked);

    bool check_vectors_;
    Settings settings_;
    Progress progress_;
    Gate bus_master_{true};
    Gate running_{true};  // no function level reset
    Gate messages_{true};  // MSI-X is enabled
    Gate function_unmasked_{true};
    std::vector<Vector> vectors_;
};

}  // namespace striata
