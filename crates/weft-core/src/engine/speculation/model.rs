//! Drafts from a second, smaller model with the same tokenizer, on its own device.
//!
//! Each lane has its own KV rows there. They follow the lane's text: tokens that were not accepted
//! are forgotten, tokens that are new are run. Nothing here can change an answer, and a fault of
//! the device only ends its drafts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use super::{DraftSource, Drafter, Text};
use crate::device::{Device, DeviceError, Lane, Outputs, Span, Step};
use crate::kv::{PAGE_ROWS, PageId, PagePool, Slot, pages_for};
use crate::model::Model;
use crate::plan::{Op, plan};
use crate::sampling::Sampler;
use crate::tokenizer::Tokenizer;

/// Why a model cannot draft for another one.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DraftModelError {
    /// The vocabularies have different sizes.
    #[error(
        "the draft model's tokenizer has {draft} tokens and the model's has {model}; \
         use a draft model of the same family"
    )]
    OtherSize {
        /// Tokens of the draft model.
        draft: u32,
        /// Tokens of the model.
        model: u32,
    },
    /// A token means something else.
    #[error(
        "token {token} of the draft model's tokenizer is another one than the model's; \
         use a draft model of the same family"
    )]
    OtherToken {
        /// The first such token.
        token: u32,
    },
}

/// Checks that a draft model's tokenizer has the tokens of the model's, before either is loaded.
///
/// # Errors
/// The first difference.
pub fn check_draft_tokenizer(draft: &Tokenizer, model: &Tokenizer) -> Result<(), DraftModelError> {
    let sizes = (draft.vocab_size(), model.vocab_size());
    if sizes.0 != sizes.1 {
        return Err(DraftModelError::OtherSize { draft: sizes.0, model: sizes.1 });
    }
    let is_other = |token: &u32| {
        draft.token_bytes(*token) != model.token_bytes(*token)
            || draft.is_special(*token) != model.is_special(*token)
    };
    let other = (0..sizes.0).find(is_other);
    other.map_or(Ok(()), |token| Err(DraftModelError::OtherToken { token }))
}

/// A draft model, shared by all lanes.
#[derive(Clone)]
pub(in crate::engine) struct DraftModel(Arc<Mutex<Shared>>);

struct Shared {
    plan: Vec<Op>,
    device: Box<dyn Device>,
    pages: PagePool,
}

impl DraftModel {
    pub(super) fn new(model: &Model, device: Box<dyn Device>) -> Self {
        let pages = PagePool::new(device.limits().pages);
        Self(Arc::new(Mutex::new(Shared { plan: plan(&model.config), device, pages })))
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model for a lane.
    pub(super) fn drafter(&self) -> ModelDrafter {
        let model = self.clone();
        ModelDrafter { model, pages: Vec::new(), stored: Vec::new(), has_failed: false }
    }

    /// Pages that no lane has.
    #[cfg(test)]
    pub(super) fn free_pages(&self) -> usize {
        self.shared().pages.free()
    }
}

/// The draft model's rows for one lane.
pub(super) struct ModelDrafter {
    model: DraftModel,
    pages: Vec<PageId>,
    /// The tokens whose rows are stored.
    stored: Vec<u32>,
    has_failed: bool,
}

impl ModelDrafter {
    /// Runs the text's tokens that have no rows yet, then `max` tokens of the draft.
    fn try_draft(
        &mut self,
        text: &Text<'_>,
        max: usize,
        to: &mut Vec<u32>,
    ) -> Result<(), DeviceError> {
        let model = self.model.clone();
        let shared = &mut *model.shared();
        let common = self.stored.iter().zip(text.tokens).take_while(|(a, b)| a == b).count();
        // The last token runs in any case: its logits are needed.
        self.stored.truncate(common.min(text.tokens.len() - 1));
        if !self.take_pages(text.tokens.len() + max, shared) {
            return Ok(());
        }
        let mut sampler = text.sampler.clone();
        let limit = shared.device.limits().step_tokens;
        while self.stored.len() < text.tokens.len() {
            let rest = &text.tokens[self.stored.len()..];
            let is_last = rest.len() <= limit;
            let chooses = is_last.then_some(&sampler);
            self.run(&rest[..rest.len().min(limit)], chooses, max - 1, shared)?;
        }
        loop {
            let Some(token) = choose(&mut sampler, shared) else { return Ok(()) };
            to.push(token);
            if to.len() == max || sampler.is_end(token) {
                return Ok(());
            }
            self.run(&[token], Some(&sampler), max - 1 - to.len(), shared)?;
        }
    }

