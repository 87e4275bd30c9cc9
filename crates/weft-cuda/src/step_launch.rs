//! Launches a step, op by op, as a graph or in the persistent kernel, and the steps that follow it.
//!
//! Steps that are started ahead run as the previous step did: as graphs that wait in the stream, or
//! inside one launch of the persistent kernel. The caller sees no difference (`in_flight.rs`).

use std::ops::Range;
use std::sync::Arc;

use weft_core::device::{Lane, Outputs, Step};
use weft_core::plan::Op;
use weft_core::sampling::Sampler;

use crate::CudaDevice;
use crate::device::Launches;
use crate::error::CudaError;
use crate::graphs;
use crate::in_flight::{BEYOND, OutputDraw, drafted};
use crate::modules::next_plan;
use crate::ops::{ComingRows, Pass};
use crate::persistent::{self, Chooses, Persistent, Run};
use crate::rows::LayerEnds;
use crate::sampling::{Chosen, Needs, PUBLISHED_STEPS};
use crate::tables::{FEW, Family};

/// How ops on a step are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each by itself.
    Ops,
    /// As one graph.
    Graph,
    /// In one kernel, together with the steps that follow.
    Persistent,
}

impl Way {
    /// Steps that may be started beyond the requested one. A graph that waits for its mask cannot be
    /// stopped, so none is started before it is requested.
    fn most_ahead(self, needs: Needs) -> usize {
        match self {
            Self::Ops => 0,
            Self::Graph if needs.masks => 0,
            Self::Graph => BEYOND,
            Self::Persistent => PUBLISHED_STEPS - 1,
        }
    }
}

/// A step whose lists are in pinned memory, ready for the GPU.
struct Prepared {
    family: Family,
    bytes: usize,
    way: Way,
    chosen: Chosen,
    /// Outputs of the lists: more than those of the step if its last token is run several times.
    n_outputs: usize,
    /// Rows that layers have to wait for.
    coming: Option<Arc<LayerEnds>>,
}

impl CudaDevice {
    /// Runs ops on a step to their end.
    pub(crate) fn run_step(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), (Op, CudaError)> {
        self.end_launch()?;
        let prepared = self.prepare(ops, step, Chosen::ByHost)?;
        self.launch(ops, &prepared, Chooses::Nothing, 1)?;
        self.wait_for_end()
    }

    /// Runs a step that was not started ahead, and starts those that may follow.
    pub(crate) fn begin(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        mut draws: Vec<OutputDraw<'_>>,
        ahead: usize,
    ) -> Result<(), (Op, CudaError)> {
        // A launch that runs ends at its current token, while the lists of this step are made.
        self.stop();
        let prepared = self.prepare(ops, step, self.in_flight.how())?;
        let number = self.in_flight.number();
        let most_ahead = prepared.way.most_ahead(prepared.chosen.needs());
        let n = self.in_flight.launches_for(ahead.min(most_ahead));
        if let Some(last) = draws.last().filter(|of| of.output + 1 == step.n_outputs()).copied() {
            let repeated = step.n_outputs()..prepared.n_outputs;
            draws.extend(repeated.map(|output| OutputDraw { output, ..last }));
        }
        let Self { sampling, gpu, kernels, .. } = self;
        let uploaded = match draws.as_slice() {
            [] => Ok(()),
            draws => sampling.upload(gpu, kernels, draws, number, n > 1),
        };
        uploaded.map_err(|error| (ops[0], error))?;
        self.launch(ops, &prepared, Chooses::by(&draws, prepared.n_outputs), n)
    }

    /// Starts steps beyond the requested one, which was started ahead. A launch of the persistent
    /// kernel already contains its next steps; if none is wanted, it ends with the requested one,
    /// unless that still waits for its mask: it would no longer.
    pub(crate) fn begin_more(&mut self, ahead: usize) -> Result<(), (Op, CudaError)> {
        let needs = self.in_flight.how().needs();
        if self.persistent.as_ref().is_some_and(Persistent::is_running) {
            if ahead == 0 && !needs.masks {
                self.stop();
            }
            return Ok(());
        }
        let most_ahead = Way::Graph.most_ahead(needs);
        let n = self.in_flight.launches_for(ahead.min(most_ahead));
        if n == 0 {
            return Ok(());
        }
        let gpu = Arc::clone(&self.gpu);
        let _turn = gpu.turn().map_err(|error| (self.plan[0], error))?;
        self.launch_graph(self.in_flight.how(), n)
    }

