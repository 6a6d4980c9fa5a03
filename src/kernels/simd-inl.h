// Shared by the kernels: the float vector, loops over rows of any width, exp and its relatives.
// Included once per SIMD target.
#include <cstddef>

// clang-format off
#if defined(YOKE_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef YOKE_KERNELS_SIMD_INL_H_
#undef YOKE_KERNELS_SIMD_INL_H_
#else
#define YOKE_KERNELS_SIMD_INL_H_
#endif
// clang-format on

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace yoke::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Every sum along a row is kept as this many partial sums, lane i for the columns c with
// c % 16 == i in the order in which they lie in memory, whatever the vector size.
constexpr size_t kPartialSums = 16;

using FloatTag = hn::CappedTag<float, kPartialSums>;
using OneFloatTag = hn::CappedTag<float, 1>;
using FloatVec = hn::Vec<FloatTag>;
constexpr size_t kLanes = hn::MaxLanes(FloatTag());
constexpr size_t kSlices = kPartialSums / kLanes;  // vectors that hold the partial sums

// 32 vector registers rather than 16: how large a tile of sums can be.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM;

// body(tag, i) for all of [0, n): with whole vectors, then one by one.
template <class Body>
HWY_INLINE void ForEachVector(size_t n, const Body& body) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(FloatTag(), i);
  for (; i < n; ++i) body(OneFloatTag(), i);
}

// One vector with the sums over slices of the partial sums.
HWY_INLINE FloatVec AddSlices(const FloatVec (&sums)[kSlices]) {
  if constexpr (kSlices == 1) {
    return sums[0];
  } else if constexpr (kSlices == 2) {
    return hn::Add(sums[0], sums[1]);
  } else {
    return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  }
}

// The partial sums added up, in one order.
HWY_INLINE float SumPartial(const FloatVec (&sums)[kSlices]) {
  return hn::GetLane(hn::SumOfLanes(FloatTag(), AddSlices(sums)));
}

// The sum of the 128-bit blocks of a vector. A template so that only one branch is compiled.
template <class V>
HWY_INLINE hn::Vec<hn::Full128<float>> SumBlocks(V v) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<decltype(d)> half;
    return SumBlocks(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Four sums of all lanes at once, in one order: out[i] is the sum of rows[i]'s lanes.
HWY_INLINE hn::Vec<hn::Full128<float>> SumOfLanes4(const FloatVec (&rows)[4]) {
  const FloatTag d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<FloatTag>> d64;
  const auto add_pairs = [&](FloatVec a, FloatVec b) HWY_ATTR {
    return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  const auto ab = hn::BitCast(d64, add_pairs(rows[0], rows[1]));  // a0+a2 b0+b2 a1+a3 b1+b3
  const auto cd = hn::BitCast(d64, add_pairs(rows[2], rows[3]));
  const FloatVec sum = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab, cd)),
                               hn::BitCast(d, hn::InterleaveUpper(d64, ab, cd)));
  return SumBlocks(sum);
}

// sum a[i] b[i]: partial sums of whole groups of 16, then the rest one by one.
HWY_INLINE float Dot(const float* a, const float* b, size_t n) {
  const FloatTag d;
  FloatVec sums[kSlices];
  for (FloatVec& sum : sums) sum = hn::Zero(d);
  size_t i = 0;
  for (; i + kPartialSums <= n; i += kPartialSums) {
    for (size_t s = 0; s < kSlices; ++s) {
      const size_t at = i + s * kLanes;
      sums[s] = hn::MulAdd(hn::LoadU(d, a + at), hn::LoadU(d, b + at), sums[s]);
    }
  }
  float sum = SumPartial(sums);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// 1 / (1 + e^-x), for every x, infinities too.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V limit = hn::Set(d, 200.0F);  // where e^-|x| is 0 without overflow on the way
  const V e = hn::Exp(d, hn::Neg(hn::Min(hn::Abs(x), limit)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

// For every x, infinities too.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhOfAny(D d, V x) {
  const V limit = hn::Set(d, 20.0F);  // where it is 1 in f32
  return hn::Tanh(d, hn::Max(hn::Min(x, limit), hn::Neg(limit)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hn::Mul(x, Sigmoid(d, x));
}

// beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Situ(D d, V gate, V up, float beta, float linear_beta) {
  const V beta_v = hn::Set(d, beta);
  const V linear_v = hn::Set(d, linear_beta);
  const V g = hn::Mul(hn::Mul(beta_v, TanhOfAny(d, hn::Div(gate, beta_v))), Sigmoid(d, gate));
  return hn::Mul(g, hn::Mul(linear_v, TanhOfAny(d, hn::Div(up, linear_v))));
}

// y = x scale weight
HWY_INLINE void ScaleRow(const float* x, float scale, const float* weight, size_t n, float* y) {
  ForEachVector(n, [&](auto d, size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale));
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace yoke::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
