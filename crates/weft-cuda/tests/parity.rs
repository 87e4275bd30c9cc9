//! The CUDA device against the reference, op by op; what every device must keep; and the two families
//! of kernels and the two ways of launching against one another, bit for bit. Without a GPU each test
//! is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;
mod like;

use gpu::gpu_is_there;
use half::bf16;
use like::{SMALL, options};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Device, Inspect, Outputs, PageRows, Span};
use weft_core::plan::plan;
use weft_core::reference::Reference;
use weft_core::weights::RandomWeights;
use weft_cuda::{Chip, CudaDevice, Launches, Options};
use weft_testing::conformance;
use weft_testing::golden::{self, Golden};
use weft_testing::parity::{Layout, Noise, Sizes, compare, copy_rows, shapes, works};
use weft_testing::{LIMITS, Work, config, config_with, fill, poison, run, span, tokens};

fn device_with(config: &Config, launches: Launches) -> CudaDevice {
    let options = Options { launches, ..options(LIMITS) };
    CudaDevice::new(config, &RandomWeights::new(config, 7), options).unwrap()
}

fn device(config: &Config) -> CudaDevice {
    device_with(config, Launches::Graph)
}

fn reference(config: &Config) -> Reference<bf16> {
    Reference::new(config, &RandomWeights::new(config, 7), LIMITS).unwrap()
}

/// The noise of another order of summation; and of attention's weights rounded to bf16, 2⁻⁹ each, in sums that
/// may be near zero.
const NOISE: Noise = Noise { sums: 3e-5, weights: 0.01 };
/// The same where a row is so near to a tie that its squares, added in another order, move dozens of equal values at once
/// over the border of a rounding: so in one row of the model that a small GPU runs.
const WIDE_NOISE: Noise = Noise { sums: 2e-3, weights: 0.01 };

/// Lanes with old spans of any length, home (so, moved by any shift) and position, and new tokens after
/// them: few, so that steps of both families come up.
fn lanes() -> impl Strategy<Value = Vec<Layout>> {
    let old = prop::collection::vec((1_usize..300, 0_usize..200), 0..3);
    prop::collection::vec((old, 1_usize..6), 1..=3)
}

/// Sizes that fill tiles and units exactly, hardly, and over; odd widths; every family.
fn sizes() -> impl Strategy<Value = Sizes> {
    (1_usize..600, 1_usize..4, 1_usize..6, 1_usize..66, 1_usize..600, 1_usize..400)
}

#[test]
fn every_op_matches_the_reference() {
    if !gpu_is_there() {
        return;
    }
    // Every case compiles kernels of its own, and waits for that most of the time.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| some_ops_match_the_reference(6));
        }
    });
}

fn some_ops_match_the_reference(n_cases: u32) {
    TestRunner::new(Cases::with_cases(n_cases))
        .run(&(shapes(sizes()), lanes(), any::<u32>()), |(config, lanes, seed)| {
            let (mut ours, mut theirs) = (device(&config), reference(&config));
            poison(&mut ours, &config);
            poison(&mut theirs, &config);
            let mut works = works(&config, &mut theirs, &lanes, seed);
            // Marks anywhere, also between two spans and after the last token.
            for (seed, work) in (seed / 2..).zip(&mut works) {
                work.marks = tokens(seed as usize % 7, seed, 200).iter().map(|at| at + 1).collect();
                work.marks.sort_unstable();
                work.marks.dedup();
            }
            compare(&config, &mut ours, &mut theirs, &works, NOISE)
        })
        .unwrap();
}

/// Spans that begin in the middle of a page, after rows of something else; one moved, one with the
/// new tokens in it.
#[test]
fn spans_that_begin_in_a_page_match_the_reference() {
    if !gpu_is_there() {
        return;
    }
    let config = config("qwen3");
    let (mut ours, mut theirs) = (device(&config), reference(&config));
    for (first_row, n_new) in [(1, 1), (37, 3), (63, 9), (40, 40)] {
        poison(&mut ours, &config);
        let old = Span { first_row, home_position: 11, ..span(0, first_row + 250, 0) };
        let old = Span { len: 250, ..old };
        let own = Span { first_row: 64 - first_row, ..span(8, 64 - first_row + n_new, 250) };
        for span in [&old, &own] {
            let before = Span { first_row: 0, len: span.first_row, ..span.clone() };
            fill(&mut ours, &config, &before, 5);
            fill(&mut theirs, &config, &before, 5);
        }
        fill(&mut theirs, &config, &old, 3);
        let marks = vec![1, 27, 28, 64, 190, 250, 251];
        let new = tokens(n_new, 4, config.vocab);
        let work = Work { marks, ..Work::new(&new, 0, vec![old], Span { len: n_new, ..own }) };
        compare(&config, &mut ours, &mut theirs, &[work], NOISE).unwrap();
    }
}

