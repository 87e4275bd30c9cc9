//! Measures how fast this GPU reads its memory: the bound that every decode step is compared with.
//!
//! Every multiprocessor only reads a buffer, so a kernel that only streams could reach the figure.
//! This file measures; the caller does the comparison.

use weft_core::weights::Forms;

use crate::compile_jobs::Job;
use crate::driver::{self, Launch, Memory, Module};
use crate::error::CudaError;
use crate::kernels::{self, Stage};

/// Bytes that a block reads at once.
pub(crate) const READ_PIECE: usize = 16 << 10;
const THREADS: usize = 256;
/// Blocks that share a multiprocessor.
const BLOCKS_PER_SM: usize = 8;

/// Reads a buffer of `bytes` `passes` times; returns the bytes per second of each pass. The buffer
/// must be several times larger than the L2 cache. The first pass is not counted.
pub fn read_bandwidth(bytes: usize, passes: usize) -> Result<Vec<f64>, CudaError> {
    let gpu = driver::open(0)?;
    // The constants of any small model will do: the kernel uses none of them.
    let shape = weft_core::shapes::config("qwen3-0.6b").expect("a named shape");
    let modules = kernels::modules(&shape, &Forms::default(), gpu.facts.chip, false)?;
    let module = modules.into_iter().find(|module| module.stage == Stage::Measurement);
    let program = module.expect("there is one").program;
    let kernel = Module::new(&gpu, &Job::new(program, &gpu.facts.arch())?).kernel("read_memory", 0);
    let blocks = gpu.facts.chip.n_sms * BLOCKS_PER_SM;
    let buffer = Memory::new(&gpu, "measuring the bandwidth", bytes.next_multiple_of(READ_PIECE))?;
    let folded = Memory::new(&gpu, "measuring the bandwidth", blocks * THREADS * 4)?;
    let n_pieces = (buffer.bytes / READ_PIECE) as u64;
    let launch = Launch { grid: (blocks, 1), threads: THREADS, early: false, cooperative: false };
    let read = || kernel.launch(&gpu, launch, &[&buffer.address(), &n_pieces, &folded.address()]);
    read()?;
    (0..passes)
        .map(|_| Ok((n_pieces as usize * READ_PIECE) as f64 / (gpu.time_ms(read)? / 1e3)))
        .collect()
}
