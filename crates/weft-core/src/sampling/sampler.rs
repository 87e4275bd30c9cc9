//! Chooses a token from logits. It defines the order of the steps and the draw, and keeps one
//! request's state between tokens: a counter, and the counts of its penalties.

use super::{
    Adjustment, Draw, Logprobs, RuledOut, Sampling, SamplingError,
    candidates::Candidates,
    check::check_token,
    constraint::{Constrained, Constraint},
    logprobs::LogprobsReader,
    penalties::Penalties,
    random::below,
    sums::{Measure, Sums},
    weight,
};

/// The token chosen for one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its id.
    pub token: u32,
    /// Log-probabilities, if the request asks for them.
    pub logprobs: Option<Logprobs>,
}

/// Chooses the tokens of one answer, one call per token.
///
/// **This is the definition of sampling.** A device that samples by itself is compared with it.
/// With `l` the logits of one step and `i` the number of tokens generated before it:
///
/// 1. `logit_bias`: `l[t] += bias` for each entry, in the order given.
/// 2. `repetition_penalty` r, once for each token in the prompt or the output:
///    `l[t] = l[t] < 0 ? l[t] * r : l[t] / r`.
/// 3. `frequency_penalty` f and `presence_penalty` p, for each token that occurs `n > 0` times in
///    the output: `l[t] -= f * n`, then `l[t] -= p`.
/// 4. End tokens become -inf: the model's under `ignore_eos` or while `i < min_tokens`, those of
///    `stop_ids` while `i < min_tokens`. So do tokens that the answer's [`Constraint`] forbids.
/// 5. Tokens are ranked by `l` descending, ties by id ascending (0 and -0 are a tie). A token at
///    -inf has no rank. Temperature 0 chooses the first rank without a random number.
/// 6. Otherwise every rank has a weight: `exp((l - l_max) / temperature)` in units of 2^-40, an
///    integer, computed as below. It never rises from one rank to the next.
/// 7. `top_k`: keeps the first k ranks.
/// 8. `top_p` below 1: keeps the shortest run of first ranks whose weights sum to at least `top_p`
///    times the sum over all ranks of step 7. `top_p` is rounded down to a multiple of 2^-32.
/// 9. `min_p`: keeps the ranks with a weight of at least `min_p * 2^40`. The first rank weighs
///    2^40, so these have at least `min_p` times the largest probability. The first rank survives
///    steps 7 to 9.
/// 10. Draw: `u = ` [`uniform`](super::uniform)`(seed, i)`. The first rank is chosen at which the
///     running sum of the kept weights exceeds `u` times their total.
///
/// Steps 1 to 4 are f32, each operation rounded. From step 6 on, all numbers are integers and
/// compared exactly, so the order of summation does not matter: every implementation of this
/// definition chooses the same token.
///
/// The weight of a rank, in f64 up to `distance` and in unsigned integers after it:
///
/// ```text
/// distance = (l_max - l) * (log2(e) * 2^32 / temperature), rounded down
/// n, f     = distance >> 32, distance & (2^32 - 1)
/// weight   = 2^(40 - n - f / 2^32), rounded; the power by a fixed-point polynomial (weight.rs)
/// ```
///
/// [`Sampler::new`] allocates all memory; a step allocates only the [`Logprobs`] that it returns.
#[derive(Clone)]
pub struct Sampler {
    settings: Sampling,
    penalties: Penalties,
    /// The model's end tokens.
    ends: Vec<u32>,
    vocab: usize,
    n_generated: usize,
    has_double_bias: bool,
    /// `[vocab]`: the logits after steps 1 to 4. Empty if the request does not need them.
    scores: Vec<f32>,
    candidates: Candidates,
    sums: Sums,
    logprobs: Option<LogprobsReader>,
    /// Its mask is computed when it is first asked for, by a device or here.
    constraint: Option<Constrained>,
}

impl Sampler {
    /// A sampler for one answer to `prompt` by a model of `vocab` tokens. Fails if the settings do
    /// not pass [`Sampling::check`], or if the prompt has ids outside the vocabulary. Ids in
    /// `stop_ids_of_model` outside the vocabulary can never be generated and are ignored: some
    /// published configurations have them.
    pub fn new(
        settings: &Sampling,
        prompt: &[u32],
        stop_ids_of_model: &[u32],
        vocab: usize,
    ) -> Result<Self, SamplingError> {
        settings.check(vocab)?;
        prompt.iter().try_for_each(|&token| check_token("prompt", token, vocab))?;
        let penalties = Penalties::new(settings, prompt, vocab);
        let ends = stop_ids_of_model.iter().copied().filter(|&t| (t as usize) < vocab).collect();
        let k = if settings.temperature == 0.0 { 1 } else { settings.top_k };
        let mut sampler = Self {
            penalties,
            ends,
            vocab,
            n_generated: 0,
            has_double_bias: has_double(&settings.logit_bias),
            scores: Vec::new(),
            candidates: Candidates::new(k, vocab),
            sums: Sums::new(),
            logprobs: settings.logprobs.map(|n_top| LogprobsReader::new(n_top, vocab)),
            settings: settings.clone(),
            constraint: None,
        };
        if sampler.changes_logits() {
            sampler.scores = vec![0.0; vocab];
        }
        Ok(sampler)
    }

