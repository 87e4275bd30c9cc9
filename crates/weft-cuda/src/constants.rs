//! `generated/constants.cuh`: every constant that host and kernels share, emitted once, from here.
//!
//! Each constant is defined where the host uses it; this file lists them for the kernels. Those of
//! a model and a GPU come from [`Shape`]. A copy for one model is in the source tree, for editors;
//! a test checks that it equals what this file emits.

use std::fmt::Write;

use weft_core::config::Config;
use weft_core::kv::PAGE_ROWS;

use crate::persistent::{self, Chooses, OpKind, SharedMemory};
use crate::shape::Shape;
use crate::{bandwidth, buffers, ops, rows, sampling, shape, tables};

/// A header while it is written.
struct Header(String);

impl Header {
    fn new(about: &str) -> Self {
        Self(format!(
            "// {about}\n// Emitted by constants.rs: do not edit.\n#pragma once\n\n#include \"kernels/types.cuh\"\n"
        ))
    }

    fn title(&mut self, title: &str) {
        writeln!(self.0, "\n// {title}").expect("strings take all");
    }

    fn line(&mut self, kind: &str, name: &str, value: &str) {
        writeln!(self.0, "constexpr {kind} {name} = {value};").expect("strings take all");
    }

    fn numbers<'a>(&mut self, all: impl IntoIterator<Item = (&'a str, usize)>) {
        all.into_iter().for_each(|(name, value)| self.line("int", name, &value.to_string()));
    }

    /// What `#if` asks for.
    fn define(&mut self, name: &str, value: bool) {
        writeln!(self.0, "#define {name} {}", u8::from(value)).expect("strings take all");
    }

    fn words(&mut self, all: &[(&str, u32)]) {
        all.iter().for_each(|(name, value)| self.line("u32", name, &format!("{value:#x}u")));
    }

    /// A normal number as its 24 bits times a power of two, so that no compiler rounds it.
    fn float(&mut self, name: &str, value: f32) {
        assert!(value.is_normal() && value > 0.0, "{name} is {value}");
        let bits = value.to_bits();
        let (fraction, exponent) = (bits & 0x7f_ffff | 0x80_0000, (bits >> 23) as i32 - 150);
        self.line("float", name, &format!("{fraction:#x}p{exponent}f"));
    }

    fn choices(&mut self, name: &str, all: &[(&str, u32)]) {
        let all: Vec<String> =
            all.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        writeln!(self.0, "enum {name} : u32 {{ {} }};", all.join(", ")).expect("strings take all");
    }
}

/// The header for a model on a GPU.
pub(crate) fn header(config: &Config, shape: &Shape) -> String {
    let mut to = Header::new("What kernels and the host must agree on, for one model and one GPU.");

    to.title("A model's sizes, and how its matrices are cut for the GPU (shape.rs).");
    let numbers = shape.constants(config);
    to.numbers(numbers.iter().map(|(name, value)| (name.as_str(), *value)));
    to.define("HAS_EXPERTS", config.experts.is_some());
    to.float("NORM_EPS", config.norm_eps);
    to.float("SCALE_LOG2", std::f32::consts::LOG2_E / (config.head_dim as f32).sqrt());

    to.title("How matrices are packed and multiplied (shape.rs, ops/).");
    to.numbers([
        ("WARPS", shape::WARPS),
        ("UNIT_BYTES", shape::UNIT_BYTES),
        ("READ_PIECE", bandwidth::READ_PIECE),
        ("PIECE_PAGES", rows::PIECE_PAGES),
        ("BLOCK_TOKENS", shape::BLOCK_TOKENS),
        ("BLOCK_ROWS", shape::BLOCK_ROWS),
        ("BLOCK_STAGE", shape::BLOCK_STAGE),
        ("BLOCK_THREADS", ops::BLOCK_THREADS),
        ("RING_THREADS", ops::RING_THREADS),
    ]);

    to.title("The lists of a step (tables.rs), and attention (ops/attend.rs, buffers.rs).");
    to.numbers([
        ("FEW", tables::FEW),
        ("PAGE_ROWS", PAGE_ROWS),
        ("SECTION_PAGES", tables::SECTION_PAGES),
        ("TILE_QUERIES", shape.tile_queries()),
        ("TILE_THREADS", ops::attend::TILE_THREADS),
        ("LAY_THREADS", ops::attend::LAY_THREADS),
        ("STORED_HEADS", ops::rope_store::STORED_HEADS),
        ("VALUE_TOKENS", ops::rope_store::VALUE_TOKENS),
        ("VALUE_THREADS", ops::rope_store::VALUE_THREADS),
        ("SENT_ROW", buffers::sent_row(shape.dim)),
    ]);
    to.words(&[
        ("NO_CELL", u32::from(tables::NO_CELL)),
        ("NOWHERE", tables::NOWHERE),
        ("NOTHING", u32::from_ne_bytes([buffers::NOTHING; 4])),
    ]);

    choosing(&mut to, config);

    persistent_kernel(&mut to, config, shape);
    to.0
}

