// The C interface of the controller library (harness.py binds it). No exception leaves it: errors
// are kept as text.
#include <algorithm>

#include "fields.hpp"
#include "harness.hpp"

using namespace striata;

namespace {

struct Handle {
    std::unique_ptr<Harness> harness;
    std::string error;
};

std::string creation_error;

// Calls `action`; keeps the text of what it throws.
template <typename Action>
auto guard(Handle* handle, Action action) -> decltype(action(*handle->harness)) {
    try {
        return action(*handle->harness);
    } catch (const std::exception& exception) {
        handle->error = exception.what();
    }
    return decltype(action(*handle->harness))();
}

}  // namespace

extern "C" {

const char* striata_fields(const char* group) { return field_names(group); }

Handle* striata_create(const int64_t* link, const int64_t* drives, int64_t drive_count,
                       const int64_t* expanders, int64_t expander_count, int64_t memory_bytes,
                       uint8_t* memory) {
    creation_error.clear();
    try {
        constexpr size_t kFields = sizeof(DriveFields) / sizeof(int64_t);
        if (drive_count != kShape.ports) throw ModelError("the controller has other ports");
        std::vector<DriveFields> fields;
        for (int64_t i = 0; i < drive_count; ++i)
            fields.push_back(from_array<DriveFields>(drives + size_t(i) * kFields));
        const std::vector<int64_t> rates(expanders, expanders + expander_count);
        auto handle = std::make_unique<Handle>();
        handle->harness = std::make_unique<Harness>(from_array<LinkFields>(link), fields, rates,
                                                    memory, memory_bytes);
        return handle.release();
    } catch (const std::exception& exception) {
        creation_error = exception.what();
        return nullptr;
    }
}

void striata_destroy(Handle* handle) { delete handle; }

const char* striata_error(const Handle* handle) {
    return handle ? handle->error.c_str() : creation_error.c_str();
}

int64_t striata_run(Handle* handle, int64_t until, int64_t cycles, Event* events, int64_t most) {
    return guard(handle,
                 [&](Harness& harness) { return harness.run(until, cycles, events, most); });
}

void striata_map_memory(Handle* handle, int64_t address, int64_t bytes, uint8_t* data) {
    handle->harness->link().map_memory(uint64_t(address), bytes, data);
}

void striata_unmap_memory(Handle* handle) { handle->harness->link().unmap_memory(); }

int64_t striata_now(const Handle* handle) { return handle->harness->now(); }

void striata_mmio_write(Handle* handle, int64_t offset, int64_t value, int64_t bytes) {
    Harness& harness = *handle->harness;
    harness.link().mmio_write(uint64_t(offset), uint64_t(value), int(bytes), harness.now());
}

void striata_mmio_read(Handle* handle, int64_t offset, int64_t bytes) {
    Harness& harness = *handle->harness;
    harness.link().mmio_read(uint64_t(offset), int(bytes), harness.now());
}

int64_t striata_statistics(Handle* handle, int64_t port, int64_t* values, int64_t most) {
    Harness& harness = *handle->harness;
    if (port < 0) return to_array(harness.counters(), values, most);
    return to_array(harness.drive(port).counters(), values, most);
}

void striata_histogram(Handle* handle, int64_t port, int64_t* values, int64_t most) {
    const int64_t* bins = handle->harness->drive(port).histogram();
    std::copy(bins, bins + std::min<int64_t>(most, kHistogramBins), values);
}

void striata_set_present(Handle* handle, int64_t port, int64_t present) {
    handle->harness->set_present(port, present);
}

void striata_set_card(Handle* handle, int64_t identity, int64_t nonce) {
    handle->harness->set_card(uint64_t(identity), uint64_t(nonce));
}

void striata_set_identity(Handle* handle, int64_t port, int64_t identity) {
    handle->harness->set_identity(port, uint64_t(identity));
}

void striata_wipe(Handle* handle, int64_t port) { handle->harness->drive(port).storage().wipe(); }

// mode 0: readable again; 1: bad until written; 2: bad for good.
void striata_medium_error(Handle* handle, int64_t port, int64_t block, int64_t mode) {
    Storage& storage = handle->harness->drive(port).storage();
    if (mode)
        storage.set_bad(block, mode == 1);
    else
        storage.clear_bad(block);
}

// flags: 1 data moves, 2 deaf to aborts, 4 not cured by a reset.
void striata_drive_fault(Handle* handle, int64_t port, int64_t commands, int64_t flags,
                         int64_t delay_ps) {
    handle->harness->drive(port).set_fault({commands, (flags & 1) != 0, (flags & 2) != 0,
                                            (flags & 4) != 0, delay_ps});
}

void striata_set_jumping(Handle* handle, int64_t jumping) {
    handle->harness->set_jumping(jumping);
}

void striata_set_status(Handle* handle, const char* name, int64_t value) {
    guard(handle, [&](Harness& harness) {
        harness.set_status(name, value);
        return 0;
    });
}

int64_t striata_reset_done(Handle* handle) { return handle->harness->reset_done(); }

void striata_drive_read(Handle* handle, int64_t port, int64_t block, int64_t count,
                        uint8_t* data) {
    const Storage& storage = handle->harness->drive(port).storage();
    for (int64_t i = 0; i < count; ++i) storage.read(block + i, data + i * kBlockBytes);
}

void striata_drive_write(Handle* handle, int64_t port, int64_t block, int64_t count,
                         const uint8_t* data) {
    Storage& storage = handle->harness->drive(port).storage();
    for (int64_t i = 0; i < count; ++i) storage.write(block + i, data + i * kBlockBytes);
}

// Numbers of the blocks that hold something; returns how many there are.
int64_t striata_drive_blocks(Handle* handle, int64_t port, int64_t* blocks, int64_t most) {
    const auto& pages = handle->harness->drive(port).storage().pages();
    int64_t count = 0;
    for (const auto& page : pages)
        if (!Storage::is_zero(page.second) && count++ < most) blocks[count - 1] = page.first;
    return count;
}

}  // extern "C"
