//! Several requests side by side, to the end.

use std::collections::{HashMap, VecDeque};

use super::{Engine, Event, Finished, GenerateError, LaneId, Request, RequestError, Token};
use crate::sampling::SamplingError;

/// A whole answer.
#[derive(Debug)]
pub struct Completion {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// How it ended, or why it broke off.
    pub ending: Result<Finished, SamplingError>,
}

impl Completion {
    /// The answer's text.
    pub fn text(&self) -> String {
        self.tokens.iter().map(|token| token.text.as_str()).collect()
    }
}

impl Engine {
    /// Answers all requests, in their order, as many at a time as there are lanes and memory for.
    /// Refuses them all if one is wrong in itself.
    pub fn generate_batch(
        &mut self,
        requests: Vec<Request>,
    ) -> Result<Vec<Completion>, GenerateError> {
        for request in &requests {
            request.sampling.check(self.vocab)?;
            self.check(request)?;
        }
        let mut tokens: Vec<Vec<Token>> = requests.iter().map(|_| Vec::new()).collect();
        let mut endings: Vec<_> = requests.iter().map(|_| None).collect();
        let mut waiting: VecDeque<_> = requests.into_iter().enumerate().collect();
        let mut running: HashMap<LaneId, usize> = HashMap::new();
        while !(waiting.is_empty() && running.is_empty()) {
            self.admit(&mut waiting, &mut running)?;
            for event in self.step()? {
                match event {
                    Event::Token { lane, token } if running.contains_key(&lane) => {
                        tokens[running[&lane]].push(token);
                    }
                    Event::Done { lane, finished } => {
                        if let Some(index) = running.remove(&lane) {
                            endings[index] = Some(Ok(finished));
                        }
                    }
                    Event::Failed { lane, error } => {
                        if let Some(index) = running.remove(&lane) {
                            endings[index] = Some(Err(error));
                        }
                    }
                    Event::Token { .. } | Event::Prefill { .. } => {}
                }
            }
        }
        let endings = endings.into_iter().map(|ending| ending.expect("no lane is left"));
        Ok(tokens
            .into_iter()
            .zip(endings)
            .map(|(tokens, ending)| Completion { tokens, ending })
            .collect())
    }

    /// Admits waiting requests until one does not fit beside those that run.
    fn admit(
        &mut self,
        waiting: &mut VecDeque<(usize, Request)>,
        running: &mut HashMap<LaneId, usize>,
    ) -> Result<(), RequestError> {
        while let Some((_, request)) = waiting.front() {
            // Asked before anything is made: most steps find no room.
            match self.check_room(request) {
                Err(_) if self.running() > 0 => break,
                room => room?,
            }
            if let Some((index, request)) = waiting.pop_front() {
                running.insert(self.add(request)?, index);
            }
        }
        Ok(())
    }
}
