//! Why a rule cannot be followed, in words for those who wrote the rule.
//!
//! llguidance reports what its parts could not do. Known reports become a sentence that says what
//! is wrong and what to do; others are passed on without the library's marks.

use std::fmt::Display;

/// A rule that takes more than llguidance's limits allow.
pub(super) const TOO_COMPLEX: &str = "the rule is too complex: matching it takes more states than \
    the limit; make it shorter, with fewer optional parts and smaller counts";
const NOTHING_FITS: &str = "the answer cannot go on: no token of this model continues it as the \
    rule requires; allow more characters at that place";
const NO_LOOKAROUND: &str = "expressions cannot look around: leave out anchors and boundaries such \
    as \\b, and (?=…), (?!…), (?<=…), (?<!…)";
const LARGE_NUMBER: &str = "the rule has a number that is too large to follow digit by digit; \
    choose smaller limits, or leave them out";
const OUTER_REFERENCE: &str = "a $ref must point into the schema itself, like #/$defs/name";
const CONTRADICTION: &str = "no value matches the schema: two of its conditions exclude each other";

/// What parts of llguidance's messages mean.
const MEANINGS: [(&str, &str); 13] = [
    ("too many expressions", TOO_COMPLEX),
    ("too big", TOO_COMPLEX),
    ("schema too large", TOO_COMPLEX),
    ("too deeply nested", TOO_COMPLEX),
    ("fuel", TOO_COMPLEX),
    ("TooComplex", TOO_COMPLEX),
    ("NoExtensionBias", NOTHING_FITS),
    ("look-around", NO_LOOKAROUND),
    ("lookarounds", NO_LOOKAROUND),
    ("Failed to generate regex", LARGE_NUMBER),
    ("panic:", LARGE_NUMBER),
    ("Only absolute $ref", OUTER_REFERENCE),
    ("Regex is empty", CONTRADICTION),
];

/// The refusal of a rule, from llguidance's own message.
pub(super) fn in_plain_words(error: impl Display) -> String {
    let message = format!("{error:#}").replace("<non-verbose/>", "");
    // An expression may contain anything, so its own errors are recognised first. The place of the
    // error is drawn below the expression, and the reason comes last.
    if let Some((_, reason)) = message.rsplit_once("\nerror: ")
        && !reason.contains("look-around")
    {
        return format!("an expression is not valid: {}", first_line(reason));
    }
    if let Some((_, meaning)) = MEANINGS.iter().find(|(part, _)| message.contains(part)) {
        return (*meaning).to_owned();
    }
    if let Some((_, keys)) = message.split_once("Unimplemented keys: ") {
        return format!("the schema has keywords that cannot be followed: {}", first_line(keys));
    }
    let known = ["failed to compile JSON schema: ", "Unsatisfiable schema: "];
    let reason = known.iter().fold(message.clone(), |text, words| text.replace(words, ""));
    match message.contains("Unsatisfiable schema") {
        true => format!("no value matches the schema: {}", first_line(&reason)),
        false => format!("the rule for the answer cannot be followed: {}", first_line(&reason)),
    }
}

fn first_line(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default().trim_end_matches('.')
}
