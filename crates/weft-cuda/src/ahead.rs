//! Which modules a device needs, and their cubins made before it is created.
//!
//! A device waits only for its own kernels. Tests make many devices and would wait for each, so
//! they have the kernels of all of them compiled first, side by side.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use weft_core::config::Config;
use weft_core::weights::{Forms, Weights};

use crate::compile_jobs::Job;
use crate::driver::{self, GpuFacts};
use crate::error::CudaError;
use crate::kernels::{self, ModuleSource, Stage};
use crate::modules::n_cores;
use crate::options::Options;
use crate::persistent;
use crate::shape::Shape;

/// The modules of a device with some options, and the architecture that they are compiled for.
pub(crate) fn wanted(
    config: &Config,
    forms: &Forms,
    shape: &Shape,
    options: &Options,
    facts: &GpuFacts,
) -> Result<(Vec<ModuleSource>, String), CudaError> {
    let with_persistent = persistent::is_compiled(config, shape, options.launches);
    let mut sources = kernels::modules(config, forms, shape.chip, with_persistent)?;
    let on_host = shape.experts.as_ref().is_some_and(|own| own.on_host);
    let is_elsewhere = |name: &str| on_host && name.starts_with("ops/expert_");
    sources.retain(|source| {
        let lanes = source.lanes().is_none_or(|lanes| options.lanes.contains(&lanes));
        (options.draws || !source.draws()) && lanes && !is_elsewhere(&source.name)
    });
    let arch = options.arch.map_or_else(|| facts.arch(), str::to_owned);
    Ok((sources, arch))
}

/// Compiles the kernels of a device that is to be created, and keeps them in the cache. Calls of
/// several threads share the cores.
pub fn compile_ahead(
    config: &Config,
    weights: &dyn Weights,
    options: &Options,
) -> Result<(), CudaError> {
    let gpu = driver::open(0)?;
    let forms = Forms::of(weights, config);
    let shape = Shape::new(config, &forms, options.chip.unwrap_or(gpu.facts.chip))?;
    let (mut sources, arch) = wanted(config, &forms, &shape, options, &gpu.facts)?;
    // Those that take longest come first.
    sources.retain(|source| source.stage != Stage::Measurement);
    sources.sort_by_key(|source| source.stage != Stage::Persistent);
    let jobs: Result<Vec<_>, _> =
        sources.into_iter().map(|source| Job::new(source.program, &arch)).collect();
    let jobs = jobs?;
    thread::scope(|scope| {
        let begun = jobs.iter().map(|job| {
            scope.spawn(move || {
                let _turn = Turn::take();
                job.cubin().map(drop)
            })
        });
        let begun: Vec<_> = begun.collect();
        begun.into_iter().try_for_each(|thread| thread.join().expect("a compiler's thread"))
    })
}

/// A compiler's place on the cores.
struct Turn;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

impl Turn {
    fn take() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let all_taken = |taken: &mut usize| *taken >= n_cores();
        let taken = GIVEN_BACK.wait_while(taken, all_taken);
        *taken.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GIVEN_BACK.notify_one();
    }
}
