// What the tests of the backends share: host tensors, random ones, and their layout in buffers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"

namespace yoke::kernels {

// [rows, cols] on the host, dense.
struct Tensor {
  size_t rows = 0;
  size_t cols = 0;
  std::vector<float> values;

  Tensor() = default;
  Tensor(size_t num_rows, size_t num_cols, float value = 0)
      : rows(num_rows), cols(num_cols), values(num_rows * num_cols, value) {}
  Tensor(size_t num_rows, size_t num_cols, std::vector<float> v)
      : rows(num_rows), cols(num_cols), values(std::move(v)) {
    YOKE_CHECK(values.size() == rows * cols);
  }

  float& operator()(size_t row, size_t col) { return values[row * cols + col]; }
  float operator()(size_t row, size_t col) const { return values[row * cols + col]; }
  Tensor Slice(size_t first, size_t count) const {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * cols);
    return {count, cols, {begin, begin + static_cast<std::ptrdiff_t>(count * cols)}};
  }
  void Append(const Tensor& other) {
    YOKE_CHECK(rows == 0 || cols == other.cols);
    values.insert(values.end(), other.values.begin(), other.values.end());
    rows += other.rows;
    cols = other.cols;
  }
};

inline double LargestAbs(const Tensor& tensor) {
  double largest = 0;
  for (const float value : tensor.values) {
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  return largest;
}

// "" when both hold the same bits, else the first element that differs.
inline std::string DescribeBits(const Tensor& expected, const Tensor& actual) {
  std::ostringstream out;
  if (expected.rows != actual.rows || expected.cols != actual.cols) {
    out << "shapes differ: expected " << expected.rows << " x " << expected.cols << ", actual "
        << actual.rows << " x " << actual.cols;
    return out.str();
  }
  for (size_t i = 0; i < expected.values.size(); ++i) {
    if (std::memcmp(&expected.values[i], &actual.values[i], sizeof(float)) == 0) continue;
    out.precision(9);
    out << "bits differ at row " << i / expected.cols << ", col " << i % expected.cols
        << ": expected " << expected.values[i] << ", actual " << actual.values[i];
    return out.str();
  }
  return "";
}

// The same sequence on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  size_t Below(size_t n) { return static_cast<size_t>(engine_() % n); }
  // In [-scale, scale).
  float Uniform(float scale) {
    return (static_cast<float>(engine_() >> 40) / static_cast<float>(1 << 23) - 1) * scale;
  }
  Tensor Uniform(size_t rows, size_t cols, float scale = 1) {
    Tensor tensor(rows, cols);
    for (float& value : tensor.values) value = Uniform(scale);
    return tensor;
  }
  // Values of about `scale`, whatever the dtype.
  HostMatrix Weight(DType dtype, size_t rows, size_t cols, float scale = 1);

 private:
  std::mt19937_64 engine_;
};

inline HostMatrix F32Weight(const Tensor& tensor) {
  HostMatrix matrix = HostMatrix::Make(DType::kF32, tensor.rows, tensor.cols);
  if (!tensor.values.empty()) {
    std::memcpy(matrix.data.data(), tensor.values.data(), tensor.values.size() * sizeof(float));
  }
  return matrix;
}

inline HostMatrix Random::Weight(DType dtype, size_t rows, size_t cols, float scale) {
  const Tensor tensor = Uniform(rows, cols, scale);
  if (dtype == DType::kF32) return F32Weight(tensor);
  HostMatrix matrix = HostMatrix::Make(dtype, rows, cols);
  for (size_t r = 0; r < rows; ++r) {
    const std::span<const float> row(&tensor.values[r * cols], cols);
    if (dtype == DType::kBf16) {
      uint16_t* bits = reinterpret_cast<uint16_t*>(matrix.DataRow(r).data());
      for (size_t c = 0; c < cols; ++c) bits[c] = F32ToBf16(row[c]);
    } else if (dtype == DType::kQ8_0) {
      QuantizeRowQ8_0(row, {reinterpret_cast<int8_t*>(matrix.DataRow(r).data()), cols},
                      {reinterpret_cast<uint16_t*>(matrix.ScaleRow(r).data()), cols / kBlockCols});
    } else {
      // Largest code 6: blocks of 1, 1/2, 1/4 or 1/8 of the scale.
      const int exponent = 127 + std::ilogb(scale / 6);
      for (std::byte& code : matrix.DataRow(r)) code = static_cast<std::byte>(Below(256));
      for (std::byte& e : matrix.ScaleRow(r)) {
        e = static_cast<std::byte>(exponent - static_cast<int>(Below(4)));
      }
    }
  }
  return matrix;
}

