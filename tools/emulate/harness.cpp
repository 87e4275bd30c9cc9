// Runs the persistent kernel on random weights and prints a hash of everything it wrote: after each
// prefix of the plan, and after several tokens in one launch. Memory ends where it was asked to, so
// that a read beyond it is a crash. Attention of the first layer, and its shares, are computed
// again: as the definition says, by `attend` and by `attend_block`, and compared. So are kernels
// that copy rows.
//
//     harness LANES TOKENS_OF_A_LANE ROWS_BEFORE STEPS STAGES LAYOUT SEED [DUMP]
//
// With a file to dump to, all inputs and results of every op go there, for the reference to compute
// them again (crates/weft-cuda/examples/emulation.rs).
// The layout decides how a lane's rows lie in spans, and where marks are. The seed decides in which
// order blocks run and copies complete; the hashes must not depend on it.

#include "kernels/rows.cu"
#include "ops/attend.cu"
#include "ops/attend_block.cu"
#include "ops/attend_fold.cu"
#include "persistent/decode.cu"

#include "generated/layouts.cuh"

#include <sys/mman.h>

constexpr int PAGES = 272, POSITIONS = 17152, MOST_PARTS = 80, MOST_CELLS = 160;
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

// ---- what the reference is given ---------------------------------------------------------------
static FILE *dump;
template <class T> static void dump_all(const T *values, size_t n) {
    if (dump && fwrite(values, sizeof(T), n, dump) != n) printf("the dump cannot be written\n"), exit(1);
}
static void dump_number(u32 number) { dump_all(&number, 1); }
// A weight, in the order of their making.
static u16 dumped(float value) {
    const u16 rounded = to_bf16(value);
    return dump_all(&rounded, 1), rounded;
}

// Matrices as the host packed them, one after the other, each after its length; none of a plain
// model. The reference has them already.
static FILE *matrices;
static const u8 *next_matrix() {
    u64 bytes = 0;
    if (fread(&bytes, 8, 1, matrices) != 1) printf("a matrix is missing\n"), exit(1);
    u8 *matrix = guarded<u8>(bytes);
    if (fread(matrix, 1, bytes, matrices) != bytes) printf("a matrix is cut\n"), exit(1);
    return matrix;
}

// A matrix packed as pack.rs packs it.
static int place_of_unit(int unit, int eighth) {
    const int most = eighth <= LONGEST_STRIP ? eighth : SHORT_STRIP;
    if (most == eighth) return unit;
    const int warp = unit / eighth, own = unit % eighth, strip = own / most;
    return strip * 8 * most + warp * std::min(most, eighth - strip * most) + own % most;
}
struct Packed {
    int stride;
    u16 *values;
    Packed(int rows, int columns) : stride((columns + 255) / 256 * 256), values(guarded<u16>((size_t)(rows + 127) / 128 * 128 * stride)) {}
    void set(int row, int column, float value) {
        const int unit = row / 8 * (stride / 32) + place_of_unit(column / 32, stride / 256);
        values[(size_t)unit * 256 + (row % 8 * 4 + column % 32 / 8) * 8 + column % 8] = dumped(value);
    }
    const u8 *bytes() const { return (const u8 *)values; }
};
static const u8 *random_matrix(int rows, int columns, float size) {
    if (matrices) return next_matrix();
    Packed matrix(rows, columns);
    for (int row = 0; row < rows; ++row)
        for (int column = 0; column < columns; ++column) matrix.set(row, column, weights_from.number() * size);
    return matrix.bytes();
}
static const u8 *random_gate_up(float size) {
    if (matrices) return next_matrix();
    Packed matrix((INTER + 7) / 8 * 16, HIDDEN);
    for (int row = 0; row < INTER; ++row)
        for (int column = 0; column < 2 * HIDDEN; ++column)
            matrix.set(row / 8 * 16 + column / HIDDEN * 8 + row % 8, column % HIDDEN, weights_from.number() * size);
    return matrix.bytes();
}
static u16 *random_vector(int n, float around) {
    u16 *values = guarded<u16>((n + 255) / 256 * 256);
    for (int i = 0; i < n; ++i) values[i] = dumped(around + weights_from.number() * 0.3f);
    return values;
}

