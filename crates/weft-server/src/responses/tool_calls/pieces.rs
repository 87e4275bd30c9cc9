//! The calls of a text that comes in given pieces. Tests and the fuzz targets compare with it how
//! differently cut texts are read.

use std::sync::Arc;

use serde_json::json;

use super::{CallDelta, CallStyle, Found, ToolCallStream, ToolForm, append};

/// The text, the names and arguments of the calls, and whether all of them are complete.
pub(crate) type Parsed = (String, Vec<(String, String)>, bool);

/// The form of calls of the tools `f`, `g` and `h`, which take a text `a` and an integer `n`.
pub(super) fn form(style: CallStyle) -> Arc<ToolForm> {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object",
            "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}}})
    };
    Arc::new(ToolForm::new(style, &["f", "g", "h"].map(tool)))
}

/// What a stream makes of a text that comes in these pieces. Panics if calls come out of order.
pub(crate) fn calls_in_pieces<'t>(
    style: CallStyle,
    pieces: impl IntoIterator<Item = &'t str>,
    is_cut: bool,
) -> Parsed {
    let mut stream = ToolCallStream::new(form(style));
    let mut content = String::new();
    let mut calls: Vec<CallDelta> = Vec::new();
    let mut add = |found: Found| {
        content.push_str(&found.before);
        content.push_str(&found.after);
        for delta in found.calls {
            let is_new = delta.beginning.is_some();
            assert_eq!(delta.index + usize::from(!is_new), calls.len(), "in order");
            append(&mut calls, vec![delta]);
        }
    };
    for piece in pieces {
        add(stream.push(piece));
    }
    add(stream.finish(is_cut));
    let is_complete = stream.has_complete_calls();
    let named = |call: CallDelta| (call.beginning.expect("a beginning").name, call.arguments);
    (content, calls.into_iter().map(named).collect(), is_complete)
}