    /// Computes the masks of the requested step, which runs meanwhile, and hands them to it. A mask
    /// may take as long as the layers, so those of several lanes are computed at once.
    pub(crate) fn give_masks(&self, step: &Step<'_>, samplers: &[Option<&Sampler>]) {
        let is_masked = |sampler: &&Sampler| sampler.next_draw().is_some_and(|draw| draw.is_masked);
        let lanes = step.lanes.iter().zip(samplers).zip(self.in_flight.outputs());
        let masked: Vec<_> = lanes
            .filter_map(|((lane, sampler), outputs)| {
                Some((lane, (*sampler).filter(is_masked)?, outputs.as_ref()?.of_step.clone()))
            })
            .collect();
        let give = |(lane, sampler, outputs): &(&Lane<'_>, &Sampler, Range<usize>)| {
            for (i, output) in outputs.clone().enumerate() {
                let after = (*sampler, drafted(lane, i));
                self.sampling.give_mask(self.in_flight.number(), output, after);
            }
        };
        let Some((first, others)) = masked.split_first() else { return };
        std::thread::scope(|scope| {
            for (lane, sampler, outputs) in others {
                // Computed now, with all before it, and handed over below.
                let whole = drafted(lane, outputs.len() - 1);
                scope.spawn(|| sampler.read_mask_after(whole, |_| {}));
            }
            give(first);
        });
        others.iter().for_each(give);
    }

    /// Waits for a step's tokens or, if it publishes none, for its end.
    pub(crate) fn wait(&mut self) -> Result<(), (Op, CudaError)> {
        if self.in_flight.how() == Chosen::ByHost {
            return self.wait_for_end();
        }
        let Self { in_flight, gpu, sampling, plan, lists, .. } = self;
        let last = *plan.last().expect("a plan has ops");
        if let Err(error) = in_flight.wait(gpu, sampling) {
            // A launch that ended without its tokens may have recorded the reason.
            return Err(self.end_launch().err().unwrap_or((last, error)));
        }
        let chosen = in_flight.all_chosen();
        let repeated = chosen.last().copied().into_iter().cycle();
        let n_outputs = lists.counts.n_outputs.min(FEW);
        for (output, token) in chosen.iter().copied().chain(repeated).take(n_outputs).enumerate() {
            token.into_iter().for_each(|token| sampling.chose(output, token));
        }
        persistent::finish_passed(self).map_err(|fault| fault.in_plan(&self.plan))
    }

    /// Stops the persistent kernel and waits until it has ended. Unused graphs run to their end
    /// before any later work.
    pub(crate) fn end_launch(&mut self) -> Result<(), (Op, CudaError)> {
        self.stop();
        persistent::finish(self).map_err(|fault| fault.in_plan(&self.plan))
    }

    /// Ends the persistent kernel after its current token. Later work of the GPU waits for that.
    pub(crate) fn stop(&self) {
        if let Some(kernel) = &self.persistent {
            kernel.stop();
        }
    }

    fn wait_for_end(&mut self) -> Result<(), (Op, CudaError)> {
        let last = *self.plan.last().expect("a plan has ops");
        self.gpu.synchronize().map_err(|error| (last, error))?;
        persistent::finish(self).map_err(|fault| fault.in_plan(&self.plan))
    }

    /// Makes a step wait for the copies that it needs, builds its lists, and decides how its ops
    /// are launched.
    fn prepare(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        chosen: Chosen,
    ) -> Result<Prepared, (Op, CudaError)> {
        let is_whole = ops == self.plan;
        // A launch chooses at the plan's end, by one block per output.
        let is_served = match chosen {
            Chosen::ByHost => true,
            Chosen::ByGpu(needs) => is_whole && !needs.wide,
        };
        // The host hands out one mask per output, and none for a token that is run twice.
        let pads = is_served && self.persistent.is_some() && !chosen.needs().masks;
        if let Some(longer) = RepeatedToken::of(step).filter(|_| pads) {
            let lanes = longer.lanes(step);
            let step = Step { lanes: &lanes };
            let n_outputs = step.n_outputs();
            if self.has_room_for(n_outputs) && self.fill_lists(ops, &step).1 {
                let bytes = self.few.write(&step, &self.lists);
                let (family, way) = (Family::Few, Way::Persistent);
                let coming = self.order(ops, &step, false)?;
                return Ok(Prepared { family, bytes, way, chosen, n_outputs, coming });
            }
        }
        let (family, is_persistent) = self.fill_lists(ops, step);
        let tables = match family {
            Family::Few => &mut self.few,
            Family::Many => &mut self.many,
        };
        let bytes = tables.write(step, &self.lists);
        let way = if is_served && is_persistent {
            Way::Persistent
        } else if self.launches != Launches::Ops && family == Family::Few && is_whole {
            Way::Graph
        } else {
            Way::Ops
        };
        let coming = self.order(ops, step, way == Way::Ops && is_whole)?;
        Ok(Prepared { family, bytes, way, chosen, n_outputs: step.n_outputs(), coming })
    }

    /// Makes a step wait for the copies that it needs, or returns what its layers must wait for.
    fn order(
        &self,
        ops: &[Op],
        step: &Step<'_>,
        by_layers: bool,
    ) -> Result<Option<Arc<LayerEnds>>, (Op, CudaError)> {
        self.mover.order_step(step, by_layers).map_err(|error| (ops[0], error))
    }

    /// Builds the lists of a step. Returns which kernels run it, and whether the persistent kernel
    /// may.
    fn fill_lists(&mut self, ops: &[Op], step: &Step<'_>) -> (Family, bool) {
        self.lists.fill(step, self.config.group());
        let family = Family::of(step.n_tokens());
        (family, self.is_persistent(ops, family))
    }

