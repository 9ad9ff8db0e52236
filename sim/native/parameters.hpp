// Parameters and counters as flat lists of 64-bit integers. Python asks for the names in this order
// and passes the values. So the two sides cannot disagree. parameters.py says what they mean.
#pragma once

#include <cstdint>

#define STRIATA_LINK_FIELDS(X)                                                                  \
    X(generation) X(lanes) X(max_payload) X(max_read_request) X(rcb) X(completion_bytes)        \
    X(propagation_ps) X(memory_read_ps) X(read_jitter_ps) X(shuffle) X(ack_every)               \
    X(update_every) X(skip) X(posted_headers) X(posted_data) X(non_posted_headers)              \
    X(device_posted_headers) X(device_non_posted_headers) X(credit_return_ps)                   \
    X(completion_headers) X(completion_data) X(transmit_tlps) X(memory_base) X(bar_base)        \
    X(msi_base) X(seed) X(hold_every) X(hold_ps) X(ready_percent) X(random_splits)              \
    X(np_req_ps) X(check_vectors) X(straddle_percent) X(in_order) X(late_credits)

#define STRIATA_DRIVE_FIELDS(X)                                                                 \
    X(kind) X(capacity) X(rate) X(half_duplex) X(expander) X(command_ps) X(status_ps)           \
    X(cache_blocks) X(keep_data) X(latency_ps) X(revolution_ps) X(media_rate) X(settle_ps)      \
    X(seek_root_ps) X(seek_linear_ps) X(write_settle_ps) X(read_window) X(write_window)         \
    X(read_ahead_blocks) X(dies) X(read_ps) X(program_ps) X(random_read_ps)                     \
    X(random_program_ps) X(lookup_ps) X(power_safe)                     \
    X(dirty_blocks) X(dirty_random) X(volatile_cache) X(reset_loses_cache)

// The last line is about reads of one block, one at a time (`phases.hpp`).
// Upstream is from the device to the host. Payload is user data. Wire is everything sent. Busy is
// the time that the serialiser spends on TLPs and DLLPs.
#define STRIATA_RUN_COUNTERS(X)                                                                 \
    X(cycles_evaluated) X(cycles_skipped) X(jumps)                                              \
    X(up_tlps) X(up_payload_bytes) X(up_wire_bytes) X(up_busy_ps)                               \
    X(down_tlps) X(down_payload_bytes) X(down_wire_bytes) X(down_busy_ps)                       \
    X(memory_writes) X(memory_reads) X(interrupts) X(mmio_writes) X(mmio_reads)                 \
    X(most_completion_headers) X(most_completion_bytes) X(rq_stall_cycles) X(rc_stall_cycles)   \
    X(reads_outstanding_most) X(stray_writes) X(stray_reads) X(reads_failed)                    \
    X(rc_shared_beats) X(reads_timed) X(fetch_ps) X(command_ps) X(send_ps) X(interrupt_ps)

#define STRIATA_DRIVE_COUNTERS(X)                                                               \
    X(reads) X(writes) X(flushes) X(read_blocks) X(written_blocks) X(errors)                    \
    X(out_busy_ps) X(in_busy_ps) X(medium_busy_ps) X(read_ahead_hits) X(latency_sum_ps)         \
    X(latency_most_ps) X(outstanding) X(outstanding_most) X(faults) X(aborts) X(resets)         \
    X(fua_writes) X(fua_blocks) X(refused) X(unflushed)

#define STRIATA_FIELD(name) int64_t name;
#define STRIATA_ZERO_FIELD(name) int64_t name = 0;
#define STRIATA_NAME(name) #name ","

namespace striata {

struct LinkFields {
    STRIATA_LINK_FIELDS(STRIATA_FIELD)
};
struct DriveFields {
    STRIATA_DRIVE_FIELDS(STRIATA_FIELD)
};
struct RunCounters {
    STRIATA_RUN_COUNTERS(STRIATA_ZERO_FIELD)
};
struct DriveCounters {
    STRIATA_DRIVE_COUNTERS(STRIATA_ZERO_FIELD)
};

enum class DriveKind : int64_t { kIdeal = 0, kHdd = 1, kSsd = 2 };

}  // namespace striata
