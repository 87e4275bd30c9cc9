//! Rows of keys and values are copied out, in, and by the page.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Inspect, Outputs, PageRows, Span};
use weft_core::dtype::{Dtype, Element};
use weft_core::kv::{PAGE_ROWS, PageId, Slot, pages_for};
use weft_core::plan::plan;

use super::{LIMITS, Make, first_row, poisoned};
use crate::{Work, config, fill_before, run, span_from, tokens};

/// A row's key and value.
type Row = (Vec<f32>, Vec<f32>);

/// Rows come out in the promised order, and go in exactly where the caller says: neither into the
/// rest of a page nor into another page.
pub fn rows_come_out_and_go_in_as_they_are(make: Make<'_>) {
    let pages = Just((0..LIMITS.pages as PageId).collect::<Vec<_>>()).prop_shuffle();
    let cases = (1_usize..260, pages, [first_row(), first_row()]);
    TestRunner::new(Cases::with_cases(12))
        .run(&cases, |(len, pages, [first_row, other_first_row])| {
            let config = config("qwen3");
            let mut device = make(&config, LIMITS);
            number_all_rows(&mut *device, &config);
            let mut expected = all_rows(&*device, &config);
            let (from, to) = pages.split_at(pages_for(first_row + len));
            let from = PageRows { pages: from, first_row, len };
            let to = PageRows { pages: to, first_row: other_first_row, len };

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
    for (len, first_row) in
        [(1, 0), (1, 63), (63, 0), (64, 0), (64, 1), (65, 30), (150, 0), (150, 40)]
    {
        copied_rows_give_the_same_bits(make, len, [first_row; 2]);
    }
}

/// The same holds if they start at another row of their first page there. A device that cuts its
/// sums at page borders need not satisfy this.
pub fn where_a_page_is_entered_does_not_show(make: Make<'_>) {
    for (len, first_rows) in [(1, [0, 63]), (64, [0, 1]), (65, [63, 0]), (150, [0, 40])] {
        copied_rows_give_the_same_bits(make, len, first_rows);
    }
}

/// Rows start at one row of their first page where they are computed, and at another where they are
/// copied to.
fn copied_rows_give_the_same_bits(make: Make<'_>, len: usize, [here, there]: [usize; 2]) {
    let config = config("qwen3");
    let document = tokens(len, 3, config.vocab);
    let home = span_from(1, here, len, 0);
    let mut device = poisoned(make, &config);
    fill_before(&mut *device, &config, &home);
    run(&mut *device, &plan(&config), &[Work::new(&document, 0, Vec::new(), home.clone())]);
    let rows = PageRows { pages: &home.pages, first_row: here, len };
    let (k, v) = read(&*device, &config, 0..config.layers as u16, &rows);

    let pages = (1..).map(|page| 20 - 3 * page).take(pages_for(there + len)).collect();
    let away = Span { pages, first_row: there, ..home.clone() };
    let mut other = poisoned(make, &config);
    fill_before(&mut *other, &config, &away);
    other.write_kv(&PageRows { pages: &away.pages, first_row: there, len }, &k, &v);
    let ask = |device: &mut dyn Inspect, span: Span| {
        let query = tokens(5, 4, config.vocab);
        let own = crate::span(9, query.len(), len);
        let work = Work { outputs: Outputs::All, ..Work::new(&query, 0, vec![span], own) };
        run(device, &plan(&config), &[work])
    };
    let asked = ask(&mut *device, home);
    assert!(asked.iter().flatten().all(|logit| logit.is_finite()));
    assert_eq!(asked, ask(&mut *other, away), "{len} rows from {here}, from {there}");
}

/// A copied page, or its first rows, equals the page in every layer, and nothing else changes.
pub fn a_copied_page_is_the_page(make: Make<'_>) {
    let config = config("qwen3");
    for (from, to) in [(3, 7), (7, 3), (0, 23), (23, 0), (5, 5)] {
        let mut device = make(&config, LIMITS);
        number_all_rows(&mut *device, &config);
        let mut expected = all_rows(&*device, &config);
        for n in [0, 1, 37, PAGE_ROWS - 1, PAGE_ROWS] {
            device.copy_rows(from, to, n);
            let first = |page: PageId| page as usize * PAGE_ROWS;
            for rows in &mut expected {
                for row in 0..n {
                    rows[first(to) + row] = rows[first(from) + row].clone();
                }
            }
            assert!(all_rows(&*device, &config) == expected, "{n} rows, {from} → {to}");
        }
    }
}

fn read(
    device: &dyn Inspect,
    config: &Config,
    layers: std::ops::Range<u16>,
    rows: &PageRows<'_>,
) -> (Vec<u8>, Vec<u8>) {
    let bytes = layers.len() * rows.len * config.kv_width() * device.dtype().bytes();
    let (mut k, mut v) = (vec![0; bytes], vec![0; bytes]);
    device.read_kv(layers, rows, &mut k, &mut v);
    (k, v)
}

/// Converts bytes in the device's number format.
fn numbers(device: &dyn Inspect, bytes: &[u8]) -> Vec<f32> {
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

/// Fills every row of every layer with whole numbers that no format rounds, to detect misplaced
/// rows.
fn number_all_rows(device: &mut dyn Inspect, config: &Config) {
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
fn all_rows(device: &dyn Inspect, config: &Config) -> Vec<Vec<Row>> {
    let slots = 0..(LIMITS.pages * PAGE_ROWS) as Slot;
    (0..config.layers as u16)
        .map(|layer| slots.clone().map(|slot| device.kv_row(layer, slot)).collect())
        .collect()
}
