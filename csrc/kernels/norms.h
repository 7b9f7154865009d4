// Norms of rows, and rows scaled down to a norm.
#pragma once

#include <cstdint>

namespace fastfed {

template <class T> void norms(std::int64_t clients, std::int64_t d, const T* x, double* out, int threads);

// Scales the rows whose norm exceeds `limit` down to it; `out` receives the norms before.
template <class T> void clip(std::int64_t clients, std::int64_t d, T* x, double limit, double* out, int threads);

}  // namespace fastfed
