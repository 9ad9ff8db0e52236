#include "drive.hpp"

#include <algorithm>

namespace striata {

Drive::Drive(const DriveFields& fields, ExpanderLink* expander)
    : fields_(fields),
      storage_(fields.keep_data),
      cache_(fields.volatile_cache && fields.keep_data, 0),
      expander_(expander) {}

void Drive::set_seed(uint64_t seed) {
    cache_ = VolatileCache(fields_.volatile_cache && fields_.keep_data, seed);
}

void Drive::advance(Ps now) {
    while (!events_.empty() && events_.top().time <= now) {
        const TimedEvent event = events_.top();
        events_.pop();
        switch (event.type) {
            case kBegin: begin(event.argument, event.time); break;
            case kReady: block_ready(event.argument, event.index, event.time); break;
            case kDone: complete(event.argument, DriveStatus(event.index), event.time); break;
            case kDerived: due(event.argument, event.time); break;
            }
    }
}

void Drive::submit(const DriveCommand& command, Ps now) {
    Slot& s = slot(command.tag);
    if (s.active) throw ModelError("drive: tag " + std::to_string(command.tag) + " is in use");
    if (command.operation != Operation::kFlush &&
        (command.block < 0 || command.block + command.blocks > fields_.capacity) && present_)
        throw ModelError("drive: block " + std::to_string(command.block) + " is past the end");
    s = Slot();
    s.active = true;
    s.command = command;
    s.since = now;
    s.error_at = command.blocks;
    counters_.outstanding_most = std::max(counters_.outstanding_most, ++counters_.outstanding);
    controller_free_ = std::max(controller_free_, now) + fields_.command_ps;
    push_event(controller_free_, kBegin, command.tag, 0);
}

void Drive::begin(int tag, Ps now) {
    Slot& s = slot(tag);
    if (!present_ || s.doomed) {
        s.doomed = true;
        end_doomed(tag, now);
        return;
    }
    if (fault_.commands) {
        if (fault_.commands > 0) --fault_.commands;
        s.faulty = true;
        s.delay = fault_.delay;
        ++counters_.faults;
        if (!fault_.at_end && !fault_.delay) {
            s.stuck = true;
            return;
        }
    }
    switch (s.command.operation) {
        case Operation::kRead:
            ++counters_.reads;
            s.error_at = storage_.first_bad(s.command.block, s.command.blocks);
            read(tag, now);
            break;
        case Operation::kWrite:
            ++counters_.writes;
            if (s.command.fua) {
                ++counters_.fua_writes;
                counters_.fua_blocks += s.command.blocks;
            }
            s.remaining = s.command.blocks;
            write(tag, now);
            break;
        case Operation::kFlush:
            ++counters_.flushes;
            s.written_before = cache_.taken();
            flush(tag, now);
            break;
        case Operation::kSpoil:
            // Write Uncorrectable. Reads of the block fail until it is written.
            if (storage_.refuses(s.command.block))
                s.refused = true;
            else
                cache_.spoil(storage_, s.command.block);
            finish(tag, DriveStatus::kGood, now);
            break;
    }
}

// Reading

void Drive::block_ready(int tag, int index, Ps now) {
    Slot& s = slot(tag);
    s.looked_at |= uint64_t(1) << index;
    if (s.failed) {
        end_failed(tag, now);
        return;
    }
    s.ready |= uint64_t(1) << index;
    while (s.emitted < s.command.blocks && s.ready >> s.emitted & 1) {
        if (s.emitted == s.error_at) {
            // The blocks before it may still be on the link. The last of them ends the command.
            s.failed = true;
            s.ready = 0;
            end_failed(tag, now);
            break;
        }
        outbound_.push({tag, s.emitted++, now});
    }
    send();
}

// Ends the command once the medium is done with it, as the tag may be used again at once.
void Drive::end_failed(int tag, Ps now) {
    Slot& s = slot(tag);
    const bool all = __builtin_popcountll(s.looked_at) == s.command.blocks;
    if (s.ended || s.taken != s.emitted || !all) return;
    s.ended = true;
    finish(tag, DriveStatus::kMediumError, now);
}

// Occupies the link and the shared link for one block. Returns when the last byte is through.
Ps Drive::reserve(Ps start, Ps* shared_free, int64_t* busy) {
    Ps end = start + transfer_time(kBlockBytes, fields_.rate);
    if (expander_) {
        *shared_free = std::max(*shared_free, start) + transfer_time(kBlockBytes, expander_->rate);
        end = std::max(end, *shared_free);
    }
    *busy += end - start;
    return end;
}

// Starts blocks on the link while the link core has room for them.
void Drive::send() {
    while (!outbound_.empty()) {
        if (frame_count_ == kLinkFrames) {
            space_blocked_ = true;
            return;
        }
        const Outbound next = outbound_.front();
        outbound_.pop();
        const Ps ready = space_blocked_ ? std::max(next.ready, space_time_) : next.ready;
        space_blocked_ = false;
        Frame& frame = frames_[(frame_first_ + frame_count_++) % kLinkFrames];
        frame.tag = next.tag;
        frame.start = std::max(ready, out_free_);
        frame.end = reserve(frame.start, expander_ ? &expander_->out_free : nullptr,
                            &counters_.out_busy_ps);
        out_free_ = frame.end;
        if (fields_.half_duplex) in_free_ = std::max(in_free_, out_free_);
        const DriveCommand& command = slot(next.tag).command;
        // A read with FUA stores the block before it gives it (NVMe 1.4, 6.9), at no cost in time.
        if (command.fua) cache_.flush_block(command.block + next.index, cache_.taken());
        storage_.read(command.block + next.index, frame.data);
        ++counters_.read_blocks;
    }
}

void Drive::frame_taken(Ps now) {
    const int tag = frame().tag;
    frame_first_ = (frame_first_ + 1) % kLinkFrames;
    --frame_count_;
    space_time_ = now;
    Slot& s = slot(tag);
    ++s.taken;
    if (s.doomed) {
        end_doomed(tag, now);
    } else if (s.taken == s.command.blocks) {
        finish(tag, DriveStatus::kGood, now);
    } else if (s.failed) {
        end_failed(tag, now);
    }
    send();
}

// Writing

void Drive::ask(int tag) {
    asking_.push(tag);
    grant_more();
}

void Drive::grant_more() {
    while (!asking_.empty() && grants_out_ < kGrantsAhead) {
        Slot& s = slot(asking_.front());
        grants_.push(asking_.front());
        ++grants_out_;
        if (++s.asked == s.command.blocks) asking_.pop();
    }
}

void Drive::grant_taken() {
    ++slot(grants_.front()).in_flight;
    grants_.pop();
}

void Drive::inbound(Ps now, Ps* start, Ps* end) {
    *start = std::max(now, in_free_);
    *end = reserve(*start, expander_ ? &expander_->in_free : nullptr, &counters_.in_busy_ps);
    in_free_ = *end;
    if (fields_.half_duplex) out_free_ = std::max(out_free_, in_free_);
}

void Drive::block_received(int tag, const uint8_t* data, Ps now) {
    Slot& s = slot(tag);
    --grants_out_;
    --s.in_flight;
    // The controller may have been slower than the link.
    in_free_ = std::max(in_free_, now);
    const int index = s.received++;
    if (s.doomed) {
        end_doomed(tag, now);
        return;
    }
    if (storage_.refuses(s.command.block + index)) {
        s.refused = true;
    } else {
        ++counters_.written_blocks;
        cache_.write(storage_, s.command.block + index, data);
    }
    s.written_before = cache_.taken();
    grant_more();
    received(tag, index, now);
}

// Ending

void Drive::finish(int tag, DriveStatus status, Ps now) {
    out_free_ = std::max(out_free_, now) + fields_.status_ps;
    if (fields_.half_duplex) in_free_ = std::max(in_free_, out_free_);
    Slot& s = slot(tag);
    if (s.refused && status == DriveStatus::kGood) {
        status = DriveStatus::kMediumError;
        ++counters_.refused;
    }
    if (s.faulty && !s.delay) {
        s.stuck = true;
        return;
    }
    push_event(out_free_ + (s.faulty ? s.delay : 0), kDone, tag, int(status));
}

void Drive::complete(int tag, DriveStatus status, Ps now) {
    slot(tag).stuck = false;
    if (status == DriveStatus::kGood) {
        const Slot& s = slot(tag);
        if (s.command.operation == Operation::kFlush) cache_.flush(s.written_before);
        if (s.command.fua && s.command.operation == Operation::kWrite)
            for (int i = 0; i < s.command.blocks; ++i)
                cache_.flush_block(s.command.block + i, s.written_before);
    }
    const Ps latency = now - slot(tag).since;
    counters_.latency_sum_ps += latency;
    counters_.latency_most_ps = std::max(counters_.latency_most_ps, latency);
    int bin = 0;
    for (Ps nanoseconds = latency / 1000; nanoseconds > 1; nanoseconds >>= 1) ++bin;
    ++histogram_[bin];
    if (status != DriveStatus::kGood) ++counters_.errors;
    completions_.push({tag, status});
}

void Drive::completion_taken() {
    slot(completions_.front().tag).active = false;
    completions_.pop();
    --counters_.outstanding;
}

void Drive::abort(int tag, Ps now) {
    ++counters_.aborts;
    Slot& s = slot(tag);
    if (!s.active || !s.stuck || fault_.deaf) return;
    s.stuck = false;
    complete(tag, DriveStatus::kAborted, now);
}

void Drive::reset(Ps now) {
    ++counters_.resets;
    // What was not flushed before the reset may be lost, as after a power loss.
    if (fields_.reset_loses_cache) cache_.lose(storage_);
    forget();
    events_ = {};
    outbound_.clear();
    asking_.clear();
    grants_.clear();
    completions_.clear();
    grants_out_ = 0;
    frame_count_ = 0;
    counters_.outstanding = 0;
    space_blocked_ = false;
    for (Slot& s : slots_) s = Slot();
    controller_free_ = out_free_ = in_free_ = now;
    if (!fault_.lasting) fault_ = Fault();
}

// Going away

void Drive::end_doomed(int tag, Ps now) {
    const Slot& s = slot(tag);
    if (s.in_flight || (s.command.operation == Operation::kRead && s.taken != s.emitted)) return;
    complete(tag, s.anew ? DriveStatus::kAborted : DriveStatus::kGone, now);
}

void Drive::restart(bool frame_started, bool grant_offered, Ps now) {
    if (!present_) return;
    if (!fault_.lasting) fault_ = Fault();
    end_all(true, frame_started, grant_offered, now);
}

void Drive::abort_unbegun(int tag) { slot(tag).doomed = slot(tag).anew = true; }

void Drive::set_present(bool present, bool frame_started, bool grant_offered, Ps now) {
    if (present == present_) return;
    present_ = present;
    if (!present) end_all(false, frame_started, grant_offered, now);
}

void Drive::end_all(bool anew, bool frame_started, bool grant_offered, Ps now) {
    cache_.lose(storage_);
    forget();
    events_ = {};
    outbound_.clear();
    asking_.clear();
    const size_t frames_kept = frame_started ? 1 : 0;
    const int grant_tag = grant_offered ? grants_.front() : -1;
    grants_out_ = 0;
    grants_.clear();
    if (grant_offered) grants_.push(grant_tag);
    frame_count_ = frames_kept;
    bool ended[kMaxTags] = {};
    for (size_t i = 0; i < completions_.size(); ++i) ended[completions_[i].tag] = true;
    for (int tag = 0; tag < kMaxTags; ++tag) {
        Slot& s = slot(tag);
        if (!s.active || ended[tag]) continue;
        const bool on_pins = frames_kept && frame().tag == tag;
        s.doomed = true;
        s.anew = anew;
        s.emitted = s.taken + (on_pins ? 1 : 0);
        grants_out_ += size_t(s.in_flight) + (tag == grant_tag ? 1 : 0);
        // The controller will take a grant on the pins, and send its data.
        if (tag != grant_tag) end_doomed(tag, now);
    }
}

void Drive::replace() {
    storage_.wipe();
    cache_.clear();
    fault_ = Fault();
}

std::unique_ptr<Drive> make_drive(const DriveFields& fields, ExpanderLink* expander) {
    switch (DriveKind(fields.kind)) {
        case DriveKind::kHdd: return make_hdd(fields, expander);
        case DriveKind::kSsd: return make_ssd(fields, expander);
        case DriveKind::kIdeal: return make_ideal(fields, expander);
    }
    throw ModelError("drive: there is no kind " + std::to_string(fields.kind));
}

}  // namespace striata
