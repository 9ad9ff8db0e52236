// Times in which the host, the link or the hard block lets something wait, asked for or at random.
#pragma once

#include <algorithm>

#include "common.hpp"

namespace striata {

// The first five wait for credits: upstream requests with data, upstream reads, register writes,
// register reads, completions of reads. The last two are the hard block's `tready`.
enum class Flow { kPosted, kReads, kRegisterWrites, kRegisterReads, kCompletions, kRq, kCc, kCount };

class Holds {
public:
    Holds(int64_t every, Ps longest) : every_(every), longest_(longest) {}

    bool held(Flow flow, Ps now) const { return now < latest_ && now < until_[int(flow)]; }
    void hold(Flow flow, Ps until) {
        until_[int(flow)] = std::max(until_[int(flow)], until);
        latest_ = std::max(latest_, until);
    }
    // The time at which a packet that was held leaves at the earliest.
    Ps until(Flow flow) const { return until_[int(flow)]; }
    // Whether the packet that could go now waits. At random one packet in `every` begins to wait.
    bool waits(Flow flow, Ps now, Random& random) {
        if (held(flow, now)) return true;
        if (!every_ || random.below(uint64_t(every_))) return false;
        hold(flow, now + 1 + Ps(random.below(uint64_t(longest_))));
        return true;
    }
    // The first end of a hold after `now`.
    Ps next(Ps now) const {
        Ps next = kNever;
        if (now >= latest_) return next;
        for (const Ps until : until_)
            if (until > now) next = std::min(next, until);
        return next;
    }

private:
    int64_t every_;
    Ps longest_;
    Ps until_[int(Flow::kCount)] = {};
    Ps latest_ = 0;
};

}  // namespace striata
