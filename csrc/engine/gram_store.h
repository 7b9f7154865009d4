// Products X X^T of clients' examples, kept from round to round: who comes again brings the same ones.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/layers/layer.h"
#include "kernels/aligned.h"

namespace fastfed {

class GramStore {
 public:
  // `in`: numbers of an example.
  explicit GramStore(Size in);

  // What tells the client's examples x (n, in) from others: a mark each, in `marks` (n,). Examples with one mark are
  // taken to be the same: of two that differ in one number it never is, of others once in 2^64.
  void mark(Size n, const float* x, std::uint64_t* marks) const;
  // The products (n, n) of examples with these marks, null if there are none; they stay where they are.
  const float* find(Size n, const std::uint64_t* marks);
  // Keeps the products (n, n) of examples that have none, as far as there is room.
  void keep(Size n, const std::uint64_t* marks, const float* products);

 private:
  struct Kept {
    std::vector<std::uint64_t> marks;
    AlignedArray<float> products;
  };
  static std::uint64_t key_of(Size n, const std::uint64_t* marks);

  std::vector<std::uint32_t> factors_;  // by number of an example
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Kept> kept_;  // which does not move what it holds
  Size room_;                                     // in numbers
};

}  // namespace fastfed
