//! Requests that read their prompt's last token and generate nothing: its state, or some logits.
//!
//! Lanes that read a state run without the head, in their own run of the device. The others of the
//! step run after them.

use super::sequence::Sequence;
use super::{Completion, Engine, GenerateError, Request};
use crate::chunk::Composition;
use crate::device::{DeviceError, Lane, Step};
use crate::sampling::Sampling;

/// What a request reads of its prompt's last token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Its state after the last layer and the final norm, \[hidden\].
    State,
    /// Its logits of these tokens.
    Logits(Vec<u32>),
}

impl Request {
    /// A request that reads its prompt's last token. It uses cached rows, and its own rows are
    /// cached except those of the last piece: many texts are read once, and their rows would
    /// replace those of chats.
    pub fn read(prompt: impl Into<Composition>, reading: Reading) -> Self {
        let sampling = Sampling { max_tokens: Some(1), ..Sampling::default() };
        Self { reading: Some(reading), ..Self::new(prompt, sampling) }
    }
}

impl Engine {
    /// Reads the last tokens of all prompts, and returns what was read in the same order. As many
    /// run at a time as lanes and memory allow. If one prompt is invalid, none is read.
    pub fn read_batch(
        &mut self,
        prompts: Vec<Composition>,
        reading: &Reading,
    ) -> Result<Vec<Vec<f32>>, GenerateError> {
        let request = |prompt| Request::read(prompt, reading.clone());
        let done = self.generate_batch(prompts.into_iter().map(request).collect())?;
        let values = |completion: Completion| {
            completion.ending?;
            Ok(completion.values)
        };
        done.into_iter().map(values).collect()
    }

    /// Runs the lanes that read a state.
    pub(super) fn run_states(&mut self) -> Result<(), DeviceError> {
        let Self { lanes, device, plan, states, .. } = self;
        states.clear();
        let reading: Vec<Lane<'_>> =
            lanes.iter().filter(|lane| lane.reads_state()).filter_map(Sequence::lane).collect();
        if let Some((_head, layers)) = plan.split_last().filter(|_| !reading.is_empty()) {
            *states = device.states(layers, &Step { lanes: &reading })?;
        }
        Ok(())
    }
}
