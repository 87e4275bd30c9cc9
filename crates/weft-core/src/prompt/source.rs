//! Prepares the source of a template for the compiler.
//!
//! It adds what the interpreter lacks: the tags that training uses, and limits on chains (`1+1+…`,
//! `not not …`, `elif`), for which the parser uses stack without counting.

use std::ops::Range;

use super::PromptError;

/// Maximum bytes of one tag besides its strings and white space. It bounds the depth of an
/// expression.
const MAX_TAG_BYTES: usize = 4096;
/// Maximum number of `elif` tags in a template.
const MAX_ELIFS: usize = 500;

/// The source to compile. `{% generation %}` blocks, which mark training targets, render as their
/// contents.
pub(super) fn prepare(source: &str) -> Result<String, PromptError> {
    let limit = |what, limit: usize| PromptError::Limit { what, limit: limit as u64 };
    let (mut prepared, mut done, mut n_elifs) = (String::with_capacity(source.len()), 0, 0);
    let mut at = 0;
    while let Some(start) = source[at..].find("{").map(|found| at + found) {
        let opening = source.get(start..start + 2).unwrap_or_default();
        at = match opening {
            "{#" => source[start..].find("#}").map_or(source.len(), |length| start + length),
            "{{" | "{%" => {
                let (end, n_bytes) = tag_end(source, start + 2);
                if n_bytes > MAX_TAG_BYTES {
                    return Err(limit("a tag of the chat template in bytes", MAX_TAG_BYTES));
                }
                end
            }
            _ => start + 1,
        };
        if opening != "{%" {
            continue;
        }
        let word = first_word(source, start + 2);
        let replacement = match &source[word.clone()] {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => {
                n_elifs += usize::from(other == "elif");
                if other == "raw" {
                    at = source[at..].find("endraw").map_or(source.len(), |length| at + length);
                }
                continue;
            }
        };
        prepared.push_str(&source[done..word.start]);
        prepared.push_str(replacement);
        done = word.end;
    }
    if n_elifs > MAX_ELIFS {
        return Err(limit("the number of elif tags in the chat template", MAX_ELIFS));
    }
    prepared.push_str(&source[done..]);
    Ok(prepared)
}

/// The end of the tag whose inside starts at `start`, and the number of its bytes that count.
fn tag_end(source: &str, start: usize) -> (usize, usize) {
    let (mut n_bytes, mut quote, mut escaped) = (0, None, false);
    let bytes = source.as_bytes();
    for (at, &byte) in bytes.iter().enumerate().skip(start) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if matches!(byte, b'%' | b'}') && bytes.get(at + 1) == Some(&b'}') => {
                return (at, n_bytes);
            }
            None => n_bytes += usize::from(!byte.is_ascii_whitespace()),
        }
    }
    (source.len(), n_bytes)
}

fn first_word(source: &str, start: usize) -> Range<usize> {
    let rest = source[start..].trim_start_matches(['-', '+']).trim_start();
    let start = source.len() - rest.len();
    let length = rest.find(|char: char| !char.is_alphanumeric()).unwrap_or(rest.len());
    start..start + length
}
