// A drive that does everything in parallel, after a fixed latency.
#include "drive.hpp"

namespace striata {

namespace {

class Ideal final : public Drive {
public:
    using Drive::Drive;

private:
    void read(int tag, Ps now) override {
        for (int i = 0; i < slot(tag).command.blocks; ++i)
            ready_at(tag, i, now + fields_.latency_ps);
    }
    void write(int tag, Ps) override { ask(tag); }
    void received(int tag, int, Ps now) override {
        if (--slot(tag).remaining == 0) schedule(now + fields_.latency_ps, tag);
    }
    void flush(int tag, Ps now) override { schedule(now + fields_.latency_ps, tag); }
    void due(int tag, Ps now) override { finish(tag, DriveStatus::kGood, now); }
    void forget() override {}
};

}  // namespace

std::unique_ptr<Drive> make_ideal(const DriveFields& fields, ExpanderLink* expander) {
    return std::make_unique<Ideal>(fields, expander);
}

}  // namespace striata
