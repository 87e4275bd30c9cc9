//! What steps cost and how often drafts are right, as measured while the engine runs.
//!
//! A plain step's time is a running mean: a device may compute several tokens in one launch, and
//! single steps then differ much. A step with a draft is charged with the delay of the plain step
//! after it, too, because it ends such a launch.

use std::collections::HashMap;

use super::DraftSource;
use crate::config::Config;
use crate::device::MAX_DRAFT;
use crate::dtype::Dtype;
use crate::plan::{Op, Work, plan};
use crate::weights::Forms;

/// Weight of a new time in a running mean.
const NEW: f64 = 1.0 / 16.0;
/// Samples whose median is a cost.
const SAMPLES: usize = 9;
/// Cost of another token in a step, in plain steps, until it is measured.
const TOKEN_GUESS: f64 = 0.05;
/// Cost of a token of a draft model, in plain steps, until it is measured.
const MODEL_TOKEN_GUESS: f64 = 0.2;

/// A kind of step: its lanes, its tokens, and whether a draft model ran before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StepKind {
    pub(super) n_lanes: usize,
    pub(super) n_tokens: usize,
    pub(super) has_model: bool,
}

/// Times of steps, in seconds.
#[derive(Default)]
pub(super) struct Costs {
    /// By number of lanes.
    plain: HashMap<usize, f64>,
    drafts: HashMap<StepKind, Vec<f64>>,
    /// Bytes that a step of so many tokens reads, for guesses: tokens that are verified together
    /// choose more experts. Empty if all steps read the same.
    bytes_read: Vec<f64>,
    /// The last step, if it had a draft: its time, which the next one completes.
    last: Option<(StepKind, f64)>,
}

impl Costs {
    /// The costs of a model whose matrices have these forms, on a device of this number format.
    pub(super) fn new(config: &Config, forms: &Forms, dtype: Dtype) -> Self {
        let plan = plan(config);
        let read = |n_tokens: usize| {
            let n = n_tokens as u64;
            let work = Work { n_tokens: n, n_outputs: n, ..Work::default() };
            let bytes = |op: &Op| op.bytes(config, forms, dtype, &work);
            plan.iter().map(bytes).sum::<u64>() as f64
        };
        let bytes_read = match config.experts {
            Some(_) => (0..=MAX_DRAFT).map(read).collect(),
            None => Vec::new(),
        };
        Self { bytes_read, ..Self::default() }
    }

    /// Takes the time of a step of answers.
    pub(super) fn record(&mut self, kind: StepKind, seconds: f64) {
        let is_plain = kind.n_tokens == kind.n_lanes;
        let delay = match self.plain.get(&kind.n_lanes) {
            Some(plain) if is_plain => (seconds - plain).clamp(0.0, 2.0 * plain),
            _ => 0.0,
        };
        let after_draft = self.last.take();
        if let Some((before, time)) = after_draft {
            self.add_draft(before, time + delay);
        }
        if !is_plain {
            self.last = Some((kind, seconds));
        } else if after_draft.is_none() {
            let mean = self.plain.entry(kind.n_lanes).or_insert(seconds);
            // A step that waited for something else must not make all drafts look cheap.
            *mean += (seconds.min(4.0 * *mean) - *mean) * NEW;
        }
    }

    fn add_draft(&mut self, kind: StepKind, seconds: f64) {
        let samples = self.drafts.entry(kind).or_default();
        if samples.len() == SAMPLES {
            samples.remove(0);
        }
        samples.push(seconds);
    }

    /// The mean time of a plain step, if there was one.
    pub(super) fn plain(&self, n_lanes: usize) -> Option<f64> {
        self.plain.get(&n_lanes).copied()
    }

