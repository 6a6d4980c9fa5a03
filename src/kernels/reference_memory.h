// Buffers and weights of the reference backend. Internal to reference_*.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"
#include "tensor/host_matrix.h"

namespace yoke::kernels::reference {

// [rows, cols] of doubles inside a buffer. Does not own.
struct Rows {
  double* first = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  double& operator()(size_t row, size_t col) const {
    YOKE_DCHECK(row < rows && col < cols);
    return first[row * stride + col];
  }
};

// A weight decoded to f32, which holds every value of every dtype exactly.
struct Weight {
  size_t rows = 0;
  size_t cols = 0;
  uint64_t stored_bytes = 0;  // in the form it came in
  std::vector<float> values;  // [rows, cols]

  double operator()(size_t row, size_t col) const {
    YOKE_DCHECK(row < rows && col < cols);
    return static_cast<double>(values[row * cols + col]);
  }
};

class Memory {
 public:
  BufferId Allocate(size_t num_elements);
  void Free(BufferId buffer);
  WeightId AddWeight(const HostMatrix& matrix);

  // The view must lie inside its buffer.
  Rows At(const View& view);
  // As At, and the shape must be this one.
  Rows At(const View& view, size_t rows, size_t cols);

  // The weight, which must have this shape; its bytes count as read.
  const Weight& Use(WeightId id, size_t rows, size_t cols);
  // The weight, for an op that counts for itself what it reads.
  const Weight& Peek(WeightId id) const;
  void CountBytes(uint64_t num_bytes) { weight_bytes_read_ += num_bytes; }
  uint64_t weight_bytes_read() const { return weight_bytes_read_; }

 private:
  struct Buffer {
    bool live = false;
    std::vector<double> values;
  };
  std::vector<Buffer> buffers_;
  std::vector<Weight> weights_;
  uint64_t weight_bytes_read_ = 0;
};

}  // namespace yoke::kernels::reference
