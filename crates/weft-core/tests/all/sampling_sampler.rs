//! Compares `Sampler` with a slow version of its definition: every token penalised from the whole
//! history, everything sorted, everything summed. Also compares draws with their distribution.

use proptest::prelude::*;
use weft_core::sampling::{
    Adjustment, Draw, Logprobs, RuledOut, Sampler, Sampling, choice_seed, uniform,
};

const NEG: f32 = f32::NEG_INFINITY;

/// Steps 1 to 4 of the definition.
fn naive_scores(s: &Sampling, prompt: &[u32], output: &[u32], ends: &[u32], l: &[f32]) -> Vec<f32> {
    let early = output.len() < s.min_tokens;
    let score = |(token, &logit): (usize, &f32)| {
        let token = token as u32;
        let biases = s.logit_bias.iter().filter(|b| b.0 == token);
        let mut score = biases.fold(logit, |score, b| score + b.1);
        if prompt.contains(&token) || output.contains(&token) {
            score = if score < 0.0 {
                score * s.repetition_penalty
            } else {
                score / s.repetition_penalty
            };
        }
        let n = output.iter().filter(|&&t| t == token).count();
        if n > 0 {
            score = score - s.frequency_penalty * n as f32 - s.presence_penalty;
        }
        let masked = ends.contains(&token) && (early || s.ignore_eos)
            || s.stop_ids.contains(&token) && early;
        if masked { NEG } else { score }
    };
    l.iter().enumerate().map(score).collect()
}

/// Step 5: the possible tokens.
fn naive_ranks(scores: &[f32]) -> Vec<(u32, f32)> {
    let mut ranked: Vec<_> = (0u32..).zip(scores.iter().copied()).filter(|c| c.1 != NEG).collect();
    ranked.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
    ranked
}

/// Steps 5 to 9: the tokens that may be drawn, by rank, with their probabilities.
fn naive_distribution(s: &Sampling, scores: &[f32]) -> Vec<(u32, f64)> {
    let mut ranked = naive_ranks(scores);
    if s.temperature == 0.0 {
        return ranked.first().map(|c| (c.0, 1.0)).into_iter().collect();
    }
    if s.top_k > 0 {
        ranked.truncate(s.top_k);
    }
    let Some(&(_, max)) = ranked.first() else { return Vec::new() };
    let weight = |score| ((f64::from(score) - f64::from(max)) / f64::from(s.temperature)).exp();
    let mut kept: Vec<_> = ranked.into_iter().map(|(t, score)| (t, weight(score))).collect();
    let total: f64 = kept.iter().map(|c| c.1).sum();
    if s.top_p < 1.0 {
        let mut sum = 0.0;
        let sums = kept.iter().map(|c| {
            sum += c.1;
            sum
        });
        let n_short = sums.take_while(|&sum| sum < f64::from(s.top_p) * total).count();
        kept.truncate(n_short + 1);
    }
    kept.retain(|c| c.1 >= f64::from(s.min_p));
    let total: f64 = kept.iter().map(|c| c.1).sum();
    kept.into_iter().map(|(t, w)| (t, w / total)).collect()
}

fn naive_draw(distribution: &[(u32, f64)], u: f64) -> Option<u32> {
    let mut sum = 0.0;
    let drawn = distribution.iter().find(|c| {
        sum += c.1;
        sum > u
    });
    drawn.or(distribution.iter().rfind(|c| c.1 > 0.0)).map(|c| c.0)
}

fn naive_logprobs(logits: &[f32], token: u32, n_top: usize) -> Logprobs {
    let max = f64::from(logits.iter().copied().fold(NEG, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    let logprob = |l: f32| ((f64::from(l) - max - sum.ln()) as f32).max(-9999.0);
    let likeliest = naive_ranks(logits).into_iter().take(n_top);
    let mut top: Vec<_> = likeliest.map(|(t, l)| (t, logprob(l))).collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    Logprobs { chosen: logprob(logits[token as usize]), top }
}

/// Whether both report the same tokens, and numbers that differ by the rounding of weights at most.
fn are_close(a: Option<&Logprobs>, b: Option<&Logprobs>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return a.is_none() && b.is_none() };
    let is_close = |a: f32, b: f32| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
    let tokens = |top: &[(u32, f32)]| {
        let mut tokens: Vec<u32> = top.iter().map(|t| t.0).collect();
        tokens.sort_unstable();
        tokens
    };
    is_close(a.chosen, b.chosen)
        && tokens(&a.top) == tokens(&b.top)
        && a.top.iter().zip(&b.top).all(|(a, b)| is_close(a.1, b.1))
        && a.top.is_sorted_by(|a, b| a.1 > b.1 || a.1 == b.1 && a.0 < b.0)
}

/// From a grid, so that there are ties, or from anywhere; some are impossible.
fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => (-12i8..12).prop_map(|l| f32::from(l) / 2.0),
        4 => -20f32..20.0,
        1 => Just(NEG),
    ]
}

