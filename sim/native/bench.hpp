// The link without a controller: a device that writes or reads as fast as the link lets it.
#pragma once

#include "pcie.hpp"

namespace striata {

struct BenchResult {
    int64_t bytes = 0;       // payload moved in the measured time
    int64_t time_ps = 0;
    int64_t errors = 0;      // completions that carried wrong data or fields
    int64_t completions = 0;
    int64_t out_of_order = 0;  // completions that answer another request than the oldest
};

// Writes of `bytes` each. The link is full from the start.
BenchResult bench_write(const LinkFields& fields, int64_t bytes, int64_t count);
// Reads of `bytes` each at `offset` in their page, `outstanding` at a time. Checks the data.
BenchResult bench_read(const LinkFields& fields, int64_t bytes, int64_t offset,
                       int64_t outstanding, int64_t count);

}  // namespace striata
