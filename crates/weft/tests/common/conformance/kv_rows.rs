//! Rows of keys and values copied out, in, and by the page.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft::config::Config;
use weft::device::{Device, Outputs, Rows, Span};
use weft::dtype::{Dtype, Element};
use weft::kv::{PAGE_ROWS, PageId, Slot, pages_for};
use weft::plan::plan;

use super::{LIMITS, Make, poisoned};
use crate::common::{Work, config, run, span, tokens};

/// A row's key and value.
type Row = (Vec<f32>, Vec<f32>);

/// Rows come out in the order they are promised in, and go in where they are told to and nowhere
/// else: not into the rest of a page, not into another.
pub fn rows_come_out_and_go_in_as_they_are(make: Make<'_>) {
    let pages = Just((0..LIMITS.pages as PageId).collect::<Vec<_>>()).prop_shuffle();
    TestRunner::new(Cases::with_cases(12))
        .run(&(1_usize..260, pages), |(len, pages)| {
            let config = config("qwen3");
            let mut device = make(&config, LIMITS);
            number_all_rows(&mut *device, &config);
            let mut expected = all_rows(&*device, &config);
            let (from, to) = pages.split_at(pages_for(len));
            let (from, to) = (Rows { pages: from, len }, Rows { pages: to, len });

            let (k, v) = read(&*device, &config, 0..config.layers as u16, &from);
            let rows = (0..config.layers).flat_map(|layer| from.slots().map(move |s| (layer, s)));
            let (wanted_k, wanted_v): Row = {
                let all: Vec<&Row> = rows.map(|(l, slot)| &expected[l][slot as usize]).collect();
                let join = |part: fn(&Row) -> &Vec<f32>| {
                    all.iter().flat_map(|row| part(row).clone()).collect()
                };
                (join(|row| &row.0), join(|row| &row.1))
            };
            prop_assert_eq!(numbers(&*device, &k), wanted_k);
            prop_assert_eq!(numbers(&*device, &v), wanted_v);
            let second = read(&*device, &config, 1..2, &from);
            prop_assert!(second.0 == k[k.len() / 2..] && second.1 == v[v.len() / 2..]);

            device.write_kv(&to, &k, &v);
            for rows in &mut expected {
                for (from, to) in from.slots().zip(to.slots()) {
                    rows[to as usize] = rows[from as usize].clone();
                }
            }
            prop_assert!(all_rows(&*device, &config) == expected);
            Ok(())
        })
        .unwrap();
}

/// A span computed on one device and read from other pages of another gives the same bits.
pub fn rows_copied_elsewhere_give_the_same_bits(make: Make<'_>) {
    for len in [1, 63, 64, 65, 150] {
        let config = config("qwen3");
        let document = tokens(len, 3, config.vocab);
        let home = span(1, len, 0);
        let mut device = poisoned(make, &config);
        run(&mut *device, &plan(&config), &[Work::new(&document, 0, Vec::new(), home.clone())]);
        let rows = Rows { pages: &home.pages, len };
        let (k, v) = read(&*device, &config, 0..config.layers as u16, &rows);

        let pages: Vec<PageId> = home.pages.iter().map(|page| 20 - 3 * page).collect();
        let mut other = poisoned(make, &config);
        other.write_kv(&Rows { pages: &pages, len }, &k, &v);
        let ask = |device: &mut dyn Device, span: Span| {
            let query = tokens(5, 4, config.vocab);
            let own = crate::common::span(8, query.len(), len);
            let work = Work { outputs: Outputs::All, ..Work::new(&query, 0, vec![span], own) };
            run(device, &plan(&config), &[work])
        };
        let asked = ask(&mut *device, home.clone());
        assert!(asked.iter().flatten().all(|logit| logit.is_finite()));
        assert_eq!(asked, ask(&mut *other, Span { pages, ..home }), "{len} rows");
    }
}

/// A copied page is the page, in every layer, and no other changes.
pub fn a_copied_page_is_the_page(make: Make<'_>) {
    let config = config("qwen3");
    for (from, to) in [(3, 7), (7, 3), (0, 23), (23, 0), (5, 5)] {
        let mut device = make(&config, LIMITS);
        number_all_rows(&mut *device, &config);
        let mut expected = all_rows(&*device, &config);
        device.copy_page(from, to);
        let first = |page: PageId| page as usize * PAGE_ROWS;
        for rows in &mut expected {
            for row in 0..PAGE_ROWS {
                rows[first(to) + row] = rows[first(from) + row].clone();
            }
        }
        assert!(all_rows(&*device, &config) == expected, "{from} → {to}");
    }
}

fn read(
    device: &dyn Device,
    config: &Config,
    layers: std::ops::Range<u16>,
    rows: &Rows<'_>,
) -> (Vec<u8>, Vec<u8>) {
    let bytes = layers.len() * rows.len * config.kv_width() * device.dtype().bytes();
    let (mut k, mut v) = (vec![0; bytes], vec![0; bytes]);
    device.read_kv(layers, rows, &mut k, &mut v);
    (k, v)
}

/// Bytes of the device's format as numbers.
fn numbers(device: &dyn Device, bytes: &[u8]) -> Vec<f32> {
    fn widen<E: Element>(bytes: &[u8]) -> Vec<f32> {
        let mut elements = vec![E::default(); bytes.len() / E::DTYPE.bytes()];
        E::read_le(bytes, &mut elements);
        elements.into_iter().map(E::to_f32).collect()
    }
    match device.dtype() {
        Dtype::F32 => widen::<f32>(bytes),
        Dtype::Bf16 => widen::<half::bf16>(bytes),
    }
}

/// Fills every row of every layer with whole numbers that no format rounds, so that a row that was
/// put elsewhere shows.
fn number_all_rows(device: &mut dyn Device, config: &Config) {
    for layer in 0..config.layers as u16 {
        for slot in 0..(LIMITS.pages * PAGE_ROWS) as Slot {
            let numbers = tokens(2 * config.kv_width(), slot * 2 + u32::from(layer), 251);
            let numbers: Vec<f32> = numbers.iter().map(|n| *n as f32).collect();
            let (k, v) = numbers.split_at(config.kv_width());
            device.write_kv_row(layer, slot, k, v);
        }
    }
}

/// \[layers\]\[slots\]
fn all_rows(device: &dyn Device, config: &Config) -> Vec<Vec<Row>> {
    let slots = 0..(LIMITS.pages * PAGE_ROWS) as Slot;
    (0..config.layers as u16)
        .map(|layer| slots.clone().map(|slot| device.kv_row(layer, slot)).collect())
        .collect()
}
