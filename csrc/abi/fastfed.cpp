// The kernels under names of C: arguments are checked, exceptions become a sentence and -1.
#include "abi/fastfed.h"

#include <omp.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/norms.h"
#include "kernels/server_step.h"
#include "kernels/trimmed_mean.h"

#define FF_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace fastfed;

thread_local std::string last_error;

void require(bool condition, const std::string& sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

template <class Work> int guarded(Work work) noexcept {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "an unknown error";
  }
  return -1;
}

int team_of(int threads) {
  require(threads >= 0, "threads: must be 0 or more");
  return threads ? threads : omp_get_max_threads();
}

ServerFormula formula_of(const char* name) {
  require(name != nullptr, "formula: must be given");
  for (int i = 0; i < kServerFormulas; ++i)
    if (std::strcmp(kServerTraits[i].name, name) == 0) return ServerFormula(i);
  throw std::invalid_argument(std::string("formula: there is no '") + name + "'");
}

template <class T> ServerNumbers<T> numbers_of(const fastfed_server_numbers* given) {
  require(given != nullptr, "numbers: must be given");
  ServerNumbers<T> numbers;
#define FF_READ(name) numbers.name = T(given->name);
  FF_SERVER_NUMBERS(FF_READ)
#undef FF_READ
  return numbers;
}

template <class T>
ServerVectors<T> vectors_of(ServerFormula formula, std::int64_t d, T* x, T* m, T* v, T* vmax,
                            const fastfed_server_numbers* numbers) {
  const ServerTraits& traits = kServerTraits[formula];
  require(d >= 0 && (x != nullptr || d == 0), "x: must be given, of d elements");
  require(traits.has_m ? m != nullptr || (traits.has_v && numbers->beta1 == 0) : m == nullptr,
          "m: must be given exactly where the formula has it");
  require((v != nullptr) == traits.has_v, "v: must be given exactly where the formula has it");
  require((vmax != nullptr) == traits.has_vmax, "vmax: must be given exactly where the formula has it");
  return {d, x, m, v, vmax};
}

template <class T>
int step(const char* name, std::int64_t d, T* x, const T* delta, T* m, T* v, T* vmax,
         const fastfed_server_numbers* given, int threads) noexcept {
  return guarded([&] {
    const ServerFormula formula = formula_of(name);
    const ServerNumbers<T> numbers = numbers_of<T>(given);
    const ServerVectors<T> vectors = vectors_of(formula, d, x, m, v, vmax, given);
    require(delta != nullptr || d == 0, "delta: must be given");
    server_step<T>(formula, vectors, delta, kSame, given->of_delta != 0, numbers, team_of(threads));
  });
}

template <class T>
int aggregate(const char* name, std::int64_t d, T* x, std::int64_t clients, const T* const* rows, const T* weights,
              bool subtract, T* m, T* v, T* vmax, const fastfed_server_numbers* given, int threads) noexcept {
  return guarded([&] {
    const ServerFormula formula = formula_of(name);
    const ServerNumbers<T> numbers = numbers_of<T>(given);
    require(clients >= 1 && rows != nullptr && weights != nullptr, "rows: must be given, of at least one client");
    Part<T> part{vectors_of(formula, d, x, m, v, vmax, given), {rows, rows + clients}};
    for (const T* row : part.rows) require(row != nullptr || d == 0, "rows: must be given for every client");
    aggregate_parts<T>(formula, {part}, weights, subtract, given->of_delta != 0, numbers, team_of(threads));
  });
}

void require_rows(std::int64_t rows, std::int64_t d, const void* x, const void* out) {
  require(rows >= 1 && d >= 1 && x != nullptr && out != nullptr, "rows, d: must be at least 1, and all arrays given");
}

}  // namespace

FF_EXPORT int fastfed_abi_version(void) { return FASTFED_ABI_VERSION; }
FF_EXPORT const char* fastfed_last_error(void) { return last_error.c_str(); }

FF_EXPORT int fastfed_server_step_f32(const char* formula, int64_t d, float* x, const float* delta, float* m, float* v,
                                      float* vmax, const fastfed_server_numbers* numbers, int threads) {
  return step<float>(formula, d, x, delta, m, v, vmax, numbers, threads);
}
FF_EXPORT int fastfed_server_step_f64(const char* formula, int64_t d, double* x, const double* delta, double* m,
                                      double* v, double* vmax, const fastfed_server_numbers* numbers, int threads) {
  return step<double>(formula, d, x, delta, m, v, vmax, numbers, threads);
}

FF_EXPORT int fastfed_aggregate_step_f32(const char* formula, int64_t d, float* x, int64_t clients,
                                         const float* const* rows, const float* weights, int subtract, float* m,
                                         float* v, float* vmax, const fastfed_server_numbers* numbers, int threads) {
  return aggregate<float>(formula, d, x, clients, rows, weights, subtract != 0, m, v, vmax, numbers, threads);
}
FF_EXPORT int fastfed_aggregate_step_f64(const char* formula, int64_t d, double* x, int64_t clients,
                                         const double* const* rows, const double* weights, int subtract, double* m,
                                         double* v, double* vmax, const fastfed_server_numbers* numbers, int threads) {
  return aggregate<double>(formula, d, x, clients, rows, weights, subtract != 0, m, v, vmax, numbers, threads);
}

FF_EXPORT int fastfed_weighted_sum_f32(int64_t clients, int64_t d, const float* deltas, const float* weights,
                                       float* out, int threads) {
  return guarded([&] {
    require_rows(clients, d, deltas, out);
    require(weights != nullptr, "weights: must be given");
    weighted_sum<float>(d, {deltas, kSame, clients, weights}, out, team_of(threads));
  });
}

FF_EXPORT int fastfed_trimmed_mean_f32(int64_t clients, int64_t d, const float* deltas, int64_t trim, float* out,
                                       int threads) {
  return guarded([&] {
    require_rows(clients, d, deltas, out);
    require(trim >= 0 && trim < clients - trim, "trim: must leave some of the clients");
    trimmed_mean<float>(d, deltas, kSame, clients, trim, out, team_of(threads));
  });
}

FF_EXPORT int fastfed_norms_f32(int64_t rows, int64_t d, const float* x, double* out, int threads) {
  return guarded([&] {
    require_rows(rows, d, x, out);
    norms<float>(rows, d, x, out, team_of(threads));
  });
}

FF_EXPORT int fastfed_clip_f32(int64_t rows, int64_t d, float* x, double limit, double* out, int threads) {
  return guarded([&] {
    require_rows(rows, d, x, out);
    require(limit > 0, "limit: must be greater than 0");
    clip<float>(rows, d, x, limit, out, team_of(threads));
  });
}