prop_compose! {
    fn settings(vocab: usize)(
        (temperature, top_k, top_p, min_p) in (
            prop_oneof![Just(0.0), Just(1e-30f32), 0.05f32..3.0, 20f32..100.0],
            prop_oneof![Just(0), 1usize..80],
            prop_oneof![Just(1.0), 0.001f32..1.0],
            prop_oneof![Just(0.0), 0f32..=1.0, 0f32..0.05],
        ),
        (repetition_penalty, presence_penalty, frequency_penalty) in (
            prop_oneof![Just(1.0), 0.5f32..3.0],
            prop_oneof![Just(0.0), -2f32..2.0],
            prop_oneof![Just(0.0), -2f32..2.0],
        ),
        logit_bias in prop::collection::vec((0..vocab as u32, -8f32..8.0), 0..4),
        stop_ids in prop::collection::vec(0..vocab as u32, 0..3),
        (seed, min_tokens, ignore_eos) in (any::<u64>(), 0usize..4, any::<bool>()),
        logprobs in prop::option::of(0usize..=20),
    ) -> Sampling {
        Sampling {
            temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, logit_bias, seed, stop_ids, min_tokens, ignore_eos, logprobs,
            ..Sampling::default()
        }
    }
}

#[derive(Debug)]
struct Case {
    settings: Sampling,
    prompt: Vec<u32>,
    ends: Vec<u32>,
    steps: Vec<Vec<f32>>,
}

