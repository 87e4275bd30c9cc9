//! Composes chunks or messages into a [`Composition`], through the model's template.
//!
//! The template renders the whole prompt. The result is cut before each text of the conversation,
//! so a piece is a text plus the template's tokens after it. Tokens before the first text belong to
//! that text, or form their own piece if the first text is a context: the rows of a document must
//! not depend on whether it comes first.

use super::{Chunk, ChunkError, ChunkId, Composition, Kind, Library, Piece, Prompt, Repair, Reuse};
use crate::prompt::{Content, Conversation, Message, PromptError, Segment, Template};
use crate::tokenizer::Tokenizer;

/// A text of the conversation, in the order in which the template writes them.
struct Text<'c> {
    kind: Kind,
    /// The chunk with this text, if there is one; its tokens are known already.
    chunk: Option<&'c Chunk>,
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
    let mut texts = Vec::new();
    for id in &prompt.systems {
        texts.push(text_of(library, id, |kind| kind == Kind::System, "system chunk")?);
    }
    for id in &prompt.contexts {
        texts.push(text_of(library, id, |kind| kind.level() == 1, "context or output chunk")?);
    }
    texts.push(Text { kind: Kind::Query, chunk: None, text: query.clone() });
    let (systems, rest) = texts.split_at(prompt.systems.len());
    let systems = systems.iter().map(|text| Message::system(&text.text));
    let user = Message::user_pieces(rest.iter().map(|text| text.text.clone()).collect());
    let conversation = Conversation::new(systems.chain([user]).collect(), prompt.thinking);
    let mut composition = cut(template, tokenizer, &conversation, &texts)?;
    composition.repair = prompt.repair;
    set_reuse(&mut composition, prompt.reuse);
    Ok(composition)
}

fn text_of<'c>(
    library: &'c Library,
    id: &ChunkId,
    may_stand: impl Fn(Kind) -> bool,
    wanted: &'static str,
) -> Result<Text<'c>, ChunkError> {
    let chunk = library.get(id)?;
    if !may_stand(chunk.kind) {
        return Err(ChunkError::WrongKind { id: *id, kind: chunk.kind, wanted });
    }
    Ok(Text { kind: chunk.kind, chunk: Some(chunk), text: chunk.in_prompt() })
}

/// Sets how contexts and outputs may be reused.
pub(super) fn set_reuse(composition: &mut Composition, reuse: Reuse) {
    for piece in composition.pieces.iter_mut().filter(|piece| piece.kind.level() == 1) {
        piece.reuse = reuse;
    }
}

/// Renders a conversation. Each turn is a piece, and so is each document of a turn. A text that
/// equals a chunk of `chunks`, as it appears in a prompt, is reported as that chunk.
pub fn compose_conversation<'c>(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    chunks: impl IntoIterator<Item = &'c Chunk>,
) -> Result<Composition, PromptError> {
    let chunks: Vec<&Chunk> = chunks.into_iter().collect();
    let mut texts: Vec<Text<'_>> = conversation.messages.iter().flat_map(texts_of).collect();
    for text in &mut texts {
        let is_it = |chunk: &&Chunk| {
            chunk.kind.level() == text.kind.level() && chunk.in_prompt() == text.text
        };
        if let Some(chunk) = chunks.iter().copied().find(is_it) {
            (text.kind, text.chunk) = (chunk.kind, Some(chunk));
        }
    }
    if let Some(last) = texts.last_mut() {
        last.kind = Kind::Query;
    }
    let mut composition = cut(template, tokenizer, conversation, &texts)?;
    composition.join_oldest();
    Ok(composition)
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
    texts.into_iter().map(|text| Text { kind, chunk: None, text }).collect()
}

/// Renders, encodes and cuts. If the template changed a text beyond recognition, the text is not
/// cut off; it stays in the piece before it.
fn cut(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    texts: &[Text<'_>],
) -> Result<Composition, PromptError> {
    let rendered = template.render(conversation)?;
    let known = |content: &str| {
        let is_it = |text: &&Text<'_>| text.chunk.is_some() && text.text == content;
        texts.iter().find(is_it).and_then(|text| text.chunk).map(|chunk| &chunk.tokens[..])
    };
    let encoded = rendered.encode(tokenizer, known)?;
    let mut texts = texts.iter();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut leading = Vec::new();
    for (segment, tokens) in rendered.segments().iter().zip(encoded) {
        match next_text(&mut texts, segment) {
            Some(text) => {
                begin_piece(&mut pieces, text, std::mem::take(&mut leading), tokens);
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

/// The text that a segment shows, if any. Texts before it were left out by the template.
fn next_text<'t, 'c>(
    texts: &mut std::slice::Iter<'t, Text<'c>>,
    segment: &Segment,
) -> Option<&'t Text<'c>> {
    let Segment::Content(content) = segment else { return None };
    let found = texts.as_slice().iter().position(|text| text.text.trim() == content.trim())?;
    texts.nth(found)
}

fn begin_piece(pieces: &mut Vec<Piece>, text: &Text<'_>, mut leading: Vec<u32>, tokens: Vec<u32>) {
    if !leading.is_empty() && text.kind.level() == 1 {
        pieces.push(Piece::exact(Kind::System, std::mem::take(&mut leading)));
    }
    leading.extend(tokens);
    let (kind, chunk) = (text.kind, text.chunk.map(|chunk| chunk.id));
    pieces.push(Piece { kind, chunk, tokens: leading, reuse: Reuse::Exact });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// Composes prompts from chunks that are registered here.
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
    fn a_chunk_is_not_encoded_again() {
        let mut desk = Desk::new();
        let id = desk.add(Kind::Context, "a long text");
        let chunk = Chunk { tokens: vec![7, 8, 9], ..desk.library.get(&id).unwrap().clone() };
        desk.library.restore(chunk.clone());
        let prompt = Prompt::new().context(&id).query("why?");
        let composed = desk.compose(&prompt).unwrap();
        let said = Message::user_pieces(vec![chunk.in_prompt(), "why?".to_owned()]);
        let conversation = Conversation::new(vec![said], None);
        let (template, tokenizer) = (&desk.template, &desk.tokenizer);
        let chatted = compose_conversation(template, tokenizer, &conversation, [&chunk]).unwrap();
        for composition in [composed, chatted] {
            let mut pieces = composition.pieces.iter();
            let piece = pieces.find(|piece| piece.chunk == Some(id)).unwrap();
            assert_eq!(piece.tokens, chunk.tokens);
        }
    }

    #[test]
    fn the_oldest_turns_of_a_long_chat_are_one_piece() {
        let desk = Desk::new();
        let turns = (0..Composition::MAX_PIECES).flat_map(|n| {
            [Message::user(&format!("question {n}")), Message::assistant(&format!("answer {n}"))]
        });
        let messages = turns.chain([Message::user("why?")]).collect();
        let conversation = Conversation::new(messages, None);
        let (template, tokenizer) = (&desk.template, &desk.tokenizer);
        let chat = compose_conversation(template, tokenizer, &conversation, []).unwrap();
        assert_eq!(chat.pieces.len(), Composition::MAX_PIECES);
        let encoded = template.render(&conversation).unwrap().encode(tokenizer, |_| None).unwrap();
        assert_eq!(chat.tokens(), encoded.concat(), "nothing is lost");
        let longest = chat.pieces.iter().map(|piece| piece.tokens.len()).max();
        assert_eq!(longest, Some(chat.pieces[1].tokens.len()));
        assert_eq!(chat.pieces.last().unwrap().kind, Kind::Query);
    }

    #[test]
    fn invalid_prompts_have_distinct_errors() {
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
