// Runs the persistent kernel on random weights and prints a hash of everything it wrote: after each prefix of the plan,
// and after several tokens in one launch. Memory ends where it was asked to, so that a read beyond it is a crash.
//
//     harness LANES TOKENS_OF_A_LANE ROWS_BEFORE STEPS STAGES SEED
//
// The seed decides in which order blocks run and copies complete; the hashes must not depend on it.

#include "cuda.h"

#include <sys/mman.h>

Fiber *current;
void *scheduler;
std::vector<Copy> copies;
static u64 rounds; // of all blocks
static u64 emulated_clock_ns() { return (rounds + 1) * 10'000; }
#include "kernel.inc"

constexpr int PAGES = 272, POSITIONS = 17152, MOST_PARTS = 80;
constexpr size_t STACK_BYTES = 64 << 10;

struct Random {
    u64 state;
    u32 next() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (u32)(state >> 40);
    }
    float number() { return ((int)next() % 2001 - 1000) / 1000.0f; }
};
static Random weights_from{1}, schedule{1};

template <class T> static T *guarded(size_t n) {
    const size_t bytes = (n * sizeof(T) + 15) / 16 * 16, whole = (bytes + 4095) / 4096 * 4096;
    u8 *at = (u8 *)mmap(nullptr, whole + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at, 4096, PROT_NONE);
    mprotect(at + 4096 + whole, 4096, PROT_NONE);
    return (T *)(at + 4096 + whole - bytes);
}

// A matrix packed as pack.rs packs it.
struct Packed {
    int stride;
    u16 *values;
    Packed(int rows, int columns) : stride((columns + 255) / 256 * 256), values(guarded<u16>((size_t)(rows + 127) / 128 * 128 * stride)) {}
    void set(int row, int column, float value) {
        const int unit = row / 8 * (stride / 32) + place_of_unit(column / 32, stride / 256);
        values[(size_t)unit * 256 + (row % 8 * 4 + column % 32 / 8) * 8 + column % 8] = to_bf16(value);
    }
    const u8 *bytes() const { return (const u8 *)values; }
};
static Packed random_matrix(int rows, int columns, float size) {
    Packed matrix(rows, columns);
    for (int row = 0; row < rows; ++row)
        for (int column = 0; column < columns; ++column) matrix.set(row, column, weights_from.number() * size);
    return matrix;
}
static Packed random_gate_up(float size) {
    Packed matrix((INTER + 7) / 8 * 16, HIDDEN);
    for (int row = 0; row < INTER; ++row)
        for (int column = 0; column < 2 * HIDDEN; ++column)
            matrix.set(row / 8 * 16 + column / HIDDEN * 8 + row % 8, column % HIDDEN, weights_from.number() * size);
    return matrix;
}
static u16 *random_vector(int n, float around) {
    u16 *values = guarded<u16>((n + 255) / 256 * 256);
    for (int i = 0; i < n; ++i) values[i] = to_bf16(around + weights_from.number() * 0.3f);
    return values;
}

// ---- the model ---------------------------------------------------------------------------------
static constexpr size_t KV_VALUES = (size_t)PAGES * KV_HEADS * 2 * PAGE_SIDE;
static LayerAddresses random_layer() {
    const float of_hidden = 1.7f / sqrtf(HIDDEN);
    LayerAddresses layer;
    layer.attention_norm = (const uint4 *)random_vector(HIDDEN, 1);
    layer.qkv = random_matrix(QKV_ROWS, HIDDEN, of_hidden).bytes();
    layer.bias = random_vector(QKV_ROWS, 0);
    layer.q_norm = random_vector(HEAD_DIM, 1);
    layer.k_norm = random_vector(HEAD_DIM, 1);
    layer.o = random_matrix(HIDDEN, Q_WIDTH, 1.7f / sqrtf(Q_WIDTH)).bytes();
    layer.mlp_norm = (const uint4 *)random_vector(HIDDEN, 1);
    layer.gate_up = random_gate_up(of_hidden).bytes();
    layer.down = random_matrix(HIDDEN, INTER, 1.7f / sqrtf(INTER)).bytes();
    layer.kv = guarded<u16>(KV_VALUES);
    for (size_t i = 0; i < KV_VALUES; ++i) layer.kv[i] = to_bf16(weights_from.number());
    return layer;
}
static const float2 *rotations() {
    float2 *table = guarded<float2>(POSITIONS * HALF_DIM);
    for (int position = 0; position < POSITIONS; ++position)
        for (int d = 0; d < HALF_DIM; ++d) {
            const double angle = position * pow(10000.0, -(double)d / HALF_DIM);
            table[position * HALF_DIM + d] = {(float)cos(angle), (float)sin(angle)};
        }
    return table;
}

