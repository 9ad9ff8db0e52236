// Units and small helpers that every model shares.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace striata {

using Ps = int64_t;  // simulated time in picoseconds
constexpr Ps kNever = std::numeric_limits<Ps>::max();
constexpr Ps kSecond = 1'000'000'000'000;
constexpr int64_t kBlockBytes = 4096;

// The design or the caller broke a rule of a port.
struct ModelError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Time to move `bytes` at `rate` bytes a second (0: no limit).
inline Ps transfer_time(int64_t bytes, int64_t rate) {
    return rate ? static_cast<Ps>(static_cast<double>(bytes) * 1e12 / static_cast<double>(rate))
                : 0;
}

// xorshift64*. It is fast, it has a seed, and it gives the same numbers on every machine.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
    uint64_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 0x2545F4914F6CDD1Du;
    }
    // Uniform in 0 .. bound - 1.
    uint64_t below(uint64_t bound) { return (next() >> 16) % bound; }

private:
    uint64_t state_;
};

// A queue in a ring. It grows when it is full, so it allocates nothing once it is large enough.
template <typename T>
class Ring {
public:
    explicit Ring(size_t capacity = 16) : items_(new T[capacity]), mask_(capacity - 1) {}
    ~Ring() { delete[] items_; }
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;
    bool empty() const { return head_ == tail_; }
    size_t size() const { return tail_ - head_; }
    T& front() { return items_[head_ & mask_]; }
    const T& front() const { return items_[head_ & mask_]; }
    T& operator[](size_t index) { return items_[(head_ + index) & mask_]; }
    void pop() { ++head_; }
    void clear() { head_ = tail_; }
    void push(const T& item) {
        if (size() > mask_) grow();
        items_[tail_++ & mask_] = item;
    }

private:
    void grow() {
        const size_t count = size();
        T* larger = new T[2 * (mask_ + 1)];
        for (size_t i = 0; i < count; ++i) larger[i] = (*this)[i];
        delete[] items_;
        items_ = larger;
        mask_ = 2 * (mask_ + 1) - 1;
        head_ = 0;
        tail_ = count;
    }
    T* items_;
    size_t mask_;
    size_t head_ = 0;
    size_t tail_ = 0;
};

}  // namespace striata
