// Structs that the host knows too: they must lie in memory as it thinks.
// Emitted by layouts.rs: do not edit.
#pragma once

#include "kernels/base.cuh"
#include "kernels/routes.cuh"
#include "kernels/rows.cuh"
#include "kernels/sampling.cuh"
#include "kernels/section.cuh"
#include "ops/attend.cuh"
#include "ops/norm_qkv.cuh"
#include "persistent/launch.cuh"

// The host's `Section`.
static_assert(sizeof(Section) == 64, "Section");
static_assert(OFFSET_OF(Section, pages) == 0 && sizeof(Section::pages) == 16, "Section::pages");
static_assert(OFFSET_OF(Section, position) == 16 && sizeof(Section::position) == 4, "Section::position");
static_assert(OFFSET_OF(Section, home) == 20 && sizeof(Section::home) == 4, "Section::home");
static_assert(OFFSET_OF(Section, n_rows) == 24 && sizeof(Section::n_rows) == 2, "Section::n_rows");
static_assert(OFFSET_OF(Section, first) == 26 && sizeof(Section::first) == 2, "Section::first");
static_assert(OFFSET_OF(Section, n_marks) == 28 && sizeof(Section::n_marks) == 2, "Section::n_marks");
static_assert(OFFSET_OF(Section, cell) == 30 && sizeof(Section::cell) == 2, "Section::cell");
static_assert(OFFSET_OF(Section, marks) == 32 && sizeof(Section::marks) == 32, "Section::marks");

// The host's `QueryTile`.
static_assert(sizeof(QueryTile) == 32, "QueryTile");
static_assert(OFFSET_OF(QueryTile, first_token) == 0 && sizeof(QueryTile::first_token) == 4, "QueryTile::first_token");
static_assert(OFFSET_OF(QueryTile, n_tokens) == 4 && sizeof(QueryTile::n_tokens) == 4, "QueryTile::n_tokens");
static_assert(OFFSET_OF(QueryTile, first_section) == 8 && sizeof(QueryTile::first_section) == 4, "QueryTile::first_section");
static_assert(OFFSET_OF(QueryTile, n_sections) == 12 && sizeof(QueryTile::n_sections) == 4, "QueryTile::n_sections");
static_assert(OFFSET_OF(QueryTile, cell) == 16 && sizeof(QueryTile::cell) == 4, "QueryTile::cell");
static_assert(OFFSET_OF(QueryTile, n_cells) == 20 && sizeof(QueryTile::n_cells) == 4, "QueryTile::n_cells");
static_assert(OFFSET_OF(QueryTile, gap) == 24 && sizeof(QueryTile::gap) == 8, "QueryTile::gap");

// The host's `Item`.
static_assert(sizeof(Item) == 232, "Item");
static_assert(OFFSET_OF(Item, pages) == 0 && sizeof(Item::pages) == 16, "Item::pages");
static_assert(OFFSET_OF(Item, n_rows) == 16 && sizeof(Item::n_rows) == 4, "Item::n_rows");
static_assert(OFFSET_OF(Item, n_queries) == 20 && sizeof(Item::n_queries) == 4, "Item::n_queries");
static_assert(OFFSET_OF(Item, n_stores) == 24 && sizeof(Item::n_stores) == 4, "Item::n_stores");
static_assert(OFFSET_OF(Item, first) == 28 && sizeof(Item::first) == 1, "Item::first");
static_assert(OFFSET_OF(Item, n_marks) == 29 && sizeof(Item::n_marks) == 1, "Item::n_marks");
static_assert(OFFSET_OF(Item, first_pages) == 30 && sizeof(Item::first_pages) == 1, "Item::first_pages");
static_assert(OFFSET_OF(Item, has_inner) == 31 && sizeof(Item::has_inner) == 1, "Item::has_inner");
static_assert(OFFSET_OF(Item, stores) == 32 && sizeof(Item::stores) == 16, "Item::stores");
static_assert(OFFSET_OF(Item, cuts) == 48 && sizeof(Item::cuts) == 8, "Item::cuts");
static_assert(OFFSET_OF(Item, stretches) == 56 && sizeof(Item::stretches) == 16, "Item::stretches");
static_assert(OFFSET_OF(Item, marks) == 72 && sizeof(Item::marks) == 32, "Item::marks");
static_assert(OFFSET_OF(Item, queries) == 104 && sizeof(Item::queries) == 128, "Item::queries");

