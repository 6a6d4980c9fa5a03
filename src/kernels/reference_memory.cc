#include "kernels/reference_memory.h"

#include <span>

namespace yoke::kernels::reference {

BufferId Memory::Allocate(size_t num_elements) {
  const BufferId id{static_cast<uint32_t>(buffers_.size())};
  buffers_.push_back({.live = true, .values = std::vector<double>(num_elements)});
  return id;
}

void Memory::Free(BufferId buffer) {
  YOKE_CHECK(buffer.index < buffers_.size() && buffers_[buffer.index].live);
  buffers_[buffer.index] = {};
}

WeightId Memory::AddWeight(const HostMatrix& matrix) {
  Weight weight{.rows = matrix.rows,
                .cols = matrix.cols,
                .stored_bytes = matrix.TotalBytes(),
                .values = std::vector<float>(matrix.rows * matrix.cols)};
  for (size_t row = 0; row < matrix.rows; ++row) {
    DequantizeRow(matrix, row, std::span(weight.values).subspan(row * matrix.cols, matrix.cols));
  }
  weights_.push_back(std::move(weight));
  return {static_cast<uint32_t>(weights_.size() - 1)};
}

Rows Memory::At(const View& view) {
  YOKE_CHECK(view.buffer.index < buffers_.size() && buffers_[view.buffer.index].live);
  std::vector<double>& values = buffers_[view.buffer.index].values;
  if (view.rows == 0 || view.cols == 0) return {.rows = view.rows, .cols = view.cols};
  YOKE_CHECK(view.rows == 1 || view.stride >= view.cols);
  YOKE_CHECK(view.offset + (view.rows - 1) * view.stride + view.cols <= values.size());
  return {values.data() + view.offset, view.rows, view.cols, view.stride};
}

Rows Memory::At(const View& view, size_t rows, size_t cols) {
  YOKE_CHECK(view.rows == rows && view.cols == cols);
  return At(view);
}

const Weight& Memory::Use(WeightId id, size_t rows, size_t cols) {
  const Weight& weight = Peek(id);
  YOKE_CHECK(weight.rows == rows && weight.cols == cols);
  CountBytes(weight.stored_bytes);
  return weight;
}

const Weight& Memory::Peek(WeightId id) const {
  YOKE_CHECK(id.index < weights_.size());
  return weights_[id.index];
}

}  // namespace yoke::kernels::reference