// ---- the lists of a step -----------------------------------------------------------------------
struct Lists {
    u32 counts[8] = {}, tokens[8] = {}, positions[8] = {}, outputs[8] = {}, partials[16] = {};
    std::vector<Item> items;
    int n_pages = 0, n_partials = 0;

    // A lane of one span with `rows` rows, the last `n` of which are of this step.
    void add_lane(int lane, int rows, int n, int room) {
        const int n_pages_of_lane = (rows + room + 63) / 64, first_item = items.size();
        for (int section = 0; section < (rows + 255) / 256; ++section) {
            Item item = {};
            for (int page = 0; page < 4; ++page) item.pages[page] = n_pages + std::min(section * 4 + page, n_pages_of_lane - 1);
            items.push_back(item);
        }
        for (int position = rows - n; position < rows; ++position) {
            const u32 token = counts[0]++, n_parts = position / 256 + 1;
            tokens[token] = (token * 13 + 5) % VOCAB;
            positions[token] = position;
            partials[token * 2] = n_parts, partials[token * 2 + 1] = n_partials;
            for (u32 section = 0; section < n_parts; ++section) {
                Item &item = items[first_item + section];
                const u32 seen = std::min(256u, position + 1 - section * 256);
                item.queries[item.n_queries++] = {(u16)token, (u16)n_parts, seen, (u32)position, n_partials + section};
                item.n_rows = std::max(item.n_rows, seen);
            }
            Item &own = items[first_item + position / 256];
            own.stores[own.n_stores++] = token << 16 | position % 256;
            n_partials += n_parts;
        }
        outputs[lane] = counts[0] - 1;
        counts[1] = lane + 1, counts[2] = items.size();
        n_pages += n_pages_of_lane;
    }
};

// ---- running -----------------------------------------------------------------------------------
static std::vector<Fiber> fibers;
static std::vector<EmulatedBlock> blocks(N_BLOCKS);
static const Launch *launched;
static void thread_main() {
    using Kernel = void (*)(const Launch);
    const Kernel kernels[4][2] = {{decode, decode_drawn}, {decode_one, decode_one_drawn}, {decode_two, decode_two_drawn}, {decode_four, decode_four_drawn}};
    const u32 n_tokens = launched->step.counts[0], n_outputs = launched->step.counts[1]; // as kernels.rs chooses; no token asks twice here
    const int own = n_tokens == 1 ? 1 : n_tokens != n_outputs ? 0 : n_tokens == 2 ? 2 : n_tokens == 4 ? 3 : 0;
    kernels[own][launched->chooses == CHOOSES_BY_DRAWS](*launched);
    current->done = true;
    for (;;) let_others_run();
}
static void begin_fiber(Fiber &fiber) {
    u64 *top = (u64 *)((uintptr_t)((u8 *)fiber.stack + STACK_BYTES - 64) & ~15ull);
    *--top = 0; // nobody returns from a thread's first function
    *--top = (u64)(void *)thread_main;
    for (int saved = 0; saved < 6; ++saved) *--top = 0;
    fiber.stack_pointer = top, fiber.done = false;
}
static void complete_some_copies() {
    for (size_t i = 0; i < copies.size();) {
        if (schedule.next() % 4 != 0) {
            ++i;
            continue;
        }
        const Copy done = copies[i];
        memcpy(done.to, done.from, done.bytes);
        ((Barrier *)done.barrier)->copies_and_phase -= (done.bytes / 16) << 1;
        ((Barrier *)done.barrier)->turn();
        copies[i] = copies.back();
        copies.pop_back();
    }
}
static void run(const Launch &launch) {
    launched = &launch;
    for (EmulatedBlock &block : blocks) {
        memset(block.dynamic, 0xab, block.dynamic_bytes);
        std::fill(block.shared.begin(), block.shared.end(), 0xcd);
    }
    for (Fiber &fiber : fibers) begin_fiber(fiber);
    u32 behind = 0; // a block that hardly runs for a while: others must neither wait for more than it owes nor run away
    for (size_t left = fibers.size(); left > 0; ++rounds) {
        if (schedule.next() % 512 == 0) behind = schedule.next() % N_BLOCKS;
        for (u32 block = 0; block < N_BLOCKS; ++block) {
            if (schedule.next() % (block == behind ? 64 : 4) != 0 == (block == behind)) continue;
            for (u32 thread = 0; thread < 288; ++thread) {
                current = &fibers[block * 288 + thread];
                if (current->done) continue;
                switch_stacks(&scheduler, current->stack_pointer);
                left -= current->done;
            }
        }
        complete_some_copies();
    }
    if (!copies.empty()) printf("copies are on their way when all blocks are gone\n"), exit(1);
}