/// The constants of the persistent kernel.
fn persistent_kernel(to: &mut Header, config: &Config, shape: &Shape) {
    to.title("The persistent kernel (persistent/).");
    let memory = SharedMemory::new(config, shape, shape.chip.shared_bytes);
    to.numbers([
        ("PORTION_UNITS", persistent::PORTION_UNITS),
        ("MOST_STAGES", persistent::MOST_STAGES),
        ("PERSISTENT_THREADS", persistent::threads(config.experts.is_some())),
        ("X_UNIT_BYTES", persistent::X_UNIT_BYTES),
        ("LONG_STAGE_BYTES", memory.stage_bytes()),
        ("CODED_STRIP", memory.coded_strip()),
        ("BARE_BYTES", persistent::bare_bytes(config)),
    ]);
    to.line("u32", "BARE_TOKENS", &persistent::BARE_TOKENS.to_string());
    to.line("u32", "WHOLE_TOKENS", &persistent::WHOLE_TOKENS.to_string());
    let units: Vec<String> = (1..=tables::FEW).map(|n| memory.x_units(n).to_string()).collect();
    to.line("u32", &format!("X_UNITS[{}]", tables::FEW), &format!("{{{}}}", units.join(", ")));
    to.line("u64", "PATIENCE_NS", &format!("{}ull", persistent::PATIENCE.as_nanos()));
    to.words(&[("NOBODY", persistent::NOBODY)]);
    to.choices("Chooses", &Chooses::ALL.map(|(name, value)| (name, value as u32)));
    to.choices("OpKind", &OpKind::ALL.map(|(name, kind)| (name, kind as u32)));
}

/// Constants of the kernels that choose tokens.
fn choosing(to: &mut Header, config: &Config) {
    to.title("Choosing tokens (sampling.rs).");
    to.numbers([
        ("SCORE_ROWS", sampling::SCORE_ROWS),
        ("N_BEST", sampling::n_best(config.vocab)),
        ("MOST_RANKS", sampling::MOST_RANKS),
        ("WIDE_BLOCKS", sampling::WIDE_BLOCKS),
        ("WIDE_THREADS", sampling::WIDE_THREADS),
        ("MOST_WIDE_ROWS", sampling::MOST_WIDE_ROWS),
        ("DIGITS", sampling::DIGITS),
        ("MASK_WORDS", sampling::n_mask_words(config.vocab)),
        ("WEIGHT_BLOCKS", sampling::WEIGHT_BLOCKS),
    ]);
    to.line("u32", "PUBLISHED_STEPS", &sampling::PUBLISHED_STEPS.to_string());
    to.line("u32", "REPORT_WORDS", &sampling::REPORT_WORDS.to_string());
    to.line("u64", "MASK_PATIENCE_NS", &format!("{}ull", sampling::MASK_PATIENCE.as_nanos()));
    to.words(&[
        ("DECLINED", sampling::DECLINED),
        ("CHOSEN", sampling::CHOSEN),
        ("DRAWN", sampling::DRAWN),
        ("ADJUSTED", sampling::ADJUSTED),
        ("FOLLOWED", sampling::FOLLOWED),
        ("WIDE", sampling::WIDE),
        ("MASKED", sampling::MASKED),
        ("REPORTED", sampling::REPORTED),
        ("RULED_OUT_EARLY", sampling::RULED_OUT_EARLY),
        ("RULED_OUT", sampling::RULED_OUT),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Chip;
    use weft_core::shapes;
    use weft_core::weights::Forms;

    #[test]
    fn a_constant_has_one_name() {
        let config = shapes::config("qwen2.5-0.5b").unwrap();
        let shape = Shape::new(&config, &Forms::default(), Chip::HOPPER).unwrap();
        let header = header(&config, &shape);
        let lines = header.lines().filter_map(|line| line.strip_prefix("constexpr "));
        let mut names: Vec<&str> = lines.filter_map(|line| line.split(' ').nth(1)).collect();
        let n = names.len();
        assert!(n > 70);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn floats_are_emitted_bit_by_bit() {
        let mut to = Header(String::new());
        to.float("NORM_EPS", 1e-6);
        assert_eq!(to.0, "constexpr float NORM_EPS = 0x8637bdp-43f;\n");
        assert_eq!(f64::from(1e-6_f32), f64::from(0x8637bd) * 2_f64.powi(-43));
    }
}
