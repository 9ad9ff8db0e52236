// Checks of the parameters of the models. Python checks them as well, and says more. These checks
// are for calls that do not come through Python. Without them a model could divide by zero or leave
// an array.
#pragma once

#include "direct.hpp"
#include "parameters.hpp"

namespace striata {

void check_link(const LinkFields& fields);
void check_drive(const DriveFields& fields, int64_t expanders);
void check_load(const LoadFields& fields, const DriveFields& drive);

}  // namespace striata