// ---- the model ---------------------------------------------------------------------------------
static constexpr size_t KV_VALUES = (size_t)PAGES * KV_HEADS * 2 * PAGE_SIDE;
static std::vector<const u8 *> routers; // null of dense layers
static LayerAddresses random_layer() {
    const float of_hidden = 1.7f / sqrtf(HIDDEN);
    LayerAddresses layer = {};
    bool is_sparse = false;
    if (matrices) {
        const u16 *variants = (const u16 *)next_matrix();
        layer.variants = {variants[0], variants[1], variants[2], variants[3]};
        is_sparse = variants[4];
    }
    layer.attention_norm = (const uint4 *)random_vector(HIDDEN, 1);
    layer.qkv = random_matrix(QKV_ROWS, HIDDEN, of_hidden);
    layer.bias = random_vector(QKV_ROWS, 0);
    layer.q_norm = random_vector(HEAD_DIM, 1);
    layer.k_norm = random_vector(HEAD_DIM, 1);
    layer.o = random_matrix(HIDDEN, Q_WIDTH, 1.7f / sqrtf(Q_WIDTH));
    layer.mlp_norm = (const uint4 *)random_vector(HIDDEN, 1);
    routers.push_back(is_sparse ? next_matrix() : nullptr);
    layer.gate_up = random_gate_up(of_hidden);
    layer.down = random_matrix(HIDDEN, INTER, 1.7f / sqrtf(INTER));
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
// A lane is one span; or one with marks; or several spans, of which the second is moved and all but
// the first begin in the middle of a page. Lanes of the last layout have marks too. A lane's tokens
// may be a draft: then all of them are outputs whose attention is reported.
enum Layout { PLAIN, MARKED, IN_SPANS };
constexpr int DRAFTED = 4; // beside the layout

struct Span {
    int first_page, first_row, len, position, home;
    int row_at(int position_of_row) const { return first_row + position_of_row - position; }
};
// What is reported of one token: the last of a lane, or one of a draft, which has its own place as
// if it were alone.
struct LanePlace {
    std::vector<Span> spans;
    std::vector<Section> sections;
    std::vector<int> marks, stretches; // of cells
    int stretch_of(int position) const { return std::upper_bound(marks.begin(), marks.end(), position) - marks.begin(); }
};

static u32 marks_below(const Item &item, u32 end) {
    u32 n = 0;
    for (u32 row = 0; row < end; ++row) n += item.marks[row / 32] >> row % 32 & 1;
    return n;
}
// As tables.rs numbers them.
static void number_stretches(Item &item) {
    u32 n = 0;
    item.has_inner = 0;
    std::fill(item.stretches, item.stretches + 8, 0);
    for (u32 half = 0; half < 8; ++half) {
        const u32 n_own = __popc(item.marks[half]) + (half == item.first / 32);
        if (n_own == 0) continue;
        n += n_own, item.has_inner |= n_own > 1;
        u32 halves = 1u << half;
        for (u32 later = half + 1; later < 8 && !(item.marks[later] & 1); ++later) {
            halves |= 1u << later;
            if (item.marks[later]) break;
        }
        item.stretches[half] = halves | (n - 1) << 8;
    }
    item.n_marks = n - 1, item.has_inner &= n > 2, item.first_pages = 4;
    int mark = 0;
    while (mark < 256 && !(item.marks[mark / 32] >> mark % 32 & 1)) ++mark;
    for (int half = 0; half < 8; ++half) {
        const u32 inside = item.marks[half] & ~1u;
        item.cuts[half] = n == 1 ? 32 : n == 2 ? std::clamp(mark - half * 32, 0, 32) : inside ? __ffs(inside) - 1 : 32;
    }
    if (n == 2) item.first_pages = (mark + 63) / 64;
}

struct Lists {
    u32 counts[8] = {}, tokens[8] = {}, positions[8] = {}, outputs[8] = {}, partials[32] = {};
    std::vector<Item> items;
    std::vector<LanePlace> lanes;
    int n_pages = 0, n_partials = 0, n_cells = 0;

    // The item of a section that takes a query as tables.rs has it: with room for its heads, where
    // either all queries have one part or none, and in drafts all see the same marks. Rows of this
    // step that it reads it stores itself.
    Item &item_for(std::vector<size_t> &of_section, u32 n_parts, u32 seen, bool drafted) {
        const Item last = items[of_section.back()];
        const bool full = last.n_queries == std::min(16 / GROUP, 8);
        const bool differs = drafted && marks_below(last, last.n_rows) != marks_below(last, seen);
        if (last.n_queries > 0 && (full || differs || is_folded(last) != (n_parts > 1))) {
            of_section.push_back(items.size()), items.push_back(last);
            items.back().n_queries = items.back().n_rows = 0;
        }
        return items[of_section.back()];
    }

    // A lane with `rows` rows, the last `n` of which are of this step.
    void add_lane(int rows, int n, int room, Layout layout, bool drafted) {
        LanePlace lane;
        const auto add_span = [&](int first_row, int begin, int end, int moved, int more) {
            if (begin < end) lane.spans.push_back({n_pages, first_row, end - begin, begin, begin + moved});
            if (begin < end) n_pages += (first_row + end - begin + more + 63) / 64;
        };
        const int before = rows - n, third = layout == IN_SPANS ? before / 3 : 0;
        add_span(0, 0, third, 0, 0);
        add_span(37, third, 2 * third, 11, 0);
        add_span(third > 0 ? 21 : 0, 2 * third, rows, 0, room);
        if (layout != PLAIN) {
            // In a page, several of them; at a page's end and beside it; at a section's; between
            // old rows and new ones.
            for (const int mark : {1, 2, 31, 37, 63, 64, 65, 130, 131, 192, 256, 300, 511, before})
                if (mark > 0 && mark < rows && (lane.marks.empty() || lane.marks.back() < mark)) lane.marks.push_back(mark);
        }
        const u32 first_token = counts[0];
        for (int position = before; position < rows; ++position) {
            const u32 token = counts[0]++;
            tokens[token] = (token * 13 + 5) % VOCAB;
            positions[token] = position;
        }
        const size_t first_item = items.size();
        std::vector<const Span *> of;
        std::vector<std::vector<size_t>> items_of;
        std::vector<int> starts;
        for (const Span &span : lane.spans)
            for (int start = 0; start < span.first_row + span.len; start += 256) {
                Item item = {};
                const int n_pages_of_span = (span.first_row + span.len + (span.position + span.len == rows ? room : 0) + 63) / 64;
                for (int page = 0; page < 4; ++page) item.pages[page] = span.first_page + std::min(start / 64 + page, n_pages_of_span - 1);
                item.first = start == 0 ? span.first_row : 0;
                for (const int mark : lane.marks) {
                    const int row = span.row_at(mark) - start;
                    if (row > item.first && row < 256 && mark < span.position + span.len) item.marks[row / 32] |= 1u << row % 32;
                }
                number_stretches(item);
                items_of.push_back({items.size()}), items.push_back(item), of.push_back(&span), starts.push_back(start);
            }
        for (size_t i = 0; i < of.size(); ++i) {
            const Item &item = items[first_item + i];
            Section section = {};
            const int end = std::min(starts[i] + 256, of[i]->first_row + of[i]->len), row = starts[i] + item.first - of[i]->first_row;
            std::copy(item.pages, item.pages + 4, section.pages), std::copy(item.marks, item.marks + 8, section.marks);
            section.position = of[i]->position + row, section.home = of[i]->home + row;
            section.n_rows = end - starts[i], section.first = item.first, section.n_marks = item.n_marks;
            lane.sections.push_back(section);
        }
        for (u32 token = first_token; token < counts[0]; ++token) {
            const int position = positions[token];
            const bool reported = drafted || token + 1 == counts[0];
            u32 n_parts = 0;
            while (n_parts < of.size() && of[n_parts]->position + std::max(0, starts[n_parts] - of[n_parts]->first_row) <= position) ++n_parts;
            LanePlace own = lane;
            own.sections.resize(n_parts);
            u32 *partial = partials + token * 4;
            partial[0] = n_parts, partial[1] = n_partials, partial[3] = n_cells;
            for (u32 part = 0; part < n_parts; ++part) {
                const Span &span = *of[part];
                const int end = std::min(position + 1, span.position + span.len);
                const u32 seen = std::min(256, span.row_at(end) - starts[part]);
                Item &item = item_for(items_of[part], n_parts, seen, drafted);
                item.queries[item.n_queries++] = {(u16)token, (u16)n_parts, (u16)seen, (u16)(reported ? n_cells : NO_CELL),
                                                  (u32)(position + span.home - span.position), n_partials + part};
                item.n_rows = std::max(item.n_rows, seen);
                own.sections[part].cell = n_cells - partial[3], own.sections[part].n_rows = seen;
                for (u32 row = item.first; reported && row < seen; ++row)
                    if (row == item.first || item.marks[row / 32] >> row % 32 & 1)
                        own.stretches.push_back(lane.stretch_of(span.position + starts[part] + row - span.first_row)), ++n_cells;
            }
            n_partials += n_parts;
            if (!reported) continue;
            partial[2] = n_cells - partial[3];
            own.spans.back().len = position + 1 - own.spans.back().position;
            outputs[lanes.size()] = token;
            lanes.push_back(own);
        }
        for (size_t index = first_item; index < items.size(); ++index) {
            for (u32 row = items[index].n_rows; row < 256; ++row) items[index].marks[row / 32] &= ~(1u << row % 32);
            number_stretches(items[index]);
        }
        // The rows of the step's tokens are in the last span.
        for (u32 token = first_token; token < counts[0]; ++token)
            for (size_t section = 0; section < of.size(); ++section) {
                const int row = lane.spans.back().row_at(positions[token]) - starts[section];
                for (const size_t index : items_of[section])
                    if (of[section] == &lane.spans.back() && row >= 0 && row < (int)items[index].n_rows)
                        items[index].stores[items[index].n_stores++] = token << 8 | row;
            }
        counts[1] = lanes.size(), counts[2] = items.size();
    }
};

// ---- running -----------------------------------------------------------------------------------
static std::vector<Fiber> fibers;
static std::vector<EmulatedBlock> blocks(N_BLOCKS);
static const Launch *launched;
static void thread_main() {
    using Kernel = void (*)(const Launch);
    const Kernel kernels[4][2] = {{decode_one, decode_one_drawn}, {decode_two, decode_two_drawn}, {decode_four, decode_four_drawn}, {decode_eight, decode_eight_drawn}};
    const u32 n_tokens = launched->step.counts[0]; // as modules.rs chooses; no token asks twice here
    const int own = n_tokens == 1 ? 0 : n_tokens == 2 ? 1 : n_tokens == 4 ? 2 : 3;
    kernels[own][launched->chooses == CHOOSES_BY_DRAWS](*launched);
    current->done = true;
    for (;;) let_others_run();
}
static void begin_fiber(Fiber &fiber, void (*main)()) {
    u64 *top = (u64 *)((uintptr_t)((u8 *)fiber.stack + STACK_BYTES - 64) & ~15ull);
    *--top = 0; // nobody returns from a thread's first function
    *--top = (u64)(void *)main;
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
static void run_blocks(void (*main)()) {
    for (EmulatedBlock &block : blocks) {
        memset(block.dynamic, 0xab, block.dynamic_bytes);
        for (std::vector<u64> &own : block.statics) std::fill(own.begin(), own.end(), 0xcdcdcdcdcdcdcdcdull);
    }
    for (Fiber &fiber : fibers) begin_fiber(fiber, main);
    u32 behind = 0; // a block that hardly runs for a while: others must neither wait for more than it owes nor run away
    for (size_t left = fibers.size(); left > 0; ++rounds) {
        if (schedule.next() % 512 == 0) behind = schedule.next() % N_BLOCKS;
        for (u32 block = 0; block < N_BLOCKS; ++block) {
            if (schedule.next() % (block == behind ? 64 : 4) != 0 == (block == behind)) continue;
            // Warps that add up sums are often late: others must not write where these have yet to read.
            const bool adding_wait = PERSISTENT_THREADS > RING_THREADS && schedule.next() % 8 != 0;
            for (u32 thread = 0; thread < (adding_wait ? RING_THREADS : PERSISTENT_THREADS); ++thread) {
                current = &fibers[block * PERSISTENT_THREADS + thread];
                if (current->done) continue;
                switch_stacks(&scheduler, current->stack_pointer);
                left -= current->done;
            }
        }
        complete_some_copies();
    }
    if (!copies.empty()) printf("copies are on their way when all blocks are gone\n"), exit(1);
    for (const EmulatedBlock &block : blocks)
        for (u32 arrived : block.arrived)
            if (arrived > 0) printf("a barrier is left half full\n"), exit(1);
}
static void run(const Launch &launch) {
    launched = &launch;
    memset(launch.bare, 0xff, BARE_BYTES);
    run_blocks(thread_main);
}

static void print_hash(const char *what, const void *at, size_t bytes) {
    u64 hash = 1469598103934665603ull;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ ((const u8 *)at)[i]) * 1099511628211ull;
    printf("  %s %016llx\n", what, hash);
}
static const float *last_shares(const Launch &launch) { return launch.n_steps % 2 == 1 ? launch.shares : launch.other_shares; }
static void print_all(const Launch &launch, const Lists &lists, const std::vector<LayerAddresses> &layers) {
    const u32 n = lists.counts[0];
    const PlainBuffers &plain = launch.plain;
    print_hash("x", plain.x, n * HIDDEN_STRIDE * 2);
    print_hash("q", plain.qkv.q, n * Q_WIDTH * 2);
    print_hash("k", plain.qkv.k, n * KV_WIDTH * 2);
    print_hash("v", plain.qkv.v, n * KV_WIDTH * 2);
    print_hash("a", plain.a, n * Q_STRIDE * 2);
    print_hash("h", plain.h, n * INTER_STRIDE * 2);
#if HAS_EXPERTS
    print_hash("routes", launch.experts.routes, n * N_CHOSEN * sizeof(Route));
    print_hash("h of experts", launch.experts.h, n * N_CHOSEN * EXPERT_STRIDE * 2);
#endif
    for (const LayerAddresses &layer : layers) print_hash("kv", layer.kv, KV_VALUES * 2);
    print_hash("shares", last_shares(launch), lists.n_cells * HEADS * 4);
    print_hash("logits", launch.logits, (size_t)lists.counts[1] * VOCAB * 4);
}

// A row of a layer's pages: its key and its value.
static void dump_row(const LayerAddresses &layer, const Span &span, int position) {
    const int row = span.row_at(position);
    for (int side = 0; side < 2; ++side)
        for (int i = 0; i < KV_WIDTH; ++i) {
            const u16 *page = layer.kv + page_start(span.first_page + row / 64, i / HEAD_DIM) + side * PAGE_SIDE;
            dump_all(page + (side == 0 ? key_offset(row % 64, i % HEAD_DIM) : value_offset(row % 64, i % HEAD_DIM)), 1);
        }
}
static void dump_lanes(const Lists &lists, const std::vector<LayerAddresses> &layers) {
    dump_number(lists.lanes.size());
    u32 first = 0;
    for (size_t i = 0; i < lists.lanes.size(); ++i) {
        const LanePlace &lane = lists.lanes[i];
        const u32 end = lists.outputs[i] + 1;
        dump_number(end - first);
        dump_all(lists.tokens + first, end - first), dump_all(lists.positions + first, end - first);
        for (u32 token = first; token < end; ++token)
            dump_number(lane.spans.back().first_page * 64 + lane.spans.back().row_at(lists.positions[token]));
        dump_number(lane.spans.size());
        for (const Span &span : lane.spans)
            for (const int number : {span.first_page, span.first_row, span.len, span.position, span.home}) dump_number(number);
        dump_number(lane.marks.size());
        for (const int mark : lane.marks) dump_number(mark);
        first = end;
    }
    for (const LayerAddresses &layer : layers)
        for (const LanePlace &lane : lists.lanes)
            for (const Span &span : lane.spans)
                for (int position = span.position; position < span.position + span.len; ++position) dump_row(layer, span, position);
}
// What a launch left in ordinary memory.
static void dump_results(const Launch &launch, const Lists &lists, const std::vector<LayerAddresses> &layers) {
    const auto rows = [&](const u16 *values, int width, int stride) {
        for (u32 token = 0; token < lists.counts[0]; ++token) dump_all(values + token * stride, width);
    };
    const PlainBuffers &plain = launch.plain;
    rows(plain.x, HIDDEN, HIDDEN_STRIDE);
    rows(plain.qkv.q, Q_WIDTH, Q_WIDTH), rows(plain.qkv.k, KV_WIDTH, KV_WIDTH), rows(plain.qkv.v, KV_WIDTH, KV_WIDTH);
    rows(plain.a, Q_WIDTH, Q_STRIDE);
    if (std::count(routers.begin(), routers.end(), nullptr) > 0) rows(plain.h, INTER, INTER_STRIDE);
#if HAS_EXPERTS
    for (u32 token = 0; token < lists.counts[0]; ++token) {
        const Route *routes = launch.experts.routes + token * N_CHOSEN;
        for (int i = 0; i < N_CHOSEN; ++i) dump_number(__float_as_uint((float)routes[i].expert));
        for (int i = 0; i < N_CHOSEN; ++i) dump_number(__float_as_uint(routes[i].weight));
    }
    for (u32 row = 0; row < lists.counts[0] * N_CHOSEN; ++row) dump_all(launch.experts.h + row * EXPERT_STRIDE, EXPERT_INTER);
#endif
    for (const LayerAddresses &layer : layers) {
        u32 token = 0;
        for (size_t i = 0; i < lists.lanes.size(); ++i)
            for (; token <= lists.outputs[i]; ++token) dump_row(layer, lists.lanes[i].spans.back(), lists.positions[token]);
    }
    u32 cell = 0;
    for (const LanePlace &lane : lists.lanes) {
        std::vector<float> sums(lane.marks.size() + 1);
        for (const int stretch : lane.stretches) {
            for (int head = 0; head < HEADS; ++head) sums[stretch] += launch.shares[cell * HEADS + head];
            ++cell;
        }
        dump_all(sums.data(), sums.size());
    }
}

// ---- the definition ----------------------------------------------------------------------------
// A head of a lane's last token, turned to a position.
static std::vector<float> turned(const Launch &launch, u32 token, int head, int position) {
    const LayerAddresses &layer = launch.layers[0];
    std::vector<float> x(HEAD_DIM), to(HEAD_DIM);
    double squares = 0;
    for (int d = 0; d < HEAD_DIM; ++d) x[d] = widen(launch.plain.qkv.q[token * Q_WIDTH + head * HEAD_DIM + d]), squares += x[d] * x[d];
    const float scale = 1.0 / sqrt(squares / HEAD_DIM + NORM_EPS);
    for (int d = 0; d < HEAD_DIM && QK_NORM; ++d) x[d] = rounded(rounded(x[d] * scale) * widen(layer.q_norm[d]));
    for (int d = 0; d < HALF_DIM; ++d) {
        const float2 by = launch.rope[position * HALF_DIM + d];
        to[d] = rounded(x[d] * by.x - x[d + HALF_DIM] * by.y), to[d + HALF_DIM] = rounded(x[d + HALF_DIM] * by.x + x[d] * by.y);
    }
    return to;
}
// What the first layer's attention gave every lane's last token, and each stretch its share,
// against sums over all rows in turn. To be called after a launch that ended with that layer's
// `attend`.
static void check_attention(const Launch &launch, const Lists &lists) {
    constexpr float NOISE = 0.02f; // of rounded weights
    u32 cell = 0;
    for (size_t i = 0; i < lists.lanes.size(); ++i) {
        const LanePlace &lane = lists.lanes[i];
        const u32 token = lists.outputs[i];
        const int last = lists.positions[token];
        std::vector<double> shares(lane.marks.size() + 1), published(shares.size());
        for (int head = 0; head < HEADS; ++head) {
            struct Row {
                double weight;
                int stretch;
                const u16 *values;
                int row;
            };
            std::vector<Row> rows;
            double top = -1e300, all = 0;
            for (const Span &span : lane.spans) {
                const std::vector<float> query = turned(launch, token, head, last + span.home - span.position);
                for (int position = span.position; position < span.position + span.len; ++position) {
                    const int row = span.row_at(position);
                    const u16 *page = launch.layers[0].kv + page_start(span.first_page + row / 64, head / GROUP);
                    double score = 0;
                    for (int d = 0; d < HEAD_DIM; ++d) score += query[d] * widen(page[key_offset(row % 64, d)]);
                    rows.push_back({score * SCALE_LOG2, lane.stretch_of(position), page + PAGE_SIDE, row % 64});
                    top = std::max(top, rows.back().weight);
                }
            }
            for (Row &row : rows) all += row.weight = exp2(row.weight - top);
            for (const Row &row : rows) shares[row.stretch] += row.weight / all * row.weight / all;
            for (int d = 0; d < HEAD_DIM; ++d) {
                double sum = 0;
                for (const Row &row : rows) sum += row.weight / all * widen(row.values[value_offset(row.row, d)]);
                const float ours = widen(launch.plain.a[token * Q_STRIDE + head * HEAD_DIM + d]);
                if (!(fabs(ours - sum) <= NOISE)) printf("lane %zu, head %d: %f instead of %f\n", i, head, ours, sum), exit(1);
            }
        }
        for (const int stretch : lane.stretches) {
            for (int head = 0; head < HEADS; ++head) published[stretch] += launch.shares[cell * HEADS + head];
            ++cell;
        }
        for (size_t stretch = 0; stretch < shares.size(); ++stretch)
            if (!(fabs(published[stretch] - shares[stretch]) <= NOISE * shares[stretch]))
                printf("lane %zu, stretch %zu: a share of %g instead of %g\n", i, stretch, published[stretch], shares[stretch]), exit(1);
    }
}

// ---- attend and attend_block -------------------------------------------------------------------
// Queries as `rope_store` leaves them: in the order in which `normalise_head` adds.
static std::vector<u16> normalised_queries(const Launch &launch, u32 n_tokens) {
    std::vector<u16> to(launch.plain.qkv.q, launch.plain.qkv.q + n_tokens * Q_WIDTH);
    for (u32 head = 0; head < n_tokens * HEADS && QK_NORM; ++head) {
        u16 *own = to.data() + head * HEAD_DIM;
        float sums[32] = {};
        for (int i = 0; i < LANE_PAIRS; ++i)
            for (int lane = 0; lane < 32; ++lane)
                for (int half = 0; half < 2; ++half) {
                    const float x = lane + i * 32 < HALF_DIM ? widen(own[lane + i * 32 + half * HALF_DIM]) : 0.0f;
                    sums[lane] = fmaf(x, x, sums[lane]);
                }
        for (int other = 16; other > 0; other /= 2) {
            float before[32];
            std::copy(sums, sums + 32, before);
            for (int lane = 0; lane < 32; ++lane) sums[lane] = before[lane] + before[lane ^ other];
        }
        const float scale = 1.0f / sqrtf(sums[0] / (float)HEAD_DIM + NORM_EPS);
        for (int d = 0; d < HEAD_DIM; ++d) own[d] = round_one(rounded(widen(own[d]) * scale) * widen(launch.layers[0].q_norm[d]));
    }
    return to;
}
static Step block_step;
static Attended block_results;
static const u16 *block_queries;
static const Launch *block_launch;
static void run_attend_block() { attend_block(block_step, block_launch->rope, block_queries, block_launch->layers[0].kv, block_results); }
static void run_attend_fold() { attend_fold(block_step, block_results); }
static void (*alone)();
static void thread_alone() {
    alone();
    current->done = true;
    for (;;) let_others_run();
}
// Blocks of a kernel that do not wait for one another.
static void run_alone(void (*kernel)(), u32 n_blocks, u32 n_blocks_y, u32 threads) {
    static EmulatedBlock block;
    static u8 *dynamic = guarded<u8>(4 * SIDE_BYTES); // of `attend_block`
    block.dynamic = dynamic, block.dynamic_bytes = 4 * SIDE_BYTES;
    alone = kernel, n_threads = threads, grid = {n_blocks, n_blocks_y, 1};
    for (u32 i = 0; i < n_blocks * n_blocks_y; ++i) {
        block.index = i % n_blocks, block.index_y = i / n_blocks;
        std::vector<Fiber> own;
        for (u32 thread = 0; thread < threads; ++thread) own.push_back({nullptr, fibers[thread].stack, &block, thread, false});
        for (Fiber &fiber : own) begin_fiber(fiber, thread_alone);
        for (u32 left = threads; left > 0;)
            for (Fiber &fiber : own) {
                if (fiber.done) continue;
                current = &fiber;
                switch_stacks(&scheduler, fiber.stack_pointer);
                left -= fiber.done;
            }
    }
    n_threads = PERSISTENT_THREADS, grid = {N_BLOCKS, 1, 1};
}
static void compare_attention(const char *name, const Launch &launch, const Lists &lists, const std::vector<u16> &a, const std::vector<float> &shares) {
    for (u32 i = 0; i < lists.counts[0] * Q_WIDTH; ++i)
        if (a[i / Q_WIDTH * Q_STRIDE + i % Q_WIDTH] != launch.plain.a[i / Q_WIDTH * Q_STRIDE + i % Q_WIDTH])
            printf("%s gives other bits, of token %u\n", name, i / Q_WIDTH), exit(1);
    for (u32 i = 0; i < shares.size(); ++i)
        if (__float_as_uint(shares[i]) != __float_as_uint(launch.shares[i]))
            printf("%s gives cell %u, head %u a share of %g instead of %g\n", name, i / HEADS, i % HEADS, shares[i], launch.shares[i]), exit(1);
}
// Attention of the first layer by `attend`, with `rope_store` in it: the bits of this kernel.
// Twice, because the first launch must leave all words as it found them.
static void run_attend() {
    const LayerAddresses &layer = block_launch->layers[0];
    const QkvStore &from = block_launch->plain.qkv;
    if (threadIdx.x < n_threads && blockIdx.x < gridDim.x) attend(block_step, 1, layer.q_norm, layer.k_norm, block_launch->rope, from.q, from.k, from.v, layer.kv, block_results);
    current->done = true;
    for (;;) let_others_run();
}
static void check_few(const Launch &launch, const Lists &lists, const std::vector<u16> &stored) {
    std::vector<float> sent((size_t)lists.n_partials * HEADS * SENT_ROW, __uint_as_float(NOTHING));
    std::vector<float> sent_cells(lists.n_cells * HEADS * 2, __uint_as_float(NOTHING));
    block_step = launch.step, block_launch = &launch;
    for (int time = 0; time < 2; ++time) {
        std::vector<u16> a(lists.counts[0] * Q_STRIDE), kv(launch.layers[0].kv, launch.layers[0].kv + KV_VALUES);
        std::vector<float> shares(lists.n_cells * HEADS);
        std::copy(stored.begin(), stored.end(), launch.layers[0].kv);
        block_results = {a.data(), sent.data(), sent_cells.data(), nullptr, nullptr, nullptr, shares.data()};
        grid.x = min(lists.counts[2] * KV_HEADS, N_BLOCKS);
        n_threads = RING_THREADS;
        run_blocks(run_attend);
        n_threads = PERSISTENT_THREADS;
        grid.x = N_BLOCKS;
        compare_attention("attend", launch, lists, a, shares);
        if (!std::equal(kv.begin(), kv.end(), launch.layers[0].kv)) printf("attend stores other rows\n"), exit(1);
        for (const std::vector<float> *words : {&sent, &sent_cells})
            for (const float word : *words)
                if (is_sent(word)) printf("attend leaves a word behind\n"), exit(1);
    }
}
// The same by `attend_block`, whole and in parts that `attend_fold` folds.
static void check_blocks(const Launch &launch, const Lists &lists) {
    const u32 n_tokens = lists.counts[0];
    const std::vector<u16> queries = normalised_queries(launch, n_tokens);
    std::vector<QueryTile> tiles;
    std::vector<Section> sections;
    u32 token = 0, most = 0;
    for (size_t i = 0; i < lists.lanes.size(); ++i) {
        const LanePlace &lane = lists.lanes[i];
        const u32 end = lists.outputs[i] + 1, *own = lists.partials + (end - 1) * 4;
        tiles.push_back({token, end - token, (u32)sections.size(), own[0], own[3], own[2]});
        sections.insert(sections.end(), lane.sections.begin(), lane.sections.end());
        token = end, most = std::max(most, own[0]);
    }
    std::vector<u32> lists_of_kernel(tiles.size() * 8 + sections.size() * 16), counts = {n_tokens, 0, 0, (u32)tiles.size()};
    memcpy(lists_of_kernel.data(), tiles.data(), tiles.size() * sizeof(QueryTile));
    memcpy(lists_of_kernel.data() + tiles.size() * 8, sections.data(), sections.size() * sizeof(Section));
    block_step = launch.step, block_step.counts = counts.data(), block_step.attention = lists_of_kernel.data();
    block_launch = &launch, block_queries = queries.data();
    for (u32 n_splits = 1; n_splits <= most; n_splits = n_splits < most ? std::min(most, n_splits * 4) : most + 1) {
        std::vector<u16> a(n_tokens * Q_STRIDE);
        std::vector<float> sums((size_t)lists.n_partials * HEADS * DIM), shares(lists.n_cells * HEADS);
        std::vector<float2> weights(lists.n_partials * HEADS), cells(lists.n_cells * HEADS);
        block_results = {a.data(), nullptr, nullptr, sums.data(), weights.data(), cells.data(), shares.data()};
        run_alone(run_attend_block, tiles.size() * KV_HEADS, n_splits, TILE_WARPS * 32);
        if (n_splits > 1) run_alone(run_attend_fold, n_tokens * KV_HEADS, 1, WARPS * 32);
        compare_attention(n_splits == 1 ? "attend_block" : "attend_fold", launch, lists, a, shares);
    }
}

// ---- rows of pages -----------------------------------------------------------------------------
static std::vector<u16> kv_of_rows, list_of_rows[2];
static u32 rows_copied;
static const u32 ROW_PAGES[3] = {2, 0, 3};
static constexpr size_t LAYER_VALUES = 4 * KV_HEADS * 2 * PAGE_SIDE; // four pages
static constexpr u32 LISTED = 100, FIRST_LISTED = 37;
static const RowsPlace LISTED_PLACE = {{2, 0, 3}, LISTED, FIRST_LISTED, LAYER_VALUES * 2};
static void run_copy_rows() { copy_rows((u8 *)kv_of_rows.data(), LAYER_VALUES * 2, 1, 2, rows_copied); }
static void run_put_rows() { put_rows(LISTED_PLACE, list_of_rows[0].data(), list_of_rows[1].data(), kv_of_rows.data()); }
static void run_get_rows() { get_rows(LISTED_PLACE, list_of_rows[0].data(), list_of_rows[1].data(), kv_of_rows.data()); }
// The first rows of a page copied, in two layers; rows into pages and out of them from the middle
// of a page on.
static void check_rows() {
    kv_of_rows.resize(2 * LAYER_VALUES);
    // An element of a row of page, a key's or a value's.
    const auto at = [](std::vector<u16> &kv, int layer, u32 page, u32 row, int head, int d, int side) -> u16 & {
        return kv[layer * LAYER_VALUES + page_start(page, head) + side * PAGE_SIDE + (side == 0 ? key_offset(row, d) : value_offset(row, d))];
    };
    const auto each = [&](u32 n_rows, auto visit) {
        for (u32 row = 0; row < n_rows; ++row)
            for (int i = 0; i < KV_HEADS * HEAD_DIM * 2; ++i) visit(row, i / 2 / HEAD_DIM, i / 2 % HEAD_DIM, i % 2);
    };
    for (u32 rows : {0, 1, 31, 37, 64}) {
        for (size_t i = 0; i < kv_of_rows.size(); ++i) kv_of_rows[i] = i * 40503u >> 3;
        std::vector<u16> expected = kv_of_rows;
        for (int layer = 0; layer < 2; ++layer)
            each(rows, [&](u32 row, int head, int d, int side) { at(expected, layer, 2, row, head, d, side) = at(kv_of_rows, layer, 1, row, head, d, side); });
        // Columns beside a head's own may be copied too.
        rows_copied = rows;
        run_alone(run_copy_rows, (KV_HEADS * 2 * SIDE_BYTES / 16 + 255) / 256, 2, 256);
        for (int layer = 0; layer < 2; ++layer)
            for (u32 page = 0; page < 4; ++page)
                each(64, [&](u32 row, int head, int d, int side) {
                    if (at(kv_of_rows, layer, page, row, head, d, side) != at(expected, layer, page, row, head, d, side))
                        printf("%u rows copied: row %u of page %u is another\n", rows, row, page), exit(1);
                });
    }
    for (std::vector<u16> &list : list_of_rows) {
        list.resize(LISTED * KV_WIDTH);
        for (size_t i = 0; i < list.size(); ++i) list[i] = i * 31 + (&list == list_of_rows ? 5 : 7);
    }
    std::vector<u16> expected = kv_of_rows;
    const std::vector<u16> lists[2] = {list_of_rows[0], list_of_rows[1]};
    each(LISTED, [&](u32 row, int head, int d, int side) {
        const u32 place = FIRST_LISTED + row;
        at(expected, 0, ROW_PAGES[place / 64], place % 64, head, d, side) = lists[side][row * KV_WIDTH + head * HEAD_DIM + d];
    });
    run_alone(run_put_rows, (LISTED * KV_WIDTH + 255) / 256, 1, 256);
    if (kv_of_rows != expected) printf("rows go elsewhere\n"), exit(1);
    for (std::vector<u16> &list : list_of_rows) std::fill(list.begin(), list.end(), 0);
    run_alone(run_get_rows, (LISTED * KV_WIDTH + 255) / 256, 1, 256);
    if (list_of_rows[0] != lists[0] || list_of_rows[1] != lists[1]) printf("other rows come out\n"), exit(1);
}

// ---- draws -------------------------------------------------------------------------------------
constexpr u32 USABLE = VOCAB - 3, PROMPT_TOKEN = 7;
static u32 first_number = 0; // of a launch's steps, as they are published
static Sampling empty_sampling() {
    Sampling sampling = {};
    sampling.draws = guarded<Draw>(8), sampling.best = guarded<u32>(8 * N_BEST);
    sampling.bias = guarded<float>(8 * VOCAB), sampling.marks = guarded<u32>(8 * VOCAB);
    sampling.published_tokens = guarded<u64>(PUBLISHED_STEPS * 8), sampling.published_shares = guarded<u64>(PUBLISHED_STEPS * MOST_CELLS);
    sampling.n_cells = MOST_CELLS;
    sampling.likely = guarded<u32>(8 * N_BEST), sampling.weights = guarded<u64>(8);
    sampling.told_logits = guarded<u64>(PUBLISHED_STEPS * 8 * REPORT_WORDS);
    sampling.given_masks = guarded<u64>(8 * MASK_WORDS);
    sampling.masks = guarded<u32>(8 * MASK_WORDS), sampling.late = guarded<u32>(8);
    return sampling;
}
// What a grammar allows after a token.
static bool is_allowed(int lane, u32 before, u32 token) { return token < USABLE && (token * 7 + before * 5 + lane) % 3 == 0; }
static const Sampling *host_of;
static void give_mask(int lane, u32 before, u32 number) {
    for (u32 word = 0; word < MASK_WORDS; ++word) {
        u32 bits = 0;
        for (u32 bit = 0; bit < 32; ++bit) bits |= (u32)is_allowed(lane, before, word * 32 + bit) << bit;
        ((u64 *)host_of->given_masks)[lane * MASK_WORDS + word] = (u64)number << 32 | bits;
    }
}
// The host: a token that is published leads to the mask of the next step.
static void host_saw(u64 *at, u64 word) {
    const u64 place = at - host_of->published_tokens;
    if (at >= host_of->published_tokens && place < PUBLISHED_STEPS * 8) give_mask(place % 8, (u32)word, (u32)(word >> 32) + 1);
}
// Lanes in turn take the best, the best after penalties, and draw among three after penalties.
// Where all is wanted, three of four lanes have masks, and three report log-probabilities.
enum Wanted { BEST, DRAWS, ALL };
static void set_draws(Sampling &sampling, int n_lanes, Wanted wanted) {
    const bool by_draws = wanted != BEST;
    first_number += PUBLISHED_STEPS + 1;
    host_of = &sampling, host_sees = host_saw;
    for (int lane = 0; lane < n_lanes; ++lane) {
        const u32 kind = by_draws ? (lane + 1) % 3 : 0;
        Draw &draw = sampling.draws[lane] = {};
        draw.flags = CHOSEN | (kind > 0 ? ADJUSTED : 0) | (kind > 1 ? DRAWN : 0);
        if (wanted == ALL) draw.flags |= (lane % 4 != 3 ? MASKED : 0) | (lane % 4 != 1 ? REPORTED : 0);
        draw.n_ranks = std::min(1 + lane * 4, 20);
        draw.vocab = USABLE, draw.top_k = 3, draw.seed = 5 + lane;
        draw.scale = 1.4426950408889634 * 4294967296.0, draw.least_weight = 1, draw.share = 1ull << 32; // temperature 1
        draw.repetition = 1.5f, draw.presence = 2.0f, draw.frequency = 0.5f;
        draw.token_number = draw.share_number = first_number;
        std::fill(sampling.marks + lane * VOCAB, sampling.marks + (lane + 1) * VOCAB, 0);
        sampling.marks[lane * VOCAB + PROMPT_TOKEN] = 1;
        give_mask(lane, 0, first_number);
    }
}
static u32 published(const u64 *words, u32 number) {
    if (*words >> 32 != number) printf("nothing was published\n"), exit(1);
    return (u32)*words;
}
// What the last token of a lane reports of log-probabilities, against its logits.
static void check_report(const Launch &launch, int lane, u32 token, u32 number) {
    const Draw &draw = launch.sampling.draws[lane];
    const float *logits = launch.logits + lane * VOCAB;
    const u64 *words = report_words(launch.sampling, number, lane);
    std::vector<u64> ranked;
    for (u32 row = 0; row < USABLE; ++row) ranked.push_back(candidate(score_of(logits[row]), row));
    std::sort(ranked.rbegin(), ranked.rend());
    u64 sum = 0;
    for (const u64 own : ranked) sum += weight_of(LOG_SCALE, (u32)(ranked[0] >> 32), (u32)(own >> 32));
    if (published(words, number) != __float_as_uint(logits[token])) printf("another logit is published\n"), exit(1);
    if ((published(words + 1, number) | (u64)published(words + 2, number) << 32) != sum) printf("weights are not what was added up\n"), exit(1);
    for (u32 rank = 0; rank < draw.n_ranks; ++rank) {
        const u32 likely = token_of(ranked[rank]);
        if (published(words + 3 + 2 * rank, number) != likely) printf("rank %u is another token\n", rank), exit(1);
        if (published(words + 4 + 2 * rank, number) != __float_as_uint(logits[likely] + 0.0f)) printf("rank %u has another logit\n", rank), exit(1);
    }
}
// The last token of every lane against its logits and the tokens before it; its shares of
// attention.
static void check_published(const Launch &launch, const Lists &lists, int n_lanes) {
    const Sampling &sampling = launch.sampling;
    const u32 last = first_number + launch.n_steps - 1;
    if (launch.mailbox->fault) printf("a block waited in vain in op %u\n", *launch.given_up), exit(1);
    for (int lane = 0; lane < n_lanes; ++lane) {
        const Draw &draw = sampling.draws[lane];
        std::vector<float> logits(launch.logits + lane * VOCAB, launch.logits + lane * VOCAB + USABLE);
        std::vector<u32> times(USABLE);
        const auto token_of_step = [&](u32 number) { return published(sampling.published_tokens + number % PUBLISHED_STEPS * 8 + lane, number); };
        for (u32 number = first_number; number < last; ++number) times[token_of_step(number)] += 1;
        for (u32 row = 0; row < USABLE && draw.flags & ADJUSTED; ++row) {
            if (times[row] > 0 || row == PROMPT_TOKEN) logits[row] = logits[row] < 0 ? logits[row] * 1.5f : logits[row] / 1.5f;
            if (times[row] > 0) logits[row] = logits[row] - 0.5f * times[row] - 2.0f;
        }
        const u32 token = token_of_step(last), before = last == first_number ? 0 : token_of_step(last - 1);
        if (draw.flags & REPORTED) check_report(launch, lane, token, last);
        for (u32 row = 0; row < USABLE && draw.flags & MASKED; ++row)
            if (!is_allowed(lane, before, row)) logits[row] = -INFINITY;
        if (std::isinf(logits[token])) printf("a token is forbidden\n"), exit(1);
        const int n_better = std::count_if(logits.begin(), logits.end(), [&](float logit) { return logit > logits[token]; });
        if (n_better >= (draw.flags & DRAWN ? 3 : 1)) printf("a token is not among the best\n"), exit(1);
        for (u32 cell = lists.partials[lane * 4 + 3]; cell < lists.partials[lane * 4 + 3] + lists.partials[lane * 4 + 2]; ++cell) {
            float sum = 0;
            for (int head = 0; head < HEADS; ++head) sum += last_shares(launch)[cell * HEADS + head];
            const u32 share = published(sampling.published_shares + last % PUBLISHED_STEPS * MOST_CELLS + cell, last);
            if (share != __float_as_uint(sum)) printf("a share is not what was added up\n"), exit(1);
        }
    }
    print_hash("published tokens", sampling.published_tokens, PUBLISHED_STEPS * 8 * 8);
    print_hash("published logits", sampling.told_logits, PUBLISHED_STEPS * 8 * REPORT_WORDS * 8);
    print_hash("marks", sampling.marks, (size_t)n_lanes * VOCAB * 4);
}
// A launch whose masks do not come ends when it is asked to, and leaves its tokens to the host.
static void check_stopped(Launch &launch, int n_lanes) {
    set_draws(launch.sampling, n_lanes, ALL);
    first_number += 1; // of no mask
    for (int lane = 0; lane < n_lanes; ++lane) launch.sampling.draws[lane].token_number += 1, launch.sampling.draws[lane].share_number += 1;
    launch.mailbox->stop = 1;
    run(launch);
    launch.number += launch.n_ops * launch.n_steps;
    launch.mailbox->stop = 0;
    for (int lane = 0; lane < n_lanes; ++lane) {
        const u32 token = published(launch.sampling.published_tokens + first_number % PUBLISHED_STEPS * 8 + lane, first_number);
        if ((token == DECLINED) != ((launch.sampling.draws[lane].flags & MASKED) != 0)) printf("a token without its mask\n"), exit(1);
    }
    if (launch.mailbox->fault) printf("a block waited in vain for a mask\n"), exit(1);
}

int main(int n_arguments, char **arguments) {
    if (n_arguments > 8 && !(dump = fopen(arguments[8], "wb"))) return printf("%s cannot be written\n", arguments[8]), 1;
    const int n_lanes = atoi(arguments[1]), n = atoi(arguments[2]), before = atoi(arguments[3]), n_steps = atoi(arguments[4]);
    const size_t dynamic_bytes = (size_t)atoi(arguments[5]) * LONG_STAGE_BYTES + WARPS * x_units(n_lanes * n) * 64;
    const Layout layout = (Layout)(atoi(arguments[6]) & 3);
    const bool drafted = atoi(arguments[6]) & DRAFTED;
    schedule.state += 977 * atoi(arguments[7]);
    grid = {N_BLOCKS, 1, 1};
    n_threads = PERSISTENT_THREADS;
    fibers.resize(N_BLOCKS * PERSISTENT_THREADS);
    for (u32 i = 0; i < N_BLOCKS; ++i) {
        blocks[i].index = i;
        blocks[i].dynamic = guarded<u8>(dynamic_bytes), blocks[i].dynamic_bytes = dynamic_bytes;
    }
    for (u32 i = 0; i < fibers.size(); ++i) fibers[i] = {nullptr, aligned_alloc(4096, STACK_BYTES), &blocks[i / PERSISTENT_THREADS], i % PERSISTENT_THREADS, false};
    check_rows();
    Lists lists;
    for (int lane = 0; lane < n_lanes; ++lane) lists.add_lane(before + 37 * lane + n, n, n_steps, layout, drafted);
    const int n_outputs = lists.counts[1];
    const bool fits = lists.n_pages <= PAGES && lists.n_partials <= MOST_PARTS && lists.n_cells <= MOST_CELLS && lists.counts[0] <= 8;
    if (!fits) return printf("too large\n"), 1;

    if (const char *path = getenv("WEFT_MATRICES")) matrices = fopen(path, "rb");
    const u8 *embedding = random_matrix(VOCAB, HIDDEN, 1), *head = random_matrix(VOCAB, HIDDEN, 1.7f / sqrtf(HIDDEN));
    std::vector<LayerAddresses> layers;
    std::vector<std::vector<u16>> stored;
    for (int layer = 0; layer < LAYERS; ++layer) {
        layers.push_back(random_layer());
        stored.emplace_back(layers[layer].kv, layers[layer].kv + KV_VALUES);
    }
    std::vector<u32> ops = {EMBED};
    for (u32 layer = 0; layer < LAYERS; ++layer)
        for (const u32 kind : {NORM_QKV, ROPE_STORE, ATTEND, PROJ_ADD, NORM_ROUTE, EXPERT_GATE_UP, EXPERT_DOWN_ADD, NORM_GATE_UP, DOWN_ADD}) {
            const bool is_of_experts = kind == NORM_ROUTE || kind == EXPERT_GATE_UP || kind == EXPERT_DOWN_ADD;
            if (is_of_experts ? routers[layer] == nullptr : kind >= NORM_GATE_UP && routers[layer]) continue;
            ops.push_back(kind | layer << 8);
        }
    ops.push_back(NORM_HEAD);

    u32 given_up = ~0u;
    Launch launch = {};
    launch.step = {lists.counts, lists.tokens, lists.positions, lists.positions, nullptr, lists.outputs, lists.partials, (const u32 *)lists.items.data()};
    launch.layers = layers.data(), launch.ops = ops.data();
    launch.embedding = embedding, launch.head = head;
    launch.final_norm = (const uint4 *)random_vector(HIDDEN, 1), launch.rope = rotations();
    launch.x = guarded<u64>(8 * HIDDEN_STRIDE / 2), launch.qkv = guarded<u64>(8 * QKV_WORDS);
    launch.a = guarded<u64>(8 * Q_STRIDE / 2), launch.h = guarded<u64>(8 * INTER_STRIDE / 2);
    launch.part_sums = guarded<u64>(MOST_PARTS * HEADS * DIM), launch.part_weights = guarded<u64>(MOST_PARTS * HEADS * 2);
    launch.cells = guarded<u64>(MOST_CELLS * HEADS * 2);
    launch.candidates = guarded<u64>(2 * 8 * N_BLOCKS * 2);
    launch.plain.x = guarded<u16>(8 * HIDDEN_STRIDE), launch.plain.qkv.q = guarded<u16>(8 * Q_WIDTH);
    launch.plain.qkv.k = guarded<u16>(8 * KV_WIDTH), launch.plain.qkv.v = guarded<u16>(8 * KV_WIDTH);
    launch.plain.a = guarded<u16>(8 * Q_STRIDE), launch.plain.h = guarded<u16>(8 * INTER_STRIDE);
    launch.logits = guarded<float>(8 * VOCAB), launch.shares = guarded<float>(MOST_CELLS * HEADS), launch.other_shares = guarded<float>(MOST_CELLS * HEADS);
#if HAS_EXPERTS
    launch.h = guarded<u64>(std::max(8 * INTER_STRIDE / 2, 8 * N_CHOSEN * EXPERT_STRIDE / 2));
    launch.experts = {routers.data(), guarded<u64>(8 * EXPERTS), guarded<Route>(8 * N_CHOSEN), guarded<u16>(8 * N_CHOSEN * EXPERT_STRIDE)};
#endif
    launch.done = guarded<u64>(N_BLOCKS), launch.chosen = guarded<u64>(8);
    launch.bare = guarded<uint4>(BARE_BYTES / 16);
    launch.sampling = empty_sampling();
    launch.given_up = &given_up, launch.mailbox = guarded<Mailbox>(1);
    launch.withheld = ~0u, launch.n_stages = atoi(arguments[5]);

    dump_lanes(lists, layers);
    const auto run_and_print = [&](u32 n_ops, u32 steps, Chooses chooses) {
        for (int layer = 0; layer < LAYERS; ++layer) std::copy(stored[layer].begin(), stored[layer].end(), layers[layer].kv);
        launch.n_ops = n_ops, launch.n_steps = steps, launch.chooses = chooses;
        run(launch);
        launch.number += n_ops * steps;
        printf("%u ops, %u tokens of a lane\n", n_ops, steps);
        print_all(launch, lists, layers);
        if (n_ops == ATTEND + 1) check_attention(launch, lists), check_few(launch, lists, stored[0]), check_blocks(launch, lists);
    };
    for (u32 n_ops = 1; n_ops <= ops.size(); ++n_ops) {
        run_and_print(n_ops, 1, CHOOSES_NOTHING);
        dump_results(launch, lists, layers);
    }
    dump_all(launch.logits, (size_t)n_outputs * VOCAB);
    if (dump && fclose(dump) != 0) return printf("the dump cannot be written\n"), 1;
    if (n == 1 || drafted) {
        for (const Wanted wanted : {BEST, DRAWS, ALL})
            for (const int steps : {1, n_steps}) {
                set_draws(launch.sampling, n_outputs, wanted);
                run_and_print(ops.size(), steps, wanted == BEST ? CHOOSES_BEST : CHOOSES_BY_DRAWS);
                check_published(launch, lists, n_outputs);
            }
        check_stopped(launch, n_outputs);
    }
    for (int i = 0; i < n_outputs * VOCAB; ++i)
        if (!std::isfinite(launch.logits[i])) printf("a logit is not a number\n"), exit(1);
    return launch.mailbox->fault != 0;
}