// The host's `Query`.
static_assert(sizeof(Query) == 16, "Query");
static_assert(OFFSET_OF(Query, token) == 0 && sizeof(Query::token) == 2, "Query::token");
static_assert(OFFSET_OF(Query, n_parts) == 2 && sizeof(Query::n_parts) == 2, "Query::n_parts");
static_assert(OFFSET_OF(Query, seen) == 4 && sizeof(Query::seen) == 2, "Query::seen");
static_assert(OFFSET_OF(Query, cell) == 6 && sizeof(Query::cell) == 2, "Query::cell");
static_assert(OFFSET_OF(Query, rotate_at) == 8 && sizeof(Query::rotate_at) == 4, "Query::rotate_at");
static_assert(OFFSET_OF(Query, partial) == 12 && sizeof(Query::partial) == 4, "Query::partial");

// The host's `StepAddresses`.
static_assert(sizeof(Step) == 64, "Step");
static_assert(OFFSET_OF(Step, counts) == 0 && sizeof(Step::counts) == 8, "Step::counts");
static_assert(OFFSET_OF(Step, tokens) == 8 && sizeof(Step::tokens) == 8, "Step::tokens");
static_assert(OFFSET_OF(Step, positions) == 16 && sizeof(Step::positions) == 8, "Step::positions");
static_assert(OFFSET_OF(Step, key_positions) == 24 && sizeof(Step::key_positions) == 8, "Step::key_positions");
static_assert(OFFSET_OF(Step, slots) == 32 && sizeof(Step::slots) == 8, "Step::slots");
static_assert(OFFSET_OF(Step, outputs) == 40 && sizeof(Step::outputs) == 8, "Step::outputs");
static_assert(OFFSET_OF(Step, partials) == 48 && sizeof(Step::partials) == 8, "Step::partials");
static_assert(OFFSET_OF(Step, attention) == 56 && sizeof(Step::attention) == 8, "Step::attention");

// The host's `DrawWords`.
static_assert(sizeof(Draw) == 80, "Draw");
static_assert(OFFSET_OF(Draw, flags) == 0 && sizeof(Draw::flags) == 4, "Draw::flags");
static_assert(OFFSET_OF(Draw, vocab) == 4 && sizeof(Draw::vocab) == 4, "Draw::vocab");
static_assert(OFFSET_OF(Draw, top_k) == 8 && sizeof(Draw::top_k) == 4, "Draw::top_k");
static_assert(OFFSET_OF(Draw, index) == 12 && sizeof(Draw::index) == 4, "Draw::index");
static_assert(OFFSET_OF(Draw, repetition) == 16 && sizeof(Draw::repetition) == 4, "Draw::repetition");
static_assert(OFFSET_OF(Draw, frequency) == 20 && sizeof(Draw::frequency) == 4, "Draw::frequency");
static_assert(OFFSET_OF(Draw, presence) == 24 && sizeof(Draw::presence) == 4, "Draw::presence");
static_assert(OFFSET_OF(Draw, min_tokens) == 28 && sizeof(Draw::min_tokens) == 4, "Draw::min_tokens");
static_assert(OFFSET_OF(Draw, scale) == 32 && sizeof(Draw::scale) == 8, "Draw::scale");
static_assert(OFFSET_OF(Draw, least_weight) == 40 && sizeof(Draw::least_weight) == 8, "Draw::least_weight");
static_assert(OFFSET_OF(Draw, share) == 48 && sizeof(Draw::share) == 8, "Draw::share");
static_assert(OFFSET_OF(Draw, seed) == 56 && sizeof(Draw::seed) == 8, "Draw::seed");
static_assert(OFFSET_OF(Draw, token_number) == 64 && sizeof(Draw::token_number) == 4, "Draw::token_number");
static_assert(OFFSET_OF(Draw, share_number) == 68 && sizeof(Draw::share_number) == 4, "Draw::share_number");
static_assert(OFFSET_OF(Draw, n_ranks) == 72 && sizeof(Draw::n_ranks) == 4, "Draw::n_ranks");
static_assert(OFFSET_OF(Draw, gap) == 76 && sizeof(Draw::gap) == 4, "Draw::gap");

