//! Times steps that verify a draft of one lane, beside plain decoding in the same run, and answers by
//! drafts of a known quality. Prints one JSON object per line; leaves with an error where a token
//! differs.
//!
//!     cargo run --release -p weft-cuda --example draft_times -- qwen3-0.6b 30,1000,8000 | tee drafts.jsonl
//!
//! The arguments are a named shape and contexts. All times are the host's, from a call to its last
//! token. `plain_us` is a token of an answer that is decoded without drafts. `verify` lines time one
//! step of `tokens` tokens, of which all but the first are drafted: as a graph, in the persistent
//! kernel, and with draws and a penalty as a graph; and right after a token of a launch that goes
//! on (`after_running_us`) or that was to end with it (`after_last_us`), without that token.
//! `answer` lines decode an answer whose drafts are right with a probability for each token.

mod prefilled;

use std::time::Instant;

use prefilled::{BLOCK, Failed, median, place, prefill};
use weft_core::config::Config;
use weft_core::device::{Device, Lane, Limits, Outputs, Span, Step};
use weft_core::kv::{PAGE_ROWS, PageId, pages_for};
use weft_core::plan::plan;
use weft_core::sampling::{Sampler, Sampling, uniform};
use weft_core::shapes;
use weft_core::weights::RandomWeights;
use weft_cuda::{CudaDevice, Launches, Options};

/// Tokens of an answer.
const ANSWER: usize = 128;
const TOKENS: [usize; 6] = [1, 2, 3, 4, 6, 8];
/// Tokens of a step, and how often a drafted one is right.
const ANSWERS: [(usize, f64); 7] =
    [(4, 0.75), (4, 1.0), (8, 0.0), (8, 0.5), (8, 0.75), (8, 0.9), (8, 1.0)];
const ROUNDS: usize = 3;
/// Steps of a round.
const REPEATS: usize = 12;
/// Steps that may be started ahead.
const AHEAD: usize = 63;

/// One lane on a device, and the rows before its answer.
struct Timed<'a> {
    device: &'a mut CudaDevice,
    config: &'a Config,
    context: usize,
}

