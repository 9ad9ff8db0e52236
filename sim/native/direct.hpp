// A drive without a controller. A host keeps a number of commands outstanding. Fitting and tests of
// the drive models use it.
#pragma once

#include "drive.hpp"

#define STRIATA_LOAD_FIELDS(X)                                                                  \
    X(depth) X(read_percent) X(blocks) X(sequential) X(first) X(range) X(warm_up_ps)            \
    X(measure_ps) X(seed)

namespace striata {

struct LoadFields {
    STRIATA_LOAD_FIELDS(STRIATA_FIELD)
};

struct LoadResult {
    int64_t commands = 0;     // commands that ended in the measured time
    int64_t latency_ps = 0;   // their mean latency
    int64_t read_ahead_hits = 0;
    int64_t medium_busy_ps = 0;
};

LoadResult run_load(const DriveFields& drive, const LoadFields& load);

}  // namespace striata
