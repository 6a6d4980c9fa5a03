// Kimi Delta Attention recurrence, forward and backward, for training only.
// One call handles `n` independent heads of `t` steps, arrays [n, t, D] (beta
// [n, t]).  The backward pass recomputes the states.  Built by model.py with
//   cc -O3 -march=native -ffast-math -fopenmp -shared -fPIC -DD=<head_dim>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS for (int i = 0; i < D; ++i)
#define COLS _Pragma("omp simd") for (int j = 0; j < D; ++j)

// S <- diag(exp g) S; u = v - S'k; S <- S + beta k u'.  `decayed` gets the state
// between the two updates when it is not null.
static inline void step(float *S, float *decayed, float *u, const float *k, const float *v,
                        const float *g, float beta) {
  float r[D] = {0};
  ROWS {
    const float e = expf(g[i]);
    COLS S[i * D + j] *= e;
    COLS r[j] += S[i * D + j] * k[i];
  }
  if (decayed) memcpy(decayed, S, sizeof(float) * D * D);
  COLS u[j] = v[j] - r[j];
  ROWS {
    const float b = beta * k[i];
    COLS S[i * D + j] += b * u[j];
  }
}

void kda_forward(int n, int t, const float *q, const float *k, const float *v, const float *g,
                 const float *beta, float *o) {
#pragma omp parallel for schedule(dynamic, 4)
  for (int h = 0; h < n; ++h) {
    float S[D * D] = {0}, u[D];
    for (int s = 0; s < t; ++s) {
      const size_t at = ((size_t)h * t + s) * D;
      step(S, NULL, u, k + at, v + at, g + at, beta[(size_t)h * t + s]);
      float r[D] = {0};
      ROWS COLS r[j] += S[i * D + j] * q[at + i];
      memcpy(o + at, r, sizeof r);
    }
  }
}

void kda_backward(int n, int t, const float *q, const float *k, const float *v, const float *g,
                  const float *beta, const float *do_, float *dq, float *dk, float *dv, float *dg,
                  float *dbeta) {
#pragma omp parallel
  {
    float *mid = malloc(sizeof(float) * D * D * t);  // decayed states
    float *us = malloc(sizeof(float) * D * t);
#pragma omp for schedule(dynamic, 4)
    for (int h = 0; h < n; ++h) {
      const size_t base = (size_t)h * t;
      float S[D * D] = {0}, dS[D * D] = {0};
      for (int s = 0; s < t; ++s) {
        const size_t at = (base + s) * D;
        step(S, mid + (size_t)s * D * D, us + s * D, k + at, v + at, g + at, beta[base + s]);
      }
      for (int s = t - 1; s >= 0; --s) {
        const size_t at = (base + s) * D;
        const float *P = mid + (size_t)s * D * D, *u = us + s * D, *K = k + at, *Q = q + at;
        const float *dO = do_ + at, b = beta[base + s];
        float db = 0, du[D] = {0}, ku[D];
        ROWS {  // o = S'q with S = P + b k u'
          float a = 0, c = 0;
          const float bk = b * K[i];
          COLS a += (P[i * D + j] + bk * u[j]) * dO[j];
          COLS dS[i * D + j] += Q[i] * dO[j];
          COLS c += dS[i * D + j] * u[j];
          COLS du[j] += dS[i * D + j] * K[i];
          dq[at + i] = a;
          ku[i] = c;
          db += K[i] * c;
        }
        dbeta[base + s] = db;
        COLS du[j] *= b;
        COLS dv[at + j] = du[j];
        ROWS {  // u = v - P'k, P = diag(e) S
          float a = 0, c = 0;
          const float e = expf(g[at + i]);
          COLS a += P[i * D + j] * du[j];
          COLS dS[i * D + j] -= K[i] * du[j];
          COLS c += dS[i * D + j] * P[i * D + j];
          COLS dS[i * D + j] *= e;
          dk[at + i] = b * ku[i] - a;
          dg[at + i] = c;
        }
      }
    }
    free(mid);
    free(us);
  }
}