    /// Whether buffers have room for so many tokens and outputs.
    fn has_room_for(&self, n: usize) -> bool {
        n <= self.limits.step_tokens.min(self.limits.step_outputs)
    }

    /// Copies a step's lists to the GPU and launches ops on them, and on the `n - 1` steps that
    /// follow.
    fn launch(
        &mut self,
        ops: &[Op],
        prepared: &Prepared,
        chooses: Chooses,
        n: usize,
    ) -> Result<(), (Op, CudaError)> {
        let first = |error| (ops[0], error);
        let gpu = Arc::clone(&self.gpu);
        let _turn = gpu.turn().map_err(first)?;
        let Prepared { family, bytes, way, chosen, .. } = *prepared;
        persistent::make_way(self, way == Way::Persistent)
            .map_err(|fault| fault.in_plan(&self.plan))?;
        let tables = match family {
            Family::Few => &self.few,
            Family::Many => &self.many,
        };
        tables.upload(&self.gpu, bytes).map_err(first)?;
        let (step, counts) = (tables.addresses(), self.lists.counts);
        match way {
            Way::Persistent => {
                let run = Run { n_ops: ops.len(), n_steps: n, chooses };
                persistent::launch(self, run).map_err(first)
            }
            Way::Graph => self.launch_graph(chosen, n),
            Way::Ops => {
                self.clear_shares(&counts).map_err(first)?;
                // Only a graph may join kernels of few tokens: an op launched alone must leave its
                // own result.
                let joined = family == Family::Many && self.launches != Launches::Ops;
                let coming = prepared.coming.clone().map(ComingRows::new);
                Pass { device: self, step, family, counts, joined, chosen, coming }.run(ops)
            }
        }
    }

    fn launch_graph(&mut self, chosen: Chosen, times: usize) -> Result<(), (Op, CudaError)> {
        let plan = std::mem::take(&mut self.plan);
        let launched = graphs::run(self, &plan, chosen, times);
        self.plan = plan;
        launched
    }
}

/// The last lane of a step whose last token is run several times, to the same row and results, so
/// that the step has as many tokens as a persistent kernel is compiled for.
struct RepeatedToken {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    key_positions: Vec<u32>,
    store_at: Vec<u32>,
}

impl RepeatedToken {
    /// None if there is no need or no such kernel, or if a token is no output.
    fn of(step: &Step<'_>) -> Option<Self> {
        let n_tokens = step.n_tokens();
        let last = step.lanes.last().filter(|_| step.n_outputs() == n_tokens)?;
        let n_more = next_plan(n_tokens)? - n_tokens;
        let longer = |all: &[u32]| Some([all, &vec![*all.last()?; n_more]].concat());
        Some(Self {
            tokens: longer(last.tokens)?,
            positions: longer(last.positions)?,
            key_positions: longer(last.key_positions)?,
            store_at: longer(last.store_at)?,
        })
    }

    /// The lanes of the step with this one in the place of the last.
    fn lanes<'a>(&'a self, step: &Step<'a>) -> Vec<Lane<'a>> {
        let mut lanes = step.lanes.to_vec();
        if let Some(last) = lanes.last_mut() {
            last.tokens = &self.tokens;
            last.positions = &self.positions;
            last.key_positions = &self.key_positions;
            last.store_at = &self.store_at;
            last.outputs = Outputs::All;
        }
        lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_tokens_run_as_four_and_five_as_eight() {
        let (tokens, rows) = ([7, 8, 9, 6], [3, 4, 5, 6]);
        let lane = |n: usize, outputs| Lane {
            tokens: &tokens[..n],
            positions: &rows[..n],
            key_positions: &rows[..n],
            store_at: &rows[..n],
            spans: &[],
            marks: &[],
            outputs,
        };
        let padded = |lanes: &[Lane<'_>]| {
            let step = Step { lanes };
            let longer = RepeatedToken::of(&step)?;
            let lanes = longer.lanes(&step);
            Some(lanes.iter().map(|lane| (lane.tokens.to_vec(), lane.store_at.len())).collect())
        };
        let one = lane(1, Outputs::Last);
        let all = [1, 2, 4, 8].map(|n| padded(&vec![one; n]));
        assert_eq!(all, [const { None::<Vec<_>> }; 4]);
        assert_eq!(padded(&[one; 5]).unwrap()[4], (vec![7; 4], 4));
        let three: Vec<(Vec<u32>, usize)> = vec![(vec![7], 1), (vec![7], 1), (vec![7, 7], 2)];
        assert_eq!(padded(&[one; 3]), Some(three));
        let draft = lane(3, Outputs::All);
        assert_eq!(padded(&[draft]), Some(vec![(vec![7, 8, 9, 9], 4)]));
        assert_eq!(padded(&[lane(2, Outputs::All), one]).unwrap()[1].0, [7, 7]);
        let silent = Lane { outputs: Outputs::None, ..one };
        assert_eq!(padded(&[one, silent, one]), None);
        assert_eq!(padded(&[lane(3, Outputs::Last)]), None);
    }
}
