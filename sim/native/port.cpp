#include "port.hpp"

#include <algorithm>
#include <cstring>

namespace striata {

namespace {

enum Moved { kCommand = 1, kReadBeat = 2, kWriteBeat = 4, kGrant = 8, kCompletion = 16,
             kAbort = 32, kReset = 64 };

constexpr int kOperationBits = 2;
constexpr int kBlockNumberBits = 40;
constexpr int64_t kNeverCycle = INT64_MAX;

uint64_t low_bits(uint64_t value, int count) { return value & ((uint64_t(1) << count) - 1); }

}  // namespace

Port::Port(const DrivePins& pins, Drive& drive, const Shape& shape)
    : pins_(pins),
      drive_(drive),
      shape_(shape),
      beats_(int(kBlockBytes) / shape.beat_bytes),
      cycles_per_ps_(1.0 / double(shape.clock_ps)) {
    *pins_.command.ready = 1;
    *pins_.grant.valid = 0;
    *pins_.write_data.ready = 0;
    *pins_.read_data.valid = 0;
    *pins_.completion.valid = 0;
    *pins_.present = drive.present();
    *pins_.restarted = 0;
    *pins_.capacity = uint64_t(drive.fields().capacity);
}

bool Port::drive_pins(int64_t cycle) {
    bool changed = false;
    wake_ = kNeverCycle;
    if (!grant_valid_ && !drive_.grants().empty()) {
        *pins_.grant.payload = uint8_t(drive_.grants().front());
        grant_valid_ = 1;
        changed = true;
    }
    if (!completion_valid_ && !drive_.completions().empty()) {
        const Completion& completion = drive_.completions().front();
        *pins_.completion.payload =
            uint8_t(completion.tag | int(completion.status) << shape_.tag_bits);
        completion_valid_ = 1;
        changed = true;
    }
    changed |= *pins_.grant.valid != grant_valid_ || *pins_.completion.valid != completion_valid_;
    *pins_.grant.valid = grant_valid_;
    *pins_.completion.valid = completion_valid_;
    changed |= drive_read(cycle);
    changed |= drive_write(cycle);
    if (restarts_ | *pins_.restarted) {
        // The pins say it for one cycle.
        *pins_.restarted = restarts_;
        restarts_ = 0;
        wake_ = cycle + 1;
        changed = true;
    }
    return changed;
}

bool Port::drive_read(int64_t cycle) {
    bool changed = false;
    if (!read_valid_ && drive_.frame_waiting()) {
        const Frame& frame = drive_.frame();
        if (!frame_loaded_) {
            frame_loaded_ = true;
            read_beat_ = 0;
            read_start_ = double(frame.start) * cycles_per_ps_;
            read_step_ = double(frame.end - frame.start) * cycles_per_ps_ / beats_;
        }
        const auto due = int64_t(std::ceil(read_start_ + read_step_ * (read_beat_ + 1)));
        if (due <= cycle) {
            uint8_t* payload = pins_.read_data.payload;
            std::memcpy(payload, frame.data + read_beat_ * shape_.beat_bytes,
                        size_t(shape_.beat_bytes));
            const bool last = read_beat_ == beats_ - 1;
            payload[shape_.beat_bytes] = uint8_t(frame.tag | int(last) << shape_.tag_bits);
            read_valid_ = 1;
            changed = true;
        } else {
            wake_ = std::min(wake_, due);
        }
    }
    changed |= *pins_.read_data.valid != read_valid_;
    *pins_.read_data.valid = read_valid_;
    return changed;
}

bool Port::drive_write(int64_t cycle) {
    uint8_t ready = 0;
    if (!inbound_.empty()) {
        if (!inbound_started_) {
            Ps start;
            Ps end;
            drive_.inbound(cycle * shape_.clock_ps, &start, &end);
            inbound_started_ = true;
            write_beat_ = 0;
            write_start_ = double(start) * cycles_per_ps_;
            write_step_ = double(end - start) * cycles_per_ps_ / beats_;
        }
        // A block is through when its last byte is. So the last beat waits for the end.
        const auto due = int64_t(std::ceil(write_start_ + write_step_ * (write_beat_ + 1)));
        ready = due <= cycle;
        if (!ready) wake_ = std::min(wake_, due);
    }
    const bool changed = write_ready_ != ready;
    write_ready_ = ready;
    *pins_.write_data.ready = ready;
    return changed;
}

// Checks that write data on offer stays until it is taken. A reset ends that.
void Port::watch(bool waits) {
    const size_t bytes = size_t(shape_.beat_bytes) + 1;
    const bool resets = *pins_.reset;
    if (held_ && !resets) {
        if (!*pins_.write_data.valid) throw ModelError("drive port: write data is withdrawn");
        if (std::memcmp(beat_, pins_.write_data.payload, bytes))
            throw ModelError("drive port: write data changes before it is taken");
    }
    if (waits && !held_) std::memcpy(beat_, pins_.write_data.payload, bytes);
    held_ = waits && !resets;
}

void Port::capture(int moved) {
    moved_ = moved;
    if (moved & kAbort) aborted_ = *pins_.abort_tag;
    if (moved & kCommand) {
        uint64_t payload;
        std::memcpy(&payload, pins_.command.payload, sizeof payload);
        command_.tag = int(low_bits(payload, shape_.tag_bits));
        payload >>= shape_.tag_bits;
        command_.operation = Operation(low_bits(payload, kOperationBits));
        payload >>= kOperationBits;
        command_.fua = payload & 1;
        payload >>= 1;
        command_.block = int64_t(low_bits(payload, kBlockNumberBits));
        payload >>= kBlockNumberBits;
        command_.blocks = int(low_bits(payload, 6)) + 1;
    }
    if (moved & kWriteBeat) {
        std::memcpy(block_ + write_beat_ * shape_.beat_bytes, pins_.write_data.payload,
                    size_t(shape_.beat_bytes));
        const bool last = pins_.write_data.payload[shape_.beat_bytes] & 1;
        if (last != (write_beat_ == beats_ - 1))
            throw ModelError("drive port: `last` is not on the last beat of a block");
    }
}

bool Port::gave_command() const { return moved_ & kCommand; }

bool Port::took_data() const { return moved_ & kReadBeat; }

void Port::commit(int64_t cycle) {
    const Ps now = cycle * shape_.clock_ps;
    const int moved = moved_;
    wake_ = 0;
    if (moved & kReset) {
        in_reset_ ^= 1;
        if (in_reset_) {
            begin_again(now);
            return;
        }
    }
    if (moved & kAbort) drive_.abort(aborted_, now);
    if (moved & kCommand) {
        drive_.submit(command_, now);
        if (*pins_.restarted) drive_.abort_unbegun(command_.tag);
    }
    if (moved & kReadBeat) {
        read_valid_ = 0;
        if (++read_beat_ == beats_) {
            frame_loaded_ = false;
            drive_.frame_taken(now);
        }
    }
    if (moved & kGrant) {
        grant_valid_ = 0;
        inbound_.push(drive_.grants().front());
        drive_.grant_taken();
    }
    if (moved & kWriteBeat) {
        if (++write_beat_ == beats_) {
            const int tag = inbound_.front();
            inbound_.pop();
            inbound_started_ = false;
            drive_.block_received(tag, block_, now);
        }
    }
    if (moved & kCompletion) {
        completion_valid_ = 0;
        drive_.completion_taken();
    }
}

void Port::begin_again(Ps now) {
    drive_.reset(now);
    restarts_ = drive_.fields().reset_loses_cache != 0;
    read_valid_ = 0;
    write_ready_ = 0;
    grant_valid_ = 0;
    completion_valid_ = 0;
    frame_loaded_ = false;
    inbound_.clear();
    inbound_started_ = false;
    write_beat_ = 0;
    // Every pin must show it before anything is sampled again.
    *pins_.read_data.valid = 0;
    *pins_.write_data.ready = 0;
    *pins_.grant.valid = 0;
    *pins_.completion.valid = 0;
}

void Port::restart(int64_t cycle) {
    if (!drive_.present() || in_reset_) return;
    const bool frame_started = frame_loaded_ && (read_beat_ || read_valid_);
    drive_.restart(frame_started, grant_valid_, cycle * shape_.clock_ps);
    if (!frame_started) frame_loaded_ = false;
    restarts_ = 1;
    wake_ = 0;
}

void Port::set_present(bool present, int64_t cycle) {
    const bool frame_started = frame_loaded_ && (read_beat_ || read_valid_);
    drive_.set_present(present, frame_started, grant_valid_, cycle * shape_.clock_ps);
    if (!frame_started) frame_loaded_ = false;
    *pins_.present = present;
    wake_ = 0;
}

}  // namespace striata
