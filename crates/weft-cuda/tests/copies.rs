//! Rows copied in and out beside steps: the same bits as without, whoever uses their pages next.
//!
//! Without a GPU each test is skipped; with `WEFT_REQUIRE_GPU=1` it fails.

mod gpu;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use gpu::gpu_is_there;
use weft_core::config::Config;
use weft_core::device::{Device, Inspect, Limits, Outputs, PageRows, Span};
use weft_core::kv::PageId;
use weft_core::plan::plan;
use weft_core::store::{HostRows, PackedRows, RowBytes};
use weft_core::weights::RandomWeights;
use weft_cuda::{CudaDevice, Launches, Options};
use weft_testing::{Work, run, run_in_blocks, span, tokens};

const LIMITS: Limits = Limits { step_tokens: 512, step_outputs: 512, positions: 4096, pages: 128 };
/// Rows of a chunk: 64 MiB of them, which take many steps of so small a model.
const CHUNK: usize = 2048;
const CHUNK_PAGES: PageId = CHUNK as PageId / 64;
/// How ops are launched matters to what runs beside copies.
const WAYS: [Launches; 2] = [Launches::Graph, Launches::Ops];

fn config() -> Config {
    let json = r#"{"model_type": "qwen3", "hidden_size": 128, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 256, "vocab_size": 500, "rope_theta": 10000.0,
        "max_position_embeddings": 4096, "tie_word_embeddings": true}"#;
    Config::from_json(json.as_bytes()).unwrap()
}

fn device(config: &Config, launches: Launches) -> CudaDevice {
    let options = Options { launches, ..Options::new(LIMITS) };
    CudaDevice::new(config, &RandomWeights::new(config, 7), options).unwrap()
}

/// A chunk's pages, from page `first` on.
fn pages(first: PageId) -> Vec<PageId> {
    (first..first + CHUNK_PAGES).collect()
}

/// Some rows of a chunk.
fn rows(config: &Config, seed: u32) -> Arc<HostRows> {
    let n = config.layers * CHUNK * config.kv_width();
    let numbers = |seed| -> RowBytes {
        tokens(n, seed, 0x4000).iter().flat_map(|n| (*n as u16).to_le_bytes()).collect()
    };
    Arc::new(HostRows { k: numbers(seed), v: numbers(seed + 1) })
}

fn bring(device: &mut CudaDevice, pages: &[PageId], rows: &Arc<HostRows>) {
    device.bring_kv(&PageRows { pages, first_row: 0, len: CHUNK }, Arc::clone(rows));
}

fn send(device: &mut CudaDevice, config: &Config, pages: &[PageId]) -> Receiver<HostRows> {
    let bytes = config.layers * CHUNK * config.kv_width() * 2;
    let layers = 0..config.layers as u16;
    let rows = PageRows { pages, first_row: 0, len: CHUNK };
    device.send_kv(layers, &rows, bytes)
}

fn same(a: &HostRows, b: &HostRows) -> bool {
    // Not `assert_eq`: it would print them.
    a == b
}

/// The logits of a token after `before` rows.
fn step(device: &mut CudaDevice, config: &Config, before: usize, own: &Span) -> Vec<f32> {
    let own = Span { len: before + 1, ..own.clone() };
    let token = 3 + (before as u32 * 7) % 400;
    let work = Work { outputs: Outputs::Last, ..Work::new(&[token], before, Vec::new(), own) };
    run(device, &plan(config), &[work]).remove(0)
}

#[test]
fn a_lane_decodes_beside_copies_as_it_does_alone() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    for launches in WAYS {
        let mut device = device(&config, launches);
        let own = span(0, 512, 0);
        let prompt = tokens(200, 5, config.vocab);
        run_in_blocks(&mut device, &config, &prompt, &[200], &own);
        let alone: Vec<_> = (200..400).map(|row| step(&mut device, &config, row, &own)).collect();

        let (leaving, coming) = (pages(16), pages(64));
        let (first, second) = (rows(&config, 1), rows(&config, 11));
        bring(&mut device, &leaving, &first);
        let mut sent = None;
        let (mut beside_out, mut beside_in) = (0, 0);
        for (row, alone) in (200..400).zip(&alone) {
            if row == 210 {
                sent = Some(send(&mut device, &config, &leaving));
            }
            if row == 300 {
                bring(&mut device, &coming, &second);
            }
            let logits = step(&mut device, &config, row, &own);
            assert!(logits == *alone, "{launches:?}: the logits of row {row} differ");
            beside_out += usize::from((210..300).contains(&row) && !device.is_settled(&leaving));
            beside_in += usize::from(row >= 300 && !device.is_settled(&coming));
        }
        // The step was over and the copy, begun before it, was not.
        assert!(
            beside_out > 0 && beside_in > 0,
            "{beside_out} and {beside_in} steps beside copies"
        );
        assert!(same(&sent.unwrap().recv().unwrap(), &first), "rows that left");
        let came = send(&mut device, &config, &coming).recv().unwrap();
        assert!(same(&came, &second), "rows that came");
    }
}

