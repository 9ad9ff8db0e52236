// Where the time of a read goes inside the controller, between moments at its pins. Only loads with
// one read of one block outstanding have meaningful sums.
#pragma once

#include "common.hpp"
#include "parameters.hpp"

namespace striata {

enum class Moment {
    kDoorbell,   // the submission queue's doorbell has been taken
    kFetch,      // the read of its entry has left
    kEntry,      // the entry has been taken
    kCommand,    // a drive command has left
    kData,       // the last beat from the drive has been taken
    kSent,       // the last write of data has left
    kInterrupt,  // the interrupt has left
    kCount,
};

class Phases {
public:
    explicit Phases(RunCounters& counters) : counters_(counters) {}

    void mark(Moment moment, Ps now) {
        times_[int(moment)] = now;
        if (moment != Moment::kInterrupt) return;
        for (int i = 1; i < int(Moment::kCount); ++i)
            if (times_[i] < times_[i - 1]) return;
        ++counters_.reads_timed;
        counters_.fetch_ps += between(Moment::kDoorbell, Moment::kFetch);
        counters_.command_ps += between(Moment::kEntry, Moment::kCommand);
        counters_.send_ps += between(Moment::kData, Moment::kSent);
        counters_.interrupt_ps += between(Moment::kSent, Moment::kInterrupt);
    }

private:
    Ps between(Moment from, Moment to) const { return times_[int(to)] - times_[int(from)]; }

    RunCounters& counters_;
    Ps times_[int(Moment::kCount)] = {};
};

}  // namespace striata
