//! Composes the messages of a conversation into a [`Composition`].
//!
//! Every block of a system prompt, every definition of a tool, every thought, text and call of a
//! message is a piece. In an exact prompt this says only where rows are cut. In an anchored one
//! each piece but the last attends to the anchor alone, so a piece that changes costs no other.

use std::collections::HashMap;

use super::compose::{Place, Text, cut};
use super::{Chunk, Composition, Kind, Piece, Reuse};
use crate::prompt::{Content, Conversation, Message, PromptError, Template};
use crate::tokenizer::Tokenizer;

/// How the pieces of a conversation are reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnReuse {
    /// What each piece attends to. The last one always attends to everything.
    pub reuse: Reuse,
    /// The end of the block of the system prompt that anchored pieces attend to. Without one it is
    /// the longest block.
    pub anchor: Option<String>,
}

/// Renders a conversation. Each turn is a piece, and so is each document of a turn. A text that
/// equals a chunk of `chunks`, as it appears in a prompt, is reported as that chunk.
pub fn compose_conversation<'c>(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    chunks: impl IntoIterator<Item = &'c Chunk>,
    reuse: &TurnReuse,
) -> Result<Composition, PromptError> {
    // The first of chunks with the same text.
    let mut known: HashMap<(u8, String), &Chunk> = HashMap::new();
    for chunk in chunks {
        known.entry((chunk.kind.level(), chunk.in_prompt())).or_insert(chunk);
    }
    let mut texts: Vec<Text<'_>> = conversation.messages.iter().flat_map(texts_of).collect();
    for text in texts.iter_mut().filter(|text| text.place == Place::Message) {
        let key = (text.kind.level(), std::mem::take(&mut text.text));
        if let Some(chunk) = known.get(&key).copied() {
            (text.kind, text.chunk) = (chunk.kind, Some(chunk));
        }
        text.text = key.1;
    }
    if let Some(last) = texts.last_mut() {
        last.kind = Kind::Query;
    }
    texts.extend(conversation.tools.iter().filter_map(name_of).map(|name| {
        let name = name.to_owned();
        Text::new(Kind::System, Place::Tool, name)
    }));
    if reuse.reuse != Reuse::Exact {
        approximate(&mut texts, reuse);
    }
    let mut composition = cut(template, tokenizer, conversation, &texts)?;
    match reuse.reuse {
        Reuse::Exact => composition.join_oldest(),
        _ => composition.join_neighbours(),
    }
    Ok(composition)
}

