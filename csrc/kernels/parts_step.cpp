// Steps over parts. Work is cut into spans of all parts, so that threads share it evenly whatever the parts' sizes;
// sums are added span by span, so that they do not depend on the threads.
#include "kernels/parts_step.h"

#include <cstring>
#include <type_traits>

#include "kernels/cover_step.h"
#include "kernels/parallel.h"
#include "simd/simd.h"

namespace fastfed {
namespace {

constexpr std::int64_t kRun = 65536;  // elements of a span at most: memory likes long runs

template <class T> T* at(T* vector, std::int64_t offset) { return vector ? vector + offset : nullptr; }

template <class T> std::int64_t length_of(const GradientPart<T>& part) { return part.vectors.d; }
template <class T> std::int64_t length_of(const MovedPart<T>& part) { return part.d; }
template <class T> const T* model_of(const GradientPart<T>& part) { return part.vectors.x; }
template <class T> const T* model_of(const MovedPart<T>& part) { return part.x; }

// Calls work(part, begin, n, gradient) over all parts; what it returns is added in order. Spans of a gradient that is
// seen otherwise than it is are made in a scratch buffer.
template <class Part, class Work>
double sum_spans(const std::vector<Part>& parts, const Sight& sight, int threads, Work work) {
  using T = std::remove_const_t<std::remove_pointer_t<decltype(parts[0].grad)>>;
  struct Span {
    const Part* part;
    std::int64_t begin, n;
  };
  std::vector<Span> spans;
  for (const Part& part : parts)
    for (std::int64_t i = 0; i < length_of(part); i += kRun)
      spans.push_back({&part, i, std::min(kRun, length_of(part) - i)});
  std::vector<double> sums(spans.size());
  const auto correct = vector_loops<T>().correct;
  for_uneven_tasks(std::int64_t(spans.size()), threads, [&](std::int64_t task) {
    const auto [part, begin, n] = spans[std::size_t(task)];
    double& sum = sums[std::size_t(task)];
    if (sight.is_plain()) {
      sum = work(*part, begin, n, part->grad + begin);
      return;
    }
    alignas(64) T seen[kSpan];
    for (std::int64_t i = begin; i < begin + n; i += kSpan) {
      const std::int64_t length = std::min(kSpan, begin + n - i);
      correct(length, seen, part->grad + i, model_of(*part) + i, nullptr, nullptr, T(sight.weight_decay), T(0),
              T(sight.scale));
      sum += work(*part, i, length, seen);
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

template <class T>
void gradient_parts(ServerFormula formula, const std::vector<GradientPart<T>>& parts, const Sight& sight, bool of_delta,
                    const ServerNumbers<T>& numbers, int threads) {
  sum_spans(parts, sight, threads, [&](const GradientPart<T>& part, std::int64_t i, std::int64_t n, const T* g) {
    const ServerVectors<T>& vec = part.vectors;
    const auto loop = vector_loops<T>().server[formula][of_delta][vec.m != nullptr];
    loop(n, vec.x + i, g, at(vec.m, i), at(vec.v, i), at(vec.vmax, i), numbers);
    return 0.0;
  });
}

template <class T>
void covered_parts(DirectionFormula formula, CoverForm cover, const std::vector<CoveredPart<T>>& parts,
                   const Sight& sight, const ClientNumbers& given, double step, double root_scale, int threads) {
  constexpr std::int64_t kAlone = 65536;  // elements: what one thread does as fast as all of them
  ClientNumbers numbers = given;
  numbers.weight_decay = sight.weight_decay;
  numbers.floor = 0;
  const auto one = [&](const CoveredPart<T>& part, int team) {
    Coefficients k;
    k.scale = sight.scale;
    k.step = step;
    k.root_scale = root_scale;
    ClientVectors<T> vectors{};
    vectors.clients = 1;
    vectors.d = part.d;
    vectors.mu_size = part.layout.mu_size;
    vectors.x = part.x;
    vectors.grad = part.grad;
    vectors.m = part.m;
    vectors.mu = part.mu;
    const ClientStep<T> call{formula, cover, kGiven, numbers, vectors, {}, &part.layout, team};
    std::vector<Coefficients> coefficients{k};
    CoverStep<T>(call).run(coefficients);
  };
  std::vector<const CoveredPart<T>*> small;
  for (const CoveredPart<T>& part : parts) {
    if (threads > 1 && part.d > kAlone)
      one(part, threads);
    else
      small.push_back(&part);
  }
  for_uneven_tasks(std::int64_t(small.size()), threads, [&](std::int64_t i) { one(*small[std::size_t(i)], 1); });
}

template <class T> double squares_of_parts(const std::vector<MovedPart<T>>& parts, const Sight& sight, int threads) {
  const auto squares = vector_loops<T>().squares;
  const auto change_squares = vector_loops<T>().change_squares;
  return sum_spans(parts, sight, threads, [&](const MovedPart<T>& part, std::int64_t i, std::int64_t n, const T* g) {
    if (!part.grad_prev) return squares(n, g);
    double sum = 0;
    for (std::int64_t j = 0; j < n; j += kSpan) {  // short runs: what is written over is still near
      const std::int64_t length = std::min(kSpan, n - j);
      sum += change_squares(length, g + j, part.grad_prev + i + j);
      std::memcpy(part.grad_prev + i + j, g + j, std::size_t(length) * sizeof(T));
    }
    return sum;
  });
}

template <class T>
double move_parts(const std::vector<MovedPart<T>>& parts, const Sight& sight, double step, bool measured, int threads) {
  const auto move = vector_loops<T>().client[kDirectionSgd][0];
  const auto measured_move = vector_loops<T>().measured_move;
  const auto work = [&](const MovedPart<T>& part, std::int64_t i, std::int64_t n, const T* g) {
    if (measured) return measured_move(n, part.x + i, g, T(step));
    move(n, part.x + i, g, nullptr, nullptr, T(step), {});
    return 0.0;
  };
  return sum_spans(parts, sight, threads, work);
}

#define FF_INSTANTIATE(T)                                                                                       \
  template void gradient_parts<T>(ServerFormula, const std::vector<GradientPart<T>>&, const Sight&, bool,       \
                                  const ServerNumbers<T>&, int);                                                \
  template void covered_parts<T>(DirectionFormula, CoverForm, const std::vector<CoveredPart<T>>&, const Sight&, \
                                 const ClientNumbers&, double, double, int);                                    \
  template double squares_of_parts<T>(const std::vector<MovedPart<T>>&, const Sight&, int);                     \
  template double move_parts<T>(const std::vector<MovedPart<T>>&, const Sight&, double, bool, int);
FF_INSTANTIATE(float)
FF_INSTANTIATE(double)

}  // namespace fastfed
