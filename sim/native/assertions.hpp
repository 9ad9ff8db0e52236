// Assertions of the design that fail while the model is evaluated. The verilated sources include
// this file. They would print a message and stop the process. This file keeps the message for the
// harness instead.
#pragma once

#include <string>
#include <utility>

#include "verilated.h"

namespace striata {

// Each thread has one object. It evaluates one model at a time.
class Assertions {
public:
    // The design says something. An assertion that fails says its message first, then where it is.
    void say(const std::string& text) {
        if (failed_) return;  // the first one counts
        message_ = std::move(where_);
        where_ = text;
    }
    void stop() { failed_ = true; }
    bool failed() const { return failed_; }
    // Returns where the first assertion is, and what it said. Forgets both.
    std::string take() {
        std::string result = place(where_) + ": " + message_;
        *this = Assertions();
        while (result.back() == '\n') result.pop_back();
        return result;
    }

private:
    // Verilator puts the place between these two texts. The name of the model comes before it.
    static std::string place(const std::string& text) {
        const std::string before = "Assertion failed in ";
        const size_t found = text.find(before);
        if (found == std::string::npos) return text;
        const size_t from = found + before.size();
        const size_t end = text.find(':', from);
        const size_t below = text.find('.', from) + 1;
        return text.substr(below, end - below);
    }

    bool failed_ = false;
    std::string message_;
    std::string where_;
};

inline thread_local Assertions assertions;

}  // namespace striata

#undef VL_WRITEF_NX
#undef VL_STOP_MT
#define VL_WRITEF_NX(...) striata::assertions.say(VL_SFORMATF_N_NX(__VA_ARGS__))
#define VL_STOP_MT(...) striata::assertions.stop()
