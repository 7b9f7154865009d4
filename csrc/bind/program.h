// The native engine's part of the extension module.
#pragma once

#include <pybind11/pybind11.h>

namespace fastfed {

void bind_program(pybind11::module_& module);

}  // namespace fastfed