fn case() -> impl Strategy<Value = Case> {
    prop_oneof![2 => 1usize..8, 2 => 8usize..64, 1 => 300usize..700].prop_flat_map(|vocab| {
        let ids = |n| prop::collection::vec(0..vocab as u32, 0..n);
        let steps = prop::collection::vec(prop::collection::vec(logit(), vocab), 1..6);
        (settings(vocab), ids(10), ids(3), steps).prop_map(|(settings, prompt, ends, steps)| Case {
            settings,
            prompt,
            ends,
            steps,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn every_token_is_the_definitions(Case { settings, prompt, ends, steps } in case()) {
        let vocab = steps[0].len();
        let mut sampler = Sampler::new(&settings, &prompt, &ends, vocab).unwrap();
        let mut output = Vec::new();
        for logits in &steps {
            let scores = naive_scores(&settings, &prompt, &output, &ends, logits);
            let distribution = naive_distribution(&settings, &scores);
            let u = uniform(settings.seed, output.len() as u64);
            let Some(token) = naive_draw(&distribution, u) else {
                prop_assert!(sampler.sample(logits).is_err());
                continue;
            };
            let choice = sampler.sample(logits).unwrap();
            prop_assert_eq!(choice.token, token);
            let naive = settings.logprobs.map(|n| naive_logprobs(logits, token, n));
            prop_assert!(are_close(choice.logprobs.as_ref(), naive.as_ref()));
            output.push(token);
        }
        prop_assert_eq!(sampler.n_generated(), output.len());
    }

    /// A draw and its adjustments determine the same tokens; the sampler accepts them.
    #[test]
    fn a_draw_and_its_adjustments_decide_the_token(case in case()) {
        let Case { settings, prompt, ends, steps } = case;
        let settings = Sampling { logprobs: None, ..settings };
        let vocab = steps[0].len();
        let mut sampler = Sampler::new(&settings, &prompt, &ends, vocab).unwrap();
        let mut other = sampler.clone();
        let biases = &settings.logit_bias;
        let is_double = |b: &(u32, f32)| biases.iter().filter(|other| other.0 == b.0).count() > 1;
        prop_assert_eq!(sampler.next_draw().is_none(), biases.iter().any(is_double));
        for logits in &steps {
            let Some(draw) = other.next_draw() else { return Ok(()) };
            let scores = adjusted(&draw, &other.adjustments(), logits);
            prop_assert_eq!(draw.adjusts || scores == *logits, true);
            let same = Sampling {
                temperature: draw.temperature, top_k: draw.top_k, top_p: draw.top_p,
                min_p: draw.min_p, ..Sampling::default()
            };
            let distribution = naive_distribution(&same, &scores);
            let token = naive_draw(&distribution, uniform(draw.seed, draw.index as u64));
            let Ok(choice) = sampler.sample(logits) else {
                prop_assert_eq!(token, None);
                continue;
            };
            prop_assert_eq!(token, Some(choice.token));
            other.accept(choice.token).unwrap();
        }
    }
}

/// Steps 1 to 4 from a draw.
fn adjusted(draw: &Draw, adjustments: &[Adjustment], logits: &[f32]) -> Vec<f32> {
    let mut scores = logits.to_vec();
    for Adjustment { token, bias, seen, ruled_out } in adjustments {
        let score = &mut scores[*token as usize];
        *score += bias;
        if let Some(n) = seen {
            let r = draw.repetition_penalty;
            *score = if *score < 0.0 { *score * r } else { *score / r };
            if *n > 0 {
                *score = *score - draw.frequency_penalty * *n as f32 - draw.presence_penalty;
            }
        }
        let is_early = draw.index < draw.min_tokens;
        if *ruled_out == RuledOut::Always || (*ruled_out == RuledOut::Early && is_early) {
            *score = NEG;
        }
    }
    scores
}

#[test]
fn what_takes_more_than_numbers_has_no_draw() {
    let draw = |settings: &Sampling| Sampler::new(settings, &[], &[], 9).unwrap().next_draw();
    assert!(draw(&Sampling::default()).is_some_and(|draw| !draw.adjusts));
    let reports = Sampling { logprobs: Some(3), ..Sampling::default() };
    assert_eq!(draw(&reports).unwrap().n_logprobs, Some(3));
    let twice = Sampling { logit_bias: vec![(1, 2.0), (1, 0.1)], ..Sampling::default() };
    assert!(draw(&twice).is_none());
}

/// Pearson's statistic of `n` drawn tokens against their expected probabilities; infinite if an
/// impossible token occurs.
fn chi_square(expected: &[(u32, f64)], tokens: impl Iterator<Item = u32>) -> f64 {
    let mut counts = vec![0u32; expected.len()];
    let mut n = 0;
    for token in tokens {
        let Some(at) = expected.iter().position(|c| c.0 == token) else { return f64::INFINITY };
        counts[at] += 1;
        n += 1;
    }
    let term = |(&count, &(_, p)): (&u32, &(u32, f64))| {
        let mean = p * f64::from(n);
        (f64::from(count) - mean).powi(2) / mean
    };
    counts.iter().zip(expected).map(term).sum()
}

const LOGITS: [f32; 10] = [0.3, 2.0, -1.0, 1.1, NEG, 0.0, 1.9, 2.0, -0.5, 0.7];

/// The seeds are fixed, so this always passes or always fails. 99.9% of fair draws are below 26.1
/// with the 8 degrees of freedom of nine possible tokens.
#[test]
fn tokens_come_as_often_as_their_probabilities_say() {
    for temperature in [0.5, 1.0, 2.0] {
        let settings = Sampling { temperature, seed: 11, ..Sampling::default() };
        let expected = naive_distribution(&settings, &LOGITS);
        assert_eq!(expected.len(), 9);

        let mut sampler = Sampler::new(&settings, &[], &[], LOGITS.len()).unwrap();
        let along_one_answer = (0..20_000).map(|_| sampler.sample(&LOGITS).unwrap().token);
        let chi = chi_square(&expected, along_one_answer);
        assert!(chi < 26.1, "along one answer at temperature {temperature}: {chi}");

        let first_token = |seed| {
            let settings = Sampling { seed, ..settings.clone() };
            let mut sampler = Sampler::new(&settings, &[], &[], LOGITS.len()).unwrap();
            sampler.sample(&LOGITS).unwrap().token
        };
        let chi = chi_square(&expected, (0..20_000).map(first_token));
        assert!(chi < 26.1, "over neighbouring seeds at temperature {temperature}: {chi}");
        let chi = chi_square(&expected, (0..20_000).map(|n| first_token(choice_seed(5, n))));
        assert!(chi < 26.1, "over the choices of a request at temperature {temperature}: {chi}");
    }
}

/// Exactly the tokens that a filter keeps, in the right proportions.
#[test]
fn filters_limit_what_is_drawn() {
    let support = |change: &dyn Fn(&mut Sampling)| {
        let mut settings = Sampling { seed: 2, ..Sampling::default() };
        change(&mut settings);
        let mut sampler = Sampler::new(&settings, &[], &[], LOGITS.len()).unwrap();
        let tokens: Vec<_> = (0..20_000).map(|_| sampler.sample(&LOGITS).unwrap().token).collect();
        let expected = naive_distribution(&settings, &LOGITS);
        let chi = chi_square(&expected, tokens.iter().copied());
        assert!(chi < 26.1, "{settings:?}: {chi}");
        let mut support = tokens;
        support.sort_unstable();
        support.dedup();
        support
    };
    // By rank 1, 7, 6, 3, 9, 0, 5, 8, 2, with probabilities of about
    // .246 .246 .223 .100 .067 .045 .033 .020 .012, which are these shares of the largest:
    // 1 1 .905 .407 .273 .183 .135 .082 .050.
    assert_eq!(support(&|s| s.top_k = 1), [1]);
    assert_eq!(support(&|s| s.top_k = 4), [1, 3, 6, 7]);
    assert_eq!(support(&|s| s.top_p = 0.2), [1]);
    assert_eq!(support(&|s| s.top_p = 0.5), [1, 6, 7]);
    assert_eq!(support(&|s| s.top_p = 0.85), [1, 3, 6, 7, 9]);
    assert_eq!(support(&|s| s.min_p = 1.0), [1, 7]);
    assert_eq!(support(&|s| s.min_p = 0.4), [1, 3, 6, 7]);
    // top_p is a share of what top_k keeps: .246 of .715 is .344, .492 is .688.
    assert_eq!(support(&|s| (s.top_k, s.top_p) = (3, 0.6)), [1, 7]);
    // top_p is not a share of what min_p keeps: 0.6 of everything needs three tokens, 0.6 of the
    // .715 that min_p keeps would need two.
    assert_eq!(support(&|s| (s.top_p, s.min_p) = (0.6, 0.9)), [1, 6, 7]);
    // Temperature comes before the filters: at 0.5 the shares are squared.
    assert_eq!(support(&|s| (s.temperature, s.min_p) = (0.5, 0.4)), [1, 6, 7]);
}

#[test]
fn a_seed_gives_its_tokens_whatever_else_runs() {
    let of = |seed| {
        let settings = Sampling { seed, presence_penalty: 0.3, ..Sampling::thinking() };
        Sampler::new(&settings, &[1, 2], &[], LOGITS.len()).unwrap()
    };
    let next = |sampler: &mut Sampler| sampler.sample(&LOGITS).unwrap().token;
    let alone = |seed| {
        let mut sampler = of(seed);
        (0..200).map(|_| next(&mut sampler)).collect::<Vec<_>>()
    };
    let (mut a, mut b) = (of(u64::MAX), of(8));
    let mut beside = (Vec::new(), Vec::new());
    for step in 0..200 {
        beside.0.push(next(&mut a));
        if step % 3 > 0 {
            beside.1.push(next(&mut b));
        }
    }
    assert_eq!(beside.0, alone(u64::MAX));
    assert_eq!(beside.1, alone(8)[..beside.1.len()]);
    assert_ne!(alone(u64::MAX), alone(8));
}

/// A vocabulary of real size, flat enough that thousands of ranks matter.
#[test]
fn a_large_vocabulary_follows_the_definition() {
    let vocab = 151_936u64;
    let logits: Vec<f32> = (0..vocab).map(|t| (uniform(77, t) * 12.0 - 6.0) as f32).collect();
    for (top_k, top_p, min_p) in
        [(0, 1.0, 0.0), (0, 0.9, 0.0), (20, 0.95, 0.0), (5000, 1.0, 0.0), (0, 1.0, 0.2)]
    {
        let settings = Sampling { top_k, top_p, min_p, seed: 1, ..Sampling::default() };
        let expected = naive_distribution(&settings, &logits);
        let mut sampler = Sampler::new(&settings, &[], &[], logits.len()).unwrap();
        for index in 0..4 {
            let token = sampler.sample(&logits).unwrap().token;
            assert_eq!(Some(token), naive_draw(&expected, uniform(1, index)), "{settings:?}");
        }
    }
}
