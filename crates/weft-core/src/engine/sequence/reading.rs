//! Reads the prompt's last token for a request that wants no answer.

use super::{End, Sequence};
use crate::engine::{Event, FinishReason, Reading, Results};
use crate::sampling::SamplingError;

impl Sequence {
    /// Whether it reads a state, which needs no logits.
    pub(in crate::engine) fn reads_state(&self) -> bool {
        self.reading == Some(Reading::State)
    }

    /// Reports what the request reads, and ends the lane. The prompt's last token is the last of
    /// the step.
    pub(super) fn read(
        &mut self,
        reading: &Reading,
        results: &Results<'_>,
        events: &mut Vec<Event>,
    ) -> Result<(), SamplingError> {
        let values = match reading {
            Reading::State => results.state.unwrap_or_default().to_vec(),
            Reading::Logits(tokens) => {
                let output = self.n_outputs() - 1;
                self.attention.add(&results.attention(output));
                let logits = results.logits(output);
                tokens.iter().map(|token| logits[*token as usize]).collect()
            }
        };
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(SamplingError::NotFinite { index, value: values[index] });
        }
        self.first_token.get_or_insert_with(|| self.started.elapsed());
        events.push(Event::Read { lane: self.id, values });
        self.end = Some(End::Finished(FinishReason::Stop));
        Ok(())
    }
}
