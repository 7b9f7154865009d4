// The extension module: what it knows by name, what it was built from, and its parts. No file outside bind/ knows
// Python. kernels/check.py has refused bad arguments with words for users; here stands only what memory safety needs,
// so that no call of this private module can read or write out of bounds. The GIL is released while a kernel runs.
#include "bind/module.h"

#include <omp.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bind/arrays.h"
#include "bind/numbers.h"
#include "kernels/probe.h"
#include "simd/products.h"
#include "simd/simd.h"

using namespace fastfed;

namespace {

py::object& thread_source() {
  static auto* source = new py::object();  // not destroyed after the interpreter
  return *source;
}

// Multiply-adds in registers on all threads: how many operations.
std::int64_t bind_product_probe(std::int64_t rounds) {
  const int count = threads();
  std::int64_t operations = 0;
  const py::gil_scoped_release release;
#pragma omp parallel num_threads(count) reduction(+ : operations)
  {
    float numbers[kTileNumbers] = {};
    operations += products().spin(rounds, numbers);
  }
  return operations;
}

void bind_stream_probe(const py::list& reads, const py::list& updates) {
  FF_REQUIRE(updates.size() + reads.size() > 0 && reads.size() <= 1024, "reads", "given, at most 1024 arrays");
  const std::int64_t d = array(updates.size() ? updates[0] : reads[0], "arrays").numel;
  std::vector<const float*> read;
  std::vector<float*> updated;
  for (py::handle one : reads) read.push_back(data<const float>(one, "reads", d));
  for (py::handle one : updates) updated.push_back(data<float>(one, "updates", d));
  const int team = threads();
  py::gil_scoped_release release;
  stream_probe(d, read, updated, team);
}

// The names of formulas, each in the place of its number.
template <class Traits, std::size_t N> std::vector<std::string> names_of(const Traits (&formulas)[N]) {
  std::vector<std::string> names;
  for (const Traits& formula : formulas) names.emplace_back(formula.name);
  return names;
}
std::vector<std::string> server_formulas() { return names_of(kServerTraits); }
std::vector<std::string> directions() { return names_of(kDirectionTraits); }
#define FF_NAME(name, Number) #name,
std::vector<std::string> step_sizes() { return {FF_STEP_SIZES(FF_NAME)}; }
std::vector<std::string> covers() { return {FF_COVERS(FF_NAME)}; }
#undef FF_NAME

py::dict build_info() {
  py::dict info;
#if defined(__clang__)
  info["compiler"] = std::string("clang ") + __clang_version__;
#elif defined(__GNUC__)
  info["compiler"] = std::string("gcc ") + __VERSION__;
#else
  info["compiler"] = "unknown";
#endif
  info["simd"] = compiled_levels()[std::size_t(simd_level())];
  info["simd_compiled"] = compiled_levels();
#if defined(_OPENMP)
  info["openmp"] = true;
#else
  info["openmp"] = false;
#endif
  return info;
}

}  // namespace

int fastfed::threads() {
  const int asked = thread_source() ? thread_source()().cast<int>() : omp_get_max_threads();
  return std::max(asked, 1);
}

PYBIND11_MODULE(_core, module) {
  module.doc() = "FastFed's compiled kernels; private: use fastfed.kernels.";
  bind_checks(module);
  bind_server(module);
  bind_client(module);
  bind_parts(module);
  bind_row_norms(module);
  bind_meeting(module);
  bind_random(module);
  bind_events(module);
  bind_program(module);
  module.def("count_threads_by", [](py::object source) { thread_source() = std::move(source); });
  module.def("stream_probe", bind_stream_probe);
  module.def("product_probe", bind_product_probe);
  module.def("server_formulas", server_formulas);
  module.def("directions", directions);
  module.def("step_sizes", step_sizes);
  module.def("covers", covers);
  module.def("server_numbers", [] { return kServerNumberNames; });
  module.def("client_numbers", [] { return kClientNumberNames; });
  module.def("build_info", build_info);
}