    /// The cost of a step with drafts, in plain steps of the same lanes. The first sample may have
    /// compiled or recorded something; a few more may have waited.
    pub(super) fn ratio(&self, kind: StepKind) -> f64 {
        let n_drafted = (kind.n_tokens - kind.n_lanes) as f64;
        let per_token = TOKEN_GUESS + if kind.has_model { MODEL_TOKEN_GUESS } else { 0.0 };
        let read = |n_tokens: usize| self.bytes_read.get(n_tokens).copied().unwrap_or(1.0);
        let guess = read(kind.n_tokens) / read(kind.n_lanes) + per_token * n_drafted;
        let samples = self.drafts.get(&kind).map_or(&[][..], Vec::as_slice);
        let Some(plain) = self.plain(kind.n_lanes).filter(|_| samples.len() > 1) else {
            return guess;
        };
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let typical = if sorted.len() < 5 { sorted[0] } else { sorted[sorted.len() / 2] };
        typical / plain
    }
}

/// Classes of support: how many tokens a draft follows from.
const CLASSES: usize = 5;
/// Tokens that a guess counts for before anything was verified.
const PRIOR_WEIGHT: f64 = 2.0;
/// Verified tokens of a class that are remembered.
const MEMORY: f64 = 32.0;
/// The share of it that a new request begins with: its text may be of another kind.
const FADING: f64 = 0.8;

/// How often a drafted token is right, by source and support.
pub(super) struct Odds {
    of: [[Odd; CLASSES]; 3],
}

#[derive(Clone, Copy, Default)]
struct Odd {
    n_right: f64,
    n_verified: f64,
}

impl Default for Odds {
    fn default() -> Self {
        Self { of: [[Odd::default(); CLASSES]; 3] }
    }
}

fn class(support: usize) -> usize {
    match support {
        0..3 => 0,
        3..6 => 1,
        6..12 => 2,
        12..24 => 3,
        _ => 4,
    }
}

impl Odds {
    /// The probability that the next token of a draft is right, if all before it are.
    pub(super) fn of(&self, source: DraftSource, support: usize) -> f64 {
        let prior = match source {
            DraftSource::Context => [0.3, 0.5, 0.65, 0.8, 0.9],
            DraftSource::Prediction => [0.6, 0.7, 0.8, 0.9, 0.95],
            DraftSource::Model => [0.6; CLASSES],
        };
        let class = class(support);
        let Odd { n_right, n_verified } = self.of[source as usize][class];
        (n_right + PRIOR_WEIGHT * prior[class]) / (n_verified + PRIOR_WEIGHT)
    }

    /// Forgets a little.
    pub(super) fn fade(&mut self) {
        for odd in self.of.as_flattened_mut() {
            odd.n_right *= FADING;
            odd.n_verified *= FADING;
        }
    }

