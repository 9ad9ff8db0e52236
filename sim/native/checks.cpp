#include "checks.hpp"

#include "pcie.hpp"

namespace striata {

namespace {

constexpr int64_t kMuch = int64_t(1) << 40;

void within(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
        throw ModelError(std::string(name) + " must be " + std::to_string(least) + ".." +
                         std::to_string(most) + ", not " + std::to_string(value));
}

void power(const char* name, int64_t value, int64_t least, int64_t most) {
    within(name, value, least, most);
    if (value & (value - 1))
        throw ModelError(std::string(name) + " must be a power of two, not " +
                         std::to_string(value));
}

}  // namespace

void check_link(const LinkFields& fields) {
    within("generation", fields.generation, 1, 5);
    power("lanes", fields.lanes, 1, 16);
    power("max_payload", fields.max_payload, 128, kMaxPayload);
    power("max_read_request", fields.max_read_request, 128, kMaxPayload);
    power("rcb", fields.rcb, 64, 128);
    if (fields.completion_bytes)
        power("completion_bytes", fields.completion_bytes, fields.rcb, kMaxPayload);
    within("posted_headers", fields.posted_headers, 1, kMuch);
    within("posted_data", fields.posted_data, fields.max_payload / kCreditBytes, kMuch);
    within("non_posted_headers", fields.non_posted_headers, 1, kMuch);
    within("device_posted_headers", fields.device_posted_headers, 1, kMuch);
    within("device_non_posted_headers", fields.device_non_posted_headers, 1, kMuch);
    within("transmit_tlps", fields.transmit_tlps, 1, kMuch);
    for (const int64_t time : {fields.propagation_ps, fields.memory_read_ps, fields.read_jitter_ps,
                               fields.credit_return_ps, fields.hold_ps, fields.np_req_ps,
                               fields.ack_every, fields.update_every})
        within("a time or an interval of the link", time, 0, kSecond);
    within("hold_every", fields.hold_every, 0, kMuch);
    within("hold_ps", fields.hold_ps, fields.hold_every ? 1 : 0, kSecond);
    within("ready_percent", fields.ready_percent, 1, kPercent);
    within("straddle_percent", fields.straddle_percent, 0, kPercent);
}

void check_drive(const DriveFields& fields, int64_t expanders) {
    within("kind", fields.kind, int64_t(DriveKind::kIdeal), int64_t(DriveKind::kSsd));
    within("capacity", fields.capacity, 1, kMuch - 1);
    within("rate", fields.rate, 0, kMuch);
    within("expander", fields.expander, -1, expanders - 1);
    within("cache_blocks", fields.cache_blocks, 0, int64_t(1) << 24);
    for (const int64_t time : {fields.command_ps, fields.status_ps, fields.latency_ps,
                               fields.settle_ps, fields.seek_root_ps, fields.seek_linear_ps,
                               fields.write_settle_ps, fields.read_ps, fields.program_ps,
                               fields.random_read_ps, fields.random_program_ps, fields.lookup_ps})
        within("a time of the drive", time, 0, 1000 * kSecond);
    if (DriveKind(fields.kind) == DriveKind::kHdd) {
        within("revolution_ps", fields.revolution_ps, 1, kSecond);
        within("media_rate", fields.media_rate, kBlockBytes, kMuch);
        within("read_window", fields.read_window, 1, kMuch);
        within("write_window", fields.write_window, 1, kMuch);
        within("read_ahead_blocks", fields.read_ahead_blocks, 0, kMuch);
    }
    if (DriveKind(fields.kind) == DriveKind::kSsd) {
        within("dies", fields.dies, 1, 4096);
        within("cache_blocks", fields.cache_blocks, kMaxCommandBlocks, int64_t(1) << 24);
        within("dirty_blocks", fields.dirty_blocks, 0, fields.cache_blocks);
    }
}

void check_load(const LoadFields& fields, const DriveFields& drive) {
    within("depth", fields.depth, 1, kMaxTags);
    within("read_percent", fields.read_percent, 0, 100);
    within("blocks", fields.blocks, 1, kMaxCommandBlocks);
    within("first", fields.first, 0, drive.capacity - 1);
    // A random command begins at a block that leaves it room. There must be such a block.
    within("range", fields.range, fields.blocks + !fields.sequential,
           drive.capacity - fields.first);
    within("warm_up_ps", fields.warm_up_ps, 0, kNever / 4);
    within("measure_ps", fields.measure_ps, 1, kNever / 4);
}

}  // namespace striata