// The host's `AdjustmentWords`.
static_assert(sizeof(Adjustment) == 16, "Adjustment");
static_assert(OFFSET_OF(Adjustment, token) == 0 && sizeof(Adjustment::token) == 4, "Adjustment::token");
static_assert(OFFSET_OF(Adjustment, mark) == 4 && sizeof(Adjustment::mark) == 4, "Adjustment::mark");
static_assert(OFFSET_OF(Adjustment, bias) == 8 && sizeof(Adjustment::bias) == 4, "Adjustment::bias");
static_assert(OFFSET_OF(Adjustment, output) == 12 && sizeof(Adjustment::output) == 4, "Adjustment::output");

// The host's `SamplingAddresses`.
static_assert(sizeof(Sampling) == 120, "Sampling");
static_assert(OFFSET_OF(Sampling, draws) == 0 && sizeof(Sampling::draws) == 8, "Sampling::draws");
static_assert(OFFSET_OF(Sampling, best) == 8 && sizeof(Sampling::best) == 8, "Sampling::best");
static_assert(OFFSET_OF(Sampling, bias) == 16 && sizeof(Sampling::bias) == 8, "Sampling::bias");
static_assert(OFFSET_OF(Sampling, marks) == 24 && sizeof(Sampling::marks) == 8, "Sampling::marks");
static_assert(OFFSET_OF(Sampling, published_tokens) == 32 && sizeof(Sampling::published_tokens) == 8, "Sampling::published_tokens");
static_assert(OFFSET_OF(Sampling, published_shares) == 40 && sizeof(Sampling::published_shares) == 8, "Sampling::published_shares");
static_assert(OFFSET_OF(Sampling, n_cells) == 48 && sizeof(Sampling::n_cells) == 8, "Sampling::n_cells");
static_assert(OFFSET_OF(Sampling, parts) == 56 && sizeof(Sampling::parts) == 8, "Sampling::parts");
static_assert(OFFSET_OF(Sampling, gates) == 64 && sizeof(Sampling::gates) == 8, "Sampling::gates");
static_assert(OFFSET_OF(Sampling, likely) == 72 && sizeof(Sampling::likely) == 8, "Sampling::likely");
static_assert(OFFSET_OF(Sampling, weights) == 80 && sizeof(Sampling::weights) == 8, "Sampling::weights");
static_assert(OFFSET_OF(Sampling, told_logits) == 88 && sizeof(Sampling::told_logits) == 8, "Sampling::told_logits");
static_assert(OFFSET_OF(Sampling, given_masks) == 96 && sizeof(Sampling::given_masks) == 8, "Sampling::given_masks");
static_assert(OFFSET_OF(Sampling, masks) == 104 && sizeof(Sampling::masks) == 8, "Sampling::masks");
static_assert(OFFSET_OF(Sampling, late) == 112 && sizeof(Sampling::late) == 8, "Sampling::late");

// The host's `Attended`.
static_assert(sizeof(Attended) == 56, "Attended");
static_assert(OFFSET_OF(Attended, a) == 0 && sizeof(Attended::a) == 8, "Attended::a");
static_assert(OFFSET_OF(Attended, sent) == 8 && sizeof(Attended::sent) == 8, "Attended::sent");
static_assert(OFFSET_OF(Attended, sent_cells) == 16 && sizeof(Attended::sent_cells) == 8, "Attended::sent_cells");
static_assert(OFFSET_OF(Attended, sums) == 24 && sizeof(Attended::sums) == 8, "Attended::sums");
static_assert(OFFSET_OF(Attended, weights) == 32 && sizeof(Attended::weights) == 8, "Attended::weights");
static_assert(OFFSET_OF(Attended, cells) == 40 && sizeof(Attended::cells) == 8, "Attended::cells");
static_assert(OFFSET_OF(Attended, shares) == 48 && sizeof(Attended::shares) == 8, "Attended::shares");

