// The C interface of the controller library (harness.py binds it). No exception leaves it. A call
// that fails returns `kFailed`. `striata_error` says why until the next call.
#include <algorithm>

#include "checks.hpp"
#include "fields.hpp"
#include "harness.hpp"

using namespace striata;

// Writes the counts of a `PROFILE` build (build.py). Other builds do not have it.
extern "C" int __llvm_profile_write_file(void) __attribute__((weak));

namespace {

constexpr int64_t kFailed = std::numeric_limits<int64_t>::min();

struct Handle {
    std::unique_ptr<Harness> harness;
    std::string error;
};

std::string loose_error;  // the error of a call without a handle

// Calls `action`. Keeps the text of what it throws.
template <typename Action>
int64_t guard(Handle* handle, Action action) {
    std::string& error = handle ? handle->error : loose_error;
    error.clear();
    try {
        if (!handle) throw ModelError("the harness is closed");
        return action(*handle->harness);
    } catch (const std::exception& exception) {
        error = exception.what();
    }
    return kFailed;
}

void check_blocks(const Drive& drive, int64_t block, int64_t count) {
    const int64_t capacity = drive.fields().capacity;
    if (block < 0 || count < 0 || count > capacity || block > capacity - count)
        throw ModelError("blocks " + std::to_string(block) + " to " +
                         std::to_string(block + count - 1) + " are not all on a drive of " +
                         std::to_string(capacity));
}

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
        throw ModelError(std::string(name) + " must be " + std::to_string(least) + ".." +
                         std::to_string(most) + ", not " + std::to_string(value));
}

constexpr int64_t kForever = kNever / 4;

}  // namespace

