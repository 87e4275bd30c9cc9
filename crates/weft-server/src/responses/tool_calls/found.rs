//! What becomes certain while an answer is read: text, and parts of calls.

/// A part of a call: its beginning, more of its arguments, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Which call of the choice.
    pub(crate) index: usize,
    pub(crate) beginning: Option<Beginning>,
    /// More of the JSON of an object.
    pub(crate) arguments: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    pub(crate) id: String,
    pub(crate) name: String,
}

/// Appends later parts of calls.
pub(crate) fn append(calls: &mut Vec<CallDelta>, later: Vec<CallDelta>) {
    for delta in later {
        match calls.last_mut().filter(|last| last.index == delta.index) {
            Some(last) => last.arguments.push_str(&delta.arguments),
            None => calls.push(delta),
        }
    }
}

/// What became certain: text, then parts of calls, then text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) before: String,
    pub(crate) calls: Vec<CallDelta>,
    pub(crate) after: String,
}

impl Found {
    pub(super) fn text(&mut self, text: &str) {
        match self.calls.is_empty() {
            true => self.before.push_str(text),
            false => self.after.push_str(text),
        }
    }
}