#[test]
fn who_uses_a_page_next_comes_after_the_copy() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    for launches in WAYS {
        let mut device = device(&config, launches);
        let (here, there) = (span(16, CHUNK, 0), span(64, CHUNK, 0));
        let prompt = tokens(CHUNK - 1, 5, config.vocab);
        let blocks = [512; 4];
        run_in_blocks(&mut device, &config, &prompt, &blocks, &here);
        let truth = step(&mut device, &config, CHUNK - 1, &here);

        // A copy out comes after the step that wrote, and before the copy in that takes the pages.
        let sent = send(&mut device, &config, &here.pages);
        bring(&mut device, &here.pages, &rows(&config, 1));
        let kept = Arc::new(sent.recv().unwrap());
        // A step comes after the copy in of what it reads.
        bring(&mut device, &there.pages, &kept);
        let logits = step(&mut device, &config, CHUNK - 1, &there);
        assert!(logits == truth, "{launches:?}: rows that were there in time");
        // A step that writes comes after the copy out.
        let sent = send(&mut device, &config, &there.pages);
        let other = tokens(CHUNK - 1, 6, config.vocab);
        run_in_blocks(&mut device, &config, &other, &blocks, &there);
        assert!(same(&sent.recv().unwrap(), &kept), "{launches:?}: rows that left in time");
        // So do copies of pages, and rows that are looked at.
        bring(&mut device, &here.pages, &kept);
        device.copy_rows(here.pages[31], 120, 63);
        let last = here.pages[31] * 64 + 62;
        assert_eq!(device.kv_row(7, 120 * 64 + 62), device.kv_row(7, last));
        bring(&mut device, &there.pages, &kept);
        assert_eq!(device.kv_row(7, there.pages[31] * 64 + 62), device.kv_row(7, last));
        // Whoever wants to wait can.
        bring(&mut device, &there.pages, &rows(&config, 2));
        device.settle(&there.pages);
        assert!(device.is_settled(&there.pages));
    }
}

#[test]
fn a_step_reads_pages_while_they_leave() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    let mut device = device(&config, Launches::Graph);
    let (chunk, own) = (span(16, CHUNK, 0), span(64, 64, CHUNK));
    let kept = rows(&config, 1);
    bring(&mut device, &chunk.pages, &kept);
    let step = |device: &mut CudaDevice| {
        let work = Work::new(&[5], 0, vec![chunk.clone()], own.clone());
        run(device, &plan(&config), &[Work { outputs: Outputs::Last, ..work }]).remove(0)
    };
    let alone = step(&mut device);
    let sent = send(&mut device, &config, &chunk.pages);
    let beside = step(&mut device);
    assert!(beside == alone, "the logits differ");
    assert!(same(&sent.recv().unwrap(), &kept), "rows that left");
}

/// Memory that the device lends and has pinned.
fn lent(device: &CudaDevice, bytes: usize) -> RowBytes {
    let memory = device.row_memory();
    let asked = Instant::now();
    loop {
        let taken = memory.take(bytes);
        if format!("{taken:?}").contains("pinned") {
            return taken;
        }
        assert!(asked.elapsed() < Duration::from_secs(60), "no memory was pinned");
        std::thread::yield_now();
    }
}

/// The same bytes in memory that the device lends.
fn lent_copy(device: &CudaDevice, bytes: &[u8]) -> RowBytes {
    let mut copy = lent(device, bytes.len());
    copy.copy_from_slice(bytes);
    copy
}