    /// Adds a constraint that the answer follows.
    pub fn constrain(&mut self, rule: Box<dyn Constraint>) {
        self.constraint = Some(Constrained::new(rule, self.vocab));
        self.scores.resize(self.vocab, 0.0);
    }

    /// Chooses the next token from the model's logits (`[vocab]`) and counts it as generated. An
    /// error leaves the sampler unchanged.
    ///
    /// # Panics
    /// If the number of logits differs from the size of the vocabulary.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Choice, SamplingError> {
        assert_eq!(logits.len(), self.vocab, "one logit per token of the vocabulary");
        if self.changes_logits() {
            self.adjust(logits)?;
            self.candidates.gather(&self.scores, self.n_generated)?;
        } else {
            self.candidates.gather(logits, self.n_generated)?;
        }
        let token = self.draw()?;
        let logprobs = match &mut self.logprobs {
            Some(reader) => Some(reader.read(logits, token, self.n_generated)?),
            None => None,
        };
        self.accept(token)?;
        Ok(Choice { token, logprobs })
    }

    /// Counts a generated token, for example one that a device chose by [`Sampler::next_draw`].
    /// Fails if the answer's constraint does not allow it, and then changes nothing.
    pub fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
        if let Some(constraint) = &self.constraint {
            constraint.accept(token).map_err(SamplingError::Constraint)?;
        }
        self.penalties.record(token);
        self.n_generated += 1;
        Ok(())
    }

    /// Visits the mask of the token after a draft, `drafted` as if it had been accepted, if the
    /// answer has a constraint: bit `t % 32` of word `t / 32` for token `t`. Computing it may take
    /// long; it is computed once. Fails if the constraint cannot continue, as [`Sampler::sample`]
    /// does then, or does not allow a token of the draft. The answer's own state stays as it is.
    pub fn read_mask_after(
        &self,
        drafted: &[u32],
        visit: impl FnOnce(&[u32]),
    ) -> Result<(), SamplingError> {
        if let Some(constraint) = &self.constraint {
            let read = constraint.read_mask_after(drafted, visit);
            read.map_err(SamplingError::Constraint)?;
        }
        Ok(())
    }

    /// The number of tokens of a draft, from its first on, that the answer may get: no further than
    /// its constraint allows, and no end token.
    pub fn possible(&self, drafted: &[u32]) -> usize {
        let is_text = |token: &&u32| !self.is_end(**token) && (**token as usize) < self.vocab;
        let n = drafted.iter().take_while(is_text).count();
        match &self.constraint {
            Some(constraint) if n > 0 => constraint.n_allowed(&drafted[..n]),
            _ => n,
        }
    }

    /// The parameters of the next choice. `None` if numbers do not suffice: if a token has two
    /// biases, whose sums round one after the other.
    pub fn next_draw(&self) -> Option<Draw> {
        self.draw_after(&[])
    }

    /// The parameters of the choice after a draft: `drafted` as if it had been accepted.
    pub fn draw_after(&self, drafted: &[u32]) -> Option<Draw> {
        let index = self.n_generated + drafted.len();
        let Sampling { temperature, top_k, top_p, min_p, seed, min_tokens, .. } = self.settings;
        (!self.has_double_bias).then(|| Draw {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty: self.settings.repetition_penalty,
            frequency_penalty: self.settings.frequency_penalty,
            presence_penalty: self.settings.presence_penalty,
            seed,
            index,
            min_tokens,
            vocab: self.vocab,
            adjusts: self.adjusts(index),
            is_masked: self.constraint.is_some(),
            n_logprobs: self.settings.logprobs,
        })
    }

    /// The tokens whose logits steps 1 to 4 change, each once, in ascending order. A constraint is
    /// not part of them.
    pub fn adjustments(&self) -> Vec<Adjustment> {
        self.adjustments_after(&[])
    }

    /// The same after a draft: `drafted` as if it had been accepted.
    pub fn adjustments_after(&self, drafted: &[u32]) -> Vec<Adjustment> {
        let none = |token| Adjustment { token, bias: 0.0, seen: None, ruled_out: RuledOut::Never };
        let seen = |(token, count)| Adjustment { seen: Some(count), ..none(token) };
        // Tokens that were seen are many, and the others few.
        let mut all: Vec<Adjustment> = self.penalties.seen().map(seen).collect();
        all.sort_unstable_by_key(|entry| entry.token);
        let mut of = |token: u32, change: &dyn Fn(&mut Adjustment)| {
            let at = all.binary_search_by_key(&token, |entry| entry.token).unwrap_or_else(|at| {
                all.insert(at, none(token));
                at
            });
            change(&mut all[at]);
        };
        for &(token, bias) in &self.settings.logit_bias {
            of(token, &|entry| entry.bias = bias);
        }
        for &token in drafted.iter().filter(|_| self.penalties.are_on()) {
            of(token, &|entry| entry.seen = Some(entry.seen.unwrap_or_default() + 1));
        }
        let ends = if self.settings.ignore_eos { RuledOut::Always } else { RuledOut::Early };
        for (tokens, when) in [(&self.settings.stop_ids, RuledOut::Early), (&self.ends, ends)] {
            for &token in tokens {
                of(token, &|entry| entry.ruled_out = entry.ruled_out.max(when));
            }
        }
        all
    }

    /// Whether this token ends the answer: an end token of the model, or one of the request's
    /// `stop_ids`.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token) || self.settings.stop_ids.contains(&token)
    }

    /// Number of tokens that can be chosen.
    pub(crate) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Number of generated tokens.
    pub fn n_generated(&self) -> usize {
        self.n_generated
    }

    /// Whether steps 1 to 4 affect the next token. Once false, it stays false.
    fn changes_logits(&self) -> bool {
        self.constraint.is_some() || self.adjusts(self.n_generated)
    }

    /// The same for token `index`, but for the constraint.
    fn adjusts(&self, index: usize) -> bool {
        !self.settings.logit_bias.is_empty()
            || self.penalties.are_on()
            || self.masked(index).next().is_some()
    }

    /// The tokens that step 4 masks when token `index` is chosen.
    fn masked(&self, index: usize) -> impl Iterator<Item = u32> {
        let early = index < self.settings.min_tokens;
        let ends: &[u32] = if early || self.settings.ignore_eos { &self.ends } else { &[] };
        let stop_ids: &[u32] = if early { &self.settings.stop_ids } else { &[] };
        ends.iter().chain(stop_ids).copied()
    }

    /// Steps 1 to 4: fills `scores`.
    fn adjust(&mut self, logits: &[f32]) -> Result<(), SamplingError> {
        let mut scores = std::mem::take(&mut self.scores);
        scores.copy_from_slice(logits);
        for &(token, bias) in &self.settings.logit_bias {
            scores[token as usize] += bias;
        }
        self.penalties.apply(&mut scores);
        let mut bad = None;
        for token in self.masked(self.n_generated) {
            let score = &mut scores[token as usize];
            // A mask must not hide a fault of the model.
            if score.is_nan() || *score == f32::INFINITY {
                let (index, value) = (self.n_generated, *score);
                bad = Some(SamplingError::BadLogit { index, token, value });
            }
            *score = f32::NEG_INFINITY;
        }
        if let Some(constraint) = &self.constraint {
            bad = bad.or_else(|| bad_logit(&scores, self.n_generated));
            bad = bad.or(constraint.apply(&mut scores).map_err(SamplingError::Constraint).err());
        }
        self.scores = scores;
        bad.map_or(Ok(()), Err)
    }

    /// Steps 5 to 10; `candidates` are the ranks that `top_k` kept.
    fn draw(&mut self) -> Result<u32, SamplingError> {
        let index = self.n_generated;
        let nothing = SamplingError::NoCandidate { index };
        let Some(first) = self.candidates.best() else { return Err(nothing) };
        let Sampling { temperature, seed, .. } = self.settings;
        if temperature == 0.0 {
            return Ok(first.token);
        }
        let measure = Measure { max: f64::from(first.score), scale: weight::scale(temperature) };
        let target = below(seed, index as u64, self.kept(measure));
        // The kept ranks come first, and the target is below their sum, so their number is not
        // needed.
        let chosen = self.sums.first_beyond(target, &mut self.candidates, measure);
        chosen.map_or(Err(nothing), |(candidate, _)| Ok(candidate.token))
    }

    /// Steps 8 and 9: the sum of the weights that are kept. Both steps keep first ranks, so it is
    /// the smaller of two sums.
    fn kept(&mut self, measure: Measure) -> u64 {
        let (sums, least) = (&mut self.sums, weight::least(self.settings.min_p));
        if self.settings.top_p == 1.0 {
            // Weights that are too small contribute nothing.
            sums.add_up(&mut self.candidates, measure, weight::end_of(least), least);
            return sums.large();
        }
        sums.add_up(&mut self.candidates, measure, weight::NOTHING_FROM, least);
        let border = weight::border(weight::share(self.settings.top_p), sums.all());
        let last = sums.first_beyond(border - 1, &mut self.candidates, measure);
        last.map_or(sums.all(), |(_, sum)| sum).min(sums.large())
    }
}

/// Whether a token has two biases.
fn has_double(biases: &[(u32, f32)]) -> bool {
    let mut tokens: Vec<u32> = biases.iter().map(|(token, _)| *token).collect();
    tokens.sort_unstable();
    tokens.windows(2).any(|pair| pair[0] == pair[1])
}

/// The first logit that is NaN or +inf.
fn bad_logit(logits: &[f32], index: usize) -> Option<SamplingError> {
    let (token, value) =
        (0..).zip(logits).find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY)?;
    Some(SamplingError::BadLogit { index, token, value: *value })
}

#[cfg(test)]
mod tests;
