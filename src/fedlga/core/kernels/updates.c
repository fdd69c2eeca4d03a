/* The aggregator's two passes over updates. Each of them reads every number once. */
#include <stdint.h>

#define LANES 8
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define AT(pointer) (*(vec *)(pointer))
#define BLOCK 4096 /* floats: 16 KB, which fit the first-level cache */

/* Add `count` rows of BLOCK numbers at once: the sums are loaded and stored once for all of them. */
static inline __attribute__((always_inline)) double add_rows(const float *delta, const float *signs, float *sums,
                                                             const int count) {
    vec squares[4] = {0};
    for (int64_t j = 0; j < BLOCK; j += LANES) {
        vec sum = AT(sums + j);
        for (int i = 0; i < count; i++) {
            vec these = AT(delta + i * BLOCK + j);
            sum += signs[i] * these;
            squares[i] += these * these;
        }
        AT(sums + j) = sum;
    }
    double total = 0;
    for (int i = 0; i < count; i++)
        for (int lane = 0; lane < LANES; lane++) total += squares[i][lane];
    return total;
}

/* delta is rows x BLOCK numbers: sums[j] += signs[i] * delta[i][j]. Returns the sum of the squares of all numbers. */
double sum_with_signs(const float *delta, const float *signs, int64_t rows, float *sums) {
    double square = 0;
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) square += add_rows(delta + i * BLOCK, signs + i, sums, 4);
    for (; i < rows; i++) square += add_rows(delta + i * BLOCK, signs + i, sums, 1);
    return square;
}

/* out = sum of coefficients[k] * vectors[k], in the order of k. */
void weighted_sum(const float *const *vectors, const float *coefficients, int64_t count, int64_t size,
                  float *restrict out) {
    for (int64_t from = 0; from < size; from += BLOCK) {
        const int64_t to = from + BLOCK < size ? from + BLOCK : size;
        int64_t k = 1;
        for (int64_t j = from; j < to; j++) out[j] = coefficients[0] * vectors[0][j];
        for (; k + 3 <= count; k += 3) { /* three at a time: the sum is loaded and stored once */
            const float *a = vectors[k], *b = vectors[k + 1], *c = vectors[k + 2];
            for (int64_t j = from; j < to; j++) {
                float sum = out[j] + coefficients[k] * a[j];
                sum += coefficients[k + 1] * b[j];
                out[j] = sum + coefficients[k + 2] * c[j];
            }
        }
        for (; k < count; k++)
            for (int64_t j = from; j < to; j++) out[j] += coefficients[k] * vectors[k][j];
    }
}
