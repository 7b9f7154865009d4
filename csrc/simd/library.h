// The matrix product of a library that is in this process anyhow: torch brings one that beats ours where both matrices
// are large. Found at run time, so that the extension needs no torch to be built or to start.
#pragma once

namespace fastfed {

// BLAS's sgemm, column-major.
using Sgemm = void(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
                   const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
                   const int* ldc);

Sgemm* library_sgemm();  // null where no torch is loaded: our own products then take all sizes

// While one lives, the library's products run on the thread that calls them, so that their bits do not depend on how
// many threads there are. In a parallel region of several they do so anyhow.
class LibraryOnOneThread {
 public:
  LibraryOnOneThread();
  ~LibraryOnOneThread();
  LibraryOnOneThread(const LibraryOnOneThread&) = delete;
  LibraryOnOneThread& operator=(const LibraryOnOneThread&) = delete;

 private:
  int before_ = 0;
};

}  // namespace fastfed
