// A zeroed array on a cache-line border: an access that straddles two lines costs as much as two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace fastfed {

constexpr std::int64_t kLineElements = 16;  // elements that fill a line of floats, and two of doubles

inline std::int64_t whole_lines(std::int64_t n) { return (n + kLineElements - 1) / kLineElements * kLineElements; }

template <class T> class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(std::int64_t size)
      : data_(static_cast<T*>(::operator new(std::size_t(size) * sizeof(T), std::align_val_t{64}))) {
    std::fill(data_, data_ + size, T(0));
  }
  AlignedArray(AlignedArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  AlignedArray(const AlignedArray&) = delete;
  AlignedArray& operator=(const AlignedArray&) = delete;
  AlignedArray& operator=(AlignedArray&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~AlignedArray() { ::operator delete(data_, std::align_val_t{64}); }

  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

}  // namespace fastfed
