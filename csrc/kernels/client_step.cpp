// The passes of a client step in their order; kernels/passes.py is the same order for the backends driven from Python.
#include "kernels/client_step.h"

#include <cstring>
#include <stdexcept>

#include "kernels/aligned.h"
#include "kernels/cover_step.h"
#include "kernels/gradient.h"

namespace fastfed {
namespace {

template <class T> T* at(T* vector, std::int64_t offset) { return vector ? vector + offset : nullptr; }

template <class T> class Stepper {
 public:
  explicit Stepper(const ClientStep<T>& step)
      : step_(step), gradient_(step), k_(std::size_t(step.vectors.clients)), sums_(k_.size()) {}

  void run() {
    start();
    if (step_.numbers.clip > 0) clip();
    if (step_.step_size == kDeltaSgd) choose_delta_sgd();
    if (step_.step_size == kSps) choose_sps();
    if (kDirectionTraits[step_.formula].has_v) advance_counters();
    if (step_.cover != kNoCover) {
      CoverStep<T>(step_).run(k_);
    } else if (step_.step_size == kDeltaSgd) {
      measured_update();
    } else {
      if (step_.numbers.floor > 0) apply_floor();
      update();
    }
  }

 private:
  const ClientNumbers& numbers() const { return step_.numbers; }
  const ClientVectors<T>& vec() const { return step_.vectors; }
  const ClientScalars& scalars() const { return step_.scalars; }
  std::int64_t clients() const { return std::int64_t(k_.size()); }

  void start() {
    for (std::int64_t i = 0; i < clients(); ++i) {
      Coefficients& k = k_[std::size_t(i)];
      k.active = !(scalars().finished && scalars().finished[i]);
      k.step = scalars().given_lr ? scalars().given_lr[i] : numbers().lr;
    }
  }

  template <class Work> void for_active(Work work) {
    for (std::int64_t i = 0; i < clients(); ++i)
      if (k_[std::size_t(i)].active) work(i, k_[std::size_t(i)]);
  }

  // Per client, the sum over spans of part(element offset, n, gradient), into sums_. `most` bounds a span.
  template <class Part> void sum_spans(std::int64_t most, Part part) {
    sum_chunks(clients(), vec().d, step_.threads, sums_.data(),
               [&](std::int64_t client, std::int64_t begin, std::int64_t n) {
                 const Coefficients& k = k_[std::size_t(client)];
                 double sum = 0;
                 if (k.active)
                   gradient_.for_spans(client, k, begin, n, most, [&](std::int64_t i, std::int64_t length, const T* g) {
                     sum += part(client, client * vec().d + i, length, g);
                   });
                 return sum;
               });
  }

  void sum_gradient_squares() {
    const auto squares = vector_loops<T>().squares;
    sum_spans(kChunk, [&](std::int64_t, std::int64_t, std::int64_t n, const T* g) { return squares(n, g); });
  }

  void clip() {
    sum_gradient_squares();
    for_active(
        [&](std::int64_t i, Coefficients& k) { k.scale = clip_scale(root(sums_[std::size_t(i)]), numbers().clip); });
  }

  // The proximal term belongs to the loss, as it does to the gradient.
  void choose_sps() {
    const ClientNumbers& n = numbers();
    std::vector<double> pull(std::size_t(clients()), 0.0);
    if (n.prox > 0) {
      const auto squares = vector_loops<T>().change_squares;
      sum_spans(kChunk, [&](std::int64_t client, std::int64_t offset, std::int64_t length, const T*) {
        const T* anchor = vec().anchor + offset - (vec().shared_anchor ? client * vec().d : 0);
        return squares(length, vec().x + offset, anchor);
      });
      pull = sums_;
    }
    sum_gradient_squares();
    for_active([&](std::int64_t i, Coefficients& k) {
      const double loss = scalars().loss[i] + n.prox / 2 * pull[std::size_t(i)];
      k.step = sps_step_size(loss, sums_[std::size_t(i)], n.c, n.f_star, n.lr_max, n.eps);
      scalars().lr[i] = k.step;
    });
  }

  void choose_delta_sgd() {
    const auto change_squares = vector_loops<T>().change_squares;
    const T* before = vec().previous_grad ? vec().previous_grad : vec().grad_prev;
    sum_spans(kChunk, [&](std::int64_t, std::int64_t offset, std::int64_t n, const T* g) {
      return change_squares(n, g, before + offset);
    });
    for_active([&](std::int64_t i, Coefficients& k) {
      const ClientNumbers& n = numbers();
      const bool first = scalars().step[i] == 0;
      const double lr = first ? k.step : scalars().lr[i], theta = first ? n.theta : scalars().theta[i];
      const double move = first ? 0.0 : scalars().move[i];
      StepSize chosen = delta_sgd_step_size(move, root(sums_[std::size_t(i)]), lr, theta, n.gamma, n.delta, n.lr_eps);
      if (first && !n.grow_first) chosen = {k.step, theta};
      scalars().lr[i] = k.step = chosen.step;
      scalars().theta[i] = chosen.ratio;
      scalars().step[i] += 1;
    });
  }

  // Delta-SGD's update: moves x, keeps the gradient, measures the move.
  void measured_update() {
    const auto move = vector_loops<T>().measured_move;
    sum_spans(kSpan, [&](std::int64_t client, std::int64_t offset, std::int64_t n, const T* g) {
      if (vec().grad_prev) std::memcpy(vec().grad_prev + offset, g, std::size_t(n) * sizeof(T));
      return move(n, vec().x + offset, g, T(k_[std::size_t(client)].step));
    });
    for_active([&](std::int64_t i, Coefficients&) { scalars().move[i] = root(sums_[std::size_t(i)]); });
  }

  void advance_counters() {
    for_active([&](std::int64_t i, Coefficients& k) {
      const std::int64_t step = ++scalars().step[i];
      const bool due = refreshes_at(scalars().epoch ? scalars().epoch[i] : step, numbers().delay);
      k.refresh = due || scalars().refreshes[i] == 0;  // there is nothing to reuse at first
      const std::int64_t refreshes = scalars().refreshes[i] += k.refresh;
      if (!kDirectionTraits[step_.formula].corrects_bias) return;
      k.bias1 = bias(numbers().beta1, double(step) + numbers().bias_from);
      k.step /= k.bias1;
      k.root_scale = 1.0 / root(bias(numbers().beta2, double(refreshes) + numbers().bias_from));
    });
  }

  void apply_floor() {
    sum_spans(kChunk, [&](std::int64_t client, std::int64_t offset, std::int64_t n, const T* g) {
      const Coefficients& k = k_[std::size_t(client)];
      const auto squares = vector_loops<T>().direction_squares[step_.formula][k.refresh];
      return squares(n, g, at(vec().m, offset), at(vec().v, offset), direction_numbers<T>(numbers(), k));
    });
    for_active([&](std::int64_t i, Coefficients& k) {
      k.keep = floor_keep(root(sums_[std::size_t(i)]) / k.bias1, numbers().floor);
    });
  }

  void update() {
    const std::int64_t chunks = chunks_of(vec().d);
    for_tasks(clients() * chunks, step_.threads, [&](std::int64_t task, int) {
      const std::int64_t client = task / chunks, begin = task % chunks * kChunk;
      const Coefficients& k = k_[std::size_t(client)];
      if (!k.active) return;
      const auto loop = vector_loops<T>().client[step_.formula][k.refresh];
      const DirectionNumbers<T> n = direction_numbers<T>(numbers(), k);
      const std::int64_t length = std::min(kChunk, vec().d - begin);
      gradient_.for_spans(client, k, begin, length, kChunk, [&](std::int64_t i, std::int64_t count, const T* g) {
        const std::int64_t offset = client * vec().d + i;
        loop(count, vec().x + offset, g, at(vec().m, offset), at(vec().v, offset), T(k.step), n);
      });
    });
  }

  const ClientStep<T>& step_;
  Gradient<T> gradient_;
  std::vector<Coefficients> k_;
  std::vector<double> sums_;
};

std::int64_t read_side(const std::int64_t* sizes, std::int64_t count, std::int64_t mu_offset,
                       std::vector<CoverAxis>& axes) {
  std::int64_t product = 1;
  for (std::int64_t i = count - 1; i >= 0; --i) product *= sizes[i];
  std::int64_t stride = product;
  for (std::int64_t i = 0; i < count; ++i) {
    stride /= sizes[i];
    axes.push_back({mu_offset, sizes[i], stride});
    mu_offset += sizes[i];
  }
  return product;
}

}  // namespace

CoverLayout read_layout(const std::int64_t* numbers, std::int64_t count, std::int64_t d) {
  CoverLayout layout;
  if (count < 1 || numbers[0] != d) throw std::invalid_argument("state: its cover is not one of vectors like x");
  for (std::int64_t at_number = 1; at_number < count;) {
    if (at_number + 4 > count || at_number + 4 + numbers[at_number + 3] > count || numbers[at_number + 3] < 1)
      throw std::invalid_argument("state['cover']: is cut short");
    const std::int64_t* head = numbers + at_number;
    const std::int64_t split = head[2], rank = head[3];
    for (std::int64_t i = 0; i < rank; ++i)
      if (head[4 + i] < 1) throw std::invalid_argument("state['cover']: holds an axis without entries");
    CoverMatrix matrix{head[0], 0, 0, layout.row_size, layout.col_size, {}, {}};
    std::int64_t row_mu = 0;
    for (std::int64_t i = 0; i < split; ++i) row_mu += head[4 + i];
    matrix.rows = read_side(head + 4, split, head[1], matrix.row_axes);
    matrix.cols = read_side(head + 4 + split, rank - split, head[1] + row_mu, matrix.col_axes);
    if (matrix.offset < 0 || matrix.offset + matrix.rows * matrix.cols > d || head[1] != layout.mu_size)
      throw std::invalid_argument("state['cover']: does not describe x");
    layout.mu_size += row_mu;
    for (std::int64_t i = split; i < rank; ++i) layout.mu_size += head[4 + i];
    layout.row_size += whole_lines(matrix.rows);
    layout.col_size += whole_lines(matrix.cols);
    layout.matrices.push_back(std::move(matrix));
    at_number += 4 + rank;
  }
  return layout;
}

template <class T> void client_step(const ClientStep<T>& step) { Stepper<T>(step).run(); }

template void client_step<float>(const ClientStep<float>&);
template void client_step<double>(const ClientStep<double>&);

}  // namespace fastfed
