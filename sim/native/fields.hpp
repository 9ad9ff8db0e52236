// Names and values of the parameter and counter lists, for Python.
#pragma once

#include <string>

#include "direct.hpp"
#include "parameters.hpp"

namespace striata {

// The names of a list with commas between. It is empty if there is no such list.
inline const char* field_names(const std::string& group) {
    static std::string names;
    names.clear();
    if (group == "link") names = STRIATA_LINK_FIELDS(STRIATA_NAME);
    if (group == "drive") names = STRIATA_DRIVE_FIELDS(STRIATA_NAME);
    if (group == "run") names = STRIATA_RUN_COUNTERS(STRIATA_NAME);
    if (group == "drive_counters") names = STRIATA_DRIVE_COUNTERS(STRIATA_NAME);
    if (group == "load") names = STRIATA_LOAD_FIELDS(STRIATA_NAME);
    if (!names.empty()) names.pop_back();
    return names.c_str();
}

// Turns an array into a structure of 64-bit integers, and back.
template <typename Fields>
Fields from_array(const int64_t* values) {
    Fields fields;
    std::memcpy(&fields, values, sizeof fields);
    return fields;
}
template <typename Fields>
int64_t to_array(const Fields& fields, int64_t* values, int64_t most) {
    const auto count = std::min<int64_t>(most, sizeof fields / sizeof *values);
    std::memcpy(values, &fields, size_t(count) * sizeof *values);
    return count;
}

}  // namespace striata