    /// Takes the result of a verification. Tokens after the first wrong one say nothing.
    pub(super) fn record(
        &mut self,
        source: DraftSource,
        support: usize,
        n_drafted: usize,
        n_accepted: usize,
    ) {
        let odd = &mut self.of[source as usize][class(support)];
        odd.n_right += n_accepted as f64;
        odd.n_verified += (n_accepted + usize::from(n_accepted < n_drafted)) as f64;
        if odd.n_verified > MEMORY {
            let kept = MEMORY / odd.n_verified;
            odd.n_right *= kept;
            odd.n_verified *= kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{Coded, Form, LayerTensor, Tensor, Weights, WeightsError};

    fn kind(n_tokens: usize) -> StepKind {
        StepKind { n_lanes: 1, n_tokens, has_model: false }
    }

    #[test]
    fn a_draft_is_charged_with_the_delay_after_it_and_plain_steps_are_not() {
        let mut costs = Costs::default();
        assert!((costs.ratio(kind(5)) - 1.2).abs() < 1e-9, "a guess");
        for _ in 0..50 {
            costs.record(kind(1), 1.0);
        }
        for _ in 0..6 {
            costs.record(kind(5), 1.5);
            costs.record(kind(1), 1.4);
            costs.record(kind(1), 1.0);
        }
        assert!((costs.plain(1).unwrap() - 1.0).abs() < 1e-9, "{:?}", costs.plain(1));
        assert!((costs.ratio(kind(5)) - 1.9).abs() < 1e-9, "{}", costs.ratio(kind(5)));
        // Two drafts in a row have no delay between them, and one slow step is forgotten.
        for _ in 0..20 {
            costs.record(kind(3), 1.2);
        }
        costs.record(kind(3), 90.0);
        costs.record(kind(1), 1.0);
        assert!((costs.ratio(kind(3)) - 1.2).abs() < 1e-9, "{}", costs.ratio(kind(3)));
    }

    /// Matrices of experts in four bits, or plain like all others. Has no values.
    struct Experts {
        coded: bool,
    }

    impl Weights for Experts {
        fn read(&self, _: Tensor, _: &mut dyn FnMut(usize, &[f32])) -> Result<(), WeightsError> {
            Ok(())
        }

        fn form(&self, tensor: Tensor) -> Form {
            use LayerTensor as T;
            match tensor {
                Tensor::Layer(_, T::ExpertGate | T::ExpertUp | T::ExpertDown) if self.coded => {
                    Form::Coded(Coded::int(4))
                }
                _ => Form::Plain,
            }
        }

        fn fingerprint(&self) -> [u8; 32] {
            [0; 32]
        }
    }

    /// A step that reads more experts costs more, by their bytes, until it is measured.
    #[test]
    fn drafts_of_mixtures_of_experts_are_guessed_to_cost_more() {
        let costs = |name, coded| {
            let config = crate::shapes::config(name).unwrap();
            Costs::new(&config, &Forms::of(&Experts { coded }, &config), Dtype::Bf16)
        };
        let (dense, mut sparse) = (costs("qwen3-4b", false), costs("qwen3-30b-a3b", false));
        assert!((dense.ratio(kind(5)) - 1.2).abs() < 1e-9);
        let ratios = |costs: &Costs| (2..=8).map(|n| costs.ratio(kind(n))).collect::<Vec<_>>();
        let plain = ratios(&sparse);
        assert!(plain.is_sorted() && plain[0] > 1.4 && plain[6] > 3.5, "{plain:?}");
        // 1.8e9 of a token's 3.3e9 weights are in experts, 7.3 times as many in eight tokens'.
        let coded = ratios(&costs("qwen3-30b-a3b", true));
        assert!(coded.is_sorted() && coded[0] > 1.1 && coded[6] < plain[6] - 1.0, "{coded:?}");
        for _ in 0..9 {
            sparse.record(kind(1), 1.0);
            sparse.record(kind(8), 2.0);
            sparse.record(kind(1), 1.0);
        }
        assert!((sparse.ratio(kind(8)) - 2.0).abs() < 1e-9, "what is measured counts");
    }

    #[test]
    fn the_first_time_of_a_kind_is_not_believed() {
        let mut costs = Costs::default();
        costs.record(kind(1), 1.0);
        costs.record(kind(8), 50.0);
        costs.record(kind(1), 1.0);
        assert!(costs.ratio(kind(8)) < 2.0);
        costs.record(kind(8), 1.6);
        costs.record(kind(1), 1.0);
        assert!((costs.ratio(kind(8)) - 1.6).abs() < 1e-9);
    }

    #[test]
    fn odds_follow_what_was_verified() {
        let mut odds = Odds::default();
        let context = DraftSource::Context;
        assert!(odds.of(context, 30) > odds.of(context, 3));
        for _ in 0..40 {
            odds.record(context, 30, 7, 0);
            odds.record(context, 4, 7, 7);
        }
        assert!(odds.of(context, 30) < 0.06 && odds.of(context, 4) > 0.95);
        assert!(odds.of(DraftSource::Prediction, 30) > 0.9, "sources are apart");
        for _ in 0..20 {
            odds.record(context, 30, 7, 7);
        }
        assert!(odds.of(context, 30) > 0.8, "the past is forgotten");
        (0..60).for_each(|_| odds.fade());
        assert!((odds.of(context, 4) - 0.5).abs() < 0.01, "back to the first guess");
    }
}