inline HostMatrix CopyOf(const HostMatrix& matrix) {
  HostMatrix copy = HostMatrix::Make(matrix.dtype, matrix.rows, matrix.cols);
  if (matrix.data.size() > 0) {
    std::memcpy(copy.data.data(), matrix.data.data(), matrix.data.size());
  }
  if (matrix.scales.size() > 0) {
    std::memcpy(copy.scales.data(), matrix.scales.data(), matrix.scales.size());
  }
  return copy;
}

// How tensors lie in their buffers.
enum class Layout {
  kDense,
  kStrided,  // at an odd offset, with a gap after each row, as columns of a wider matrix
};

// Puts tensors into a backend's buffers, all other elements of which are NaN: an op that reads or
// writes past its views is seen. Frees the buffers at the end.
class Workspace {
 public:
  Workspace(Backend& backend, Layout layout) : backend_(backend), layout_(layout) {}
  ~Workspace() {
    for (const View& whole : buffers_) backend_.Free(whole.buffer);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // A view of the shape, filled with NaN.
  View Make(size_t rows, size_t cols) {
    const bool strided = layout_ == Layout::kStrided;
    const size_t offset = strided ? 3 + buffers_.size() % 5 : 0;
    const size_t stride = cols + (strided ? 1 + buffers_.size() % 9 : 0);
    const size_t size = offset + rows * stride + 1;
    const View whole{backend_.Allocate(size), 0, 1, size, size};
    backend_.Write(whole, std::vector<float>(size, std::numeric_limits<float>::quiet_NaN()));
    buffers_.push_back(whole);
    views_.push_back({whole.buffer, offset, rows, cols, stride});
    return views_.back();
  }
  View Put(const Tensor& tensor) {
    const View view = Make(tensor.rows, tensor.cols);
    backend_.Write(view, tensor.values);
    return view;
  }
  Tensor Get(const View& view) const {
    Tensor tensor(view.rows, view.cols);
    backend_.Read(view, tensor.values);
    return tensor;
  }

  // How many elements outside the views have been written.
  size_t NumStrayWrites() const {
    size_t num_stray = 0;
    for (size_t b = 0; b < buffers_.size(); ++b) {
      Tensor whole = Get(buffers_[b]);
      const View& view = views_[b];
      for (size_t r = 0; r < view.rows; ++r) {
        for (size_t c = 0; c < view.cols; ++c) {
          whole.values[view.offset + r * view.stride + c] = std::numeric_limits<float>::quiet_NaN();
        }
      }
      for (const float value : whole.values) num_stray += std::isnan(value) ? 0u : 1u;
    }
    return num_stray;
  }

 private:
  Backend& backend_;
  Layout layout_;
  std::vector<View> buffers_;  // whole buffers, as one row
  std::vector<View> views_;    // the view made in each
};

// One sequence's rows in a step: its next `num_rows` rows.
struct Part {
  size_t sequence = 0;
  size_t num_rows = 0;
  bool prefill = false;
};
using Step = std::vector<Part>;

// The steps that run one sequence alone: prompt pieces of these sizes, then decodes.
inline std::vector<Step> OneSequence(const std::vector<size_t>& pieces, size_t num_decodes = 0) {
  std::vector<Step> steps;
  for (const size_t piece : pieces) steps.push_back({{0, piece, true}});
  for (size_t i = 0; i < num_decodes; ++i) steps.push_back({{0, 1, false}});
  return steps;
}

// The steps of one sequence out of a plan, to run it alone.
inline std::vector<Step> StepsOf(const std::vector<Step>& steps, size_t sequence) {
  std::vector<Step> alone;
  for (const Step& step : steps) {
    for (const Part& part : step) {
      if (part.sequence == sequence) alone.push_back({{0, part.num_rows, part.prefill}});
    }
  }
  return alone;
}

// The segments of a step, given the position that each sequence has reached; moves these on.
inline std::vector<Segment> MakeSegments(const Step& step, std::vector<size_t>& positions) {
  std::vector<Segment> segments;
  size_t num_rows = 0;
  for (const Part& part : step) {
    segments.push_back({num_rows, part.num_rows, positions[part.sequence], part.prefill});
    num_rows += part.num_rows;
    positions[part.sequence] += part.num_rows;
  }
  return segments;
}

// The step's rows out of each sequence's whole [num_tokens, cols], one after the other.
inline Tensor GatherRows(const Step& step, const std::vector<Segment>& segments,
                         const std::vector<const Tensor*>& sequences) {
  Tensor rows(0, sequences.front()->cols);
  for (size_t s = 0; s < step.size(); ++s) {
    rows.Append(sequences[step[s].sequence]->Slice(segments[s].position, segments[s].num_rows));
  }
  return rows;
}

}  // namespace yoke::kernels
