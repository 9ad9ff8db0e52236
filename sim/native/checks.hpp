// Parameters that the models can work with. Python checks them as well, with more to say; these keep
// what comes past it from dividing by zero or leaving an array.
#pragma once

#include "direct.hpp"
#include "parameters.hpp"

namespace striata {

void check_link(const LinkFields& fields);
void check_drive(const DriveFields& fields, int64_t expanders);
void check_load(const LoadFields& fields, const DriveFields& drive);

}  // namespace striata
