// A backend for tests that keeps what is loaded into it, and computes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"

namespace yoke::model {

class RecordingBackend final : public kernels::Backend {
 public:
  std::string_view name() const override { return "recording"; }

  kernels::BufferId Allocate(size_t num_elements) override {
    buffer_sizes_.push_back(num_elements);
    return {static_cast<uint32_t>(buffer_sizes_.size() - 1)};
  }
  void Free(kernels::BufferId /*buffer*/) override {}
  kernels::WeightId AddWeight(HostMatrix matrix) override {
    weights_.push_back(std::move(matrix));
    return {static_cast<uint32_t>(weights_.size() - 1)};
  }
  void Flush() override {}

  // What was given to AddWeight.
  const HostMatrix& At(kernels::WeightId id) const { return weights_.at(id.index); }
  const std::deque<HostMatrix>& weights() const { return weights_; }
  // Elements of each buffer allocated so far.
  const std::vector<size_t>& buffer_sizes() const { return buffer_sizes_; }

  void Read(const kernels::View&, std::span<float>) override { NotHere(); }
  void Write(const kernels::View&, std::span<const float>) override { NotHere(); }
  void Embed(kernels::WeightId, size_t, std::span<const int32_t>, const kernels::View&) override {
    NotHere();
  }
  void RmsNorm(const kernels::View&, kernels::WeightId, float, const kernels::View&) override {
    NotHere();
  }
  void Linear(const kernels::View&, std::initializer_list<kernels::Projection>) override {
    NotHere();
  }
  void Situ(const kernels::View&, const kernels::View&, float, float,
            const kernels::View&) override {
    NotHere();
  }
  void Copy(const kernels::View&, const kernels::View&) override { NotHere(); }
  void Add(const kernels::View&, const kernels::View&) override { NotHere(); }
  void AttnRes(const kernels::AttnResArgs&) override { NotHere(); }
  void Kda(const kernels::KdaArgs&) override { NotHere(); }
  void Mla(const kernels::MlaArgs&) override { NotHere(); }
  void Route(const kernels::RouteArgs&) override { NotHere(); }
  void Moe(const kernels::MoeArgs&) override { NotHere(); }
  uint64_t WeightBytesRead() const override { return 0; }

 private:
  static void NotHere() {
    constexpr bool kComputes = false;
    YOKE_CHECK(kComputes);
  }

  std::deque<HostMatrix> weights_;  // references into it stay valid
  std::vector<size_t> buffer_sizes_;
};

}  // namespace yoke::model
