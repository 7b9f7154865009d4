// The parts of the extension module: each adds its functions.
#pragma once

#include <ATen/Parallel.h>
#include <pybind11/pybind11.h>

namespace fastfed {

void bind_checks(pybind11::module_& module);
void bind_server(pybind11::module_& module);
void bind_client(pybind11::module_& module);
void bind_row_norms(pybind11::module_& module);
void bind_random(pybind11::module_& module);
void bind_program(pybind11::module_& module);

// As many as torch may use.
inline int threads() { return at::get_num_threads(); }

}  // namespace fastfed
