//! Prepares the source of a template for the compiler.
//!
//! It adds what the interpreter lacks: the tags that training uses, and limits on chains (`1+1+…`,
//! `not not …`, `elif`), for which the parser uses stack without counting. The parser's own tokens
//! are counted, so no text can be one thing here and another thing there.

use minijinja::machinery::{self, Token};
use minijinja::syntax::SyntaxConfig;

use super::PromptError;
use super::environment::explain;

/// Maximum number of tokens of one tag. It bounds the depth of an expression.
const MAX_TAG_TOKENS: usize = 2000;
/// Maximum number of `elif` tags in a template.
const MAX_ELIFS: usize = 500;

/// The source to compile. `{% generation %}` blocks, which mark training targets, render as their
/// contents.
pub(super) fn prepare(source: &str, syntax: SyntaxConfig) -> Result<String, PromptError> {
    let limit = |what, limit: usize| PromptError::Limit { what, limit: limit as u64 };
    let (mut prepared, mut done) = (String::with_capacity(source.len()), 0);
    let (mut n_tokens, mut n_elifs, mut starts_block) = (0, 0, false);
    for token in machinery::tokenize(source, false, syntax) {
        let (token, span) = token.map_err(|error| explain(&error))?;
        n_tokens = match token {
            Token::VariableStart | Token::BlockStart => 0,
            _ => n_tokens + 1,
        };
        if n_tokens > MAX_TAG_TOKENS {
            return Err(limit(
                "the number of tokens in a tag of the chat template",
                MAX_TAG_TOKENS,
            ));
        }
        n_elifs += usize::from(matches!(token, Token::Ident("elif")));
        if n_elifs > MAX_ELIFS {
            return Err(limit("the number of elif tags in the chat template", MAX_ELIFS));
        }
        let replacement = match token {
            Token::Ident("generation") if starts_block => Some("if true"),
            Token::Ident("endgeneration") if starts_block => Some("endif"),
            _ => None,
        };
        if let Some(replacement) = replacement {
            prepared.push_str(&source[done..span.start_offset as usize]);
            prepared.push_str(replacement);
            done = span.end_offset as usize;
        }
        starts_block = matches!(token, Token::BlockStart);
    }
    prepared.push_str(&source[done..]);
    Ok(prepared)
}