/// A context in one span gives the same logits and the same shares of every stretch whichever kernel
/// computes its last token: `attend`, `attend_block`, or `attend_block` with sections shared out.
#[test]
fn shares_of_stretches_are_the_same_in_every_kernel() {
    if !gpu_is_there() {
        return;
    }
    // With 32 KV heads, 160 tokens make so many blocks that an H200 does not share out sections.
    let json = r#"{"model_type": "qwen3", "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 64,
        "num_key_value_heads": 32, "head_dim": 10, "intermediate_size": 37, "vocab_size": 101,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;
    let config = Config::from_json(json.as_bytes()).unwrap();
    let (ops, prompt) = (plan(&config), tokens(500, 4, config.vocab));
    let many: Vec<u32> = (1..=200).map(|i| i * 2).chain(401..=456).collect();
    for (first_row, marks) in [
        (0, vec![]),
        (0, vec![499]),
        (0, vec![1, 63, 64, 65, 128, 200, 201, 256, 300, 498]),
        (37, vec![27, 28, 91, 155, 219, 283, 347, 499]),
        (63, many),
    ] {
        let own = Span { first_row, ..span(0, first_row + 500, 0) };
        let run = |blocks: &[usize]| {
            let mut device = device(&config);
            poison(&mut device, &config);
            fill(&mut device, &config, &Span { first_row: 0, len: first_row, ..own.clone() }, 9);
            let (mut start, mut logits) = (0, Vec::new());
            for n in blocks {
                let block = Work::new(&prompt[start..start + n], start, Vec::new(), own.clone());
                logits.extend(run(&mut device, &ops, &[Work { marks: marks.clone(), ..block }]));
                start += n;
            }
            assert_eq!(start, 500);
            let attention = device.attention(0, blocks[blocks.len() - 1] - 1);
            (logits, attention, device.kv_row(1, own.slot(499)))
        };
        let truth = run(&[160, 160, 160, 20]);
        assert_eq!(truth.1.len(), marks.len() + 1);
        assert!(truth.0.iter().flatten().chain(&truth.1).all(|number| number.is_finite()));
        let name = format!("{first_row}, {} marks", marks.len());
        for blocks in [&[160, 160, 20, 160][..], &[160, 160, 160, 12, 8], &[100, 160, 160, 79, 1]] {
            assert!(run(blocks) == truth, "{name}: {blocks:?}");
        }
        // Marks change nothing else.
        let unmarked = {
            let mut device = device(&config);
            fill(&mut device, &config, &Span { first_row: 0, len: first_row, ..own.clone() }, 9);
            weft_testing::run_in_blocks(&mut device, &config, &prompt, &[160, 160, 160, 20], &own)
        };
        assert!(unmarked == truth.0, "{name}: the logits without");
    }
}

#[test]
fn golden_models_err_no_more_than_transformers() {
    if !gpu_is_there() {
        return;
    }
    for name in golden::MODELS {
        let golden = Golden::open(name);
        let mut device =
            CudaDevice::new(&golden.config, &golden.weights(), options(LIMITS)).unwrap();
        golden::errs_no_more_than_transformers(&golden, &mut device);
    }
}

macro_rules! conforms {
    ($($name:ident($($argument:expr)?);)*) => {
        $(
            #[test]
            fn $name() {
                if gpu_is_there() {
                    let make = |config: &Config, limits| -> Box<dyn Inspect> {
                        let weights = RandomWeights::new(config, 7);
                        Box::new(CudaDevice::new(config, &weights, options(limits)).unwrap())
                    };
                    conformance::$name(&make $(, $argument)?);
                }
            }
        )*
    };
}

conforms! {
    a_prompt_cut_anywhere_gives_the_same_bits();
    neighbours_do_not_show();
    two_runs_give_the_same_bits();
    // Keys are rounded where they are stored, at home and there.
    a_row_repaired_in_a_moved_span_equals_one_there(0.05);
    repaired_rows_see_all_before_them(conformance::Unseen::WeighsNothing);
    lanes_that_share_spans_equal_each_alone();
    a_draft_gives_the_bits_of_single_steps();
    shares_are_the_lane_s_own();
    the_span_with_the_matching_key_gets_the_share();
    rows_come_out_and_go_in_as_they_are();
    rows_copied_elsewhere_give_the_same_bits();
    a_copied_page_is_the_page();
    pages_that_lanes_share_in_part();
    a_context_in_one_span_shows_no_cut();
    states_show_neither_cuts_nor_neighbours();
    wrong_steps_are_refused();
}

