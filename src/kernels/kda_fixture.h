// Runs KDA on whole sequences through any plan of steps, for the tests.
#pragma once

#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend_fixture.h"

namespace yoke::kernels {

struct KdaModel {
  size_t num_heads = 0;
  size_t head_dim = 0;
  float gate_lower_bound = -5;
  float norm_eps = 1e-5f;
  float l2_eps = 1e-6f;
  Tensor q_conv{}, k_conv{}, v_conv{};  // [num_heads * head_dim, 4]
  Tensor a_log{};                       // [1, num_heads]
  Tensor dt_bias{};                     // [1, num_heads * head_dim]
  Tensor o_norm{};                      // [1, head_dim]
};

// The op's inputs for one whole sequence: [num_tokens, ...].
struct KdaSequence {
  Tensor q, k, v, forget, beta, gate;
};

// One sequence's outputs [num_tokens, num_heads * head_dim] and last states.
struct KdaResult {
  Tensor out, conv, delta;
};

inline KdaModel MakeKdaModel(Random& random, size_t num_heads, size_t head_dim) {
  const size_t channels = num_heads * head_dim;
  KdaModel model{.num_heads = num_heads, .head_dim = head_dim};
  model.q_conv = random.Uniform(channels, kKdaConvTaps);
  model.k_conv = random.Uniform(channels, kKdaConvTaps);
  model.v_conv = random.Uniform(channels, kKdaConvTaps);
  model.a_log = random.Uniform(1, num_heads);
  model.dt_bias = random.Uniform(1, channels, 3);
  model.o_norm = random.Uniform(1, head_dim, 2);
  return model;
}

inline KdaSequence MakeKdaSequence(Random& random, const KdaModel& model, size_t num_tokens) {
  const size_t channels = model.num_heads * model.head_dim;
  KdaSequence sequence;
  sequence.q = random.Uniform(num_tokens, channels, 2);
  sequence.k = random.Uniform(num_tokens, channels, 2);
  sequence.v = random.Uniform(num_tokens, channels, 2);
  sequence.forget = random.Uniform(num_tokens, channels, 4);
  sequence.beta = random.Uniform(num_tokens, model.num_heads, 4);
  sequence.gate = random.Uniform(num_tokens, channels, 4);
  return sequence;
}

// One step of RunKda. states: [num_sequences].
struct KdaStates {
  std::vector<View> conv, delta;
};
inline Tensor RunKdaStep(Backend& backend, KdaArgs args, const Step& step,
                         const std::vector<KdaSequence>& sequences, const KdaStates& states,
                         Layout layout) {
  Workspace workspace(backend, layout);
  const auto put = [&](Tensor KdaSequence::*member) {
    std::vector<const Tensor*> whole;
    for (const KdaSequence& sequence : sequences) whole.push_back(&(sequence.*member));
    const std::vector<Segment> segments(args.segments.begin(), args.segments.end());
    return workspace.Put(GatherRows(step, segments, whole));
  };
  args.q = put(&KdaSequence::q);
  args.k = put(&KdaSequence::k);
  args.v = put(&KdaSequence::v);
  args.forget = put(&KdaSequence::forget);
  args.beta = put(&KdaSequence::beta);
  args.gate = put(&KdaSequence::gate);
  args.out = workspace.Make(args.q.rows, args.q.cols);
  std::vector<View> conv, delta;
  for (const Part& part : step) {
    conv.push_back(states.conv[part.sequence]);
    delta.push_back(states.delta[part.sequence]);
  }
  args.conv_states = conv;
  args.delta_states = delta;
  backend.Kda(args);
  backend.Flush();
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  return workspace.Get(args.out);
}

inline std::vector<KdaResult> RunKda(Backend& backend, const KdaModel& model,
                                     const std::vector<KdaSequence>& sequences,
                                     const std::vector<Step>& steps,
                                     Layout layout = Layout::kDense) {
  KdaArgs args;
  args.num_heads = model.num_heads;
  args.head_dim = model.head_dim;
  args.gate_lower_bound = model.gate_lower_bound;
  args.norm_eps = model.norm_eps;
  args.l2_eps = model.l2_eps;
  args.q_conv = backend.AddWeight(F32Weight(model.q_conv));
  args.k_conv = backend.AddWeight(F32Weight(model.k_conv));
  args.v_conv = backend.AddWeight(F32Weight(model.v_conv));
  args.a_log = backend.AddWeight(F32Weight(model.a_log));
  args.dt_bias = backend.AddWeight(F32Weight(model.dt_bias));
  args.o_norm = backend.AddWeight(F32Weight(model.o_norm));

  Workspace workspace(backend, layout);
  KdaStates states;
  std::vector<KdaResult> results(sequences.size());
  for (size_t s = 0; s < sequences.size(); ++s) {
    const size_t channels = model.num_heads * model.head_dim;
    states.conv.push_back(workspace.Put(Tensor(9, channels)));
    states.delta.push_back(workspace.Put(Tensor(model.num_heads, model.head_dim * model.head_dim)));
  }
  std::vector<size_t> positions(sequences.size());
  for (const Step& step : steps) {
    const std::vector<Segment> segments = MakeSegments(step, positions);
    args.segments = segments;
    const Tensor out = RunKdaStep(backend, args, step, sequences, states, layout);
    for (size_t i = 0; i < step.size(); ++i) {
      results[step[i].sequence].out.Append(out.Slice(segments[i].first_row, segments[i].num_rows));
    }
  }
  EXPECT_EQ(workspace.NumStrayWrites(), 0u);
  for (size_t s = 0; s < sequences.size(); ++s) {
    results[s].conv = workspace.Get(states.conv[s]);
    results[s].delta = workspace.Get(states.delta[s]);
  }
  return results;
}

}  // namespace yoke::kernels
