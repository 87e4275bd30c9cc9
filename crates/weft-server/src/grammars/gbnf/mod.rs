//! llama.cpp's grammars (GBNF), rewritten in the language that llguidance compiles.
//!
//! GBNF is read character by character, llguidance reads words. So everything between two uses of a
//! recursive rule becomes one expression, which matches as GBNF would; a grammar without recursion
//! is one expression altogether. Sizes are bounded before anything is compiled.

mod parse;
mod write;

use self::parse::Parser;
use self::write::Writer;

/// Bytes of a grammar.
const MAX_BYTES: usize = 64 << 10;

/// What a rule, or a part of one, matches.
#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Text(String),
    /// One character, as an expression.
    Class(String),
    Rule(usize),
    Seq(Vec<Expr>),
    Or(Vec<Expr>),
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// The same grammar as llguidance reads it, or why it cannot be.
pub(super) fn to_lark(grammar: &str) -> Result<String, String> {
    if grammar.len() > MAX_BYTES {
        let n = grammar.len();
        return Err(format!("the grammar has {n} bytes, and at most {MAX_BYTES} may be"));
    }
    let rules = Parser::new(grammar).rules()?;
    Writer::new(rules).write()
}

/// A character in an expression.
fn escaped(character: char) -> String {
    match character.is_alphanumeric() {
        true => character.to_string(),
        false => format!("\\x{{{:x}}}", character as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_without_recursion_is_one_expression() {
        let lark = to_lark(
            "# a greeting\nroot ::= \"hi \" name (\"!\" | \".\")?\nname ::= [A-Z] [a-z]{2,}",
        )
        .unwrap();
        assert_eq!(
            lark,
            "T0: /hi\\x{20}(?:[A-Z](?:[a-z]){2,})(?:(?:\\x{21}|\\x{2e})){0,1}/\nstart: T0"
        );
    }

    #[test]
    fn recursive_rules_stay_rules() {
        let lark =
            to_lark("root ::= \"(\" ws root? ws \")\" | item\nitem ::= [^()\\n]\nws ::= \" \"*")
                .unwrap();
        let rules: Vec<&str> = lark.lines().filter(|line| !line.starts_with('T')).collect();
        assert_eq!(rules, ["start: (T0 | (T1 (r0)? T2))", "r0: start"], "{lark}");
    }

    /// Repetitions of repetitions are not written out.
    #[test]
    fn a_large_expression_stays_a_rule() {
        let lark = to_lark("root ::= a{99}\na ::= b{99}\nb ::= \"x\"{9}").unwrap();
        assert_eq!(lark, "T0: /(?:(?:(?:(?:x){9,9})){99,99})/\nstart: (T0){99,99}\nr0: start");
    }

    #[test]
    fn large_and_deep_grammars_end() {
        let words = |n: usize| (0..n).map(|i| format!("\"word{i:03}\"")).collect::<Vec<_>>();
        let lark = to_lark(&format!("root ::= {}", words(300).join(" | "))).unwrap();
        assert!(lark.contains(" | "), "one expression would be too large: {lark}");
        let beside = "a".repeat(2046);
        assert!(to_lark(&format!("root ::= \"{beside}\" | \"(\" root \")\"")).is_ok());
        assert!(to_lark("root ::= \"x\"{3999} \"y\"").is_ok());
        assert!(to_lark("root ::= \"x\"{4000} \"y\"").is_ok());
        let deep = to_lark(&format!("root ::= \"a\"{}", "?".repeat(60_000))).unwrap_err();
        assert!(deep.contains("more than 4 times over"), "{deep}");
        let empty = format!("root ::= {} x\nx ::= \"a\" x | \"b\"", "\"\"".repeat(30_000));
        assert!(to_lark(&empty).unwrap_err().contains("at most 20000"));
        for bounds in ["{4294967296}", "{1,5000000000}", "{}", "{2,1}"] {
            assert!(to_lark(&format!("root ::= \"a\"{bounds}")).is_err(), "{bounds}");
        }
        assert!(to_lark("root ::= \"a\"{,3} \"b\"{2,} \"c\"{2}").is_ok());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let long = format!("root ::= {}", "\"a\" ".repeat(30_000));
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(99), ")".repeat(99));
        for (grammar, reason) in [
            ("", "no rule root"),
            ("a ::= \"x\"", "no rule root"),
            ("root ::= other", "no rule other"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2"),
            ("root = \"a\"", "::= is expected"),
            ("root ::= \"a", "does not end"),
            ("root ::= [a", "does not end"),
            ("root ::= [z-a]", "ends before it begins"),
            ("root ::= []", "is empty"),
            ("root ::= (\"a\"", ") is expected"),
            ("root ::= \"\\q\"", "\\q is not known"),
            ("root ::= \"\\u12\"", "needs 4 digits"),
            ("root ::= \"a\"{3,1}", "a repetition is"),
            ("root ::= <think>", "not supported"),
            ("root ::= *", "is expected"),
            (&*long, "bytes"),
            (&*deep, "inside each other"),
            ("root ::= ((\"a\"{999}){999})", "with all repetitions"),
        ] {
            let error = to_lark(grammar).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