    /// Takes the pages for `rows` rows. `false` if there are too few, or too few positions.
    fn take_pages(&mut self, rows: usize, shared: &mut Shared) -> bool {
        if rows > shared.device.limits().positions {
            return false;
        }
        let missing = pages_for(rows).saturating_sub(self.pages.len());
        shared.pages.take(missing).map(|pages| self.pages.extend(pages)).is_ok()
    }

    /// Runs tokens after the stored ones. Chooses a token after the last of them if there is a
    /// sampler; the device may start `ahead` further steps.
    fn run(
        &mut self,
        tokens: &[u32],
        sampler: Option<&Sampler>,
        ahead: usize,
        shared: &mut Shared,
    ) -> Result<(), DeviceError> {
        let first = self.stored.len();
        let rows = first..first + tokens.len();
        let positions: Vec<u32> = rows.clone().map(|row| row as u32).collect();
        let pages = self.pages[..pages_for(rows.end)].to_vec();
        let span = Span { pages, first_row: 0, len: rows.end, home_position: 0, position: 0 };
        let slots: Vec<Slot> = rows.map(|row| span.slot(row)).collect();
        let lane = Lane {
            tokens,
            positions: &positions,
            key_positions: &positions,
            store_at: &slots,
            spans: std::slice::from_ref(&span),
            marks: &[],
            outputs: if sampler.is_some() { Outputs::Last } else { Outputs::None },
        };
        let step = Step { lanes: &[lane] };
        let rows_left = PAGE_ROWS - 1 - (span.len - 1) % PAGE_ROWS;
        let ahead = if tokens.len() == 1 { ahead.min(rows_left) } else { 0 };
        shared.device.decode(&shared.plan, &step, &[sampler], ahead)?;
        self.stored.extend(tokens);
        Ok(())
    }
}

/// The token that the device or the sampler chooses. `None` if there is none, or if the answer's
/// constraint cannot go on.
fn choose(sampler: &mut Sampler, shared: &Shared) -> Option<u32> {
    if let Some(token) = shared.device.chosen(0, 0) {
        return sampler.accept(token).ok().map(|()| token);
    }
    let logits = &shared.device.logits(0)[..sampler.vocab()];
    sampler.sample(logits).ok().map(|choice| choice.token)
}

impl Drafter for ModelDrafter {
    fn source(&self) -> DraftSource {
        DraftSource::Model
    }

    fn draft(&mut self, text: &Text<'_>, max: usize, to: &mut Vec<u32>) -> usize {
        if max > 0 && !self.has_failed {
            self.has_failed = self.try_draft(text, max, to).is_err();
        }
        if self.has_failed {
            to.clear();
        }
        0
    }
}

impl Drop for ModelDrafter {
    fn drop(&mut self) {
        self.model.shared().pages.give_back(self.pages.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;
    use crate::engine::tests::{model, tokens};
    use crate::reference;
    use crate::sampling::Sampling;

    /// Whatever was drafted and run before, a draft is that of a lane that begins with the text.
    #[test]
    fn rows_of_rejected_tokens_do_not_show() {
        let model = model();
        let limits = Limits { step_tokens: 16, step_outputs: 8, positions: 200, pages: 8 };
        let device = reference::open(&model.config, &*model.weights, limits).unwrap();
        let shared = DraftModel::new(&model, device);
        let settings = Sampling { temperature: 0.0, ..Sampling::default() };
        let sampler = Sampler::new(&settings, &[], &[], 256).unwrap();
        let mut lane = shared.drafter();
        let mut text = tokens(61, 1);
        for round in 0..6 {
            let draft = |drafter: &mut ModelDrafter| {
                let text = Text { tokens: &text, prompt_len: 61, sampler: &sampler };
                let mut draft = Vec::new();
                drafter.draft(&text, 5, &mut draft);
                draft
            };
            let drafted = draft(&mut lane);
            assert_eq!(drafted, draft(&mut shared.drafter()), "round {round}");
            assert_eq!(drafted.len(), 5);
            // Some of it is accepted, and another token comes.
            text.extend(&drafted[..round % 5]);
            text.push(drafted[round % 5] ^ 1);
        }
        drop(lane);
        assert_eq!(shared.free_pages(), 8);
    }
}