#[test]
fn rows_are_the_same_wherever_they_lie_in_main_memory() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    let mut device = device(&config, Launches::Graph);
    let (plain, n_layers) = (rows(&config, 1), config.layers as u16);
    let both = |device: &CudaDevice| [&plain.k, &plain.v].map(|list| lent_copy(device, list));
    let [k, v] = both(&device);
    let [other_k, _] = both(&device);
    let mixed = HostRows { k: other_k, v: plain.v.clone() };
    for (first, from) in [(16, &plain), (64, &Arc::new(HostRows { k, v })), (32, &Arc::new(mixed))]
    {
        bring(&mut device, &pages(first), from);
        // To memory of either kind: what is lent comes back and is lent again.
        for _ in 0..3 {
            let came = send(&mut device, &config, &pages(first)).recv().unwrap();
            assert!(same(&came, &plain), "rows from page {first} on, into {:?}", came.k);
        }
    }
    // Some layers, from the middle of a page to the middle of another.
    let (first_row, len) = (37, CHUNK - 64);
    let some = PageRows { pages: &pages(64), first_row, len };
    let width = config.kv_width() * 2;
    let (mut k, mut v) = (vec![0; 3 * len * width], vec![0; 3 * len * width]);
    device.read_kv(2..5, &some, &mut k, &mut v);
    for (layer, (k, v)) in k.chunks(len * width).zip(v.chunks(len * width)).enumerate() {
        let start = ((layer + 2) * CHUNK + first_row) * width;
        assert!(*k == plain.k[start..start + len * width], "keys of layer {layer}");
        assert!(*v == plain.v[start..start + len * width], "values of layer {layer}");
    }
    // And into them, in every layer.
    let n = usize::from(n_layers) * len * width;
    let own =
        HostRows { k: lent_copy(&device, &plain.v[..n]), v: lent_copy(&device, &plain.k[..n]) };
    let (k, v) = (own.k.to_vec(), own.v.to_vec());
    device.bring_kv(&some, Arc::new(own));
    let came = device.send_kv(0..n_layers, &some, n).recv().unwrap();
    assert!(*came.k == k && *came.v == v, "rows between the middles of pages");
}

/// Rows of some layers with numbers of many magnitudes, nothing, and some that are not finite.
fn rows_to_pack(config: &Config, len: usize) -> HostRows {
    let n = config.layers * len * config.kv_width();
    let numbers = |seed| -> RowBytes {
        let any = tokens(n, seed, 1 << 16);
        let number = |(i, bits): (usize, &u32)| match i / config.head_dim % 97 {
            0 => 0,
            1 if i % config.head_dim == 5 => 0x7f80,
            2 if i % config.head_dim == 7 => 0xffc1,
            // Denormal numbers and others that count as nothing.
            3 => *bits as u16 & 0x81ff,
            // Magnitudes of a few octaves, so that integers are of all sizes.
            _ => (*bits as u16 & 0x83ff) + 0x3c00,
        };
        any.iter().enumerate().map(number).flat_map(u16::to_le_bytes).collect()
    };
    HostRows { k: numbers(31), v: numbers(32) }
}

#[test]
fn rows_are_packed_and_unpacked_as_the_host_does_it() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    let mut device = device(&config, Launches::Graph);
    assert!(device.packs_rows());
    let form = PackedRows { kv_width: config.kv_width(), group: config.head_dim };
    let n_layers = config.layers as u16;
    for (first_row, len) in [(0, CHUNK), (37, CHUNK - 64), (5, 1)] {
        let at = PageRows { pages: &pages(16), first_row, len };
        let full = Arc::new(rows_to_pack(&config, len));
        let packed = HostRows { k: form.pack(&full.k), v: form.pack(&full.v) };
        let unpacked = HostRows { k: form.unpack(&packed.k), v: form.unpack(&packed.v) };
        // Into plain memory, and once there is some, into pinned memory.
        for round in 0..3 {
            device.bring_kv(&at, Arc::clone(&full));
            let sent = device.send_packed_kv(n_layers, &at, form).recv().unwrap();
            assert!(same(&sent, &packed), "{len} rows, round {round}: packed");
            // Other rows, so that those that do not come are noticed.
            let n = full.k.len();
            device.write_kv(&at, &vec![1; n], &vec![2; n]);
            device.bring_packed_kv(&at, Arc::new(sent), form);
            let back = device.send_kv(0..n_layers, &at, n).recv().unwrap();
            assert!(same(&back, &unpacked), "{len} rows, round {round}: unpacked");
        }
    }
}

