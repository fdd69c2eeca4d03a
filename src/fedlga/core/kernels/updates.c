/* What the aggregator does with updates: two passes, each of which reads every number once. */
#include <stdint.h>

#define LANES 8
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define AT(pointer) (*(vec *)(pointer))
#define BLOCK 4096 /* floats: 16 KB, which stay in the nearest cache */

/* `count` rows of BLOCK numbers at once: the sums are fetched and put back once for all of them. */
static inline __attribute__((always_inline)) double rows_of(const float *delta, const float *signs, float *sums,
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

/* rows x BLOCK numbers: sums[j] += signs[i] * delta[i][j]. Returns the sum of their squares. */
double look(const float *delta, const float *signs, int64_t rows, float *sums) {
    double square = 0;
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) square += rows_of(delta + i * BLOCK, signs + i, sums, 4);
    for (; i < rows; i++) square += rows_of(delta + i * BLOCK, signs + i, sums, 1);
    return square;
}

/* out = (sum of counts[k] * deltas[k]) / mass, in the order of k. */
void mean(const float *const *deltas, const float *counts, int64_t updates, int64_t size, float mass, float *restrict out) {
    for (int64_t from = 0; from < size; from += BLOCK) {
        const int64_t to = from + BLOCK < size ? from + BLOCK : size;
        int64_t k = 1;
        for (int64_t j = from; j < to; j++) out[j] = counts[0] * deltas[0][j];
        for (; k + 3 <= updates; k += 3) { /* three at a time: the sum is fetched and put back once */
            const float *a = deltas[k], *b = deltas[k + 1], *c = deltas[k + 2];
            for (int64_t j = from; j < to; j++) {
                float sum = out[j] + counts[k] * a[j];
                sum += counts[k + 1] * b[j];
                out[j] = sum + counts[k + 2] * c[j];
            }
        }
        for (; k < updates; k++)
            for (int64_t j = from; j < to; j++) out[j] += counts[k] * deltas[k][j];
        for (int64_t j = from; j < to; j++) out[j] /= mass;
    }
}