extern "C" {

const char* striata_fields(const char* group) { return field_names(group); }

Handle* striata_create(const int64_t* link, const int64_t* drives, int64_t drive_count,
                       const int64_t* expanders, int64_t expander_count, int64_t memory_bytes,
                       uint8_t* memory, int64_t seed) {
    loose_error.clear();
    try {
        constexpr size_t kFields = sizeof(DriveFields) / sizeof(int64_t);
        if (drive_count != kShape.ports) throw ModelError("the controller has other ports");
        const auto link_fields = from_array<LinkFields>(link);
        check_link(link_fields);
        check_range("memory_bytes", memory_bytes, 0, kForever);
        check_range("expanders", expander_count, 0, 256);
        std::vector<DriveFields> fields;
        for (int64_t i = 0; i < drive_count; ++i) {
            fields.push_back(from_array<DriveFields>(drives + size_t(i) * kFields));
            check_drive(fields.back(), expander_count);
        }
        const std::vector<int64_t> rates(expanders, expanders + expander_count);
        for (const int64_t rate : rates) check_range("rate", rate, 1, kForever);
        auto handle = std::make_unique<Handle>();
        handle->harness = std::make_unique<Harness>(link_fields, fields, rates, memory,
                                                    memory_bytes, uint64_t(seed));
        return handle.release();
    } catch (const std::exception& exception) {
        loose_error = exception.what();
        return nullptr;
    }
}

void striata_destroy(Handle* handle) {
    delete handle;
    // Here and not when the process ends: processes of a pool end without the exit handlers that
    // would do it.
    if (__llvm_profile_write_file) __llvm_profile_write_file();
}

const char* striata_error(const Handle* handle) {
    return handle ? handle->error.c_str() : loose_error.c_str();
}

int64_t striata_run(Handle* handle, int64_t until, int64_t cycles, Event* events, int64_t most) {
    return guard(handle, [&](Harness& harness) {
        check_range("until", until, 0, kForever);
        check_range("cycles", cycles, 0, kForever);
        check_range("events", most, 1, kForever);
        return harness.run(until, cycles, events, most);
    });
}

int64_t striata_map_memory(Handle* handle, int64_t address, int64_t bytes, uint8_t* data) {
    return guard(handle, [&](Harness& harness) {
        check_range("bytes", bytes, 1, kForever);
        harness.link().map_memory(uint64_t(address), bytes, data);
        return 0;
    });
}

int64_t striata_unmap_memory(Handle* handle) {
    return guard(handle, [&](Harness& harness) {
        harness.link().unmap_memory();
        return 0;
    });
}

int64_t striata_now(Handle* handle) {
    return guard(handle, [&](Harness& harness) { return harness.now(); });
}

int64_t striata_mmio_write(Handle* handle, int64_t offset, int64_t value, int64_t bytes) {
    return guard(handle, [&](Harness& harness) {
        check_range("bytes", bytes, 1, 8);
        harness.link().mmio_write(uint64_t(offset), uint64_t(value), int(bytes), harness.now());
        return 0;
    });
}

// Returns the tag that the event will have.
int64_t striata_mmio_read(Handle* handle, int64_t offset, int64_t bytes) {
    return guard(handle, [&](Harness& harness) {
        check_range("bytes", bytes, 1, 8);
        return harness.link().mmio_read(uint64_t(offset), int(bytes), harness.now());
    });
}

// Holds a flow for `time_ps`. `flow` is a `Flow`.
int64_t striata_hold(Handle* handle, int64_t flow, int64_t time_ps) {
    return guard(handle, [&](Harness& harness) {
        check_range("flow", flow, 0, int64_t(Flow::kCount) - 1);
        check_range("time_ps", time_ps, 0, 1000 * kSecond);
        harness.link().hold(Flow(flow), time_ps, harness.now());
        return 0;
    });
}

// `end` is a `ReadEnd`. With `bytes` 0 it hits reads of any address.
int64_t striata_fail_reads(Handle* handle, int64_t end, int64_t reads, int64_t address,
                           int64_t bytes, int64_t late) {
    return guard(handle, [&](Harness& harness) {
        check_range("bytes", bytes, 0, kForever);
        harness.link().fail_reads(
            {ReadEnd(end), reads, uint64_t(address), uint64_t(bytes), late != 0});
        return 0;
    });
}

// With `port` -1 these are the statistics of the run.
int64_t striata_statistics(Handle* handle, int64_t port, int64_t* values, int64_t most) {
    return guard(handle, [&](Harness& harness) {
        check_range("values", most, 0, kForever);
        if (port == -1) return to_array(harness.counters(), values, most);
        return to_array(harness.drive(port).counters(), values, most);
    });
}

int64_t striata_histogram(Handle* handle, int64_t port, int64_t* values, int64_t most) {
    return guard(handle, [&](Harness& harness) {
        check_range("values", most, 0, kForever);
        const int64_t* bins = harness.drive(port).histogram();
        const int64_t count = std::min<int64_t>(most, kHistogramBins);
        std::copy(bins, bins + count, values);
        return count;
    });
}

int64_t striata_set_present(Handle* handle, int64_t port, int64_t present) {
    return guard(handle, [&](Harness& harness) {
        harness.set_present(port, present);
        return 0;
    });
}

int64_t striata_restart_drive(Handle* handle, int64_t port) {
    return guard(handle, [&](Harness& harness) {
        harness.restart(port);
        return 0;
    });
}

// With `time_ps` 0 the drive stays away.
int64_t striata_lose_power(Handle* handle, int64_t port, int64_t time_ps) {
    return guard(handle, [&](Harness& harness) {
        check_range("time_ps", time_ps, 0, 1000 * kSecond);
        harness.lose_power(port, time_ps);
        return 0;
    });
}

int64_t striata_set_card(Handle* handle, int64_t identity, int64_t nonce) {
    return guard(handle, [&](Harness& harness) {
        harness.set_card(uint64_t(identity), uint64_t(nonce));
        return 0;
    });
}

int64_t striata_set_backup(Handle* handle, int64_t fails, int64_t blocks) {
    return guard(handle, [&](Harness& harness) {
        check_range("blocks", blocks, 0, (int64_t(1) << 32) - 1);
        harness.set_backup(fails != 0, uint32_t(blocks));
        return 0;
    });
}

int64_t striata_saved(Handle* handle) {
    return guard(handle, [&](Harness& harness) { return int64_t(harness.saved()); });
}

int64_t striata_set_begin(Handle* handle, int64_t begin) {
    return guard(handle, [&](Harness& harness) {
        harness.set_begin(uint64_t(begin));
        return 0;
    });
}

int64_t striata_set_identity(Handle* handle, int64_t port, int64_t identity) {
    return guard(handle, [&](Harness& harness) {
        harness.set_identity(port, uint64_t(identity));
        return 0;
    });
}

int64_t striata_replace_drive(Handle* handle, int64_t port) {
    return guard(handle, [&](Harness& harness) {
        harness.drive(port).replace();
        return 0;
    });
}

// `mode` is 0 for readable again, 1 for bad until written, 2 for bad for good.
int64_t striata_medium_error(Handle* handle, int64_t port, int64_t block, int64_t mode) {
    return guard(handle, [&](Harness& harness) {
        Drive& drive = harness.drive(port);
        check_range("mode", mode, 0, 2);
        check_blocks(drive, block, 1);
        if (mode)
            drive.storage().set_bad(block, mode == 1);
        else
            drive.heal(block);
        return 0;
    });
}

int64_t striata_refuse_writes(Handle* handle, int64_t port, int64_t block, int64_t count,
                              int64_t refused) {
    return guard(handle, [&](Harness& harness) {
        Drive& drive = harness.drive(port);
        check_blocks(drive, block, count);
        for (int64_t i = 0; i < count; ++i) drive.storage().refuse(block + i, refused);
        return 0;
    });
}

// `flags` are 1 if the data moves, 2 if aborts do nothing, 4 if a reset does not cure the drive.
int64_t striata_drive_fault(Handle* handle, int64_t port, int64_t commands, int64_t flags,
                            int64_t delay_ps) {
    return guard(handle, [&](Harness& harness) {
        Drive& drive = harness.drive(port);
        check_range("commands", commands, -1, kForever);
        check_range("flags", flags, 0, 7);
        check_range("delay_ps", delay_ps, 0, 1000 * kSecond);
        drive.set_fault({commands, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0,
                         delay_ps});
        return 0;
    });
}

int64_t striata_set_jumping(Handle* handle, int64_t jumping) {
    return guard(handle, [&](Harness& harness) {
        harness.set_jumping(jumping);
        return 0;
    });
}

int64_t striata_set_status(Handle* handle, const char* name, int64_t value) {
    return guard(handle, [&](Harness& harness) {
        harness.set_status(name, value);
        return 0;
    });
}

int64_t striata_reset_done(Handle* handle) {
    return guard(handle, [&](Harness& harness) { return int64_t(harness.reset_done()); });
}

int64_t striata_drive_read(Handle* handle, int64_t port, int64_t block, int64_t count,
                           uint8_t* data) {
    return guard(handle, [&](Harness& harness) {
        Drive& drive = harness.drive(port);
        check_blocks(drive, block, count);
        for (int64_t i = 0; i < count; ++i)
            drive.storage().read(block + i, data + i * kBlockBytes);
        return 0;
    });
}

int64_t striata_drive_write(Handle* handle, int64_t port, int64_t block, int64_t count,
                            const uint8_t* data) {
    return guard(handle, [&](Harness& harness) {
        Drive& drive = harness.drive(port);
        check_blocks(drive, block, count);
        for (int64_t i = 0; i < count; ++i)
            drive.store(block + i, data + i * kBlockBytes);
        return 0;
    });
}

// Writes the numbers of the blocks that hold something. Returns how many there are.
int64_t striata_drive_blocks(Handle* handle, int64_t port, int64_t* blocks, int64_t most) {
    return guard(handle, [&](Harness& harness) {
        const auto& pages = harness.drive(port).storage().pages();
        int64_t count = 0;
        for (const auto& page : pages)
            if (!Storage::is_zero(page.second) && count++ < most) blocks[count - 1] = page.first;
        return count;
    });
}

}  // extern "C"
