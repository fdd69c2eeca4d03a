/* SGD on a network of one hidden layer (Linear, ReLU, Linear, cross-entropy): a whole assignment in one call.
 *
 * The first layer takes nearly all of the time, and it does not fit a core's cache. So the update of a few of its rows
 * and the next step's forward pass through the same rows are done together, while the rows are in the cache: the layer
 * is read and written once a step. All sums are in a fixed order on one thread: the same numbers give the same bits.
 *
 * The weights are one vector: first[hidden][in], its bias[hidden], second[classes][hidden], its bias[classes].
 * `in` is a multiple of 16, `hidden` of 8.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* no alignment needed */
#define AT(pointer) (*(vec *)(pointer))
#define INLINE static inline __attribute__((always_inline))
#define ROWS 4      /* of the first layer, updated and then used together */
#define COLUMNS 784 /* at a time, so that these columns of two batches stay in the cache */

/* What is done with a gradient g, as in run_sgd() of learning/training.py. */
typedef struct {
    float lr, momentum, pull;
    const float *start, *constant; /* the weights that were sent; what the method adds, or NULL */
    float *velocity;               /* NULL without momentum */
} rule;

INLINE void descend(float *w, int64_t at, vec g, const rule *r, const int plain) {
    vec weight = AT(w + at);
    if (!plain) {
        if (r->constant) g += AT(r->constant + at);
        if (r->pull != 0) g += r->pull * (weight - AT(r->start + at));
        if (r->velocity) AT(r->velocity + at) = g = r->momentum * AT(r->velocity + at) + g;
    }
    AT(w + at) = weight - r->lr * g;
}

INLINE float sum(vec v) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += v[lane];
    return total;
}

/* Update ROWS rows, columns [from, to), with the gradient dh^T x. dh[batch][ROWS] is the loss's gradient by the
 * outputs of these hidden units. */
INLINE void update(float *w, int64_t row, const float *x, const float *dh, int64_t batch, int64_t in, int64_t from,
                   int64_t to, const rule *r, const int plain) {
    for (int64_t k = from; k < to; k += 2 * LANES) {
        vec g[ROWS] = {0}, g2[ROWS] = {0};
#pragma GCC unroll 5
        for (int64_t b = 0; b < batch; b++) {
            vec image = AT(x + b * in + k), image2 = AT(x + b * in + k + LANES);
            for (int i = 0; i < ROWS; i++) {
                g[i] += dh[b * ROWS + i] * image;
                g2[i] += dh[b * ROWS + i] * image2;
            }
        }
        for (int i = 0; i < ROWS; i++) {
            descend(w, (row + i) * in + k, g[i], r, plain);
            descend(w, (row + i) * in + k + LANES, g2[i], r, plain);
        }
    }
}

/* z[b][row..] += w[row..] . x[b] over columns [from, to), for ROWS rows and `count` images, at most 5. */
INLINE void forward(const float *w, int64_t row, const float *x, float *z, int64_t in, int64_t hidden, int64_t from,
                    int64_t to, const int count) {
    for (int64_t pair = row; pair < row + ROWS; pair += 2) {
        const float *one = w + pair * in, *two = one + in;
        vec a[5] = {0}, c[5] = {0};
        for (int64_t k = from; k < to; k += LANES) {
            vec weight = AT(one + k), weight2 = AT(two + k);
            for (int i = 0; i < count; i++) {
                vec image = AT(x + i * in + k);
                a[i] += weight * image;
                c[i] += weight2 * image;
            }
        }
        for (int i = 0; i < count; i++) {
            z[i * hidden + pair] += sum(a[i]);
            z[i * hidden + pair + 1] += sum(c[i]);
        }
    }
}

/* Replaces the scores z[b][classes] by the mean loss's gradient with respect to them; returns the mean loss. */
static float softmax(float *z, const int64_t *labels, const int64_t *rows, int64_t batch, int64_t classes) {
    float loss = 0;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t label = labels[rows[b]];
        float *score = z + b * classes, top = score[0], total = 0;
        for (int64_t c = 1; c < classes; c++) top = score[c] > top ? score[c] : top;
        for (int64_t c = 0; c < classes; c++) total += expf(score[c] - top);
        loss += logf(total) - (score[label] - top);
        for (int64_t c = 0; c < classes; c++) score[c] = (expf(score[c] - top) / total - (c == label)) / batch;
    }
    return loss / batch;
}

/* One step for each of `steps` batches. `order` holds the rows of the images; batch s ends before order[ends[s]].
 * Changes w; returns the mean loss, or -1 if there is no memory. */
