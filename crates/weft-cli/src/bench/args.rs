//! Flags of `weft bench`, with the names of llama-bench if it has them.
//!
//! Sizes are checked against the model later, when it is known.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use weft::device::Chosen;
use weft::memory;
use weft_core::device::MAX_LANES;
use weft_cpu::Isa;

use super::export::ExportArgs;
use super::first_token::FirstTokenArgs;
use super::forced::ForcedArgs;
use super::generate::GenerateArgs;
use super::speculate::SpeculateArgs;
use super::start::StartArgs;
use crate::args::{DeviceArgs, Quantize};
use crate::{load, size};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Option<BenchCommand>,
    #[command(flatten)]
    pub(crate) tests: TestArgs,
}

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Time each op of the plan separately
    Ops(OpsArgs),
    /// Time the first token with a cold context, and with one cached in each tier
    FirstToken(FirstTokenArgs),
    /// Time whole answers, including scheduling, sampling and text
    Generate(GenerateArgs),
    /// Time drafted answers beside plain ones, by the share of the drafts that is right
    Speculate(SpeculateArgs),
    /// Time a start, part by part: from the process to the first token
    Start(StartArgs),
    /// Compare two saved runs, test by test
    Compare(CompareArgs),
    /// Plot saved runs
    Plot(PlotArgs),
    /// Write a model folder with random weights of a shape
    #[command(hide = true)]
    Export(ExportArgs),
    /// Write the logits of given tokens
    #[command(hide = true)]
    Forced(ForcedArgs),
}

/// The tests, and where to write the results.
#[derive(Args)]
pub(crate) struct TestArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// Tokens of the prompts to prefill (0: none)
    #[arg(short = 'p', long, value_name = "TOKENS", value_delimiter = ',',
          default_value = "512", value_parser = count_or_zero)]
    pub(crate) n_prompt: Vec<usize>,
    /// Tokens to decode (0: none)
    #[arg(short = 'n', long, value_name = "TOKENS", default_value = "32",
          value_parser = count_or_zero)]
    pub(crate) n_gen: usize,
    /// Write a trace of one token's ops, at the first depth and batch, for Perfetto
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    /// Also decode consecutive tokens, chosen by the device if it can
    #[arg(long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) grid: GridArgs,
}

#[derive(Args)]
pub(crate) struct OpsArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    #[command(flatten)]
    pub(crate) grid: GridArgs,
}

/// The depths and batches of decoding tests.
#[derive(Args)]
pub(crate) struct GridArgs {
    /// Tokens in the context before the test starts
    #[arg(short = 'd', long, value_name = "TOKENS", value_delimiter = ',', default_value = "0",
          value_parser = count_or_zero)]
    pub(crate) n_depth: Vec<usize>,
    /// Lanes that decode together
    #[arg(short, long, value_name = "LANES", value_delimiter = ',', default_value = "1,4",
          value_parser = lanes)]
    pub(crate) batch: Vec<usize>,
    /// Number of repetitions of each test (default: up to 5, and no new one after 3 s)
    #[arg(short, long, value_name = "N", value_parser = size::parse_count)]
    pub(crate) repetitions: Option<usize>,
}

/// Repetitions of a test if the user does not say how many.
const REPETITIONS: usize = 5;

/// How long such a test goes on to begin repetitions.
const SHORT_RUN: Duration = Duration::from_secs(3);

impl GridArgs {
    /// The number of repetitions, whatever time they take.
    pub(crate) fn repetitions(&self) -> usize {
        self.repetitions.unwrap_or(REPETITIONS)
    }

    /// Counts repetitions from now on, and ends if a short run has taken its time.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = usize> + use<> {
        let (start, is_short) = (Instant::now(), self.repetitions.is_none());
        (0..self.repetitions())
            .take_while(move |n| *n == 0 || !is_short || start.elapsed() < SHORT_RUN)
    }
}

/// Random weights.
#[derive(Args)]
pub(crate) struct ShapeArgs {
    /// Random weights of a shape: a name (like qwen3-0.6b) or a config.json; overrides --model
    #[arg(long, value_name = "NAME")]
    pub(crate) shape: Option<String>,
    /// Seed of random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// A kind of GGUF file whose matrices differ in form.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Mix {
    /// Four bits; six in the head, and for values and `down` in half of the layers
    #[value(name = "q4_k_m")]
    Q4KM,
}

/// The model, its device and the output format.
#[derive(Args)]
pub(crate) struct SubjectArgs {
    #[command(flatten)]
    pub(crate) random: ShapeArgs,
    /// Real weights: a folder, a GGUF file, `org/name[:TAG][@revision]` in the hub cache, or a name
    /// like qwen3:0.6b
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Quantise the weights while loading
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) quantize: Option<Quantize>,
    /// Quantise the weights while loading, to the forms of a kind of GGUF file
    #[arg(long, value_enum, value_name = "KIND", conflicts_with = "quantize")]
    pub(crate) mix: Option<Mix>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Instruction set: portable, avx2, avx512 or avx512bf16
    #[arg(long, hide = true)]
    pub(crate) isa: Option<Isa>,
    /// Prompt tokens per step (default: as many as answers run with on the device)
    #[arg(long, value_name = "TOKENS", value_parser = size::parse_count)]
    pub(crate) step_tokens: Option<usize>,
    /// Size of the buffer for measuring the read bandwidth
    #[arg(long, hide = true, value_name = "MIB", default_value = "1024",
          value_parser = size::parse_count)]
    pub(crate) bandwidth_mib: usize,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,
    /// Write the results with all raw samples to a JSON file
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Print only the results and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl SubjectArgs {
    /// Prompt tokens per step, at least one for each lane.
    pub(crate) fn step_tokens(&self) -> usize {
        let wanted = || load::wanted_launches(&self.device).ok().flatten();
        let usual = || memory::step_tokens(wanted().map_or(Chosen::Cpu, Chosen::Cuda));
        self.step_tokens.unwrap_or_else(usual).max(MAX_LANES)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A markdown table
    Table,
    /// One object with all raw samples
    Json,
    /// One line per test
    Csv,
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// A saved run
    #[arg(value_name = "A.json")]
    pub(crate) a: PathBuf,
    /// The run to compare with it
    #[arg(value_name = "B.json")]
    pub(crate) b: PathBuf,
}

#[derive(Args)]
pub(crate) struct PlotArgs {
    /// Saved runs
    #[arg(value_name = "RUN.json", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The SVG file to write
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) out: PathBuf,
}

pub(super) fn count_or_zero(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { size::parse_count(text) }
}

fn lanes(text: &str) -> Result<usize, String> {
    match size::parse_count(text)? {
        n if n <= MAX_LANES => Ok(n),
        n => Err(format!("{n} lanes are too many; the limit is {MAX_LANES}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_begins_no_repetition_after_its_time() {
        let grid = |repetitions| GridArgs { n_depth: vec![0], batch: vec![1], repetitions };
        assert_eq!(grid(None).rounds().count(), REPETITIONS, "if they are quick");
        let (mut short, mut long) = (grid(None).rounds(), grid(Some(2)).rounds());
        assert_eq!((short.next(), long.next()), (Some(0), Some(0)));
        std::thread::sleep(SHORT_RUN);
        assert_eq!((short.next(), long.next()), (None, Some(1)));
    }
}