static void tell(const char *what, const void *at, size_t bytes) {
    u64 hash = 1469598103934665603ull;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ ((const u8 *)at)[i]) * 1099511628211ull;
    printf("  %s %016llx\n", what, hash);
}
static const float *last_shares(const Launch &launch) { return launch.n_steps % 2 == 1 ? launch.shares : launch.other_shares; }
static void tell_all(const Launch &launch, const Lists &lists, const std::vector<LayerAddresses> &layers) {
    const u32 n = lists.counts[0];
    const PlainBuffers &plain = launch.plain;
    tell("x", plain.x, n * HIDDEN_STRIDE * 2);
    tell("q", plain.qkv.q, n * Q_WIDTH * 2);
    tell("k", plain.qkv.k, n * KV_WIDTH * 2);
    tell("v", plain.qkv.v, n * KV_WIDTH * 2);
    tell("a", plain.a, n * Q_STRIDE * 2);
    tell("h", plain.h, n * INTER_STRIDE * 2);
    for (const LayerAddresses &layer : layers) tell("kv", layer.kv, KV_VALUES * 2);
    tell("shares", last_shares(launch), lists.n_partials * HEADS * 4);
    tell("logits", launch.logits, (size_t)lists.counts[1] * VOCAB * 4);
}

// ---- draws -------------------------------------------------------------------------------------
constexpr u32 USABLE = VOCAB - 3, PROMPT_TOKEN = 7;
static u32 first_number = 0; // of a launch's steps, as they are told
static Sampling empty_sampling() {
    Sampling sampling = {};
    sampling.draws = guarded<Draw>(8), sampling.best = guarded<u32>(8 * N_BEST);
    sampling.bias = guarded<float>(8 * VOCAB), sampling.marks = guarded<u32>(8 * VOCAB);
    sampling.told_tokens = guarded<u64>(TOLD_STEPS * 8), sampling.told_shares = guarded<u64>(TOLD_STEPS * MOST_PARTS);
    sampling.n_partials = MOST_PARTS;
    return sampling;
}
// Lanes in turn take the best, the best after penalties, and draw among three after penalties.
static void set_draws(Sampling &sampling, int n_lanes, bool by_draws) {
    first_number += TOLD_STEPS + 1;
    for (int lane = 0; lane < n_lanes; ++lane) {
        const u32 kind = by_draws ? (lane + 1) % 3 : 0;
        Draw &draw = sampling.draws[lane] = {};
        draw.flags = CHOSEN | (kind > 0 ? ADJUSTED : 0) | (kind > 1 ? DRAWN : 0);
        draw.vocab = USABLE, draw.top_k = 3, draw.seed = 5 + lane;
        draw.scale = 1.4426950408889634 * 4294967296.0, draw.least_weight = 1, draw.share = 1ull << 32; // temperature 1
        draw.repetition = 1.5f, draw.presence = 2.0f, draw.frequency = 0.5f;
        draw.token_number = draw.share_number = first_number;
        std::fill(sampling.marks + lane * VOCAB, sampling.marks + (lane + 1) * VOCAB, 0);
        sampling.marks[lane * VOCAB + PROMPT_TOKEN] = 1;
    }
}
static u32 told(const u64 *words, u32 number) {
    if (*words >> 32 != number) printf("nothing was told\n"), exit(1);
    return (u32)*words;
}
// The last token of every lane against its logits and the tokens before it; its shares of attention.
static void check_told(const Launch &launch, const Lists &lists, int n_lanes) {
    const Sampling &sampling = launch.sampling;
    const u32 last = first_number + launch.n_steps - 1;
    if (launch.mailbox->fault) printf("a block waited in vain in op %u\n", *launch.given_up), exit(1);
    for (int lane = 0; lane < n_lanes; ++lane) {
        const Draw &draw = sampling.draws[lane];
        std::vector<float> logits(launch.logits + lane * VOCAB, launch.logits + lane * VOCAB + USABLE);
        std::vector<u32> times(USABLE);
        const auto token_of_step = [&](u32 number) { return told(sampling.told_tokens + number % TOLD_STEPS * 8 + lane, number); };
        for (u32 number = first_number; number < last; ++number) times[token_of_step(number)] += 1;
        for (u32 row = 0; row < USABLE && draw.flags & ADJUSTED; ++row) {
            if (times[row] > 0 || row == PROMPT_TOKEN) logits[row] = logits[row] < 0 ? logits[row] * 1.5f : logits[row] / 1.5f;
            if (times[row] > 0) logits[row] = logits[row] - 0.5f * times[row] - 2.0f;
        }
        const u32 token = token_of_step(last);
        const int n_better = std::count_if(logits.begin(), logits.end(), [&](float logit) { return logit > logits[token]; });
        if (n_better >= (draw.flags & DRAWN ? 3 : 1)) printf("a token is not among the best\n"), exit(1);
        for (u32 part = lists.partials[lane * 2 + 1]; part < lists.partials[lane * 2 + 1] + lists.partials[lane * 2]; ++part) {
            float sum = 0;
            for (int head = 0; head < HEADS; ++head) sum += last_shares(launch)[part * HEADS + head];
            const u32 share = told(sampling.told_shares + last % TOLD_STEPS * MOST_PARTS + part, last);
            if (share != __float_as_uint(sum)) printf("a share is not what was added up\n"), exit(1);
        }
    }
    tell("told tokens", sampling.told_tokens, TOLD_STEPS * 8 * 8);
    tell("marks", sampling.marks, (size_t)n_lanes * VOCAB * 4);
}

