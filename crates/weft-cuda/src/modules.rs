//! The modules of a device: their compilers, and the kernels that run a whole plan.

use std::sync::Arc;

use crate::compile_jobs::{Job, Jobs};
use crate::driver::{Gpu, Kernel, Module};
use crate::error::CudaError;
use crate::kernels::{DRAWN, ModuleSource, Stage};
use crate::tables::{Counts, Lists};

/// The modules of a model on a GPU, and their compilers.
pub(crate) struct Modules {
    /// By name.
    all: Vec<(String, Arc<Module>)>,
    /// Those of the persistent kernels, which begin when they are asked for.
    persistent: Vec<Arc<Job>>,
    /// The others, in the order of their stages.
    others: Vec<Arc<Job>>,
    jobs: Vec<Jobs>,
}

impl Modules {
    /// Begins to compile all modules but the persistent ones.
    pub(crate) fn begin(
        gpu: &Arc<Gpu>,
        sources: Vec<ModuleSource>,
        arch: &str,
    ) -> Result<Self, CudaError> {
        let (mut all, mut persistent, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for ModuleSource { name, stage, program } in sources {
            if stage == Stage::Measurement {
                continue;
            }
            let job = Job::new(program, arch)?;
            all.push((name, Module::new(gpu, &job)));
            let of = if stage == Stage::Persistent { &mut persistent } else { &mut others };
            of.push(job);
        }
        let jobs = vec![Jobs::begin(others.clone(), n_cores())];
        Ok(Self { all, persistent, others, jobs })
    }

    pub(crate) fn of(&self, name: &str) -> &Arc<Module> {
        self.find(name).unwrap_or_else(|| panic!("there is no module {name}"))
    }

    fn find(&self, name: &str) -> Option<&Arc<Module>> {
        self.all.iter().find(|(of, _)| of == name).map(|(_, module)| module)
    }

    /// Takes the persistent kernels from the cache, if it has all of them.
    pub(crate) fn look_up_persistent(&self) -> bool {
        self.persistent.iter().all(|job| job.look_up())
    }

    /// Whether the compilers of the persistent kernels have ended.
    pub(crate) fn has_persistent(&self) -> bool {
        self.persistent.iter().all(|job| job.is_done())
    }

    /// Begins to compile the persistent kernels, beside steps. A thread of the host waits for
    /// tokens, so one core is left to it.
    pub(crate) fn begin_persistent(&mut self) {
        let n_threads = n_cores().saturating_sub(1);
        self.jobs.push(Jobs::begin(self.persistent.clone(), n_threads));
    }

    /// Waits for all compilers but those of persistent kernels, and loads what they made.
    pub(crate) fn ready(&self) -> Result<(), CudaError> {
        let others = self.all.iter().filter(|(name, _)| name.ends_with(".cu"));
        others.map(|(_, module)| module).try_for_each(|module| module.ready())
    }

    /// How many modules are compiled, and how many of them by this process.
    pub(crate) fn compiled(&self) -> (usize, usize) {
        let all = || self.others.iter().chain(&self.persistent).filter(|job| job.is_done());
        (all().count(), all().filter(|job| job.is_compiled()).count())
    }

    /// What all cubins depend on.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.others.iter().chain(&self.persistent).map(|job| job.key())
    }

    /// Loads the kernels that run all ops. Their shared memory depends on the GPU.
    pub(crate) fn whole_plans(&self) -> WholePlans {
        let plan = |(name, _): (&str, _)| {
            let drawn = format!("{name}{DRAWN}");
            let drawn = self.find(&drawn).map(|module| module.kernel(&drawn, 0));
            self.find(name).map(|module| WholePlan { best: module.kernel(name, 0), drawn })
        };
        WholePlans(WHOLE_PLANS.into_iter().map(plan).collect())
    }
}

pub(crate) fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Kernels that run a whole plan, without `_drawn`, and the number of tokens that each is compiled
/// for. All of these tokens are outputs, and no section has more queries than there are tokens.
pub const WHOLE_PLANS: [(&str, usize); 4] =
    [("decode_one", 1), ("decode_two", 2), ("decode_four", 4), ("decode_eight", 8)];

