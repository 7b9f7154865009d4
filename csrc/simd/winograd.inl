// The transforms behind winograd.h, compiled once per SIMD level with FF_LEVEL naming the level. Contraction to fused
// multiply-adds is wanted here, as in products.inl.

#include "simd/winograd.h"

#include <utility>

#include "simd/vectors.inl"

#define FF_ALWAYS inline __attribute__((always_inline))

namespace fastfed {
namespace {

// ---- the transforms as matrices ------------------------------------------------------------------------------------

// Toom and Cook: polynomials of so many outputs and three weights are multiplied by their values at side - 1 points,
// and at infinity. Of the points of few bits, these have the smallest errors.
template <int Outputs> struct Points {
  static constexpr int kSide = Outputs + 2;
  static constexpr double kAt[] = {0.0, 1.0, Outputs == 2 ? -1.0 : -0.5, -2.0};

  static constexpr double power(int point, int exponent) {
    double value = 1.0;
    for (int i = 0; i < exponent; ++i) value *= kAt[point];
    return value;
  }
  static constexpr double distance(int point) {  // from all others, multiplied
    double value = 1.0;
    for (int other = 0; other < kSide - 1; ++other)
      if (other != point) value *= kAt[point] - kAt[other];
    return value;
  }
  // Of the polynomial that is zero at all points but this one (kSide - 1: at all).
  static constexpr double coefficient(int point, int exponent) {
    double values[kSide + 1] = {1.0};
    int degree = 0;
    for (int other = 0; other < kSide - 1; ++other) {
      if (other == point) continue;
      ++degree;
      for (int i = degree; i > 0; --i) values[i] = values[i - 1] - kAt[other] * values[i];
      values[0] *= -kAt[other];
    }
    return values[exponent];
  }
};

template <int Outputs> struct InputMatrix {
  static constexpr int kRows = Outputs + 2, kColumns = Outputs + 2;
  static constexpr float at(int r, int c) { return float(Points<Outputs>::coefficient(r, c)); }
};

template <int Outputs> struct WeightMatrix {
  static constexpr int kRows = Outputs + 2, kColumns = 3;
  static constexpr float at(int r, int c) {
    if (r == kRows - 1) return c == kColumns - 1 ? 1.0f : 0.0f;
    return float(Points<Outputs>::power(r, c) / Points<Outputs>::distance(r));
  }
};

template <int Outputs> struct OutputMatrix {
  static constexpr int kRows = Outputs, kColumns = Outputs + 2;
  static constexpr float at(int r, int c) {
    if (c == kColumns - 1) return r == kRows - 1 ? 1.0f : 0.0f;
    return float(Points<Outputs>::power(c, r));
  }
};

template <class Matrix> struct Turned {
  static constexpr int kRows = Matrix::kColumns, kColumns = Matrix::kRows;
  static constexpr float at(int r, int c) { return Matrix::at(c, r); }
};

// ---- matrix . tile . matrix^T --------------------------------------------------------------------------------------

// sum += the terms of row R from column K on; zeros and ones cost nothing. Unless Begun, it starts with the first term.
template <class Matrix, int R, int K, bool Begun> FF_ALWAYS void add_terms(Vec& sum, const Vec* v) {
  if constexpr (K < Matrix::kColumns) {
    constexpr float factor = Matrix::at(R, K);
    if constexpr (factor != 0.0f && !Begun)
      sum = factor == 1.0f ? v[K] : factor * v[K];
    else if constexpr (factor == 1.0f)
      sum += v[K];
    else if constexpr (factor == -1.0f)
      sum -= v[K];
    else if constexpr (factor != 0.0f)
      sum += factor * v[K];
    add_terms<Matrix, R, K + 1, Begun || factor != 0.0f>(sum, v);
  }
}

// to[R * step] = row R of the matrix times v
template <class Matrix, int... R>
FF_ALWAYS void multiply(const Vec* v, Vec* to, int step, std::integer_sequence<int, R...>) {
  (add_terms<Matrix, R, 0, false>(to[R * step], v), ...);
}

template <class Matrix> constexpr auto kRowsOf = std::make_integer_sequence<int, Matrix::kRows>{};

// take(i, j): a vector of the tile; leave(i, j, v): one of the result
template <class Matrix, class Take, class Leave> FF_ALWAYS void transform(Take take, Leave leave) {
  constexpr int kRows = Matrix::kRows, kColumns = Matrix::kColumns;
  Vec half[kRows * kColumns];
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    Vec column[kColumns];
#pragma GCC unroll 8
    for (int i = 0; i < kColumns; ++i) column[i] = take(i, j);
    multiply<Matrix>(column, half + j, kColumns, kRowsOf<Matrix>);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    Vec row[kRows];
    multiply<Matrix>(half + i * kColumns, row, 1, kRowsOf<Matrix>);
#pragma GCC unroll 8
    for (int j = 0; j < kRows; ++j) leave(i, j, row[j]);
  }
}

// From rows anywhere to parts.
template <class Matrix> void spread(Size n, const float* const* from, float* to, Size part) {
  for (Size at = 0; at < n; at += kWidth)
    transform<Matrix>([=](int i, int j) { return load(from[i * Matrix::kColumns + j] + at); },
                      [=](int i, int j, Vec v) { store(to + (i * Matrix::kRows + j) * part + at, v); });
}

// From parts to rows anywhere.
template <class Matrix> void gather(Size n, const float* from, Size part, float* const* to, const Finish& finish) {
  for (Size at = 0; at < n; at += kWidth)
    transform<Matrix>([=](int i, int j) { return load(from + (i * Matrix::kColumns + j) * part + at); },
                      [=](int i, int j, Vec v) {
                        float* place = to[i * Matrix::kRows + j] + at;
                        v = finish.alpha * v;
                        if (finish.bias) v += load(finish.bias + at);
                        if (finish.add) v += load(place);
                        store(place, v);
                      });
}

template <int Outputs>
constexpr Winograd kOf{Outputs,
                       Outputs + 2,
                       (Outputs + 2) * (Outputs + 2),
                       spread<InputMatrix<Outputs>>,
                       spread<WeightMatrix<Outputs>>,
                       spread<Turned<OutputMatrix<Outputs>>>,
                       gather<OutputMatrix<Outputs>>,
                       gather<Turned<WeightMatrix<Outputs>>>};

}  // namespace

const WinogradTiles& FF_JOIN(winograd_tiles_, FF_LEVEL)() {
  static const WinogradTiles table{kOf<2>, kOf<3>};
  return table;
}

}  // namespace fastfed