/// A graph of overlapping kernels computes what launches one after the other do, bit for bit.
#[test]
fn a_graph_computes_what_its_ops_do() {
    if !gpu_is_there() {
        return;
    }
    let cases = (prop::collection::vec(1_usize..300, 1..=4), 1_usize..=2, any::<u32>());
    TestRunner::new(Cases::with_cases(12))
        .run(&cases, |(lengths, n_new, seed)| {
            let config = config("qwen3");
            let ops = plan(&config);
            let results = [Launches::Graph, Launches::Ops].map(|launches| {
                let mut device = device_with(&config, launches);
                poison(&mut device, &config);
                let (mut works, mut page) = (Vec::new(), 0);
                for (lane, n) in lengths.iter().enumerate() {
                    let prompt = tokens(n + n_new, seed.wrapping_add(lane as u32), config.vocab);
                    let own = span(page, n + n_new, 0);
                    page += own.pages.len() as u32;
                    let blocks = [150, 150];
                    weft_testing::run_in_blocks(&mut device, &config, &prompt[..*n], &blocks, &own);
                    works.push(Work::new(&prompt[*n..], *n, Vec::new(), own));
                }
                let logits = run(&mut device, &ops, &works);
                let of = |(lane, work): (usize, &Work)| device.attention(lane, work.last_output());
                let shares: Vec<_> = works.iter().enumerate().map(of).collect();
                let kept: Vec<_> = works.iter().map(|w| device.kv_row(1, w.store_at[0])).collect();
                (logits, shares, kept)
            });
            prop_assert!(results[0].0.iter().flatten().all(|logit| logit.is_finite()));
            prop_assert_eq!(&results[0], &results[1]);
            Ok(())
        })
        .unwrap();
}

/// A few tokens, several, and blocks of them take different ways through matrices and sections, over a context of
/// two sections; none of it shows.
#[test]
fn blocks_of_any_size_give_the_same_bits() {
    if !gpu_is_there() {
        return;
    }
    for family in ["qwen3", "qwen2"] {
        let config = config(family);
        let (prompt, own) = (tokens(500, 4, config.vocab), span(0, 500, 0));
        let run = |blocks: &[usize]| {
            let mut device = device(&config);
            poison(&mut device, &config);
            let logits = weft_testing::run_in_blocks(&mut device, &config, &prompt, blocks, &own);
            let attention = device.attention(0, blocks[blocks.len() - 1] - 1);
            (logits, attention, device.kv_row(1, own.slot(499)))
        };
        let truth = run(&[150, 150, 150, 50]);
        assert!(truth.0.iter().flatten().all(|logit| logit.is_finite()));
        assert_eq!(run(&[9, 32, 33, 31, 20, 8, 150, 17, 150, 50]), truth, "{family}");
        assert_eq!(run(&[150, 120, 12, 1, 100, 30, 25, 7, 32, 23]), truth, "{family}");
    }
}

/// Prompts take other kernels where warpgroups multiply, or where pages are laid: the same bits.
#[test]
fn warpgroups_do_not_show() {
    if !gpu_is_there() {
        return;
    }
    let chip = weft_cuda::probe().unwrap().chip;
    for family in ["qwen3", "qwen2", "llama"] {
        let config = config(family);
        let (prompt, own) = (tokens(500, 4, config.vocab), span(0, 500, 0));
        let with = Options { chip: Some(chip), ..Options::new(LIMITS) };
        let without = Some(Chip { has_warpgroups: false, ..chip });
        let ways = [with, Options { tiles_to_lay: 0, ..with }, Options { chip: without, ..with }];
        let [with, laid, without] = ways.map(|options| {
            let weights = RandomWeights::new(&config, 7);
            let mut device = CudaDevice::new(&config, &weights, options).unwrap();
            poison(&mut device, &config);
            let blocks = [150, 33, 117, 150, 50];
            let logits = weft_testing::run_in_blocks(&mut device, &config, &prompt, &blocks, &own);
            (logits, device.attention(0, blocks[4] - 1), device.kv_row(1, own.slot(499)))
        });
        assert!(with.0.iter().flatten().all(|logit| logit.is_finite()));
        assert_eq!([&with; 2], [&laid, &without], "{family}");
    }
}