#[test]
fn packed_and_full_rows_come_in_one_batch_and_every_layer_waits_for_them() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    let mut device = device(&config, Launches::Graph);
    let form = PackedRows { kv_width: config.kv_width(), group: config.head_dim };
    let full = rows(&config, 1);
    let packed = HostRows { k: form.pack(&full.k), v: form.pack(&full.v) };
    let packed =
        Arc::new(HostRows { k: lent_copy(&device, &packed.k), v: lent_copy(&device, &packed.v) });
    // One chunk of each kind, and many small ones.
    let (one, other) = (span(16, CHUNK, 0), span(64, CHUNK - 64, CHUNK));
    let (other_pages, own) = (pages(64), span(100, 64, 2 * CHUNK - 64));
    let prompt = tokens(32, 5, config.vocab);
    let step = |device: &mut CudaDevice| {
        let work = Work::new(&prompt, 0, vec![one.clone(), other.clone()], own.clone());
        run(device, &plan(&config), &[Work { outputs: Outputs::All, ..work }])
    };
    let of_page = |rows: &HostRows, page: usize| {
        let width = config.kv_width() * 2;
        let part = |list: &RowBytes| -> RowBytes {
            let layer = |layer| &list[(layer * CHUNK + page * 64) * width..][..64 * width];
            (0..config.layers).flat_map(|n| layer(n).to_vec()).collect()
        };
        Arc::new(HostRows { k: part(&rows.k), v: part(&rows.v) })
    };
    let small: Vec<_> = (0..CHUNK_PAGES as usize).map(|page| of_page(&full, page)).collect();
    let bring_all = |device: &mut CudaDevice| {
        for (page, rows) in small.iter().enumerate() {
            let at = PageRows { pages: &one.pages[page..=page], first_row: 0, len: 64 };
            device.bring_kv(&at, Arc::clone(rows));
        }
        let at = PageRows { pages: &other_pages, first_row: 0, len: CHUNK };
        device.bring_packed_kv(&at, Arc::clone(&packed), form);
    };
    bring_all(&mut device);
    device.settle(&one.pages);
    device.settle(&other_pages);
    let settled = step(&mut device);
    for round in 0..10 {
        for pages in [&one.pages, &other_pages] {
            bring(&mut device, pages, &rows(&config, 21));
            device.settle(pages);
        }
        bring_all(&mut device);
        assert!(step(&mut device) == settled, "round {round}: the logits differ");
    }
    // Rows that come twice to the same pages: the last ones stay.
    bring(&mut device, &one.pages, &rows(&config, 21));
    bring(&mut device, &one.pages, &full);
    let came = send(&mut device, &config, &one.pages).recv().unwrap();
    assert!(same(&came, &full), "the last rows");
}

#[test]
fn a_prompt_begins_before_the_last_rows_have_come() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    for launches in WAYS {
        let mut device = device(&config, launches);
        let plain = rows(&config, 1);
        let (chunk, own) = (span(16, CHUNK, 0), span(64, 64, CHUNK));
        let prompt = tokens(32, 5, config.vocab);
        let step = |device: &mut CudaDevice| {
            let work = Work::new(&prompt, 0, vec![chunk.clone()], own.clone());
            run(device, &plan(&config), &[Work { outputs: Outputs::All, ..work }])
        };
        bring(&mut device, &chunk.pages, &plain);
        device.settle(&chunk.pages);
        let settled = step(&mut device);
        for round in 0..10 {
            // Other rows, so that a layer that does not wait is noticed.
            bring(&mut device, &chunk.pages, &rows(&config, 21));
            device.settle(&chunk.pages);
            let [k, v] = [&plain.k, &plain.v].map(|list| lent_copy(&device, list));
            bring(&mut device, &chunk.pages, &Arc::new(HostRows { k, v }));
            let beside = step(&mut device);
            assert!(beside == settled, "{launches:?}, round {round}: the logits differ");
        }
        assert!(device.starts_early());
    }
}

#[test]
fn lent_memory_is_not_lent_again_while_it_is_copied() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    let mut device = device(&config, Launches::Graph);
    let plain = rows(&config, 1);
    for round in 0..20 {
        let [k, v] = [&plain.k, &plain.v].map(|list| lent_copy(&device, list));
        bring(&mut device, &pages(16), &Arc::new(HostRows { k, v }));
        // Whoever gets memory now may write to it.
        let memory = device.row_memory();
        for _ in 0..4 {
            memory.take(plain.k.len()).fill(0xaa);
        }
        let came = send(&mut device, &config, &pages(16)).recv().unwrap();
        assert!(same(&came, &plain), "round {round}");
    }
}

#[test]
fn a_device_may_go_while_rows_are_copied() {
    if !gpu_is_there() {
        return;
    }
    let config = config();
    let mut device = device(&config, Launches::Graph);
    let some = rows(&config, 1);
    bring(&mut device, &pages(16), &some);
    let sent = send(&mut device, &config, &pages(16));
    let lent = HostRows { k: lent_copy(&device, &some.k), v: lent_copy(&device, &some.v) };
    bring(&mut device, &pages(64), &Arc::new(lent));
    let kept = lent_copy(&device, &some.k);
    drop(device);
    assert!(same(&sent.recv().unwrap(), &some));
    assert!(kept == some.k, "memory that outlives its device");
}
