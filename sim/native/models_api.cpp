// The C interface of the models without a controller (models.py binds it).
#include "bench.hpp"
#include "fields.hpp"
#include "straddle.hpp"

using namespace striata;

namespace {

std::string model_error;

template <typename Action>
int64_t guard(Action action) {
    model_error.clear();
    try {
        action();
        return 1;
    } catch (const std::exception& exception) {
        model_error = exception.what();
        return 0;
    }
}

}  // namespace

extern "C" {

const char* striata_fields(const char* group) { return field_names(group); }
const char* striata_model_error() { return model_error.c_str(); }

// `result` gets commands, mean latency, read-ahead hits and the busy time of the medium.
int64_t striata_load(const int64_t* drive, const int64_t* load, int64_t* result) {
    return guard([&] {
        to_array(run_load(from_array<DriveFields>(drive), from_array<LoadFields>(load)), result,
                 sizeof(LoadResult) / sizeof(int64_t));
    });
}

// `result` gets bytes, time, errors, completions and those out of order.
int64_t striata_bench_write(const int64_t* link, int64_t bytes, int64_t count, int64_t* result) {
    return guard([&] {
        to_array(bench_write(from_array<LinkFields>(link), bytes, count), result,
                 sizeof(BenchResult) / sizeof(int64_t));
    });
}

int64_t striata_bench_read(const int64_t* link, int64_t bytes, int64_t offset, int64_t outstanding,
                           int64_t count, int64_t* result) {
    return guard([&] {
        to_array(bench_read(from_array<LinkFields>(link), bytes, offset, outstanding, count),
                 result, sizeof(BenchResult) / sizeof(int64_t));
    });
}

// Checks beats of straddled RC. Each has data, the low 64 bits of tuser, tkeep and tlast.
int64_t striata_check_straddled(const uint8_t* data, const uint64_t* user, const uint8_t* ends,
                                int64_t count) {
    return guard([&] {
        StraddleRules rules;
        for (int64_t i = 0; i < count; ++i) {
            RcBeat beat;
            std::memcpy(beat.data, data + i * RcBeat::kBytes, sizeof beat.data);
            beat.user = user[i];
            beat.keep = ends[2 * i];
            beat.last = ends[2 * i + 1];
            rules.check(beat);
        }
    });
}

}  // extern "C"