int main(int, char **arguments) {
    const int n_lanes = atoi(arguments[1]), n = atoi(arguments[2]), before = atoi(arguments[3]), n_steps = atoi(arguments[4]);
    const size_t dynamic_bytes = (size_t)atoi(arguments[5]) * LONG_STAGE_BYTES + WARPS * x_units(n_lanes * n) * 64;
    schedule.state += 977 * atoi(arguments[6]);
    fibers.resize(N_BLOCKS * 288);
    for (u32 i = 0; i < N_BLOCKS; ++i) {
        blocks[i].index = i;
        blocks[i].shared.resize(sizeof(BlockShared));
        blocks[i].dynamic = guarded<u8>(dynamic_bytes), blocks[i].dynamic_bytes = dynamic_bytes;
    }
    for (u32 i = 0; i < fibers.size(); ++i) fibers[i] = {nullptr, aligned_alloc(4096, STACK_BYTES), &blocks[i / 288], i % 288, false};
    Lists lists;
    for (int lane = 0; lane < n_lanes; ++lane) lists.add_lane(lane, before + 37 * lane + n, n, n_steps);
    if (lists.n_pages > PAGES || lists.n_partials > MOST_PARTS || lists.counts[0] > 8) return printf("too large\n"), 1;

    const Packed embedding = random_matrix(VOCAB, HIDDEN, 1), head = random_matrix(VOCAB, HIDDEN, 1.7f / sqrtf(HIDDEN));
    std::vector<LayerAddresses> layers;
    std::vector<std::vector<u16>> stored;
    for (int layer = 0; layer < LAYERS; ++layer) {
        layers.push_back(random_layer());
        stored.emplace_back(layers[layer].kv, layers[layer].kv + KV_VALUES);
    }
    std::vector<u32> ops = {EMBED};
    for (u32 layer = 0; layer < LAYERS; ++layer)
        for (u32 kind = NORM_QKV; kind <= DOWN_ADD; ++kind) ops.push_back(kind | layer << 8);
    ops.push_back(NORM_HEAD);

    u32 given_up = ~0u;
    Launch launch = {};
    launch.step = {lists.counts, lists.tokens, lists.positions, lists.positions, nullptr, lists.outputs, lists.partials, (const u32 *)lists.items.data()};
    launch.layers = layers.data(), launch.ops = ops.data();
    launch.embedding = embedding.bytes(), launch.head = head.bytes();
    launch.final_norm = (const uint4 *)random_vector(HIDDEN, 1), launch.rope = rotations();
    launch.x = guarded<u64>(8 * HIDDEN_STRIDE / 2), launch.qkv = guarded<u64>(8 * QKV_WORDS);
    launch.a = guarded<u64>(8 * Q_STRIDE / 2), launch.h = guarded<u64>(8 * INTER_STRIDE / 2);
    launch.part_sums = guarded<u64>(MOST_PARTS * HEADS * DIM), launch.part_weights = guarded<u64>(MOST_PARTS * HEADS * 4);
    launch.candidates = guarded<u64>(2 * 8 * N_BLOCKS * 2);
    launch.plain.x = guarded<u16>(8 * HIDDEN_STRIDE), launch.plain.qkv.q = guarded<u16>(8 * Q_WIDTH);
    launch.plain.qkv.k = guarded<u16>(8 * KV_WIDTH), launch.plain.qkv.v = guarded<u16>(8 * KV_WIDTH);
    launch.plain.a = guarded<u16>(8 * Q_STRIDE), launch.plain.h = guarded<u16>(8 * INTER_STRIDE);
    launch.logits = guarded<float>(8 * VOCAB), launch.shares = guarded<float>(MOST_PARTS * HEADS), launch.other_shares = guarded<float>(MOST_PARTS * HEADS);
    launch.done = guarded<u64>(N_BLOCKS), launch.chosen = guarded<u64>(8);
    launch.sampling = empty_sampling();
    launch.given_up = &given_up, launch.mailbox = guarded<Mailbox>(1);
    launch.withheld = ~0u, launch.n_stages = atoi(arguments[5]);

    const auto run_and_tell = [&](u32 n_ops, u32 steps, Chooses chooses) {
        for (int layer = 0; layer < LAYERS; ++layer) std::copy(stored[layer].begin(), stored[layer].end(), layers[layer].kv);
        launch.n_ops = n_ops, launch.n_steps = steps, launch.chooses = chooses;
        run(launch);
        launch.number += n_ops * steps;
        printf("%u ops, %u tokens of a lane\n", n_ops, steps);
        tell_all(launch, lists, layers);
    };
    for (u32 n_ops = 1; n_ops <= ops.size(); ++n_ops) run_and_tell(n_ops, 1, CHOOSES_NOTHING);
    if (n == 1) {
        for (const Chooses chooses : {CHOOSES_BEST, CHOOSES_BY_DRAWS})
            for (const int steps : {1, n_steps}) {
                set_draws(launch.sampling, n_lanes, chooses == CHOOSES_BY_DRAWS);
                run_and_tell(ops.size(), steps, chooses);
                check_told(launch, lists, n_lanes);
            }
    }
    for (int i = 0; i < n_lanes * VOCAB; ++i)
        if (!std::isfinite(launch.logits[i])) printf("a logit is not a number\n"), exit(1);
    return launch.mailbox->fault != 0;
}
