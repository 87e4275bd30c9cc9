//! The persistent kernel: one or more tokens in one launch.
//!
//! One block per multiprocessor runs for the whole launch and interprets the plan, or its first
//! ops. Blocks pass results to one another through words of memory (`hop.cuh`). The step's lists
//! and the resulting bits are those of the graph. If several tokens are requested, the kernel
//! chooses them as the graph's kernels do and publishes each to the host; a word in the host's
//! memory ends the launch. `step_launch.rs` decides how many tokens to request.

mod availability;
pub(crate) mod choice;
mod ends;
mod memory;
mod record;
mod shared_memory;

use std::sync::Arc;
use std::time::Duration;

use weft_core::config::Config;
use weft_core::device::Limits;
use weft_core::plan::Op;

use crate::CudaDevice;
use crate::buffers::Buffers;
use crate::driver::{Address, Argument, Gpu, Launch, Memory, Pinned};
use crate::error::CudaError;
use crate::in_flight::OutputDraw;
use crate::kv::Kv;
use crate::layouts::{Layout, layout};
use crate::modules::WholePlans;
use crate::ops::RING_THREADS;
use crate::ops::norm_qkv::QkvStore;
use crate::sampling::SamplingAddresses;
use crate::shape::Shape;
use crate::tables::{Lists, StepAddresses};
use crate::weights::ModelWeights;
pub(crate) use availability::{Coming, is_compiled, make};
use ends::LastLaunch;
pub(crate) use ends::{finish, finish_passed, make_way};
use memory::Words;
pub(crate) use memory::{BARE_TOKENS, bare_bytes};
pub(crate) use shared_memory::{
    MOST_STAGES, PORTION_UNITS, SharedMemory, WHOLE_TOKENS, X_UNIT_BYTES,
};

/// No op is withheld.
const NONE: u32 = u32::MAX;
/// No block has timed out.
pub(crate) const NOBODY: u32 = u32::MAX;
/// How long a block waits for another block's results.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The addresses of a layer's weights and pages.
#[repr(C)]
#[derive(Clone, Copy)]
struct LayerAddresses {
    attention_norm: Address,
    qkv: Address,
    bias: Address,
    q_norm: Address,
    k_norm: Address,
    o: Address,
    mlp_norm: Address,
    gate_up: Address,
    down: Address,
    kv: Address,
    /// [`crate::matrices::Matrices::variants_of`].
    variants: [u16; 4],
}

/// Results of ops in ordinary memory.
#[repr(C)]
struct PlainBuffers {
    x: Address,
    qkv: QkvStore,
    a: Address,
    h: Address,
}

/// What only models with experts have.
#[repr(C)]
struct ExpertAddresses {
    routers: Address,
    logits: Address,
    routes: Address,
    h: Address,
}

/// Words that the host and a running launch exchange.
#[repr(C)]
struct Mailbox {
    stop: u32,
    fault: u32,
}

/// Kernels call it `Launch`.
#[repr(C)]
struct Arguments {
    step: StepAddresses,
    layers: Address,
    ops: Address,
    embedding: Address,
    head: Address,
    final_norm: Address,
    rope: Address,
    x: Address,
    qkv: Address,
    a: Address,
    h: Address,
    part_sums: Address,
    part_weights: Address,
    cells: Address,
    candidates: Address,
    done: Address,
    chosen: Address,
    plain: PlainBuffers,
    logits: Address,
    shares: Address,
    other_shares: Address,
    sampling: SamplingAddresses,
    given_up: Address,
    mailbox: Address,
    n_ops: u32,
    n_steps: u32,
    number: u32,
    withheld: u32,
    n_stages: u32,
    chooses: u32,
    experts: ExpertAddresses,
    bare: Address,
}

// SAFETY: `repr(C)`, with the fields of the kernels' `Launch`.
unsafe impl Argument for Arguments {}

/// Structs that kernels must lay out as here.
pub(crate) fn layouts() -> [Layout; 5] {
    [
        layout!(LayerAddresses as "LayerAddresses" {
            attention_norm, qkv, bias, q_norm, k_norm, o, mlp_norm, gate_up, down, kv, variants,
        }),
        layout!(PlainBuffers as "PlainBuffers" { x, qkv, a, h }),
        layout!(ExpertAddresses as "ExpertAddresses" { routers, logits, routes, h }),
        layout!(Mailbox as "Mailbox" { stop, fault }),
        layout!(Arguments as "Launch" {
            step, layers, ops, embedding, head, final_norm, rope, x, qkv, a, h, part_sums,
            part_weights, cells, candidates, done, chosen, plain, logits, shares, other_shares,
            sampling, given_up, mailbox, n_ops, n_steps, number, withheld, n_stages, chooses,
            experts, bare,
        }),
    ]
}