double train(float *w, const float *images, const int64_t *labels, const int64_t *order, const int64_t *ends,
             int64_t steps, int64_t in, int64_t hidden, int64_t classes, float lr, float momentum, float pull,
             const float *start, const float *constant, float *velocity) {
    const int64_t bias = hidden * in, second = bias + hidden, last = second + classes * hidden;
    const rule r = {lr, momentum, pull, start, constant, velocity};
    const int plain = !constant && !velocity && pull == 0;
    int64_t most = 0;
    for (int64_t s = 0; s < steps; s++) {
        int64_t batch = ends[s] - (s ? ends[s - 1] : 0);
        most = batch > most ? batch : most;
    }
    float *buffer = malloc(sizeof(float) * most * (2 * in + 2 * hidden + classes));
    if (!buffer) return -1;
    float *x = buffer, *before = x + most * in, *h = before + most * in, *dh = h + most * hidden,
          *scores = dh + most * hidden;
    int64_t done = 0, earlier = 0; /* images of all batches so far, and of the batch in `before` */
    double loss = 0;

    for (int64_t s = 0; s <= steps; s++) { /* the last iteration only updates */
        int64_t batch = s < steps ? ends[s] - done : 0;
        for (int64_t b = 0; b < batch; b++) memcpy(x + b * in, images + order[done + b] * in, sizeof(float) * in);
        for (int64_t b = 0; b < batch; b++) memcpy(h + b * hidden, w + bias, sizeof(float) * hidden);
        for (int64_t row = 0; row < hidden; row += ROWS)
            for (int64_t from = 0; from < in; from += COLUMNS) {
                int64_t to = from + COLUMNS < in ? from + COLUMNS : in, b = 0;
                if (earlier && plain) update(w, row, before, dh + row * earlier, earlier, in, from, to, &r, 1);
                if (earlier && !plain) update(w, row, before, dh + row * earlier, earlier, in, from, to, &r, 0);
                for (; b + 5 <= batch; b += 5) forward(w, row, x + b * in, h + b * hidden, in, hidden, from, to, 5);
                for (; b < batch; b++) forward(w, row, x + b * in, h + b * hidden, in, hidden, from, to, 1);
            }
        if (!batch) break;

        for (int64_t i = 0; i < batch * hidden; i++) h[i] = h[i] > 0 || h[i] != h[i] ? h[i] : 0; /* NaN stays */
        for (int64_t b = 0; b < batch; b++)
            for (int64_t c = 0; c < classes; c++) {
                vec dot = {0};
                for (int64_t j = 0; j < hidden; j += LANES) dot += AT(h + b * hidden + j) * AT(w + second + c * hidden + j);
                scores[b * classes + c] = w[last + c] + sum(dot);
            }
        loss += softmax(scores, labels, order + done, batch, classes);

        for (int64_t b = 0; b < batch; b++)
            for (int64_t j = 0; j < hidden; j += LANES) {
                vec g = {0}, out = AT(h + b * hidden + j);
                for (int64_t c = 0; c < classes; c++) g += scores[b * classes + c] * AT(w + second + c * hidden + j);
                for (int lane = 0; lane < LANES; lane++) {
                    int64_t row = j + lane, group = row / ROWS * ROWS;
                    dh[group * batch + b * ROWS + row - group] = out[lane] == 0 ? 0 : g[lane];
                }
            }
        for (int64_t j = 0; j < hidden; j += LANES) {
            vec g = {0};
            for (int64_t b = 0; b < batch; b++)
                for (int lane = 0; lane < LANES; lane++) {
                    int64_t row = j + lane, group = row / ROWS * ROWS;
                    g[lane] += dh[group * batch + b * ROWS + row - group];
                }
            descend(w, bias + j, g, &r, 0);
            for (int64_t c = 0; c < classes; c++) {
                vec g2 = {0};
                for (int64_t b = 0; b < batch; b++) g2 += scores[b * classes + c] * AT(h + b * hidden + j);
                descend(w, second + c * hidden + j, g2, &r, 0);
            }
        }
        for (int64_t c = 0; c < classes; c++) { /* not a multiple of 8: one by one */
            float g = 0;
            for (int64_t b = 0; b < batch; b++) g += scores[b * classes + c];
            if (constant) g += constant[last + c];
            if (pull != 0) g += pull * (w[last + c] - start[last + c]);
            if (velocity) velocity[last + c] = g = momentum * velocity[last + c] + g;
            w[last + c] -= lr * g;
        }
        float *other = before;
        before = x, x = other;
        earlier = batch, done = ends[s];
    }
    free(buffer);
    return steps ? loss / steps : 0;
}
