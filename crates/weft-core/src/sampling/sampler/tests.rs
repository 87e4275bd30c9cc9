//! Single steps of the sampler, with values small enough to check by hand.
//! `tests/all/sampling_sampler.rs` compares whole answers with an implementation that sorts everything.

use super::*;

const NEG: f32 = f32::NEG_INFINITY;

fn sampler(settings: &Sampling, prompt: &[u32], ends: &[u32], vocab: usize) -> Sampler {
    Sampler::new(settings, prompt, ends, vocab).unwrap()
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

fn token(settings: &Sampling, logits: &[f32]) -> u32 {
    sampler(settings, &[], &[], logits.len()).sample(logits).unwrap().token
}

#[test]
fn temperature_0_takes_the_largest_and_of_equals_the_lowest_id() {
    assert_eq!(token(&greedy(), &[1.0, 3.0, 2.0, 3.0]), 1);
    assert_eq!(token(&greedy(), &[NEG, -0.0, 0.0]), 1);
    assert_eq!(token(&greedy(), &[NEG, NEG, -1e30]), 2);
}

#[test]
fn bias_is_added_before_penalties_divide() {
    // (1 + 5) / 2 = 3, while 1 / 2 + 5 = 5.5 would win both times.
    let settings = Sampling { logit_bias: vec![(0, 5.0)], repetition_penalty: 2.0, ..greedy() };
    let choose = |other| sampler(&settings, &[0], &[], 2).sample(&[1.0, other]).unwrap().token;
    assert_eq!((choose(2.9), choose(3.1)), (0, 1));
}

#[test]
fn penalties_follow_the_output() {
    let settings = Sampling { frequency_penalty: 1.0, ..greedy() };
    let mut sampler = sampler(&settings, &[0, 0, 0], &[], 2);
    let tokens: Vec<_> = (0..6).map(|_| sampler.sample(&[2.5, 1.0]).unwrap().token).collect();
    // The logits of tokens 0 and 1 at each step: (2.5, 1), (1.5, 1), (0.5, 1), (0.5, 0),
    // (-0.5, 0), (-0.5, -1). The prompt does not count.
    assert_eq!(tokens, [0, 0, 1, 0, 1, 0]);
}

#[test]
fn ends_are_masked_until_min_tokens() {
    let settings = Sampling { min_tokens: 2, stop_ids: vec![2], ..greedy() };
    let mut sampler = sampler(&settings, &[], &[3, 999], 4);
    let tokens: Vec<_> =
        (0..3).map(|_| sampler.sample(&[0.0, 1.0, 2.0, 3.0]).unwrap().token).collect();
    assert_eq!(tokens, [1, 1, 3]);
    assert_eq!(sampler.n_generated(), 3);
    assert_eq!([1, 2, 3].map(|t| sampler.is_end(t)), [false, true, true]);
}

#[test]
fn ignore_eos_masks_the_models_ends_for_good_but_not_the_requests() {
    let settings = Sampling { ignore_eos: true, stop_ids: vec![2], ..greedy() };
    let mut sampler = sampler(&settings, &[], &[3], 4);
    for _ in 0..3 {
        assert_eq!(sampler.sample(&[0.0, 1.0, 2.0, 3.0]).unwrap().token, 2);
    }
}

#[test]
fn a_tiny_temperature_is_greedy_and_a_tiny_tail_is_never_drawn() {
    for temperature in [f32::from_bits(1), f32::MIN_POSITIVE, 1e-20] {
        for seed in 0..50 {
            let settings = Sampling { temperature, seed, ..Sampling::default() };
            assert_eq!(token(&settings, &[-3e38, 1.0, 3e38, 2.9e38, NEG]), 2);
            // Equal logits stay equally likely, so only the support can be asserted.
            assert_ne!(token(&settings, &[5.0, 4.999, 5.0]), 1);
        }
    }
}

#[test]
fn bad_logits_name_the_generated_token_and_change_nothing() {
    let settings = Sampling { seed: 3, ..Sampling::default() };
    let mut disturbed = sampler(&settings, &[], &[], 3);
    let mut undisturbed = disturbed.clone();
    for index in 0..20 {
        for bad in [f32::NAN, f32::INFINITY] {
            let error = disturbed.sample(&[0.0, bad, 0.0]).unwrap_err().to_string();
            let expected = format!("logit of token 1 is {bad} at generated token {index}: ");
            assert!(error.starts_with(&expected), "{error}");
        }
        let error = disturbed.sample(&[NEG; 3]);
        assert_eq!(error, Err(SamplingError::NoCandidate { index }));
        assert_eq!(disturbed.sample(&[0.0; 3]), undisturbed.sample(&[0.0; 3]));
    }
}

#[test]
fn a_mask_hides_no_bad_logit_and_may_leave_nothing() {
    let settings = Sampling { ignore_eos: true, ..greedy() };
    let mut sampler = sampler(&settings, &[], &[1], 2);
    let error = sampler.sample(&[0.0, f32::NAN]);
    assert!(matches!(error, Err(SamplingError::BadLogit { index: 0, token: 1, .. })));
    assert_eq!(sampler.sample(&[NEG, 0.0]), Err(SamplingError::NoCandidate { index: 0 }));
    assert_eq!(sampler.sample(&[0.0, 9.0]).unwrap().token, 0);
}

#[test]
fn logprobs_are_of_the_untouched_logits() {
    let settings = Sampling { logit_bias: vec![(1, 10.0)], logprobs: Some(2), ..greedy() };
    let choice = sampler(&settings, &[], &[], 2).sample(&[0.0, 0.0]).unwrap();
    let half = -std::f32::consts::LN_2;
    let logprobs = Logprobs { chosen: half, top: vec![(0, half), (1, half)] };
    assert_eq!(choice, Choice { token: 1, logprobs: Some(logprobs) });
    assert_eq!(sampler(&greedy(), &[], &[], 2).sample(&[0.0, 0.0]).unwrap().logprobs, None);
}

#[test]
fn settings_and_prompt_are_checked() {
    let error = |settings: &Sampling, prompt: &[u32]| {
        Sampler::new(settings, prompt, &[], 4).err().map(|e| e.to_string())
    };
    let settings = Sampling { top_p: 0.0, ..greedy() };
    assert!(error(&settings, &[]).unwrap().starts_with("top_p is 0"));
    let unknown = error(&greedy(), &[3, 4]).unwrap();
    assert_eq!(unknown, "prompt has token 4: ids go from 0 to 3");
}

/// Steps 5 to 10 by sorting everything and adding rank after rank.
fn plain(settings: &Sampling, logits: &[f32]) -> u32 {
    let Sampling { temperature, top_k, top_p, min_p, seed, .. } = *settings;
    let mut ranks: Vec<(u32, f32)> =
        (0..).zip(logits.iter().copied()).filter(|rank| rank.1 != NEG).collect();
    ranks.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    ranks.truncate(if top_k == 0 { logits.len() } else { top_k });
    let (max, scale) = (f64::from(ranks[0].1), weight::scale(temperature));
    let weight = |score: f32| weight::weight(max - f64::from(score), scale);
    let ranks: Vec<_> = ranks.into_iter().map(|(token, score)| (token, weight(score))).collect();
    let all = ranks.iter().map(|rank| rank.1).sum();
    let border = if top_p == 1.0 { all } else { weight::border(weight::share(top_p), all) };
    let mut sum = 0;
    let stay = ranks.into_iter().take_while(|rank| {
        let stays = rank.1 >= weight::least(min_p) && sum < border;
        sum += rank.1;
        stays
    });
    let stay: Vec<_> = stay.collect();
    let target = below(seed, 0, stay.iter().map(|rank| rank.1).sum());
    let mut sum = 0;
    let drawn = stay.iter().find(|rank| {
        sum += rank.1;
        sum > target
    });
    drawn.unwrap().0
}

/// Logits of many shapes, from one random number in [0, 1) each.
const SHAPES: [fn(f32) -> f32; 8] = [
    |u| u * 20.0,
    |u| (u * 12.0).floor(),
    |u| if u < 0.5 { -0.0 } else { 0.0 },
    |_| 1.5,
    |u| (u - 0.5) * 2.0 * f32::MAX,
    |u| -1.0 / u,
    |u| if u < 0.7 { NEG } else { u.ln() * 50.0 },
    |u| if u < 0.99 { u * 1e-6 } else { u * 40.0 },
];

#[test]
fn sums_over_ranges_choose_what_sums_over_ranks_choose() {
    for (shape, seed) in (0..SHAPES.len()).flat_map(|shape| (0..12).map(move |seed| (shape, seed)))
    {
        for vocab in [1, 255, 256, 257, 3000] {
            let random = |i| crate::sampling::uniform(seed, i) as f32;
            let mut logits: Vec<f32> = (1..=vocab).map(|i| SHAPES[shape](random(i))).collect();
            logits[vocab as usize / 2] = SHAPES[shape](0.9999);
            for temperature in [1e-30, 0.3, 1.0, 8.0, 100.0] {
                for (top_k, top_p, min_p) in [
                    (0, 1.0, 0.0),
                    (0, 0.95, 0.0),
                    (0, 1.0, 0.05),
                    (0, 0.7, 0.2),
                    (0, 1e-9, 1.0),
                    (40, 0.95, 0.01),
                    (1000, 0.999_999, 0.0),
                ] {
                    let settings =
                        Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
                    let about = format!("shape {shape}, {vocab} logits, {settings:?}");
                    assert_eq!(token(&settings, &logits), plain(&settings, &logits), "{about}");
                }
            }
        }
    }
}

/// What a device reads about a choice after a draft is what the sampler says when it gets there.
#[test]
fn a_choice_after_a_draft_is_the_one_that_comes() {
    let settings = [
        Sampling {
            temperature: 0.7,
            seed: 3,
            min_tokens: 2,
            stop_ids: vec![4],
            ..Sampling::default()
        },
        Sampling { repetition_penalty: 1.3, logit_bias: vec![(3, 1.0)], ..Sampling::default() },
        Sampling {
            frequency_penalty: 0.5,
            presence_penalty: 0.1,
            min_tokens: 3,
            ..Sampling::default()
        },
        Sampling { ignore_eos: true, top_k: 3, ..Sampling::default() },
    ];
    let sorted = |mut adjustments: Vec<Adjustment>| {
        adjustments.sort_unstable_by_key(|adjustment| adjustment.token);
        adjustments
    };
    for settings in settings {
        let mut sampler = Sampler::new(&settings, &[1, 1, 5], &[0, 6], 8).unwrap();
        sampler.accept(2).unwrap();
        let before = (sampler.next_draw(), sorted(sampler.adjustments()));
        let draft = [3, 3, 1, 7, 3];
        let ahead: Vec<_> = (0..=draft.len())
            .map(|n| {
                (sampler.draw_after(&draft[..n]), sorted(sampler.adjustments_after(&draft[..n])))
            })
            .collect();
        assert_eq!((sampler.next_draw(), sorted(sampler.adjustments())), before, "no trace");
        for (n, ahead) in ahead.into_iter().enumerate() {
            assert_eq!(
                ahead,
                (sampler.next_draw(), sorted(sampler.adjustments())),
                "{settings:?} {n}"
            );
            draft.get(n).into_iter().for_each(|token| sampler.accept(*token).unwrap());
        }
        assert_eq!(sampler.possible(&[3, 1, 6, 2]), 2, "no end token is drafted");
        assert_eq!(sampler.possible(&[3, 8]), 1, "nor one that does not exist");
    }
}