/// The kernel and all memory that its launches need.
pub(crate) struct Persistent {
    /// None until they are compiled.
    kernels: Option<(WholePlans, SharedMemory)>,
    n_blocks: usize,
    words: Words,
    layers: Memory,
    routers: Memory,
    ops: Memory,
    given_up: Memory,
    mailboxes: Pinned,
    /// Which of two mailboxes the last launch has.
    turn: usize,
    /// The number of the last op of the last launch. Each word carries the number of the op that
    /// wrote it.
    number: u32,
    withheld: u32,
    last: LastLaunch,
}

/// Threads of a block: warps that compute, one that copies, and of models with experts those that
/// add up sums. Registers are shared out among warps in fours, so these have some that nobody uses.
pub(crate) fn threads(has_experts: bool) -> usize {
    const ADDING_WARPS: usize = 3;
    RING_THREADS + if has_experts { ADDING_WARPS * 32 } else { 0 }
}

/// How the next token of every lane is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chooses {
    /// Not at all.
    Nothing = 0,
    /// As the best logit of every output.
    Best = 1,
    /// By draws.
    ByDraws = 2,
}

impl Chooses {
    /// The variants by the kernels' names.
    pub(crate) const ALL: [(&str, Self); 3] = [
        ("CHOOSES_NOTHING", Self::Nothing),
        ("CHOOSES_BEST", Self::Best),
        ("CHOOSES_BY_DRAWS", Self::ByDraws),
    ];

    /// For a step of some outputs, of which some have draws.
    pub(crate) fn by(draws: &[OutputDraw<'_>], n_outputs: usize) -> Self {
        let is_best = |OutputDraw { draw, .. }: &OutputDraw<'_>| {
            let is_plain = !draw.adjusts && !draw.is_masked && draw.n_logprobs.is_none();
            draw.temperature == 0.0 && is_plain
        };
        match draws {
            [] => Self::Nothing,
            draws if draws.len() == n_outputs && draws.iter().all(is_best) => Self::Best,
            _ => Self::ByDraws,
        }
    }
}

/// What a launch runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Number of ops of the plan, from the first on.
    pub(crate) n_ops: usize,
    /// Tokens of every lane; more than one only if the launch chooses them.
    pub(crate) n_steps: usize,
    pub(crate) chooses: Chooses,
}

/// What the kernel is created from.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) gpu: &'a Arc<Gpu>,
    pub(crate) config: &'a Config,
    pub(crate) shape: &'a Shape,
    pub(crate) limits: &'a Limits,
    pub(crate) weights: &'a ModelWeights,
    pub(crate) kv: &'a Kv,
}

impl Persistent {
    /// Allocates all memory.
    pub(crate) fn new(parts: &Parts<'_>, plan: &[Op]) -> Result<Self, CudaError> {
        let Parts { gpu, config, shape, limits, weights, kv } = *parts;
        let codes: Vec<u32> = plan.iter().map(|op| code(*op)).collect();
        let layers: Vec<LayerAddresses> = (0..config.layers)
            .map(|layer| {
                let own = &weights.layers[layer];
                LayerAddresses {
                    attention_norm: own.attention_norm.address(),
                    qkv: own.qkv.address(),
                    bias: own.bias.address(),
                    q_norm: own.q_norm.address(),
                    k_norm: own.k_norm.address(),
                    o: own.o.address(),
                    mlp_norm: own.mlp_norm.address(),
                    gate_up: own.gate_up.address(),
                    down: own.down.address(),
                    kv: kv.layer(layer as u16),
                    variants: shape.variants_of(layer),
                }
            })
            .collect();
        let routers: Vec<Address> =
            weights.layers.iter().map(|layer| layer.router.address()).collect();
        let filled = |bytes: usize| Memory::new(gpu, "the persistent kernel", bytes);
        let persistent = Self {
            kernels: None,
            n_blocks: shape.chip.n_sms,
            words: Words::new(gpu, config, shape, limits, shape.chip.n_sms)?,
            layers: filled(size_of_val(layers.as_slice()))?,
            routers: filled(size_of_val(routers.as_slice()))?,
            ops: filled(size_of_val(codes.as_slice()))?,
            given_up: filled(4)?,
            mailboxes: Pinned::new(gpu, 2 * size_of::<Mailbox>())?,
            turn: 0,
            number: 0,
            withheld: NONE,
            last: LastLaunch::Ended,
        };
        persistent.layers.write(0, &layers)?;
        persistent.routers.write(0, &routers)?;
        persistent.ops.write(0, &codes)?;
        persistent.given_up.write(0, &[NOBODY])?;
        Ok(persistent)
    }

