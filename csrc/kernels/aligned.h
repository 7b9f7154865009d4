// A zeroed array on a cache-line border: an access that straddles two lines costs as much as two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fastfed {

constexpr std::int64_t kLineElements = 16;  // elements that fill a line of floats, and two of doubles

inline std::int64_t whole_lines(std::int64_t n) { return (n + kLineElements - 1) / kLineElements * kLineElements; }

// Megabytes are asked for as huge pages: random rows of a large model would miss the table of small ones every time.
constexpr std::size_t kHugePage = std::size_t(1) << 21;

inline std::align_val_t border_for(std::size_t bytes) {
  return std::align_val_t{bytes < 2 * kHugePage ? 64 : kHugePage};
}

inline void* aligned_memory(std::size_t bytes) {
  void* memory = ::operator new(bytes, border_for(bytes));
#if defined(__linux__)
  if (bytes >= 2 * kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: nothing depends on it
#endif
  return memory;
}

template <class T> class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(std::int64_t size)
      : bytes_(std::size_t(size) * sizeof(T)), data_(static_cast<T*>(aligned_memory(bytes_))) {
    std::fill(data_, data_ + size, T(0));
  }
  AlignedArray(AlignedArray&& other) noexcept
      : bytes_(std::exchange(other.bytes_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  AlignedArray(const AlignedArray&) = delete;
  AlignedArray& operator=(const AlignedArray&) = delete;
  AlignedArray& operator=(AlignedArray&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~AlignedArray() { ::operator delete(data_, border_for(bytes_)); }

  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  std::size_t bytes_ = 0;
  T* data_ = nullptr;
};

// Memory that is asked for once, and again where more is needed than ever before; what it held is lost then.
class GrowingArray {
 public:
  float* of(std::int64_t size) {
    if (size > size_) {
      array_ = AlignedArray<float>(size);
      size_ = size;
    }
    return array_.data();
  }
  float* data() { return array_.data(); }
  const float* data() const { return array_.data(); }

 private:
  AlignedArray<float> array_;
  std::int64_t size_ = 0;
};

}  // namespace fastfed
