// Frames for threads that share a batch, and the sums of what they gathered.
#include "engine/crew.h"

#include <algorithm>

#include "simd/loops.h"

namespace fastfed {
namespace {

constexpr Size kStretches = 8;

// Every parameter of these layers that is there: work(offset, length).
template <class Work> void for_params(const Program& program, std::size_t begin, std::size_t end, Work work) {
  for (std::size_t l = begin; l < end; ++l) {
    if (!program.active()[l]) continue;
    const Layer& layer = *program.layers()[l];
    const std::vector<Size> sizes = layer.param_sizes();
    for (std::size_t p = 0; p < layer.spec().params.size(); ++p)
      if (layer.spec().params[p] >= 0) work(layer.spec().params[p], sizes[p]);
  }
}

}  // namespace

// Shared parameters add to each other's gradients, and a last layer of images is looked at as a whole.
Crew::Crew(const Program& program)
    : program_(program),
      divides_(program.is_large() && !program.shares_params() && !program.segments().back().by_example) {
  begin_ = program.d();
  for (const auto& segment : program.segments())
    if (segment.by_example)
      for_params(program, segment.begin, segment.end, [&](Size offset, Size n) {
        begin_ = std::min(begin_, offset);
        end_ = std::max(end_, offset + n);
      });
  begin_ = std::min(begin_, end_);
}

Size Crew::stretches_of(const Frame& frame) { return std::min(kStretches, frame.batch); }

// A stretch begins its gradients anew; threads beyond the first work in memory of their own.
Frame Crew::frame_of(const Frame& frame, Size stretch, int thread) const {
  Frame own = frame;
  own.threads = 1;
  own.begin = frame.batch * stretch / stretches_of(frame);
  own.grads = const_cast<float*>(gathered_.data()) + stretch * whole_lines(end_ - begin_) - begin_;
  if (thread == 0) return own;
  own.laps = nullptr;  // the time of a client is that of its first thread
  const Place& place = places_[std::size_t(thread - 1)];
  own.slots = place.slots.data();
  own.workspace = place.workspace;
  return own;
}

void Crew::make_room(const Frame& frame) {
  if (!has_room_) gathered_ = AlignedArray<float>(kStretches * whole_lines(end_ - begin_));
  has_room_ = true;
  while (Size(places_.size()) + 1 < frame.threads) places_.push_back(make_place(frame));
}

// The values themselves are everybody's; gradients that live for one example are not.
Crew::Place Crew::make_place(const Frame& frame) const {
  const auto& values = program_.values();
  const auto is_own = [&](std::size_t v) { return program_.memory_of()[v] == int(v) && program_.per_example()[v]; };
  Size used = whole_lines(workspace_);
  for (std::size_t v = 0; v < values.size(); ++v)
    if (is_own(v)) used += whole_lines(values[v].size());
  Place place{AlignedArray<float>(used), {frame.slots, frame.slots + values.size()}, nullptr};
  float* next = place.room.data();
  place.workspace = next;
  next += whole_lines(workspace_);
  for (std::size_t v = 0; v < values.size(); ++v)
    if (is_own(v)) {
      place.slots[v].grad = next;
      next += whole_lines(values[v].size());
    }
  for (std::size_t v = 0; v < values.size(); ++v) place.slots[v] = place.slots[std::size_t(program_.memory_of()[v])];
  return place;
}

void Crew::gather(const Program::Segment& segment, const Frame& frame) const {
  if (!segment.by_example || !divides_) return;
  const Size apart = whole_lines(end_ - begin_), stretches = stretches_of(frame);
  for_params(program_, segment.begin, segment.end, [&](Size offset, Size n) {
    for_chunks(n, frame.threads, [&](Size at, Size count) {
      const float* from = gathered_.data() + (offset - begin_ + at);
      float* to = frame.grads + offset + at;
      copy(count, from, to);
      for (Size stretch = 1; stretch < stretches; ++stretch) add_to(count, from + stretch * apart, to);
    });
  });
}

}  // namespace fastfed
