//! The ids of an answer's tokens beside its text, in vLLM's fields, if the client asks for them.

use serde_json::Value;

/// Collects the ids of each choice since its last event.
pub(crate) struct TokenIds(Option<Vec<Vec<u32>>>);

impl TokenIds {
    pub(crate) fn new(choices: usize, is_wanted: bool) -> Self {
        Self(is_wanted.then(|| vec![Vec::new(); choices]))
    }

    pub(crate) fn push(&mut self, choice: usize, id: u32) {
        if let Self(Some(ids)) = self {
            ids[choice].push(id);
        }
    }

    /// Adds the ids to the JSON of their choice.
    pub(crate) fn add_to(&mut self, choice: usize, json: &mut Value) {
        if let Self(Some(ids)) = self {
            json["token_ids"] = std::mem::take(&mut ids[choice]).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_come_with_the_next_event_of_their_choice() {
        let mut ids = TokenIds::new(2, true);
        for id in [7, 8] {
            ids.push(1, id);
        }
        let mut events = [json!({}), json!({}), json!({})];
        ids.add_to(0, &mut events[0]);
        ids.add_to(1, &mut events[1]);
        ids.add_to(1, &mut events[2]);
        let told = |ids: Value| json!({"token_ids": ids});
        assert_eq!(events, [told(json!([])), told(json!([7, 8])), told(json!([]))]);
        let (mut unasked, mut event) = (TokenIds::new(1, false), json!({}));
        unasked.push(0, 7);
        unasked.add_to(0, &mut event);
        assert_eq!(event, json!({}), "nobody asked");
    }
}
