// The parts of the extension module: each adds its functions.
#pragma once

#include <pybind11/pybind11.h>

namespace fastfed {

void bind_checks(pybind11::module_& module);
void bind_server(pybind11::module_& module);
void bind_client(pybind11::module_& module);
void bind_parts(pybind11::module_& module);
void bind_row_norms(pybind11::module_& module);
void bind_meeting(pybind11::module_& module);
void bind_random(pybind11::module_& module);
void bind_events(pybind11::module_& module);
void bind_program(pybind11::module_& module);

// As many as the host of this process allows (count_threads_by in module.cpp), else as OpenMP would use. Asks Python:
// under the GIL.
int threads();

}  // namespace fastfed
