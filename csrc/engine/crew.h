// The threads that share a batch of a large model, with the bits of one thread.
//
// Layers that are called for the whole batch share their work by themselves (Frame::threads). Those that are called for
// one example at a time are called for several at once: the batch is cut into stretches, each of which gathers
// gradients of its own, and these are added up in the order of the stretches. How many there are is a matter of the
// batch, never of the threads: one thread goes through all of them alone.
#pragma once

#include <vector>

#include "engine/program.h"
#include "kernels/aligned.h"
#include "kernels/parallel.h"

namespace fastfed {

class Crew {
 public:
  explicit Crew(const Program& program);

  // What layers need at most for use inside one call.
  void size(Size workspace) { workspace_ = workspace; }

  // work(frame, first, count) for all examples of the batch, as the segment's layers are called.
  template <class Work> void call(const Program::Segment& segment, const Frame& frame, Work work) {
    if (!segment.by_example) return work(frame, Size(0), frame.batch);
    if (!divides_) return call_each(frame, 0, frame.batch, work);
    make_room(frame);
    const Size stretches = stretches_of(frame);
    for_tasks(stretches, frame.threads, [&](Size stretch, int thread) {
      const Frame own = frame_of(frame, stretch, thread);
      call_each(own, frame.batch * stretch / stretches, frame.batch * (stretch + 1) / stretches, work);
    });
  }

  // After a backward pass: what the stretches gathered for the segment's parameters, added up in frame.grads.
  void gather(const Program::Segment& segment, const Frame& frame) const;

 private:
  // What a thread has for itself.
  struct Place {
    AlignedArray<float> room;
    std::vector<Slot> slots;
    float* workspace;
  };

  template <class Work> static void call_each(const Frame& frame, Size begin, Size end, Work work) {
    for (Size e = begin; e < end; ++e) work(frame, e, Size(1));
  }

  static Size stretches_of(const Frame& frame);
  Frame frame_of(const Frame& frame, Size stretch, int thread) const;
  void make_room(const Frame& frame);
  Place make_place(const Frame& frame) const;

  const Program& program_;
  bool divides_;
  Size begin_ = 0, end_ = 0;  // of the parameters of all layers that are called example by example
  Size workspace_ = 0;
  std::vector<Place> places_;  // of all threads but the first, which has the frame's own
  AlignedArray<float> gathered_;
  bool has_room_ = false;
};

}  // namespace fastfed
