//! From chunks or messages to a composition, through the model's template.
//!
//! The template renders the whole prompt; it is cut before each text of the conversation, so that a
//! piece is a text and what the template writes after it. What stands before the first text goes with
//! it, or is a piece by itself where a context would come first: a document must not depend on what
//! it is the first of.

use super::{Chunk, ChunkError, ChunkId, Composition, Kind, Library, Piece, Prompt, Repair, Reuse};
use crate::prompt::{Content, Conversation, Message, PromptError, Segment, Template};
use crate::tokenizer::Tokenizer;

/// A text of the conversation, in the order in which the template writes them.
struct Item {
    kind: Kind,
    chunk: Option<ChunkId>,
    text: String,
}

/// Renders a prompt of chunks.
pub fn compose_prompt(
    template: &Template,
    tokenizer: &Tokenizer,
    library: &Library,
    prompt: &Prompt,
) -> Result<Composition, ChunkError> {
    let query = match &prompt.queries[..] {
        [query] if !query.trim().is_empty() => query,
        [] | [_] => return Err(ChunkError::NoQuery),
        queries => return Err(ChunkError::TwoQueries { count: queries.len() }),
    };
    if prompt.systems.len() > 1 {
        return Err(ChunkError::TwoSystems { count: prompt.systems.len() });
    }
    let mut items = Vec::new();
    for id in &prompt.systems {
        items.push(item(library, id, |kind| kind == Kind::System, "system chunk")?);
    }
    for id in &prompt.contexts {
        items.push(item(library, id, |kind| kind.level() == 1, "context or output chunk")?);
    }
    items.push(Item { kind: Kind::Query, chunk: None, text: query.clone() });
    let (systems, rest) = items.split_at(prompt.systems.len());
    let systems = systems.iter().map(|item| Message::system(&item.text));
    let user = Message::user_pieces(rest.iter().map(|item| item.text.clone()).collect());
    let conversation = Conversation::new(systems.chain([user]).collect(), prompt.thinking);
    let mut composition = cut(template, tokenizer, &conversation, &items)?;
    composition.repair = prompt.repair;
    set_reuse(&mut composition, prompt.reuse);
    Ok(composition)
}

fn item(
    library: &Library,
    id: &ChunkId,
    may_stand: impl Fn(Kind) -> bool,
    wanted: &'static str,
) -> Result<Item, ChunkError> {
    let chunk = library.get(id)?;
    if !may_stand(chunk.kind) {
        return Err(ChunkError::WrongKind { id: *id, kind: chunk.kind, wanted });
    }
    Ok(Item { kind: chunk.kind, chunk: Some(*id), text: chunk.in_prompt() })
}

/// Contexts and outputs are used again this way.
pub(super) fn set_reuse(composition: &mut Composition, reuse: Reuse) {
    for piece in composition.pieces.iter_mut().filter(|piece| piece.kind.level() == 1) {
        piece.reuse = reuse;
    }
}

/// Renders a conversation; each turn is a piece, and each document of a turn. Texts that are one of
/// `chunks` as it stands in a prompt are told of as that chunk.
pub fn compose_conversation(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    chunks: &[Chunk],
) -> Result<Composition, PromptError> {
    let mut items: Vec<Item> = conversation.messages.iter().flat_map(items_of).collect();
    for item in &mut items {
        let is_it = |chunk: &&Chunk| {
            chunk.kind.level() == item.kind.level() && chunk.in_prompt() == item.text
        };
        if let Some(chunk) = chunks.iter().find(is_it) {
            (item.kind, item.chunk) = (chunk.kind, Some(chunk.id));
        }
    }
    if let Some(last) = items.last_mut() {
        last.kind = Kind::Query;
    }
    let mut composition = cut(template, tokenizer, conversation, &items)?;
    composition.join_oldest();
    Ok(composition)
}

fn items_of(message: &Message) -> Vec<Item> {
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
    texts.into_iter().map(|text| Item { kind, chunk: None, text }).collect()
}

/// Renders, encodes and cuts. A text that the template changed beyond recognition is not cut off: it
/// stays with the piece before it.
fn cut(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    items: &[Item],
) -> Result<Composition, PromptError> {
    let rendered = template.render(conversation)?;
    let encoded = rendered.encode(tokenizer)?;
    let mut items = items.iter();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut leading = Vec::new();
    for (segment, tokens) in rendered.segments().iter().zip(encoded) {
        match next_item(&mut items, segment) {
            Some(item) => {
                begin_piece(&mut pieces, item, std::mem::take(&mut leading), tokens);
            }
            None => match pieces.last_mut() {
                Some(piece) => piece.tokens.extend(tokens),
                None => leading.extend(tokens),
            },
        }
    }
    if !leading.is_empty() {
        pieces.push(Piece::exact(Kind::Query, leading));
    }
    pieces.retain(|piece| !piece.tokens.is_empty());
    Ok(Composition { pieces, repair: Repair::None })
}

