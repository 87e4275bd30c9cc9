//! Mixtures of experts: what a device computes with chosen experts is the reference's, and shows
//! neither who else chose them nor how a prompt was cut.

use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_core::config::Config;
use weft_core::device::{Buffer, Device, Inspect, Lane, Limits, Step};
use weft_core::plan::{Op, plan};
use weft_core::reference::Reference;
use weft_core::weights::{
    CodedRow, Form, LayerTensor, RandomWeights, Tensor, Weights, WeightsError,
};

use super::{Make, parts, poisoned, run_in_blocks};
use crate::parity::{Noise, assert_close};
use crate::{LIMITS, Work, config, run, span, tokens};

/// Creates a device for a model with these weights.
pub type MakeWith<'m> = &'m dyn Fn(&Config, &dyn Weights, Limits) -> Box<dyn Inspect>;

/// The expert of a token's route.
type Pattern<'p> = &'p dyn Fn(usize, usize) -> usize;

/// A prompt in one step equals the same prompt in blocks, each beside a block of another lane, and
/// token by token, bit for bit.
pub fn experts_show_neither_cuts_nor_neighbours(make: Make<'_>) {
    let config = config("qwen3_moe");
    let cases = (1_usize..120, 1_usize..30, any::<u32>(), parts());
    TestRunner::new(Cases::with_cases(20))
        .run(&cases, |(n, n_other, seed, blocks)| {
            let (prompt, own) = (tokens(n, seed, config.vocab), span(0, n, 0));
            let mut device = poisoned(make, &config);
            let at_once = run_in_blocks(&mut *device, &config, &prompt, &[n], &own);
            prop_assert!(at_once.iter().flatten().all(|logit| logit.is_finite()));

            let mut device = poisoned(make, &config);
            let other = Work::new(
                &tokens(n_other, seed ^ 1, config.vocab),
                0,
                Vec::new(),
                span(8, n_other, 0),
            );
            let (mut start, mut logits) = (0, Vec::new());
            for block in blocks {
                let end = (start + block).min(n);
                if start < end {
                    let work = Work::new(&prompt[start..end], start, Vec::new(), own.clone());
                    let both = run(&mut *device, &plan(&config), &[other.clone(), work]);
                    logits.extend(both.into_iter().skip(n_other));
                }
                start = end;
            }
            prop_assert_eq!(&logits, &at_once);

            let n = n.min(20);
            let mut device = poisoned(make, &config);
            let ones = vec![1; n];
            let singly = run_in_blocks(&mut *device, &config, &prompt[..n], &ones, &own);
            prop_assert_eq!(&singly[..], &at_once[..n]);
            Ok(())
        })
        .unwrap();
}

/// Both ops of experts match the reference for routes that are laid by hand: all tokens to one
/// expert, each token to its own, all experts once, and one after the other.
pub fn laid_routes_match_the_reference(make: MakeWith<'_>, weights: &dyn Weights, noise: Noise) {
    let config = config("qwen3_moe");
    let experts = config.experts.clone().unwrap();
    let (n, count, chosen) = (2 * experts.count + 1, experts.count, experts.chosen);
    let one = |_token: usize, route: usize| route;
    let last = |_token: usize, route: usize| count - chosen + route;
    let turns = |token: usize, route: usize| (token * chosen + route) % count;
    let own = |token: usize, route: usize| (token + 2 * route) % count;
    let patterns: [(&str, Pattern<'_>); 4] =
        [("first", &one), ("last", &last), ("turns", &turns), ("own", &own)];
    let work = Work::new(&tokens(n, 5, config.vocab), 0, Vec::new(), span(0, n, 0));
    let lanes: [Lane<'_>; 1] = [work.lane()];
    let step = Step { lanes: &lanes };
    for (name, pattern) in patterns {
        let mut ours = make(&config, weights, LIMITS);
        let mut theirs = Reference::<bf16>::new(&config, weights, LIMITS).unwrap();
        let mut routes = theirs.read(Buffer::Routes);
        for (token, routes) in routes.chunks_exact_mut(2 * chosen).take(n).enumerate() {
            let mut experts: Vec<usize> = (0..chosen).map(|route| pattern(token, route)).collect();
            experts.sort_unstable();
            for (route, expert) in experts.into_iter().enumerate() {
                routes[route] = expert as f32;
                routes[chosen + route] = 0.9 - 0.3 * route as f32;
            }
        }
        theirs.run(&[Op::Embed], &step).unwrap();
        theirs.write(Buffer::Routes, &routes);
        for op in [Op::ExpertGateUp { layer: 1 }, Op::ExpertDownAdd { layer: 1 }] {
            for buffer in Buffer::of(&config) {
                ours.write(buffer, &theirs.read(buffer));
            }
            ours.run(&[op], &step).unwrap();
            theirs.run(&[op], &step).unwrap();
            for buffer in [Buffer::ExpertH, Buffer::X] {
                let n = buffer.width(&config) * n;
                let (ours, theirs) = (ours.read(buffer), theirs.read(buffer));
                let what = format!("{name} {op} {buffer:?}");
                assert_close(&what, &ours[..n], &theirs[..n], noise.sums).unwrap();
            }
        }
    }
}

/// If all experts have the same logits, the first ones are chosen, each with the same weight.
pub fn ties_go_to_the_lower_index(make: MakeWith<'_>) {
    let config = config("qwen3_moe");
    let chosen = config.experts.as_ref().unwrap().chosen;
    let weights = TiedRouter(RandomWeights::new(&config, 7));
    let n = 13;
    let work = Work::new(&tokens(n, 5, config.vocab), 0, Vec::new(), span(0, n, 0));
    let mut device = make(&config, &weights, LIMITS);
    run(&mut *device, &[Op::Embed, Op::NormRoute { layer: 0 }], &[work]);
    for routes in device.read(Buffer::Routes).chunks_exact(2 * chosen).take(n) {
        let (experts, weights) = routes.split_at(chosen);
        let first: Vec<f32> = (0..chosen).map(|expert| expert as f32).collect();
        assert_eq!(experts, first);
        let third = 1.0 / chosen as f32;
        assert!(weights.iter().all(|weight| (weight - third).abs() < 1e-6), "{weights:?}");
    }
}

/// Weights whose routers have one row, again and again.
struct TiedRouter(RandomWeights);

impl Weights for TiedRouter {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let mut first = Vec::new();
        self.0.read(tensor, &mut |row, values| {
            if row == 0 {
                first = values.to_vec();
            }
            let is_router = matches!(tensor, Tensor::Layer(_, LayerTensor::Router));
            visit(row, if is_router { &first } else { values });
        })
    }

    fn form(&self, tensor: Tensor) -> Form {
        self.0.form(tensor)
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        self.0.read_coded(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint()
    }
}
