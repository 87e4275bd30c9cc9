//! Runs several requests side by side to their ends.

use std::collections::{HashMap, VecDeque};

use super::{
    Engine, Event, Finished, GenerateError, LaneId, PromptToken, Request, RequestError, Token,
};
use crate::sampling::SamplingError;

/// A complete answer.
#[derive(Debug)]
pub struct Completion {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// The prompt's tokens with their log-probabilities, if the request asks for them.
    pub prompt: Vec<PromptToken>,
    /// What was read, if the request reads instead of answering; otherwise empty.
    pub values: Vec<f32>,
    /// How it ended, or why it failed.
    pub ending: Result<Finished, SamplingError>,
}

impl Completion {
    /// The answer's text.
    pub fn text(&self) -> String {
        self.tokens.iter().map(|token| token.text.as_str()).collect()
    }
}

impl Engine {
    /// Answers all requests, and returns the answers in the same order. As many run at a time as
    /// lanes and memory allow. If one request is invalid, all are refused.
    pub fn generate_batch(
        &mut self,
        requests: Vec<Request>,
    ) -> Result<Vec<Completion>, GenerateError> {
        let requests: Vec<Request> = requests.into_iter().map(Request::settled).collect();
        for request in &requests {
            request.sampling.check(self.vocab)?;
            self.check(request)?;
        }
        let mut running = HashMap::new();
        let done = self.run_batch(requests, &mut running);
        // After an error, nobody receives the other lanes' events.
        self.discard(|lane| running.contains_key(&lane));
        done
    }

    fn run_batch(
        &mut self,
        requests: Vec<Request>,
        running: &mut HashMap<LaneId, usize>,
    ) -> Result<Vec<Completion>, GenerateError> {
        let mut tokens: Vec<Vec<Token>> = requests.iter().map(|_| Vec::new()).collect();
        let mut prompts: Vec<Vec<PromptToken>> = requests.iter().map(|_| Vec::new()).collect();
        let mut values: Vec<Vec<f32>> = requests.iter().map(|_| Vec::new()).collect();
        let mut endings: Vec<_> = requests.iter().map(|_| None).collect();
        let mut waiting: VecDeque<_> = requests.into_iter().enumerate().collect();
        while !(waiting.is_empty() && running.is_empty()) {
            self.admit(&mut waiting, running)?;
            for event in self.step_for(|lane| running.contains_key(&lane))? {
                let index = running[&event.lane()];
                match event {
                    Event::Token { token, .. } => tokens[index].push(token),
                    Event::Prompt { tokens, .. } => prompts[index].extend(tokens),
                    Event::Read { values: read, .. } => values[index] = read,
                    Event::Done { lane, finished } => {
                        running.remove(&lane);
                        endings[index] = Some(Ok(finished));
                    }
                    Event::Failed { lane, error } => {
                        running.remove(&lane);
                        endings[index] = Some(Err(error));
                    }
                    Event::Prefill { .. } => {}
                }
            }
        }
        let endings = endings.into_iter().map(|ending| ending.expect("no lane is left"));
        let completion =
            |(((tokens, prompt), values), ending)| Completion { tokens, prompt, values, ending };
        Ok(tokens.into_iter().zip(prompts).zip(values).zip(endings).map(completion).collect())
    }

    /// Admits waiting requests until one does not fit beside the running ones.
    fn admit(
        &mut self,
        waiting: &mut VecDeque<(usize, Request)>,
        running: &mut HashMap<LaneId, usize>,
    ) -> Result<(), RequestError> {
        while let Some((index, request)) = waiting.front() {
            // Checked first, because most steps find no room. Adding can still fail: cached rows
            // that were counted on may turn out to be damaged.
            let added = self.check_room(request).and_then(|()| self.add(request.clone()));
            match added {
                Err(_) if self.running() > 0 => break,
                added => running.insert(added?, *index),
            };
            waiting.pop_front();
        }
        Ok(())
    }
}
