// What the configuration space and the MSI-X table allow the function to send. The controller's
// `status` and the link have the same settings.
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

// How far RQ is: how many packets it has offered, and how many cycles without any.
struct Progress {
    int64_t packets = 0;
    int64_t idle = 0;
};

// Something that may be sent or not. What is on its way when it is forbidden may still leave. That
// is at most `kAhead` packets, and none after `kIdle` cycles without a packet.
class Gate {
public:
    explicit Gate(bool open) : open_(open) {}
    void set(bool open, const Progress& now) {
        if (open_ && !open) closed_ = now;
        open_ = open;
    }
    // Closes. Not even what is on its way may leave.
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
    Progress closed_{-kAhead - 1, -kIdle - 1};  // closed as if long ago
};

// What held when the packet was offered for the first time.
struct Offer {
    Progress progress;
    Settings settings;
};

class Rules {
public:
    // Begins as the host leaves it after enumeration. `Harness` then sets every setting.
    explicit Rules(const LinkFields& fields)
        : check_vectors_(fields.check_vectors),
          settings_{int(fields.max_payload), int(fields.max_read_request), int(fields.rcb), true,
                    false, false} {}

    // Sets what `name` of `PcieStatus` says. Ignores names that mean nothing here.
    void set(const std::string& name, int64_t value);
    const Settings& settings() const { return settings_; }
    // The link is reset. Nothing may leave until it is allowed anew.
    void forget();

    // `idle`: RQ offers nothing for so many cycles. `offer`: it offers a packet for the first time.
    void idle(int64_t cycles) { progress_.idle += cycles; }
    Offer offer();

    // Checks a request by the first words of its descriptor and its byte enables.
    void check(const Offer& offer, const uint32_t* words, int first_enable,
               int last_enable) const;
    // Checks an interrupt message of `bytes` at `address`.
    void check_message(const Offer& offer, uint64_t address, uint32_t data, int64_t bytes,
                       int first_enable) const;
    // The host has written a word of BAR 0, with byte enables `enable`.
    void written(uint64_t offset, uint32_t value, int enable);

private:
    struct Entry {
        uint64_t address = 0;
        uint32_t data = 0;
    };
    struct Vector {
        Entry now;
        Entry before;  // as it was when the vector was masked
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