    /// Whether a launch can run the lists: there is a kernel for as many tokens, some block waits for
    /// every item, a single token queries no item twice, and there is room for parts and inputs.
    pub(crate) fn takes(&self, lists: &Lists) -> bool {
        let counts = &lists.counts;
        self.kernels.as_ref().is_some_and(|(kernels, _)| kernels.has(lists))
            && lists.queries_of_items().all(|n| n == 1 || n > 1 && counts.n_tokens > 1)
            && counts.n_partials <= self.words.most_partials
            && counts.n_cells <= self.words.most_cells
            && self.n_stages(counts.n_tokens).is_some()
    }

    /// Stages of the ring in steps of some tokens; none without kernels, or if they do not fit.
    fn n_stages(&self, n_tokens: usize) -> Option<usize> {
        self.kernels.as_ref().and_then(|(_, shared)| shared.n_stages(n_tokens))
    }

    /// Makes the first block withhold the results of an op; the launch must detect it. For tests.
    pub(crate) fn withhold(&mut self, op: Option<usize>) {
        self.withheld = op.map_or(NONE, |op| op as u32);
    }

    /// Numbers for the ops of a run. When the numbers restart, all words are cleared, so that none
    /// carries an old number. Blocks compare numbers by their difference, so only half of the range
    /// is used.
    fn take_numbers(&mut self, gpu: &Gpu, run: Run) -> Result<u32, CudaError> {
        let wanted = (run.n_ops * run.n_steps) as u32;
        if self.number + wanted > i32::MAX as u32 {
            self.words.clear(gpu)?;
            self.number = 0;
        }
        let first = self.number;
        self.number += wanted;
        Ok(first)
    }
}

/// Bytes that launches take on a GPU with the most multiprocessors that any has.
pub(crate) fn bytes(config: &Config, limits: &Limits) -> usize {
    let layers = config.layers * (size_of::<LayerAddresses>() + size_of::<Address>());
    Words::bytes(config, config.head_dim.next_multiple_of(32), limits, 256) + layers + (64 << 10)
}

/// The kinds of ops, as the kernel numbers them.
#[derive(Clone, Copy)]
pub(crate) enum OpKind {
    Embed,
    NormQkv,
    RopeStore,
    Attend,
    ProjAdd,
    NormGateUp,
    DownAdd,
    NormHead,
    NormRoute,
    ExpertGateUp,
    ExpertDownAdd,
}

impl OpKind {
    /// The variants by the kernels' names.
    pub(crate) const ALL: [(&str, Self); 11] = [
        ("EMBED", Self::Embed),
        ("NORM_QKV", Self::NormQkv),
        ("ROPE_STORE", Self::RopeStore),
        ("ATTEND", Self::Attend),
        ("PROJ_ADD", Self::ProjAdd),
        ("NORM_GATE_UP", Self::NormGateUp),
        ("DOWN_ADD", Self::DownAdd),
        ("NORM_HEAD", Self::NormHead),
        ("NORM_ROUTE", Self::NormRoute),
        ("EXPERT_GATE_UP", Self::ExpertGateUp),
        ("EXPERT_DOWN_ADD", Self::ExpertDownAdd),
    ];
}

/// An op as the kernel reads it.
fn code(op: Op) -> u32 {
    let kind = match op {
        Op::Embed => OpKind::Embed,
        Op::NormQkv { .. } => OpKind::NormQkv,
        Op::RopeStore { .. } => OpKind::RopeStore,
        Op::Attend { .. } => OpKind::Attend,
        Op::ProjAdd { .. } => OpKind::ProjAdd,
        Op::NormGateUp { .. } => OpKind::NormGateUp,
        Op::DownAdd { .. } => OpKind::DownAdd,
        Op::NormHead => OpKind::NormHead,
        Op::NormRoute { .. } => OpKind::NormRoute,
        Op::ExpertGateUp { .. } => OpKind::ExpertGateUp,
        Op::ExpertDownAdd { .. } => OpKind::ExpertDownAdd,
    };
    kind as u32 | u32::from(op.layer().unwrap_or(0)) << 8
}

