//! The latest answers, held in memory so that one of them can be verified.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use weft_core::chunk::Composition;

use crate::app::App;
use crate::registry::Lease;

/// The most answers that are held. Each holds a prompt's tokens, so this bounds them to some
/// megabytes.
const MAX: usize = 32;

/// An answer: its prompt and its tokens.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) id: String,
    /// The model that answered, by its name for clients.
    pub(crate) model: String,
    pub(crate) prompt: Composition,
    pub(crate) tokens: Vec<u32>,
}

/// The latest answers.
#[derive(Default)]
pub(crate) struct Recent(Mutex<VecDeque<Answered>>);

impl Recent {
    pub(crate) fn keep(&self, answered: Answered) {
        if let Ok(mut all) = self.0.lock() {
            all.truncate(MAX - 1);
            all.push_front(answered);
        }
    }

    pub(crate) fn find(&self, id: &str) -> Option<Answered> {
        let all = self.0.lock().ok()?;
        all.iter().find(|answered| answered.id == id).cloned()
    }
}

/// Records an answer's first choice and adds it to the latest answers.
pub(crate) struct Recorder {
    app: Arc<App>,
    answered: Answered,
}

impl Recorder {
    /// Records a model's answer `id` to a prompt.
    pub(crate) fn new(app: &Arc<App>, model: &Lease, id: &str, prompt: Composition) -> Self {
        let (id, model) = (id.to_owned(), model.id().to_owned());
        let answered = Answered { id, model, prompt, tokens: Vec::new() };
        Self { app: Arc::clone(app), answered }
    }

    pub(crate) fn record(&mut self, choice: usize, token: u32) {
        if choice == 0 {
            self.answered.tokens.push(token);
        }
    }

    pub(crate) fn keep(self) {
        self.app.recent.keep(self.answered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_answers_are_held() {
        let recent = Recent::default();
        for n in 0..=MAX {
            let prompt = Composition::from(vec![n as u32]);
            let (id, model) = (n.to_string(), String::new());
            recent.keep(Answered { id, model, prompt, tokens: vec![7] });
        }
        assert!(recent.find("0").is_none());
        for n in 1..=MAX {
            assert_eq!(recent.find(&n.to_string()).unwrap().prompt.tokens(), [n as u32]);
        }
    }
}
