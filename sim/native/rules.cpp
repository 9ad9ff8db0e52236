#include "rules.hpp"

namespace striata {

namespace {

constexpr uint64_t kTable = 0x2000;  // offsets in BAR 0: MSI-X table and its end
constexpr uint64_t kTableEnd = 0x3000;
constexpr uint64_t kEntryBytes = 16;
constexpr int64_t kPage = 4096;
constexpr int64_t kShortTags = 32;  // PCIe base specification 2.2.6.2
constexpr int64_t kSizeCodes = 6;   // 128 << 0 .. 128 << 5

enum { kRead = 0, kWrite = 1 };  // PG213 request types

int size_of(const std::string& name, int64_t code) {
    if (code < 0 || code >= kSizeCodes)
        throw ModelError("status: " + name + " must be 0..5, not " + std::to_string(code));
    return 128 << code;
}

[[noreturn]] void broken(const std::string& what) { throw ModelError("RQ: " + what); }

}  // namespace

void Rules::set(const std::string& name, int64_t value) {
    const bool on = value != 0;
    if (name == "max_payload") settings_.max_payload = size_of(name, value);
    else if (name == "max_read_request") settings_.max_read_request = size_of(name, value);
    else if (name == "rcb") settings_.rcb = on ? 128 : 64;
    else if (name == "extended_tag") settings_.extended_tag = on;
    else if (name == "relaxed_ordering") settings_.relaxed_ordering = on;
    else if (name == "id_ordering") settings_.id_ordering = on;
    else if (name == "bus_master") bus_master_.set(on, progress_);
    else if (name == "msix_enable") messages_.set(on, progress_);
    else if (name == "msix_mask") function_unmasked_.set(!on, progress_);
    else if (name == "function_reset") {
        running_.set(!on, progress_);
        if (on)
            for (Vector& vector : vectors_) mask(vector, true);
    }
}

void Rules::forget() {
    for (Vector& vector : vectors_) {
        mask(vector, true);
        vector.unmasked.shut();
    }
    bus_master_.shut();
    messages_.shut();
}

Offer Rules::offer() {
    ++progress_.packets;
    return {progress_, settings_};
}

void Rules::check(const Offer& offer, const uint32_t* words, int first_enable,
                  int last_enable) const {
    const Settings& settings = offer.settings;
    const uint64_t address = (uint64_t(words[1]) << 32 | words[0]) & ~uint64_t(3);
    const int64_t bytes = int64_t(words[2] & 0x7FF) * 4;
    const uint32_t type = words[2] >> 11 & 0xF;
    const uint32_t attributes = words[3] >> 28 & 7;  // no snoop, relaxed ordering, ID-based
    if (type != kRead && type != kWrite)
        broken("request type " + std::to_string(type) + " is not supported");
    if (words[0] & 3) broken("the address type is not 0");
    if (!bytes || int64_t(address % kPage) + bytes > kPage)
        broken("a request is empty or crosses 4 KiB");
    if (type == kWrite && bytes > settings.max_payload)
        broken("a write exceeds Max_Payload_Size");
    if (type == kRead && bytes > settings.max_read_request)
        broken("a read exceeds Max_Read_Request_Size");
    if (!first_enable || (bytes > 4) != (last_enable != 0))
        broken("byte enables do not fit the length");
    if (words[2] >> 15 & 1) broken("a request is poisoned");
    if (words[3] >> 24 & 1) broken("a request names its requester");
    if (words[3] >> 25 & 7 || words[3] >> 31) broken("traffic class or ECRC is asked for");
    if (attributes & 1) broken("no snoop is asked for");
    if (attributes & 2 && !settings.relaxed_ordering)
        broken("relaxed ordering is asked for, but not enabled");
    if (attributes & 4 && !settings.id_ordering)
        broken("ID-based ordering is asked for, but not enabled");
    if (type == kRead && !settings.extended_tag && (words[3] & 0xFF) >= kShortTags)
        broken("tag " + std::to_string(words[3] & 0xFF) + " without extended tags");
    if (!bus_master_.allows(offer.progress)) broken("a request while bus mastering is off");
    if (!running_.allows(offer.progress)) broken("a request during a function level reset");
}

void Rules::check_message(const Offer& offer, uint64_t address, uint32_t data, int64_t bytes,
                          int first_enable) const {
    if (bytes != 4 || first_enable != 0xF) broken("an interrupt message is not one word");
    if (!check_vectors_) return;
    const Progress& progress = offer.progress;
    if (!messages_.allows(progress)) broken("an interrupt message while MSI-X is disabled");
    if (!function_unmasked_.allows(progress))
        broken("an interrupt message while the function is masked");
    bool known = false;
    for (const Vector& vector : vectors_) {
        const Entry& entry = vector.now;
        const bool is = entry.address == address && entry.data == data;
        const bool was = vector.before.address == address && vector.before.data == data;
        known |= is;
        if ((is || (was && !vector.unmasked.open())) && vector.unmasked.allows(progress)) return;
    }
    broken(known ? "an interrupt message of a vector that is masked"
                 : "an interrupt message of no vector");
}

void Rules::mask(Vector& vector, bool masked) {
    if (masked && !vector.masked) vector.before = vector.now;
    vector.masked = masked;
    vector.unmasked.set(!masked, progress_);
}

void Rules::written(uint64_t offset, uint32_t value, int enable) {
    if (offset < kTable || offset >= kTableEnd) return;
    const uint64_t place = offset - kTable;
    const size_t number = size_t(place / kEntryBytes);
    if (vectors_.size() <= number) vectors_.resize(number + 1);
    Vector& vector = vectors_[number];
    const uint64_t part = place % kEntryBytes;
    for (int i = 0; i < 4; ++i) {
        if (!(enable >> i & 1)) continue;
        const uint64_t byte = value >> 8 * i & 0xFF;
        const int shift = 8 * i;
        const uint64_t keep = ~(uint64_t(0xFF) << shift);
        uint64_t& address = vector.now.address;
        if (part == 0) address = (address & keep) | byte << shift;
        if (part == 4) address = (address & ~(uint64_t(0xFF) << (shift + 32))) | byte << (shift + 32);
        if (part == 8) vector.now.data = uint32_t((vector.now.data & keep) | byte << shift);
        if (part == 12 && i == 0) mask(vector, byte & 1);
    }
}

}  // namespace striata