/// The buffers that ops outside the kernel read and write.
fn plain_buffers(buffers: &Buffers) -> PlainBuffers {
    PlainBuffers {
        x: buffers.x.address(),
        qkv: QkvStore {
            bias: Address::NULL,
            q: buffers.q.address(),
            k: buffers.k.address(),
            v: buffers.v.address(),
        },
        a: buffers.a.address(),
        h: buffers.h.address(),
    }
}

/// Launches a run on the lists and draws that are on the GPU. A launch that runs was requested to
/// stop: the GPU begins this one when it has ended.
pub(crate) fn launch(device: &mut CudaDevice, run: Run) -> Result<(), CudaError> {
    let persistent = device.persistent.as_mut().expect("callers ask only where there is one");
    let number = persistent.take_numbers(&device.gpu, run)?;
    let mailbox = persistent.take_mailbox();
    persistent.last = LastLaunch::Runs;
    let CudaDevice { weights, buffers, rope, few, gpu, sampling, .. } = &*device;
    let persistent = device.persistent.as_ref().expect("as above");
    let n_tokens = device.lists.counts.n_tokens;
    let n_stages = persistent.n_stages(n_tokens);
    persistent.words.empty_bare(gpu, n_tokens)?;
    let [x, qkv, a, h, part_sums, part_weights, cells, candidates, done, chosen, route_logits] =
        persistent.words.addresses();
    let of_experts = device.config.experts.as_ref().map(|_| buffers.experts());
    let arguments = Arguments {
        step: few.addresses(),
        layers: persistent.layers.address(),
        ops: persistent.ops.address(),
        embedding: weights.embed.address(),
        head: weights.head().address(),
        final_norm: weights.final_norm.address(),
        rope: rope.address(),
        x,
        qkv,
        a,
        h,
        part_sums,
        part_weights,
        cells,
        candidates,
        done,
        chosen,
        plain: plain_buffers(buffers),
        logits: buffers.logits.address(),
        shares: buffers.shares.address(),
        other_shares: persistent.words.other_shares.address(),
        sampling: sampling.addresses(),
        given_up: persistent.given_up.address(),
        mailbox,
        n_ops: run.n_ops as u32,
        n_steps: run.n_steps as u32,
        number,
        withheld: persistent.withheld,
        n_stages: n_stages.expect("it takes the lists") as u32,
        chooses: run.chooses as u32,
        experts: ExpertAddresses {
            routers: persistent.routers.address(),
            logits: route_logits,
            routes: of_experts.map_or(Address::NULL, |experts| experts.routes_from(0)),
            h: of_experts.map_or(Address::NULL, |experts| experts.h.address()),
        },
        bare: persistent.words.bare(),
    };
    let launch = Launch {
        grid: (persistent.n_blocks, 1),
        threads: threads(device.config.experts.is_some()),
        early: false,
        cooperative: true,
    };
    let (kernels, _) = persistent.kernels.as_ref().expect("as above");
    let kernel = kernels.of(&device.lists, run.chooses == Chooses::ByDraws);
    kernel.launch(gpu, launch, &[&arguments])
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::sampling::{Sampler, Sampling};

    #[test]
    fn only_the_best_logits_of_all_outputs_are_found_without_draws() {
        let sampler = |settings: &Sampling| Sampler::new(settings, &[], &[], 50).unwrap();
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let penalised = Sampling { presence_penalty: 1.0, ..greedy.clone() };
        let reported = Sampling { logprobs: Some(2), ..greedy.clone() };
        let drawn = Sampling { temperature: 1.0, top_k: 5, ..greedy.clone() };
        let [best, drawn, other, reported] = [&greedy, &drawn, &penalised, &reported].map(sampler);
        let by = |samplers: &[&Sampler], n_outputs| {
            let mut draws = Vec::new();
            for (output, &sampler) in samplers.iter().enumerate() {
                let draw = sampler.next_draw().unwrap();
                draws.push(OutputDraw { output, sampler, drafted: &[], draw });
            }
            Chooses::by(&draws, n_outputs)
        };
        assert_eq!(by(&[], 0), Chooses::Nothing);
        assert_eq!(by(&[&best, &best], 2), Chooses::Best);
        assert_eq!(by(&[&best], 2), Chooses::ByDraws, "an output that the host chooses for");
        assert_eq!(by(&[&best, &drawn], 2), Chooses::ByDraws);
        assert_eq!(by(&[&other], 1), Chooses::ByDraws);
        assert_eq!(by(&[&reported], 1), Chooses::ByDraws);
    }
}