// The host's `QkvStore`.
static_assert(sizeof(QkvStore) == 32, "QkvStore");
static_assert(OFFSET_OF(QkvStore, bias) == 0 && sizeof(QkvStore::bias) == 8, "QkvStore::bias");
static_assert(OFFSET_OF(QkvStore, q) == 8 && sizeof(QkvStore::q) == 8, "QkvStore::q");
static_assert(OFFSET_OF(QkvStore, k) == 16 && sizeof(QkvStore::k) == 8, "QkvStore::k");
static_assert(OFFSET_OF(QkvStore, v) == 24 && sizeof(QkvStore::v) == 8, "QkvStore::v");

// The host's `RowsPlace`.
static_assert(sizeof(RowsPlace) == 272, "RowsPlace");
static_assert(OFFSET_OF(RowsPlace, pages) == 0 && sizeof(RowsPlace::pages) == 256, "RowsPlace::pages");
static_assert(OFFSET_OF(RowsPlace, n_rows) == 256 && sizeof(RowsPlace::n_rows) == 4, "RowsPlace::n_rows");
static_assert(OFFSET_OF(RowsPlace, first_row) == 260 && sizeof(RowsPlace::first_row) == 4, "RowsPlace::first_row");
static_assert(OFFSET_OF(RowsPlace, layer_bytes) == 264 && sizeof(RowsPlace::layer_bytes) == 8, "RowsPlace::layer_bytes");

// The host's `StoredRoute`.
static_assert(sizeof(Route) == 8, "Route");
static_assert(OFFSET_OF(Route, expert) == 0 && sizeof(Route::expert) == 4, "Route::expert");
static_assert(OFFSET_OF(Route, weight) == 4 && sizeof(Route::weight) == 4, "Route::weight");

// The host's `RouteSource`.
static_assert(sizeof(RouteSource) == 16, "RouteSource");
static_assert(OFFSET_OF(RouteSource, logits) == 0 && sizeof(RouteSource::logits) == 8, "RouteSource::logits");
static_assert(OFFSET_OF(RouteSource, routes) == 8 && sizeof(RouteSource::routes) == 8, "RouteSource::routes");

// The host's `ExpertTile`.
static_assert(sizeof(ExpertTile) == 16, "ExpertTile");
static_assert(OFFSET_OF(ExpertTile, expert) == 0 && sizeof(ExpertTile::expert) == 4, "ExpertTile::expert");
static_assert(OFFSET_OF(ExpertTile, first) == 4 && sizeof(ExpertTile::first) == 4, "ExpertTile::first");
static_assert(OFFSET_OF(ExpertTile, end) == 8 && sizeof(ExpertTile::end) == 4, "ExpertTile::end");
static_assert(OFFSET_OF(ExpertTile, unused) == 12 && sizeof(ExpertTile::unused) == 4, "ExpertTile::unused");

// The host's `Sorted`.
static_assert(sizeof(Sorted) == 48, "Sorted");
static_assert(OFFSET_OF(Sorted, counts) == 0 && sizeof(Sorted::counts) == 8, "Sorted::counts");
static_assert(OFFSET_OF(Sorted, slots) == 8 && sizeof(Sorted::slots) == 8, "Sorted::slots");
static_assert(OFFSET_OF(Sorted, starts) == 16 && sizeof(Sorted::starts) == 8, "Sorted::starts");
static_assert(OFFSET_OF(Sorted, sources) == 24 && sizeof(Sorted::sources) == 8, "Sorted::sources");
static_assert(OFFSET_OF(Sorted, totals) == 32 && sizeof(Sorted::totals) == 8, "Sorted::totals");
static_assert(OFFSET_OF(Sorted, tiles) == 40 && sizeof(Sorted::tiles) == 8, "Sorted::tiles");

