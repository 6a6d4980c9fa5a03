// Runs MLA on whole sequences through any plan of steps, for the tests.
#pragma once

#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend_fixture.h"

namespace yoke::kernels {

struct MlaModel {
  size_t num_heads = 0;
  size_t rank = 0;
  size_t nope_dim = 0;
  size_t rope_dim = 0;
  size_t v_dim = 0;
  float norm_eps = 1e-6f;
  Tensor kv_a_norm{};  // [1, rank]
  HostMatrix kv_b{};   // [num_heads * (nope_dim + v_dim), rank]
};

// The op's inputs for one whole sequence: [num_tokens, ...].
struct MlaSequence {
  Tensor q, kv_a, gate;
};

// One sequence's outputs [num_tokens, num_heads * v_dim] and cache rows [num_tokens, rank + rope].
struct MlaResult {
  Tensor out, cache;
};

// dims: num_heads, rank, nope_dim, rope_dim and v_dim are set.
inline MlaModel MakeMlaModel(Random& random, MlaModel dims, DType kv_b_dtype) {
  dims.kv_a_norm = random.Uniform(1, dims.rank, 2);
  dims.kv_b = random.Weight(kv_b_dtype, dims.num_heads * (dims.nope_dim + dims.v_dim), dims.rank,
                            2 / std::sqrt(static_cast<float>(dims.rank)));
  return dims;
}

inline MlaSequence MakeMlaSequence(Random& random, const MlaModel& model, size_t num_tokens) {
  MlaSequence sequence;
  sequence.q = random.Uniform(num_tokens, model.num_heads * (model.nope_dim + model.rope_dim), 2);
  sequence.kv_a = random.Uniform(num_tokens, model.rank + model.rope_dim);
  sequence.gate = random.Uniform(num_tokens, model.num_heads * model.v_dim, 4);
  return sequence;
}

// One step of RunMla. blocks: [num_sequences], each sequence's cache.
inline Tensor RunMlaStep(Backend& backend, MlaArgs args, const Step& step,
                         const std::vector<MlaSequence>& sequences,
                         const std::vector<std::vector<BufferId>>& blocks, Layout layout) {
  Workspace workspace(backend, layout);
  const auto put = [&](Tensor MlaSequence::*member) {
    std::vector<const Tensor*> whole;
    for (const MlaSequence& sequence : sequences) whole.push_back(&(sequence.*member));
    const std::vector<Segment> segments(args.segments.begin(), args.segments.end());
    return workspace.Put(GatherRows(step, segments, whole));
  };
  args.q = put(&MlaSequence::q);
  args.kv_a = put(&MlaSequence::kv_a);
  args.gate = put(&MlaSequence::gate);
  args.out = workspace.Make(args.q.rows, args.num_heads * args.v_dim);
  std::vector<std::span<const BufferId>> caches;
  for (const Part& part : step) caches.emplace_back(blocks[part.sequence]);
  args.caches = caches;
  backend.Mla(args);
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return workspace.Get(args.out);
}

// Block b of every sequence is allocated when a position in it is first reached.
inline std::vector<MlaResult> RunMla(Backend& backend, const MlaModel& model,
                                     const std::vector<MlaSequence>& sequences,
                                     const std::vector<Step>& steps,
                                     Layout layout = Layout::kDense) {
  MlaArgs args;
  args.num_heads = model.num_heads;
  args.rank = model.rank;
  args.nope_dim = model.nope_dim;
  args.rope_dim = model.rope_dim;
  args.v_dim = model.v_dim;
  args.norm_eps = model.norm_eps;
  args.kv_a_norm = backend.AddWeight(F32Weight(model.kv_a_norm));
  args.kv_b = backend.AddWeight(CopyOf(model.kv_b));
  const size_t row_dim = model.rank + model.rope_dim;
  std::vector<std::vector<BufferId>> blocks(sequences.size());
  std::vector<size_t> positions(sequences.size());
  std::vector<MlaResult> results(sequences.size());
  for (const Step& step : steps) {
    const std::vector<Segment> segments = MakeSegments(step, positions);
    args.segments = segments;
    for (const Part& part : step) {
      while (blocks[part.sequence].size() * kCacheBlockTokens < positions[part.sequence]) {
        blocks[part.sequence].push_back(backend.Allocate(kCacheBlockTokens * row_dim));
      }
    }
    const Tensor out = RunMlaStep(backend, args, step, sequences, blocks, layout);
    for (size_t i = 0; i < step.size(); ++i) {
      results[step[i].sequence].out.Append(out.Slice(segments[i].first_row, segments[i].num_rows));
    }
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (const BufferId block : blocks[s]) {
      Tensor rows(kCacheBlockTokens, row_dim);
      backend.Read({block, 0, kCacheBlockTokens, row_dim, row_dim}, rows.values);
      results[s].cache.Append(rows);
      backend.Free(block);
    }
    results[s].cache = results[s].cache.Slice(0, positions[s]);
  }
  return results;
}

}  // namespace yoke::kernels