/// Lanes that share a span read it once, and compute what each computes alone.
#[test]
fn sharing_a_span_does_not_show() {
    if !gpu_is_there() {
        return;
    }
    let config = config("qwen3");
    let (ops, shared) = (plan(&config), span(0, 300, 0));
    let document = tokens(300, 3, config.vocab);
    let work = |lane: u32| {
        let placed = Span { position: 5 * lane as usize, ..shared.clone() };
        let own = span(8 + lane, 1, 300 + 5 * lane as usize);
        Work::new(&tokens(1, 40 + lane, config.vocab), 0, vec![placed], own)
    };
    let filled = || {
        let mut device = device(&config);
        poison(&mut device, &config);
        for block in [0..150, 150..300] {
            let part = Work::new(&document[block.clone()], block.start, Vec::new(), shared.clone());
            run(&mut device, &ops, &[part]);
        }
        device
    };
    let (works, mut device): (Vec<Work>, _) = ((0..8).map(work).collect(), filled());
    let together = run(&mut device, &ops, &works);
    let alone: Vec<_> =
        works.iter().flat_map(|w| run(&mut device, &ops, std::slice::from_ref(w))).collect();
    assert_eq!(together, alone);
    assert_eq!(run(&mut filled(), &ops, &works), together);
}

/// Cuts between spans change where sums are cut, so they show in the last bits and no further.
#[test]
fn cuts_between_spans_hardly_show() {
    if !gpu_is_there() {
        return;
    }
    let config = config("llama");
    let ops = plan(&config);
    let prompt = tokens(150, 9, config.vocab);
    let mut whole = device(&config);
    let at_once =
        weft_testing::run_in_blocks(&mut whole, &config, &prompt, &[150], &span(0, 150, 0));
    let mut device = device(&config);
    let (mut spans, mut logits, mut page) = (Vec::new(), Vec::new(), 0);
    for (start, end) in [(0, 1), (1, 40), (40, 41), (41, 149), (149, 150)] {
        let own = span(page, end - start, start);
        page += own.pages.len() as u32;
        let work = Work::new(&prompt[start..end], 0, spans.clone(), own.clone());
        logits.extend(run(&mut device, &ops, &[work]));
        spans.push(own);
    }
    let size = at_once.iter().flatten().fold(0.0_f32, |max, logit| max.max(logit.abs()));
    for (a, b) in at_once.iter().zip(&logits) {
        let difference = weft_testing::max_difference(a, b);
        assert!(difference <= 0.02 * size, "{difference} of {size}");
    }
}

/// Sizes of 4B and 8B in two layers: inputs that do not fit into registers, rings that go round, tiles in
/// strips, a last one that is short, blocks with several groups of tiles and a last one that lacks some. Each op against the reference; then lanes together and alone, many
/// times over: a stage overwritten under a warp that reads it showed a few times in a thousand.
#[test]
fn wide_models_keep_all_of_it() {
    if !gpu_is_there() {
        return;
    }
    for (hidden, intermediate) in [(2560, 9728), (4096, 12288)] {
        let json = format!(
            r#"{{"model_type": "qwen3", "hidden_size": {hidden}, "num_hidden_layers": 2,
                "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "intermediate_size": {intermediate}, "vocab_size": 1000, "rope_theta": 10000.0,
                "max_position_embeddings": 512, "tie_word_embeddings": false}}"#
        );
        keeps_all_of_it(&Config::from_json(json.as_bytes()).unwrap(), None, NOISE);
    }
}

/// Less shared memory: shorter rings and strips, keys and values in one place, fewer stages for blocks of tokens.
#[test]
fn a_small_gpu_computes_the_same() {
    if !gpu_is_there() {
        return;
    }
    let config = Config::from_json(
        br#"{"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 2,
            "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 8192, "vocab_size": 1000, "rope_theta": 10000.0,
            "max_position_embeddings": 512, "tie_word_embeddings": false}"#,
    )
    .unwrap();
    keeps_all_of_it(&config, Some(SMALL), WIDE_NOISE);
    let make = |config: &Config, limits| -> Box<dyn Inspect> {
        let options = Options { chip: Some(SMALL), ..options(limits) };
        Box::new(CudaDevice::new(config, &RandomWeights::new(config, 7), options).unwrap())
    };
    conformance::a_prompt_cut_anywhere_gives_the_same_bits(&make);
    conformance::lanes_that_share_spans_equal_each_alone(&make);
}