/// The item that a segment is the text of, if it is one's; those before it were left out.
fn next_item<'i>(items: &mut std::slice::Iter<'i, Item>, segment: &Segment) -> Option<&'i Item> {
    let Segment::Content(text) = segment else { return None };
    let found = items.as_slice().iter().position(|item| item.text.trim() == text.trim())?;
    items.nth(found)
}

fn begin_piece(pieces: &mut Vec<Piece>, item: &Item, mut leading: Vec<u32>, tokens: Vec<u32>) {
    if !leading.is_empty() && item.kind.level() == 1 {
        pieces.push(Piece::exact(Kind::System, std::mem::take(&mut leading)));
    }
    leading.extend(tokens);
    let Item { kind, chunk, .. } = *item;
    pieces.push(Piece { kind, chunk, tokens: leading, reuse: Reuse::Exact });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// Composes prompts of chunks that are registered here.
    struct Desk {
        template: Template,
        tokenizer: Tokenizer,
        library: Library,
    }

    impl Desk {
        fn new() -> Self {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts");
            let template = std::fs::read_to_string(folder.join("qwen3.jinja")).unwrap();
            Self {
                template: Template::new(&template, None, None).unwrap(),
                tokenizer: Tokenizer::from_file(folder.join("tokenizer.json")).unwrap(),
                library: Library::default(),
            }
        }

        fn add(&mut self, kind: Kind, text: &str) -> ChunkId {
            self.library.add(&self.tokenizer, kind, text, BTreeMap::new()).unwrap()
        }

        fn compose(&self, prompt: &Prompt) -> Result<Composition, ChunkError> {
            compose_prompt(&self.template, &self.tokenizer, &self.library, prompt)
        }
    }

    #[test]
    fn a_document_has_the_same_tokens_wherever_it_stands() {
        let mut desk = Desk::new();
        let system = desk.add(Kind::System, "be brief");
        let [a, b] = ["one text", "another"].map(|text| desk.add(Kind::Context, text));
        let said = desk.add(Kind::Output, "an answer");
        let prompt = |ids: &[&ChunkId]| Prompt::new().contexts(ids.iter().copied()).query("why?");
        let prompts = [
            prompt(&[&a, &b, &said]),
            prompt(&[&said, &b, &a]).system(&system).reuse(Reuse::Isolated),
        ];
        for prompt in prompts {
            let composition = desk.compose(&prompt).unwrap();
            let first = &composition.pieces[0];
            assert_eq!((first.kind, first.reuse), (Kind::System, Reuse::Exact));
            for id in [a, b, said] {
                let mut pieces = composition.pieces.iter();
                let piece = pieces.find(|piece| piece.chunk == Some(id)).unwrap();
                let chunk = desk.library.get(&id).unwrap();
                assert_eq!((&piece.tokens, piece.kind), (&chunk.tokens, chunk.kind));
                assert_eq!(piece.reuse, prompt.reuse);
            }
            let last = composition.pieces.last().unwrap();
            assert_eq!((last.kind, last.reuse, last.chunk), (Kind::Query, Reuse::Exact, None));
        }
    }

    #[test]
    fn what_cannot_be_composed_is_told_apart() {
        let mut desk = Desk::new();
        let system = desk.add(Kind::System, "be brief");
        let other = desk.add(Kind::System, "be long");
        let document = desk.add(Kind::Context, "a text");
        let refused = |prompt: Prompt| desk.compose(&prompt).unwrap_err();
        let asked = || Prompt::new().query("why?");
        let two = refused(asked().system(&system).system(&other));
        assert!(matches!(two, ChunkError::TwoSystems { count: 2 }));
        assert!(matches!(refused(Prompt::new().context(&document)), ChunkError::NoQuery));
        assert!(matches!(refused(Prompt::new().query(" \n")), ChunkError::NoQuery));
        assert!(matches!(refused(asked().query("how?")), ChunkError::TwoQueries { count: 2 }));
        assert!(matches!(refused(asked().system(&document)), ChunkError::WrongKind { .. }));
        assert!(matches!(refused(asked().context(&system)), ChunkError::WrongKind { .. }));
        let unknown = ChunkId::of(Kind::Context, &[1]);
        assert!(matches!(refused(asked().context(&unknown)), ChunkError::Unknown { .. }));
        let empty = desk.library.add(&desk.tokenizer, Kind::Context, " \n", BTreeMap::new());
        assert!(matches!(empty, Err(ChunkError::Empty { kind: Kind::Context })));
    }
}
