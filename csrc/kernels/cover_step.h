// The part of a client step that works on SM3 covers: tiles of matrices, row and column extremes, folded onto the axes.
#pragma once

#include <limits>
#include <vector>

#include "kernels/aligned.h"
#include "kernels/gradient.h"

namespace fastfed {

template <class T> class CoverStep {
 public:
  explicit CoverStep(const ClientStep<T>& step)
      : step_(step), layout_(*step.layout), gradient_(step), sides_(layout_.row_size + layout_.col_size) {
    for (std::size_t b = 0; b < layout_.matrices.size(); ++b) cut(b);
  }

  // One step of every active client. Enough clients: one per thread; few: the tiles of one client after the other are
  // shared among the threads. Both give the same bits: maxima are exact, sums are added tile by tile.
  void run(std::vector<Coefficients>& k) {
    const std::int64_t clients = step_.vectors.clients;
    if (clients >= step_.threads) {
      for_tasks(clients, step_.threads, [&](std::int64_t client, int) { one(client, k[std::size_t(client)], 1); });
    } else {
      for (std::int64_t client = 0; client < clients; ++client) one(client, k[std::size_t(client)], step_.threads);
    }
  }

 private:
  struct Cut {  // a tile's place
    std::size_t matrix;
    std::int64_t row, rows, col, cols;
  };

  static constexpr std::int64_t kTile = 65536;    // elements of a tile
  static constexpr std::int64_t kColumns = 8192;  // at most: column vectors stay near, rows long enough to prefetch

  void cut(std::size_t b) {
    const CoverMatrix& matrix = layout_.matrices[b];
    const std::int64_t cols = std::min(matrix.cols, kColumns), rows = std::max<std::int64_t>(1, kTile / cols);
    for (std::int64_t r = 0; r < matrix.rows; r += rows)
      for (std::int64_t c = 0; c < matrix.cols; c += cols)
        cuts_.push_back({b, r, std::min(rows, matrix.rows - r), c, std::min(cols, matrix.cols - c)});
  }

  // Minima and maxima of rows, then of columns, of all tensors.
  struct Sides {
    AlignedArray<T> minima, maxima;
  };

  void one(std::int64_t client, Coefficients& k, int threads) {
    if (!k.active) return;
    T* mu = step_.vectors.mu + client * step_.vectors.mu_size;
    Sides sides{AlignedArray<T>(sides_), {}};
    if (step_.cover == kCoverI && k.refresh) {
      raise_maxima(client, k, threads, sides, [&](const Tile<T>& tile) { vector_loops<T>().cover_maxima(tile); });
      const std::vector<T> top = folded(sides.maxima);
      const T beta2 = T(step_.numbers.beta2), gain2 = T(step_.numbers.gain2);
      for (std::int64_t i = 0; i < layout_.mu_size; ++i)
        mu[i] = second_moment(mu[i], top[std::size_t(i)], beta2, gain2);
    }
    expand(mu, sides.minima);
    if (step_.numbers.floor > 0)
      k.keep = floor_keep(root(direction_squares(client, k, threads, sides)) / k.bias1, step_.numbers.floor);
    update(client, k, threads, sides);
    if (step_.cover == kCoverII && k.refresh) {
      const std::vector<T> top = folded(sides.maxima);
      std::copy(top.begin(), top.end(), mu);
    }
  }

  NuSource source(const Coefficients& k) const {
    if (step_.cover == kCoverI) return kFromCover;
    if (k.refresh) return step_.vectors.nu ? kFreshKept : kFresh;
    return step_.vectors.nu ? kKept : kFromCover;
  }

  void update(std::int64_t client, const Coefficients& k, int threads, Sides& sides) {
    const NuSource from = source(k);
    const auto work = vector_loops<T>().covered[step_.formula][from][step_.vectors.m != nullptr];
    const DirectionNumbers<T> n = direction_numbers<T>(step_.numbers, k);
    const T step = T(k.step);
    raise_maxima(client, k, threads, sides, [&](const Tile<T>& tile) { work(tile, step, n); });
  }

  double direction_squares(std::int64_t client, const Coefficients& k, int threads, const Sides& sides) {
    const auto work = vector_loops<T>().covered_squares[step_.formula][source(k)][step_.vectors.m != nullptr];
    const DirectionNumbers<T> n = direction_numbers<T>(step_.numbers, k);
    std::vector<double> partial(cuts_.size());
    for_tasks(std::int64_t(cuts_.size()), threads, [&](std::int64_t i, int) {
      for_pieces(client, k, cuts_[std::size_t(i)], sides.minima, nullptr,
                 [&](const Tile<T>& tile) { partial[std::size_t(i)] += work(tile, n); });
    });
    double sum = 0;
    for (const double part : partial) sum += part;
    return sum;
  }

  // Runs work over every tile; the maxima that tiles raise are kept per thread and merged.
  template <class Work>
  void raise_maxima(std::int64_t client, const Coefficients& k, int threads, Sides& sides, Work work) {
    const std::int64_t tiles = std::int64_t(cuts_.size());
    const int team = int(std::min<std::int64_t>(threads, tiles));
    AlignedArray<T> each(sides_ * team);
    for_tasks(tiles, team, [&](std::int64_t i, int thread) {
      for_pieces(client, k, cuts_[std::size_t(i)], sides.minima, each.data() + thread * sides_, work);
    });
    for (int thread = 1; thread < team; ++thread)
      for_chunks(sides_, threads, [&](std::int64_t begin, std::int64_t n) {
        vector_loops<T>().raise(n, each.data() + begin, each.data() + thread * sides_ + begin);
      });
    sides.maxima = std::move(each);
  }

  // The cut as one tile where the gradient is as given; else in spans of the scratch buffer: of a row, or of as many
  // short rows as it holds.
  template <class Work>
  void for_pieces(std::int64_t client, const Coefficients& k, const Cut& cut, const AlignedArray<T>& minima, T* maxima,
                  Work work) const {
    const CoverMatrix& matrix = layout_.matrices[cut.matrix];
    const std::int64_t base = client * step_.vectors.d;
    if (!gradient_.corrected(k)) {
      const T* grad = step_.vectors.grad + base + matrix.offset + cut.row * matrix.cols + cut.col;
      work(tile(client, cut, minima, maxima, grad, matrix.cols));
      return;
    }
    alignas(64) T scratch[kSpan];
    const std::int64_t whole = cut.cols == matrix.cols ? std::max<std::int64_t>(1, kSpan / cut.cols) : 1;
    for (std::int64_t r = cut.row; r < cut.row + cut.rows; r += whole)
      for (std::int64_t c = cut.col; c < cut.col + cut.cols; c += kSpan) {
        const std::int64_t rows = std::min(whole, cut.row + cut.rows - r), n = std::min(kSpan, cut.col + cut.cols - c);
        const T* grad = gradient_.span(client, k, matrix.offset + r * matrix.cols + c, rows * n, scratch);
        work(tile(client, {cut.matrix, r, rows, c, n}, minima, maxima, grad, n));
      }
  }

  Tile<T> tile(std::int64_t client, const Cut& cut, const AlignedArray<T>& minima, T* maxima, const T* grad,
               std::int64_t grad_stride) const {
    const CoverMatrix& matrix = layout_.matrices[cut.matrix];
    const ClientVectors<T>& vec = step_.vectors;
    const std::int64_t at = client * vec.d + matrix.offset + cut.row * matrix.cols + cut.col;
    const std::int64_t row = matrix.row_offset + cut.row, col = layout_.row_size + matrix.col_offset + cut.col;
    return {cut.rows,
            cut.cols,
            matrix.cols,
            grad_stride,
            vec.x + at,
            grad,
            vec.m ? vec.m + at : nullptr,
            vec.nu ? vec.nu + at : nullptr,
            minima.data() + row,
            minima.data() + col,
            maxima ? maxima + row : nullptr,
            maxima ? maxima + col : nullptr};
  }

  void expand(const T* mu, AlignedArray<T>& minima) const {
    for (const CoverMatrix& matrix : layout_.matrices) {
      expand_side(mu, matrix.row_axes, matrix.rows, minima.data() + matrix.row_offset);
      expand_side(mu, matrix.col_axes, matrix.cols, minima.data() + layout_.row_size + matrix.col_offset);
    }
  }

  static void expand_side(const T* mu, const std::vector<CoverAxis>& axes, std::int64_t n, T* out) {
    std::fill(out, out + n, std::numeric_limits<T>::infinity());
    for (const CoverAxis& axis : axes) {
      const T* values = mu + axis.mu_offset;
      if (axes.size() == 1) {  // the only axis of its side: entry by entry
        std::copy(values, values + n, out);
        continue;
      }
      for_runs(axis, n, [&](std::int64_t begin, std::int64_t i) {
        for (std::int64_t j = begin; j < begin + axis.stride; ++j) out[j] = smaller(out[j], values[i]);
      });
    }
  }

  std::vector<T> folded(const AlignedArray<T>& maxima) const {
    std::vector<T> top(static_cast<std::size_t>(layout_.mu_size));
    for (const CoverMatrix& matrix : layout_.matrices) {
      fold_side(maxima.data() + matrix.row_offset, matrix.row_axes, matrix.rows, top.data());
      fold_side(maxima.data() + layout_.row_size + matrix.col_offset, matrix.col_axes, matrix.cols, top.data());
    }
    return top;
  }

  static void fold_side(const T* side, const std::vector<CoverAxis>& axes, std::int64_t n, T* top) {
    for (const CoverAxis& axis : axes) {
      T* values = top + axis.mu_offset;
      if (axes.size() == 1) {
        std::copy(side, side + n, values);
        continue;
      }
      for_runs(axis, n, [&](std::int64_t begin, std::int64_t i) {
        for (std::int64_t j = begin; j < begin + axis.stride; ++j) values[i] = larger(values[i], side[j]);
      });
    }
  }

  // Calls work(begin, index) for every run of equal axis index in a side of n entries.
  template <class Work> static void for_runs(const CoverAxis& axis, std::int64_t n, Work work) {
    std::int64_t index = 0;
    for (std::int64_t begin = 0; begin < n; begin += axis.stride) {
      work(begin, index);
      if (++index == axis.size) index = 0;
    }
  }

  const ClientStep<T>& step_;
  const CoverLayout& layout_;
  Gradient<T> gradient_;
  std::int64_t sides_;
  std::vector<Cut> cuts_;
};

}  // namespace fastfed