// The host's `LayerAddresses`.
static_assert(sizeof(LayerAddresses) == 88, "LayerAddresses");
static_assert(OFFSET_OF(LayerAddresses, attention_norm) == 0 && sizeof(LayerAddresses::attention_norm) == 8, "LayerAddresses::attention_norm");
static_assert(OFFSET_OF(LayerAddresses, qkv) == 8 && sizeof(LayerAddresses::qkv) == 8, "LayerAddresses::qkv");
static_assert(OFFSET_OF(LayerAddresses, bias) == 16 && sizeof(LayerAddresses::bias) == 8, "LayerAddresses::bias");
static_assert(OFFSET_OF(LayerAddresses, q_norm) == 24 && sizeof(LayerAddresses::q_norm) == 8, "LayerAddresses::q_norm");
static_assert(OFFSET_OF(LayerAddresses, k_norm) == 32 && sizeof(LayerAddresses::k_norm) == 8, "LayerAddresses::k_norm");
static_assert(OFFSET_OF(LayerAddresses, o) == 40 && sizeof(LayerAddresses::o) == 8, "LayerAddresses::o");
static_assert(OFFSET_OF(LayerAddresses, mlp_norm) == 48 && sizeof(LayerAddresses::mlp_norm) == 8, "LayerAddresses::mlp_norm");
static_assert(OFFSET_OF(LayerAddresses, gate_up) == 56 && sizeof(LayerAddresses::gate_up) == 8, "LayerAddresses::gate_up");
static_assert(OFFSET_OF(LayerAddresses, down) == 64 && sizeof(LayerAddresses::down) == 8, "LayerAddresses::down");
static_assert(OFFSET_OF(LayerAddresses, kv) == 72 && sizeof(LayerAddresses::kv) == 8, "LayerAddresses::kv");
static_assert(OFFSET_OF(LayerAddresses, variants) == 80 && sizeof(LayerAddresses::variants) == 8, "LayerAddresses::variants");

// The host's `PlainBuffers`.
static_assert(sizeof(PlainBuffers) == 56, "PlainBuffers");
static_assert(OFFSET_OF(PlainBuffers, x) == 0 && sizeof(PlainBuffers::x) == 8, "PlainBuffers::x");
static_assert(OFFSET_OF(PlainBuffers, qkv) == 8 && sizeof(PlainBuffers::qkv) == 32, "PlainBuffers::qkv");
static_assert(OFFSET_OF(PlainBuffers, a) == 40 && sizeof(PlainBuffers::a) == 8, "PlainBuffers::a");
static_assert(OFFSET_OF(PlainBuffers, h) == 48 && sizeof(PlainBuffers::h) == 8, "PlainBuffers::h");

// The host's `ExpertAddresses`.
static_assert(sizeof(ExpertAddresses) == 32, "ExpertAddresses");
static_assert(OFFSET_OF(ExpertAddresses, routers) == 0 && sizeof(ExpertAddresses::routers) == 8, "ExpertAddresses::routers");
static_assert(OFFSET_OF(ExpertAddresses, logits) == 8 && sizeof(ExpertAddresses::logits) == 8, "ExpertAddresses::logits");
static_assert(OFFSET_OF(ExpertAddresses, routes) == 16 && sizeof(ExpertAddresses::routes) == 8, "ExpertAddresses::routes");
static_assert(OFFSET_OF(ExpertAddresses, h) == 24 && sizeof(ExpertAddresses::h) == 8, "ExpertAddresses::h");

// The host's `Mailbox`.
static_assert(sizeof(Mailbox) == 8, "Mailbox");
static_assert(OFFSET_OF(Mailbox, stop) == 0 && sizeof(Mailbox::stop) == 4, "Mailbox::stop");
static_assert(OFFSET_OF(Mailbox, fault) == 4 && sizeof(Mailbox::fault) == 4, "Mailbox::fault");