fn keeps_all_of_it(config: &Config, chip: Option<Chip>, noise: Noise) {
    let like = options(LIMITS);
    let options = Options { chip: chip.or(like.chip), ..like };
    let mut ours = CudaDevice::new(config, &RandomWeights::new(config, 7), options).unwrap();
    let mut theirs = reference(config);
    poison(&mut ours, config);
    let lanes: Vec<_> = (0..4).map(|lane| (vec![(20 * lane + 1, 7)], 1)).collect();
    let mut works = works(config, &mut theirs, &lanes[..3], 5);
    works.push(Work::new(&tokens(1, 77, config.vocab), 0, Vec::new(), span(20, 1, 0)));
    works.iter_mut().for_each(|work| work.outputs = Outputs::Last);
    compare(config, &mut ours, &mut theirs, &works, noise).unwrap();

    let ops = plan(config);
    (0..2).for_each(|layer| copy_rows(&mut ours, &theirs, &works, layer));
    let alone: Vec<_> =
        works.iter().flat_map(|work| run(&mut ours, &ops, std::slice::from_ref(work))).collect();
    for round in 0..600 {
        let together = run(&mut ours, &ops, &works);
        for (lane, (a, b)) in together.iter().zip(&alone).enumerate() {
            let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "round {round}, lane {lane}: {differ} logits differ");
        }
    }
}

#[test]
fn rows_come_out_as_they_went_in() {
    if !gpu_is_there() {
        return;
    }
    let config = config("qwen3");
    let mut device = device(&config);
    let bytes = config.layers * 700 * config.kv_width() * 2;
    let numbers = |seed| -> Vec<u8> {
        tokens(bytes / 2, seed, 0x4000).iter().flat_map(|n| (*n as u16).to_le_bytes()).collect()
    };
    let (k, v) = (numbers(1), numbers(2));
    for first_row in [0, 1, 37, 63] {
        // More rows than are carried in one piece.
        let pages: Vec<u32> = (0..12).map(|i| (4 + 5 * i) % 24).collect();
        let rows = PageRows { pages: &pages, first_row, len: 700 };
        device.write_kv(&rows, &k, &v);
        let (mut k_back, mut v_back) = (vec![0; bytes], vec![0; bytes]);
        device.copy_rows(pages[0], 23, 64);
        let moved: Vec<u32> = [23].iter().chain(&pages[1..]).copied().collect();
        let moved = PageRows { pages: &moved, ..rows };
        device.read_kv(0..config.layers as u16, &moved, &mut k_back, &mut v_back);
        assert!((&k_back, &v_back) == (&k, &v), "{first_row}");
        let first = device.kv_row(1, rows.slots().next().unwrap());
        let at = 700 * config.kv_width() * 2;
        let number = |bytes: &[u8]| bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        assert_eq!((first.0[0], first.1[0]), (number(&k), number(&v)), "{first_row}");
    }
}

/// The first rows of a page go to another in every layer; its other rows stay, and so do all other
/// pages.
#[test]
fn the_first_rows_of_a_page_are_copied() {
    if !gpu_is_there() {
        return;
    }
    for family in ["qwen3", "llama"] {
        let config = config(family);
        let mut device = device(&config);
        let all = |device: &CudaDevice| -> Vec<_> {
            let layers = 0..config.layers as u16;
            let slots = |layer| (0..4 * 64).map(move |slot| (layer, slot));
            layers.flat_map(slots).map(|(layer, slot)| device.kv_row(layer, slot)).collect()
        };
        for rows in [0, 1, 31, 37, 64] {
            fill(&mut device, &config, &span(0, 4 * 64, 0), rows as u32);
            let mut expected = all(&device);
            device.copy_rows(1, 2, rows);
            for layer in 0..config.layers {
                let first = layer * 4 * 64;
                for row in 0..rows {
                    expected[first + 2 * 64 + row] = expected[first + 64 + row].clone();
                }
            }
            assert!(all(&device) == expected, "{family}: {rows} rows");
        }
    }
}

#[test]
fn rope_scalings_are_the_reference_s() {
    if !gpu_is_there() {
        return;
    }
    let config = config_with(
        "qwen3",
        r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}"#,
    );
    let (mut ours, mut theirs) = (device(&config), reference(&config));
    let work = Work::new(&tokens(100, 3, config.vocab), 0, Vec::new(), span(0, 100, 0));
    compare(&config, &mut ours, &mut theirs, &[work], NOISE).unwrap();
}
