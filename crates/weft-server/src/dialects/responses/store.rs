//! Responses that clients may ask for again or continue, held in memory.
//!
//! They are held as text, which takes a fraction of the memory of parsed JSON. The oldest are
//! dropped when there are too many, when they take too many bytes, and when their time is over.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::MAX_BODY_BYTES;

/// The most responses, the most bytes of all together, and how long one is held.
pub(super) const MAX_RESPONSES: usize = 1024;
pub(super) const MAX_BYTES: usize = 64 << 20;
/// The most bytes of the items before a response: as many as a body may have.
pub(super) const MAX_ITEMS_BYTES: usize = MAX_BODY_BYTES;
const TIME_TO_LIVE: Duration = Duration::from_secs(60 * 60);

/// A response with what led to it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) id: String,
    /// The items of earlier responses and their inputs, as a JSON list.
    pub(super) earlier: String,
    /// The items of the input, as a JSON list.
    pub(super) input: String,
    /// The response itself.
    pub(super) response: String,
    /// The ids of the items of its output.
    pub(super) output_ids: Vec<String>,
}

impl Stored {
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.id, &self.earlier, &self.input, &self.response];
        texts.into_iter().chain(&self.output_ids).map(String::len).sum()
    }
}

/// The items with these ids of the outputs of responses, which takes time.
pub(super) fn items(responses: &[Arc<Stored>], wanted: &HashSet<&str>) -> HashMap<String, Value> {
    let mut found = HashMap::new();
    for stored in responses {
        let Ok(mut response) = serde_json::from_str::<Value>(&stored.response) else {
            continue;
        };
        let Value::Array(output) = response["output"].take() else { continue };
        for item in output {
            let id = item["id"].as_str().filter(|id| wanted.contains(id)).map(str::to_owned);
            if let Some(id) = id {
                found.insert(id, item);
            }
        }
    }
    found
}

/// Responses, oldest first.
#[derive(Default)]
pub(crate) struct Store(Mutex<Held>);

#[derive(Default)]
struct Held {
    responses: VecDeque<(Instant, Arc<Stored>)>,
    bytes: usize,
}

impl Held {
    fn drop_oldest(&mut self) {
        if let Some((_, stored)) = self.responses.pop_front() {
            self.bytes -= stored.bytes();
        }
    }

    fn drop_expired(&mut self, now: Instant) {
        let is_old = |(since, _): &(Instant, Arc<Stored>)| {
            now.saturating_duration_since(*since) >= TIME_TO_LIVE
        };
        while self.responses.front().is_some_and(is_old) {
            self.drop_oldest();
        }
    }
}

impl Store {
    fn held(&self, now: Instant) -> std::sync::MutexGuard<'_, Held> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.drop_expired(now);
        held
    }

    pub(super) fn keep(&self, stored: Stored) {
        self.keep_at(stored, Instant::now());
    }

    fn keep_at(&self, stored: Stored, now: Instant) {
        let bytes = stored.bytes();
        if bytes > MAX_BYTES {
            return;
        }
        let mut held = self.held(now);
        while held.responses.len() >= MAX_RESPONSES || held.bytes + bytes > MAX_BYTES {
            held.drop_oldest();
        }
        held.bytes += bytes;
        held.responses.push_back((now, Arc::new(stored)));
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Stored>> {
        self.find_at(id, Instant::now())
    }

    fn find_at(&self, id: &str, now: Instant) -> Option<Arc<Stored>> {
        let held = self.held(now);
        let found = held.responses.iter().find(|(_, stored)| stored.id == id);
        found.map(|(_, stored)| Arc::clone(stored))
    }

    /// The responses that are kept and have items with these ids in their outputs.
    pub(super) fn with_items(&self, wanted: &HashSet<&str>) -> Vec<Arc<Stored>> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let is_wanted = |stored: &Stored| stored.output_ids.iter().any(|id| wanted.contains(&**id));
        let held = self.held(Instant::now());
        let all = held.responses.iter().map(|(_, stored)| stored);
        all.filter(|stored| is_wanted(stored)).map(Arc::clone).collect()
    }

    /// Forgets a response; returns whether there was one.
    pub(super) fn remove(&self, id: &str) -> bool {
        let mut held = self.held(Instant::now());
        let index = held.responses.iter().position(|(_, stored)| stored.id == id);
        let removed = index.and_then(|index| held.responses.remove(index));
        held.bytes -= removed.as_ref().map_or(0, |(_, stored)| stored.bytes());
        removed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: usize, bytes: usize) -> Stored {
        let response = " ".repeat(bytes);
        let (earlier, input) = (String::new(), String::new());
        Stored { id: id.to_string(), earlier, input, response, output_ids: Vec::new() }
    }

    #[test]
    fn the_oldest_responses_go_when_there_are_too_many() {
        let store = Store::default();
        for id in 0..=MAX_RESPONSES {
            store.keep(stored(id, 10));
        }
        assert!(store.find("0").is_none() && store.find("1").is_some());
        let last = MAX_RESPONSES.to_string();
        assert!(store.remove(&last) && !store.remove(&last) && store.find(&last).is_none());
    }

    #[test]
    fn the_oldest_responses_go_when_they_take_too_much() {
        let store = Store::default();
        for id in 0..5 {
            store.keep(stored(id, MAX_BYTES / 4));
        }
        let kept: Vec<bool> = (0..5).map(|id| store.find(&id.to_string()).is_some()).collect();
        assert_eq!(kept, [false, false, true, true, true]);
        store.keep(stored(7, MAX_BYTES + 1));
        assert!(store.find("7").is_none() && store.find("4").is_some(), "it alone is too much");
        (2..5).for_each(|id| assert!(store.remove(&id.to_string())));
        assert_eq!(store.held(Instant::now()).bytes, 0);
    }

    #[test]
    fn a_response_is_forgotten_after_its_time() {
        let (store, now) = (Store::default(), Instant::now());
        store.keep_at(stored(1, 10), now);
        store.keep_at(stored(2, 10), now + Duration::from_secs(60));
        assert!(store.find_at("1", now + TIME_TO_LIVE - Duration::from_secs(1)).is_some());
        assert!(store.find_at("1", now + TIME_TO_LIVE).is_none());
        assert!(store.find_at("2", now + TIME_TO_LIVE).is_some());
    }
}