// The host's `Arguments`.
static_assert(sizeof(Launch) == 472, "Launch");
static_assert(OFFSET_OF(Launch, step) == 0 && sizeof(Launch::step) == 64, "Launch::step");
static_assert(OFFSET_OF(Launch, layers) == 64 && sizeof(Launch::layers) == 8, "Launch::layers");
static_assert(OFFSET_OF(Launch, ops) == 72 && sizeof(Launch::ops) == 8, "Launch::ops");
static_assert(OFFSET_OF(Launch, embedding) == 80 && sizeof(Launch::embedding) == 8, "Launch::embedding");
static_assert(OFFSET_OF(Launch, head) == 88 && sizeof(Launch::head) == 8, "Launch::head");
static_assert(OFFSET_OF(Launch, final_norm) == 96 && sizeof(Launch::final_norm) == 8, "Launch::final_norm");
static_assert(OFFSET_OF(Launch, rope) == 104 && sizeof(Launch::rope) == 8, "Launch::rope");
static_assert(OFFSET_OF(Launch, x) == 112 && sizeof(Launch::x) == 8, "Launch::x");
static_assert(OFFSET_OF(Launch, qkv) == 120 && sizeof(Launch::qkv) == 8, "Launch::qkv");
static_assert(OFFSET_OF(Launch, a) == 128 && sizeof(Launch::a) == 8, "Launch::a");
static_assert(OFFSET_OF(Launch, h) == 136 && sizeof(Launch::h) == 8, "Launch::h");
static_assert(OFFSET_OF(Launch, part_sums) == 144 && sizeof(Launch::part_sums) == 8, "Launch::part_sums");
static_assert(OFFSET_OF(Launch, part_weights) == 152 && sizeof(Launch::part_weights) == 8, "Launch::part_weights");
static_assert(OFFSET_OF(Launch, cells) == 160 && sizeof(Launch::cells) == 8, "Launch::cells");
static_assert(OFFSET_OF(Launch, candidates) == 168 && sizeof(Launch::candidates) == 8, "Launch::candidates");
static_assert(OFFSET_OF(Launch, done) == 176 && sizeof(Launch::done) == 8, "Launch::done");
static_assert(OFFSET_OF(Launch, chosen) == 184 && sizeof(Launch::chosen) == 8, "Launch::chosen");
static_assert(OFFSET_OF(Launch, plain) == 192 && sizeof(Launch::plain) == 56, "Launch::plain");
static_assert(OFFSET_OF(Launch, logits) == 248 && sizeof(Launch::logits) == 8, "Launch::logits");
static_assert(OFFSET_OF(Launch, shares) == 256 && sizeof(Launch::shares) == 8, "Launch::shares");
static_assert(OFFSET_OF(Launch, other_shares) == 264 && sizeof(Launch::other_shares) == 8, "Launch::other_shares");
static_assert(OFFSET_OF(Launch, sampling) == 272 && sizeof(Launch::sampling) == 120, "Launch::sampling");
static_assert(OFFSET_OF(Launch, given_up) == 392 && sizeof(Launch::given_up) == 8, "Launch::given_up");
static_assert(OFFSET_OF(Launch, mailbox) == 400 && sizeof(Launch::mailbox) == 8, "Launch::mailbox");
static_assert(OFFSET_OF(Launch, n_ops) == 408 && sizeof(Launch::n_ops) == 4, "Launch::n_ops");
static_assert(OFFSET_OF(Launch, n_steps) == 412 && sizeof(Launch::n_steps) == 4, "Launch::n_steps");
static_assert(OFFSET_OF(Launch, number) == 416 && sizeof(Launch::number) == 4, "Launch::number");
static_assert(OFFSET_OF(Launch, withheld) == 420 && sizeof(Launch::withheld) == 4, "Launch::withheld");
static_assert(OFFSET_OF(Launch, n_stages) == 424 && sizeof(Launch::n_stages) == 4, "Launch::n_stages");
static_assert(OFFSET_OF(Launch, chooses) == 428 && sizeof(Launch::chooses) == 4, "Launch::chooses");
static_assert(OFFSET_OF(Launch, experts) == 432 && sizeof(Launch::experts) == 32, "Launch::experts");
static_assert(OFFSET_OF(Launch, bare) == 464 && sizeof(Launch::bare) == 8, "Launch::bare");