/// Lets every text but the last attend to the anchor alone, or to nothing.
fn approximate(texts: &mut [Text<'_>], TurnReuse { reuse, anchor }: &TurnReuse) {
    for text in texts.iter_mut().filter(|text| text.kind != Kind::Query) {
        text.reuse = *reuse;
    }
    // System messages among the turns are no system prompt.
    let is_block = |text: &Text<'_>| text.place == Place::Message && text.kind == Kind::System;
    let n_blocks = texts.iter().take_while(|text| is_block(text)).count();
    let blocks = &mut texts[..n_blocks];
    let marked = anchor.as_ref().map(|end| end.trim()).filter(|end| !end.is_empty());
    let marked = marked
        .and_then(|end| blocks.iter().rposition(|block| block.text.trim_end().ends_with(end)));
    let longest = (0..blocks.len()).max_by_key(|index| (blocks[*index].text.len(), *index));
    if let Some(index) = marked.or(longest) {
        blocks[index].is_anchor = true;
    }
}

/// The function that a tool describes, or a call names.
fn name_of(tool: &serde_json::Value) -> Option<&str> {
    let function = tool.get("function").unwrap_or(tool);
    function.get("name")?.as_str()
}

fn texts_of<'c>(message: &Message) -> Vec<Text<'c>> {
    let kind = match &*message.role {
        "system" | "developer" => Kind::System,
        "assistant" => Kind::Output,
        _ => Kind::Context,
    };
    let texts = match &message.content {
        Some(Content::Pieces(pieces)) => pieces.clone(),
        Some(content) => vec![content.text()],
        None => Vec::new(),
    };
    let thought = message.reasoning_content.iter().cloned();
    let contents = thought.chain(texts).map(|text| Text::new(kind, Place::Message, text));
    let calls = message.tool_calls.iter().flatten().filter_map(name_of);
    let calls = calls.map(|name| Text::new(kind, Place::Call, name.to_owned()));
    contents.chain(calls).collect()
}

impl Composition {
    /// Joins neighbours until the limit of pieces holds. The groups begin at fixed places, so a
    /// longer conversation has the same groups, until they have to be twice as large.
    fn join_neighbours(&mut self) {
        let n = self.pieces.len();
        if n <= Self::MAX_PIECES {
            return;
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        let last = pieces.pop();
        let anchor = pieces.iter().position(|piece| piece.is_anchor).unwrap_or(0);
        let rest = pieces.split_off(anchor + 1);
        let tail = pieces.split_off(1.min(pieces.len()));
        // What stands before the anchor has a quarter of the places: the first piece, its groups
        // and the anchor.
        let (before, anchor) = match tail.split_last() {
            Some((anchor, before)) => (before, Some(anchor.clone())),
            None => (&[][..], None),
        };
        self.pieces = pieces;
        self.pieces.extend(joined(before, Self::MAX_PIECES / 4));
        self.pieces.extend(anchor);
        let room = Self::MAX_PIECES - self.pieces.len() - 1;
        self.pieces.extend(joined(&rest, room));
        self.pieces.extend(last);
    }
}

/// The same pieces in at most `room` groups of neighbours, all of the same size but the last.
fn joined(pieces: &[Piece], room: usize) -> Vec<Piece> {
    let mut size = 1;
    while pieces.len().div_ceil(size) > room {
        size *= 2;
    }
    let join = |group: &[Piece]| match group {
        [piece] => piece.clone(),
        _ => {
            let tokens = group.iter().flat_map(|piece| &piece.tokens).copied().collect();
            Piece { chunk: None, tokens, ..group[0].clone() }
        }
    };
    pieces.chunks(size).map(join).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::chunk::compose::tests::qwen3;

    /// Composes conversations with a template of Qwen3.
    struct Desk {
        template: Template,
        tokenizer: Tokenizer,
    }

    impl Desk {
        fn new() -> Self {
            let (template, tokenizer) = qwen3();
            Self { template, tokenizer }
        }

        /// Composes, and checks that nothing is lost.
        fn compose(&self, conversation: &Conversation, reuse: &TurnReuse) -> Composition {
            let (template, tokenizer) = (&self.template, &self.tokenizer);
            let chat = compose_conversation(template, tokenizer, conversation, [], reuse).unwrap();
            let rendered = template.render(conversation).unwrap();
            let encoded = rendered.encode(tokenizer, |_| None).unwrap();
            assert_eq!(chat.tokens(), encoded.concat(), "nothing is lost");
            chat
        }

        fn texts(&self, chat: &Composition) -> Vec<String> {
            chat.pieces.iter().map(|piece| self.tokenizer.decode(&piece.tokens, false)).collect()
        }
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "description": "It does.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}})
    }

    fn call(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "arguments": {"query": "x"}}})
    }

    /// An agent's prompt with two system blocks, three tools, and a call with its result.
    fn agent(first_block: &str) -> Conversation {
        let blocks = vec![format!("{first_block}\n"), "You are an agent with rules.".to_owned()];
        let system = Message { content: Some(Content::Pieces(blocks)), ..Message::system("") };
        let calls = Some(vec![call("find"), call("read")]);
        let called = Message { content: None, tool_calls: calls, ..Message::assistant("") };
        let result = |text: &str| Message { role: "tool".to_owned(), ..Message::user(text) };
        let messages = vec![
            system,
            Message::user("look it up"),
            called,
            result("nothing"),
            result("a page"),
            Message::assistant("there is a page"),
            Message::user("go on"),
        ];
        let tools = ["find", "read", "query"].map(tool).to_vec();
        Conversation { tools, ..Conversation::new(messages, None) }
    }

    fn anchored() -> TurnReuse {
        TurnReuse { reuse: Reuse::Anchored, anchor: None }
    }

    #[test]
    fn blocks_tools_and_messages_are_pieces() {
        let desk = Desk::new();
        let chat = desk.compose(&agent("changes: 1"), &anchored());
        let texts = desk.texts(&chat);
        let tool = |name| format!("{{\"type\": \"function\", \"function\": {{\"name\": \"{name}\"");
        let begins = [
            "<|im_start|>system\n",
            "changes: 1",
            "You are an agent",
            &tool("find"),
            &tool("read"),
            &tool("query"),
            "look it up",
            "find\"",
            "read\"",
            "nothing",
            "a page",
            "there is a page",
            "go on",
        ];
        assert_eq!(texts.len(), begins.len(), "{texts:#?}");
        for (text, begin) in texts.iter().zip(begins) {
            assert!(text.starts_with(begin), "{text:?} for {begin:?}");
        }
        let last = chat.pieces.last().unwrap();
        assert_eq!((last.kind, last.reuse), (Kind::Query, Reuse::Exact));
        let between = &chat.pieces[1..chat.pieces.len() - 1];
        assert!(between.iter().all(|piece| piece.reuse == Reuse::Anchored));
        let anchors: Vec<&String> =
            chat.pieces.iter().zip(&texts).filter(|(p, _)| p.is_anchor).map(|(_, t)| t).collect();
        assert_eq!(anchors, [&texts[2]], "the longest block");
        let exact = desk.compose(&agent("changes: 1"), &TurnReuse::default());
        assert!(exact.pieces.iter().all(|piece| piece.reuse == Reuse::Exact && !piece.is_anchor));
    }

    /// Whatever changes, no other piece does: neither its tokens nor what it attends to.
    #[test]
    fn a_block_or_a_message_that_changes_changes_no_other_piece() {
        let desk = Desk::new();
        let before = desk.compose(&agent("changes: 1"), &anchored());
        let mut edited = agent("changes: 1");
        edited.messages[4].content = Some("another page".into());
        for (after, at) in [(agent("it is now 12:40"), 1), (edited, 10)] {
            let after = desk.compose(&after, &anchored());
            assert_eq!(after.pieces.len(), before.pieces.len());
            let pairs = before.pieces.iter().zip(&after.pieces);
            let changed: Vec<usize> =
                pairs.enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
            assert_eq!(changed, [at]);
        }
    }

    #[test]
    fn a_marked_block_is_the_anchor() {
        let desk = Desk::new();
        for (mark, place) in [("changes: 1", 1), ("with rules.", 2), ("no such block", 2)] {
            let reuse = TurnReuse { anchor: Some(mark.to_owned()), ..anchored() };
            let chat = desk.compose(&agent("changes: 1"), &reuse);
            assert_eq!(chat.pieces.iter().position(|piece| piece.is_anchor), Some(place), "{mark}");
        }
        // Without a mark it is the longest, wherever it stands.
        let first = "it changes, and is longer than the rules of the agent ".repeat(2);
        let chat = desk.compose(&agent(&first), &anchored());
        assert_eq!(chat.pieces.iter().position(|piece| piece.is_anchor), Some(1));
    }

    /// An argument may be the name of a call that comes later.
    #[test]
    fn a_call_is_found_in_its_turn_only() {
        let desk = Desk::new();
        let mut conversation = agent("changes: 1");
        let calls = ["find", "read", "open"].map(|name| {
            let arguments = if name == "find" { "open" } else { "x" };
            json!({"type": "function", "function": {"name": name, "arguments": {"query": arguments}}})
        });
        conversation.messages[2].tool_calls = Some(calls.to_vec());
        let texts = desk.texts(&desk.compose(&conversation, &anchored()));
        for name in ["find", "read", "open"] {
            let begin = format!("{name}\"");
            let n = texts.iter().filter(|text| text.starts_with(&begin)).count();
            assert_eq!(n, 1, "{name}: {texts:#?}");
        }
    }

    fn long(turns: usize) -> Conversation {
        let turns = (0..turns).flat_map(|n| {
            [Message::user(&format!("question {n}")), Message::assistant(&format!("answer {n}"))]
        });
        let messages =
            [Message::system("be brief")].into_iter().chain(turns).chain([Message::user("why?")]);
        Conversation::new(messages.collect(), None)
    }

    #[test]
    fn the_oldest_turns_of_a_long_chat_are_one_piece() {
        let chat = Desk::new().compose(&long(Composition::MAX_PIECES), &TurnReuse::default());
        assert_eq!(chat.pieces.len(), Composition::MAX_PIECES);
        let longest = chat.pieces.iter().map(|piece| piece.tokens.len()).max();
        assert_eq!(longest, Some(chat.pieces[1].tokens.len()));
        assert_eq!(chat.pieces.last().unwrap().kind, Kind::Query);
    }

    #[test]
    fn a_long_anchored_chat_keeps_its_pieces_when_it_grows() {
        let desk = Desk::new();
        let n = Composition::MAX_PIECES;
        let [shorter, longer] = [n, n + 3].map(|turns| desk.compose(&long(turns), &anchored()));
        assert!(longer.pieces.len() <= n && shorter.pieces.len() < longer.pieces.len());
        let same = shorter.pieces.iter().zip(&longer.pieces).filter(|(a, b)| a == b).count();
        assert!(same + 2 >= shorter.pieces.len(), "{same} of {}", shorter.pieces.len());
        let blocks = (0..2 * n).map(|n| format!("block {n}\n")).collect();
        let system = Message { content: Some(Content::Pieces(blocks)), ..Message::system("") };
        let many = Conversation { messages: vec![system, Message::user("why?")], ..long(0) };
        let many = desk.compose(&many, &anchored());
        assert!(many.pieces.len() <= n);
        assert!(many.pieces.iter().any(|piece| piece.is_anchor));
    }
}
