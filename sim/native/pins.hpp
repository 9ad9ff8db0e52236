// The controller's ports as memory. Verilator keeps every port little endian. So a pointer to its
// first byte serves any width. The generated dut.hpp fills in the pointers.
#pragma once

#include <cstdint>

namespace striata {

constexpr int kMaxPorts = 32;

struct StreamPins {
    uint8_t* payload;
    uint8_t* valid;
    uint8_t* ready;
};

struct AxiPins {
    uint8_t* data;
    uint8_t* keep;
    uint8_t* last;
    uint8_t* user;
    uint8_t* valid;
    uint8_t* ready;
};

// Sequence numbers of requests that no completion can pass any more (PG213).
struct SequencePins {
    uint8_t* number;
    uint8_t* valid;
};

struct DrivePins {
    StreamPins command;
    StreamPins grant;
    StreamPins write_data;
    StreamPins read_data;
    StreamPins completion;
    uint8_t* abort;
    uint8_t* abort_tag;
    uint8_t* reset;
    uint8_t* restarted;
    uint8_t* present;
    uint64_t* capacity;
    uint64_t* identity = nullptr;  // where the controller asks for it
};

// An input of `PcieStatus` of up to 8 bits.
constexpr int kMostStatus = 32;
struct StatusPin {
    const char* name;
    uint8_t* pin;
    int most;  // largest value
};

struct Pins {
    uint8_t* clock;
    uint8_t* reset;
    AxiPins rq;
    SequencePins sequence[2];
    uint8_t* read_credits;  // pcie_tfc_nph_av
    AxiPins rc;
    AxiPins cq;
    AxiPins cc;
    StatusPin status[kMostStatus];
    int status_count;
    uint8_t* reset_done;
    uint64_t* now;
    uint64_t* identity = nullptr;  // of the card, where it asks for one
    uint64_t* nonce = nullptr;
    uint8_t* power_fail = nullptr;  // of the backup unit, where there is one
    uint32_t* energy_blocks = nullptr;
    uint8_t* saved = nullptr;
    uint8_t* quiet;
    uint64_t* deadline;
    DrivePins drives[kMaxPorts];
};

// Sizes that the generated header takes from the controller's configuration.
struct Shape {
    int ports;
    int beat_bytes;
    int tag_bits;
    int64_t clock_ps;
    int time_bits;
    bool straddle;  // RC straddles
};

}  // namespace striata
