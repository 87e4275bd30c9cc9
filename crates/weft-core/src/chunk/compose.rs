//! Composes chunks into a [`Composition`], through the model's template; `conversation` does the
//! same for messages.
//!
//! The template renders the whole prompt. The result is cut before each text of the conversation,
//! so a piece is a text plus the template's tokens after it. Tokens before the first text belong to
//! that text, or form their own piece if the first text is a context: the rows of a document must
//! not depend on whether it comes first.

use super::{Chunk, ChunkError, ChunkId, Composition, Kind, Library, Piece, Prompt, Repair, Reuse};
use crate::prompt::{Conversation, Message, PromptError, Segment, Template};
use crate::tokenizer::Tokenizer;

/// A text of the conversation, in the order in which the template writes them.
pub(super) struct Text<'c> {
    pub(super) kind: Kind,
    /// The chunk with this text, if there is one; its tokens are known already.
    pub(super) chunk: Option<&'c Chunk>,
    pub(super) text: String,
    pub(super) place: Place,
    pub(super) reuse: Reuse,
    pub(super) is_anchor: bool,
}

/// Where a text stands in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is a content, or a part of one.
    Message,
    /// It is the name of a tool, which its definition contains.
    Tool,
    /// It is the name of a tool in a call.
    Call,
}

impl<'c> Text<'c> {
    pub(super) fn new(kind: Kind, place: Place, text: String) -> Self {
        Self { kind, chunk: None, text, place, reuse: Reuse::Exact, is_anchor: false }
    }
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
    texts.push(Text::new(Kind::Query, Place::Message, query.clone()));
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
    let text = Text::new(chunk.kind, Place::Message, chunk.in_prompt());
    Ok(Text { chunk: Some(chunk), ..text })
}

/// Sets how contexts and outputs may be reused.
pub(super) fn set_reuse(composition: &mut Composition, reuse: Reuse) {
    for piece in composition.pieces.iter_mut().filter(|piece| piece.kind.level() == 1) {
        piece.reuse = reuse;
    }
}

/// Renders, encodes and cuts. If the template changed a text beyond recognition, the text is not
/// cut off; it stays in the piece before it.
pub(super) fn cut(
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
    let mut texts = Texts::new(texts);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut leading = Vec::new();
    for (segment, tokens) in rendered.segments().iter().zip(encoded) {
        match texts.next(segment) {
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

/// The texts that were not found yet. Templates write tools and messages in either order.
struct Texts<'t, 'c> {
    messages: Vec<&'t Text<'c>>,
    tools: Vec<&'t Text<'c>>,
}

impl<'t, 'c> Texts<'t, 'c> {
    fn new(texts: &'t [Text<'c>]) -> Self {
        let reversed = |are_tools: bool| {
            let is_wanted = move |text: &&Text<'_>| (text.place == Place::Tool) == are_tools;
            texts.iter().rev().filter(is_wanted).collect()
        };
        Self { messages: reversed(false), tools: reversed(true) }
    }

    /// The text that a segment shows, if any. Messages before it were left out by the template. The
    /// name of a tool may stand in many places, so only the next one is looked for.
    fn next(&mut self, segment: &Segment) -> Option<&'t Text<'c>> {
        let Segment::Content(content) = segment else { return None };
        let is_it = |text: &Text<'_>| text.text.trim() == content.trim();
        let defines = |tool: &Text<'_>| {
            let name = serde_json::Value::from(&*tool.text).to_string();
            let has = |space: &str| content.contains(&format!("\"name\":{space}{name}"));
            is_it(tool) || content.starts_with('{') && (has(" ") || has(""))
        };
        if let Some(tool) = self.tools.pop_if(|tool| defines(tool)) {
            return Some(tool);
        }
        let last = self.messages.len().checked_sub(1)?;
        let may_be = |at: usize, text: &Text<'_>| at == last || text.place != Place::Call;
        let mut places = self.messages.iter().enumerate();
        let at = places.rfind(|(at, text)| is_it(text) && may_be(*at, text)).map(|(at, _)| at)?;
        let found = self.messages[at];
        self.messages.truncate(at);
        Some(found)
    }
}

fn begin_piece(pieces: &mut Vec<Piece>, text: &Text<'_>, mut leading: Vec<u32>, tokens: Vec<u32>) {
    let stands_alone = text.kind.level() == 1 || text.reuse != Reuse::Exact;
    if !leading.is_empty() && stands_alone {
        pieces.push(Piece::exact(Kind::System, std::mem::take(&mut leading)));
    }
    leading.extend(tokens);
    let (kind, chunk) = (text.kind, text.chunk.map(|chunk| chunk.id));
    let (reuse, is_anchor) = (text.reuse, text.is_anchor);
    pieces.push(Piece { kind, chunk, tokens: leading, reuse, is_anchor });
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::chunk::{TurnReuse, compose_conversation};

    /// Qwen3's template, and a tokenizer for it.
    pub(in crate::chunk) fn qwen3() -> (Template, Tokenizer) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prompts");
        let template = std::fs::read_to_string(folder.join("qwen3.jinja")).unwrap();
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        (Template::new(&template, None, None).unwrap(), tokenizer)
    }

    /// Composes prompts from chunks that are registered here.
    struct Desk {
        template: Template,
        tokenizer: Tokenizer,
        library: Library,
    }

    impl Desk {
        fn new() -> Self {
            let (template, tokenizer) = qwen3();
            Self { template, tokenizer, library: Library::default() }
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
        let chatted = compose_conversation(
            template,
            tokenizer,
            &conversation,
            [&chunk],
            &TurnReuse::default(),
        )
        .unwrap();
        for composition in [composed, chatted] {
            let mut pieces = composition.pieces.iter();
            let piece = pieces.find(|piece| piece.chunk == Some(id)).unwrap();
            assert_eq!(piece.tokens, chunk.tokens);
        }
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