impl Timed<'_> {
    fn greedy(&self) -> Result<Sampler, Failed> {
        let settings = Sampling { temperature: 0.0, ..Sampling::default() };
        Ok(Sampler::new(&settings, &[], &[], self.config.vocab)?)
    }

    fn drawn(&self) -> Result<Sampler, Failed> {
        let drawn = Sampling { temperature: 0.7, top_k: 20, top_p: 0.8, ..Sampling::default() };
        let settings = Sampling { presence_penalty: 1.0, ..drawn };
        Ok(Sampler::new(&settings, &[], &[], self.config.vocab)?)
    }

    /// Runs tokens that follow `before` tokens of the answer; those that the GPU chooses after them.
    fn decode(
        &mut self,
        tokens: &[u32],
        before: usize,
        sampler: &Sampler,
        ahead: usize,
    ) -> Result<Vec<u32>, Failed> {
        let first = self.context + before;
        let len = first + tokens.len();
        let pages = (0..pages_for(self.context + ANSWER + 9) as PageId).collect();
        let span = Span { pages, first_row: 0, len, home_position: 0, position: 0 };
        let positions: Vec<u32> = (first..len).map(|position| position as u32).collect();
        let slots: Vec<u32> = (first..len).map(|row| span.slot(row)).collect();
        let lane = Lane {
            tokens,
            positions: &positions,
            key_positions: &positions,
            store_at: &slots,
            spans: &[span],
            marks: &[],
            outputs: Outputs::All,
        };
        let ahead = ahead.min(PAGE_ROWS - 1 - first % PAGE_ROWS);
        self.device.decode(
            &plan(self.config),
            &Step { lanes: &[lane] },
            &[Some(sampler)],
            ahead,
        )?;
        let chosen = (0..tokens.len()).map(|output| self.device.chosen(0, output));
        chosen.collect::<Option<_>>().ok_or_else(|| "a token was left to the host".into())
    }

    /// An answer without drafts: the time of a token in µs, and all tokens, from the first that is
    /// run.
    fn plain(&mut self) -> Result<(f64, Vec<u32>), Failed> {
        let (mut sampler, mut said) = (self.greedy()?, vec![11]);
        let start = Instant::now();
        for n in 0..ANSWER {
            let next = self.decode(&said[n..], n, &sampler, AHEAD)?[0];
            sampler.accept(next)?;
            said.push(next);
        }
        Ok((start.elapsed().as_secs_f64() * 1e6 / ANSWER as f64, said))
    }

    /// The time in µs of a step of `n` tokens of an answer.
    fn verify(&mut self, said: &[u32], n: usize, sampler: &Sampler) -> Result<f64, Failed> {
        let start = Instant::now();
        for _ in 0..REPEATS {
            self.decode(&said[..n], 0, sampler, 0)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / REPEATS as f64)
    }

    /// The time in µs of such a step after two tokens, the second of which was begun ahead. `ahead`
    /// is what was said then of those that follow.
    fn verify_after(&mut self, said: &[u32], n: usize, ahead: usize) -> Result<f64, Failed> {
        let (mut sampler, mut total) = (self.greedy()?, 0.0);
        let first = sampler.clone();
        sampler.accept(said[1])?;
        for _ in 0..REPEATS {
            self.decode(&said[..1], 0, &first, AHEAD)?;
            self.decode(&said[1..2], 1, &sampler, ahead)?;
            let mut sampler = sampler.clone();
            sampler.accept(said[2])?;
            let start = Instant::now();
            self.decode(&said[2..2 + n], 2, &sampler, 0)?;
            total += start.elapsed().as_secs_f64();
        }
        Ok(total * 1e6 / REPEATS as f64)
    }

    /// The answer by drafts, each token of which is right with a probability: the time of a token in
    /// µs, the steps, and whether it is the same answer.
    fn answer(&mut self, truth: &[u32], n: usize, rate: f64) -> Result<(f64, usize, bool), Failed> {
        let (mut sampler, mut said, mut n_steps) = (self.greedy()?, vec![truth[0]], 0);
        let start = Instant::now();
        while said.len() <= ANSWER {
            let done = said.len() - 1;
            let drafted = 1..n.min(ANSWER - done);
            let wrong = |place: usize| uniform(n as u64, (done * 8 + place) as u64) >= rate;
            let token = |place: usize| {
                let token = truth[done + place];
                if wrong(place) { (token + 1) % self.config.vocab as u32 } else { token }
            };
            let draft: Vec<u32> = std::iter::once(said[done]).chain(drafted.map(token)).collect();
            let chosen = self.decode(&draft, done, &sampler, 0)?;
            for (place, next) in chosen.into_iter().enumerate() {
                sampler.accept(next)?;
                said.push(next);
                if draft.get(place + 1) != Some(&next) {
                    break;
                }
            }
            n_steps += 1;
        }
        let time = start.elapsed().as_secs_f64() * 1e6 / ANSWER as f64;
        Ok((time, n_steps, said[..=ANSWER] == truth[..=ANSWER]))
    }

    /// Prints the times of steps of every length.
    fn time_steps(&mut self, name: &str, said: &[u32]) -> Result<(), Failed> {
        let (greedy, drawn) = (self.greedy()?, self.drawn()?);
        for n in TOKENS {
            let mut samples: [Vec<f64>; 6] = Default::default();
            for _ in 0..ROUNDS {
                self.device.use_launches(Launches::Graph)?;
                samples[0].push(self.verify(said, n, &greedy)?);
                samples[1].push(self.verify(said, n, &drawn)?);
                self.device.use_launches(Launches::Persistent)?;
                samples[2].push(self.verify(said, n, &greedy)?);
                self.device.use_launches(Launches::Auto)?;
                samples[3].push(self.verify(said, n, &greedy)?);
                samples[4].push(self.verify_after(said, n, AHEAD)?);
                samples[5].push(self.verify_after(said, n, 0)?);
            }
            let context = self.context;
            let [graph, drawn, kernel, auto, running, last] = samples.map(median);
            println!(
                r#"{{"what": "verify", "shape": "{name}", "context": {context}, "tokens": {n}, "graph_us": {graph:.1}, "graph_drawn_us": {drawn:.1}, "persistent_us": {kernel:.1}, "auto_us": {auto:.1}, "after_running_us": {running:.1}, "after_last_us": {last:.1}}}"#
            );
        }
        Ok(())
    }

    fn measure(&mut self, name: &str) -> Result<bool, Failed> {
        let places = [place(0, self.context + 1, ANSWER + 8, 11)];
        prefill(self.device, &plan(self.config), &places, self.config.vocab)?;
        self.device.use_launches(Launches::Auto)?;
        let (_, said) = self.plain()?;
        self.time_steps(name, &said)?;
        let mut same = true;
        let (mut plain, context) = (Vec::new(), self.context);
        for (n, rate) in ANSWERS {
            let mut times = Vec::new();
            let mut steps = 0;
            for _ in 0..ROUNDS {
                plain.push(self.plain()?.0);
                let (time, n_steps, is_same) = self.answer(&said, n, rate)?;
                times.push(time);
                (same, steps) = (same && is_same, n_steps);
            }
            let (beside, time) = (median(plain.clone()), median(times.clone()));
            println!(
                r#"{{"what": "answer", "shape": "{name}", "context": {context}, "tokens": {n}, "right": {rate}, "same": {same}, "steps_of_{ANSWER}": {steps}, "plain_us": {beside:.1}, "us": {time:.1}, "over_plain": {:.2}, "samples_us": {times:.1?}}}"#,
                beside / time
            );
        }
        Ok(same)
    }
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "qwen3-0.6b".to_owned());
    let contexts = arguments.next().unwrap_or_else(|| "30,1000,8000".to_owned());
    let contexts: Vec<usize> = contexts.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let config = shapes::config(&name).ok_or("no such shape")?;
    let longest = contexts.iter().max().ok_or("no context")? + ANSWER + 9;
    let limits = Limits {
        step_tokens: BLOCK,
        step_outputs: 8,
        positions: longest.next_multiple_of(PAGE_ROWS),
        pages: pages_for(longest),
    };
    let options = Options { launches: Launches::Auto, ..Options::new(limits) };
    let mut device = CudaDevice::new(&config, &RandomWeights::new(&config, 1), options)?;
    device.warm_up()?;
    println!(
        r#"{{"what": "device", "shape": "{name}", "details": {:?}}}"#,
        device.details().unwrap_or_default()
    );
    let mut same = true;
    for context in contexts {
        let mut timed = Timed { device: &mut device, config: &config, context };
        same &= timed.measure(&name)?;
    }
    if same { Ok(()) } else { Err("tokens differ".into()) }
}