/// Which of these kernels runs a step, if any does, by the most queries that a section has. A single
/// token need not be an output; `Persistent::takes` ensures that it does not query a section twice.
pub(crate) fn plan_for(counts: &Counts, most_queries: usize) -> Option<usize> {
    let Counts { n_tokens, n_outputs, .. } = *counts;
    let is_plain = n_tokens == 1 || n_outputs == n_tokens && most_queries <= n_tokens;
    WHOLE_PLANS.iter().position(|(_, n)| *n == n_tokens && is_plain)
}

/// The least number of tokens above `n` that has a kernel, if `n` has none.
pub(crate) fn next_plan(n: usize) -> Option<usize> {
    let all = WHOLE_PLANS.iter().map(|(_, tokens)| *tokens);
    all.clone().find(|tokens| *tokens > n).filter(|_| all.clone().all(|tokens| tokens != n))
}

/// The two forms of such a kernel: one for greedy tokens or none, one for drawn tokens, unless the
/// device is to do without it.
struct WholePlan {
    best: Kernel,
    drawn: Option<Kernel>,
}

impl WholePlan {
    fn all(&self) -> impl Iterator<Item = &Kernel> {
        std::iter::once(&self.best).chain(&self.drawn)
    }
}

/// The kernels that run a whole plan, as in `WHOLE_PLANS`; some devices do without some.
pub(crate) struct WholePlans(Vec<Option<WholePlan>>);

impl WholePlans {
    fn find(&self, lists: &Lists) -> Option<&WholePlan> {
        self.0[plan_for(&lists.counts, lists.most_queries())?].as_ref()
    }

    /// Whether there is a kernel for the lists of a step.
    pub(crate) fn has(&self, lists: &Lists) -> bool {
        self.find(lists).is_some()
    }

    /// The kernel for the lists of a step that has one.
    pub(crate) fn of(&self, lists: &Lists, is_drawn: bool) -> &Kernel {
        let plan = self.find(lists).expect("callers have asked");
        let drawn = || plan.drawn.as_ref().expect("the device was created to draw");
        if is_drawn { drawn() } else { &plan.best }
    }

    /// The largest static shared memory of these kernels.
    pub(crate) fn static_shared_bytes(&self) -> Result<usize, CudaError> {
        let all = self.0.iter().flatten().flat_map(WholePlan::all);
        let bytes: Result<Vec<usize>, CudaError> = all.map(Kernel::static_shared_bytes).collect();
        Ok(bytes?.into_iter().max().unwrap_or(0))
    }

    /// Loads them all.
    pub(crate) fn ready(&self) -> Result<(), CudaError> {
        self.0.iter().flatten().flat_map(WholePlan::all).try_for_each(Kernel::ready)
    }

    /// The same kernels with a launch's dynamic shared memory.
    pub(crate) fn with_shared(&self, bytes: usize) -> Self {
        let with = |plan: &WholePlan| WholePlan {
            best: plan.best.with_shared(bytes),
            drawn: plan.drawn.as_ref().map(|kernel| kernel.with_shared(bytes)),
        };
        Self(self.0.iter().map(|plan| plan.as_ref().map(with)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_the_kernel_that_is_made_for_it() {
        let plan = |n_tokens, n_outputs, most_queries| {
            let counts = Counts { n_tokens, n_outputs, ..Counts::default() };
            plan_for(&counts, most_queries).map(|plan| WHOLE_PLANS[plan].0)
        };
        assert_eq!(plan(1, 1, 1), Some("decode_one"));
        assert_eq!(plan(1, 0, 1), Some("decode_one"));
        assert_eq!(plan(2, 2, 1), Some("decode_two"));
        assert_eq!(plan(4, 4, 4), Some("decode_four"));
        assert_eq!(plan(8, 8, 1), Some("decode_eight"));
        assert_eq!(plan(3, 3, 3), None);
        // Tokens of a prompt, and lanes that contain the same pages twice.
        assert_eq!(plan(2, 1, 2), None);
        assert_eq!(plan(2, 2, 3), None);
        assert_eq!(
            [1, 2, 3, 4, 5, 7, 8].map(next_plan),
            [None, None, Some(4), None, Some(8), Some(8), None]
        );
    }
}
