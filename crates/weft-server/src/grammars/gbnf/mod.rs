//! llama.cpp's grammars (GBNF), rewritten as the parts that llguidance compiles.
//!
//! GBNF is read character by character, llguidance reads words. So everything between two uses of a
//! recursive rule becomes one expression, which matches as GBNF would; a grammar without recursion
//! is one expression altogether. Sizes are bounded before anything is compiled.

mod parse;
mod write;

use self::parse::Parser;
use self::write::Writer;
use super::parts::Part;

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

/// The rules of a grammar, of which the first is the root, or why it cannot be followed.
pub(super) fn rules(grammar: &str) -> Result<Vec<Part>, String> {
    if grammar.len() > MAX_BYTES {
        let n = grammar.len();
        return Err(format!(
            "the grammar has {n} bytes, and the limit is {MAX_BYTES}; simplify it"
        ));
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

    fn word(expression: &str) -> Part {
        Part::Expression(expression.to_owned())
    }

    #[test]
    fn a_grammar_without_recursion_is_one_expression() {
        let rules =
            rules("# a greeting\nroot ::= \"hi \" name (\"!\" | \".\")?\nname ::= [A-Z] [a-z]{2,}");
        let one = r"hi\x{20}(?:[A-Z](?:[a-z]){2,})(?:(?:\x{21}|\x{2e})){0,1}";
        assert_eq!(rules.unwrap()[0], word(one));
    }

    #[test]
    fn recursive_rules_stay_rules() {
        let rules =
            rules("root ::= \"(\" ws root? ws \")\" | item\nitem ::= [^()\\n]\nws ::= \" \"*");
        let nested = [
            word(r"\x{28}(?:(?:\x{20}){0,})"),
            Part::Rule(0).repeated(0, Some(1)),
            word(r"(?:(?:\x{20}){0,})\x{29}"),
        ];
        let item = word(r"(?:[^\x{28}\x{29}\x{a}])");
        assert_eq!(rules.unwrap()[0], Part::Or(vec![item, Part::Seq(nested.into())]));
    }

    /// Repetitions of repetitions are not written out.
    #[test]
    fn a_large_expression_stays_a_rule() {
        let rules = rules("root ::= a{99}\na ::= b{99}\nb ::= \"x\"{9}").unwrap();
        let part = word("(?:(?:(?:(?:x){9,9})){99,99})");
        assert_eq!(rules[0], part.repeated(99, Some(99)));
    }

    #[test]
    fn large_and_deep_grammars_end() {
        let words = |n: usize| (0..n).map(|i| format!("\"word{i:03}\"")).collect::<Vec<_>>();
        let choice = rules(&format!("root ::= {}", words(300).join(" | "))).unwrap();
        assert!(matches!(choice[0], Part::Or(_)), "one expression would be too large");
        let beside = "a".repeat(2046);
        assert!(rules(&format!("root ::= \"{beside}\" | \"(\" root \")\"")).is_ok());
        assert!(rules("root ::= \"x\"{3999} \"y\"").is_ok());
        assert!(rules("root ::= \"x\"{4000} \"y\"").is_ok());
        let deep = rules(&format!("root ::= \"a\"{}", "?".repeat(60_000))).unwrap_err();
        assert!(deep.contains("more than 4 times over"), "{deep}");
        let empty = format!("root ::= {} x\nx ::= \"a\" x | \"b\"", "\"\"".repeat(30_000));
        assert!(rules(&empty).unwrap_err().contains("limit is 20000"));
        for bounds in ["{4294967296}", "{1,5000000000}", "{}", "{2,1}"] {
            assert!(rules(&format!("root ::= \"a\"{bounds}")).is_err(), "{bounds}");
        }
        assert!(rules("root ::= \"a\"{,3} \"b\"{2,} \"c\"{2}").is_ok());
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
            let error = rules(grammar).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
