//! Rules of parts, made into a grammar by llguidance's own types.
//!
//! llguidance also reads grammars as text. It then builds the lexer of that language anew for each
//! grammar, which takes longer than compiling most grammars does.

use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::{Grammar, SymIdx, SymbolProps};

use super::refusals::{TOO_COMPLEX, in_plain_words};

/// Long repetitions are made of pieces of this many items, so that they take few symbols.
const PIECE: u32 = 4;
/// The longest repetition that is written out.
const MAX_WRITTEN_OUT: u32 = 2 * PIECE;
/// From this many optional items on, pieces are used.
const MIN_OPTIONAL_PIECES: u32 = 3 * PIECE;

/// What a rule, or a part of one, matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// This text. The lexer reads it as one word.
    Text(String),
    /// What a regular expression matches, also as one word.
    Expression(String),
    /// The same, except for the empty text.
    NonEmpty(String),
    /// What the rule of this number matches.
    Rule(usize),
    Seq(Vec<Part>),
    Or(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
}

impl Part {
    pub(super) fn repeated(self, min: u32, max: Option<u32>) -> Self {
        Self::Repeat(Box::new(self), min, max)
    }
}

/// The grammar whose answers match the first rule, or why it cannot be followed. Rules that nothing
/// uses are left out.
pub(super) fn grammar(rules: &[Part], limits: &ParserLimits) -> Result<GrammarInit, String> {
    let mut builder = Builder::new(rules.len(), limits)?;
    let root = builder.rule(0);
    builder.add(builder.grammar.start(), vec![root])?;
    while let Some(rule) = builder.used.pop() {
        let body = builder.sequence(&rules[rule])?;
        let symbol = builder.rule(rule);
        builder.add(symbol, body)?;
    }
    Ok(GrammarInit::Internal(builder.grammar, builder.lexer))
}

struct Builder<'l> {
    grammar: Grammar,
    lexer: LexerSpec,
    limits: &'l ParserLimits,
    /// The symbols of rules that are used.
    symbols: Vec<Option<SymIdx>>,
    /// Those of them that are yet to be written.
    used: Vec<usize>,
}

impl<'l> Builder<'l> {
    fn new(n_rules: usize, limits: &'l ParserLimits) -> Result<Self, String> {
        let mut lexer = LexerSpec::new().map_err(in_plain_words)?;
        // Nothing is skipped between words.
        lexer.setup_lexeme_class(RegexAst::NoMatch).map_err(in_plain_words)?;
        lexer.regex_builder.unicode(true).utf8(true);
        let (symbols, used) = (vec![None; n_rules], Vec::new());
        let mut builder = Self { grammar: Grammar::new(None), lexer, limits, symbols, used };
        let start = builder.symbol("start");
        builder.grammar.sym_props_mut(start).is_start = true;
        Ok(builder)
    }

    fn symbol(&mut self, name: &str) -> SymIdx {
        let props = SymbolProps { grammar_id: self.lexer.current_class, ..Default::default() };
        self.grammar.fresh_symbol_ext(name, props)
    }

    fn add(&mut self, symbol: SymIdx, body: Vec<SymIdx>) -> Result<(), String> {
        self.grammar.add_rule(symbol, body).map_err(in_plain_words)
    }

    /// The symbol of a rule.
    fn rule(&mut self, rule: usize) -> SymIdx {
        if let Some(symbol) = self.symbols[rule] {
            return symbol;
        }
        let symbol = self.symbol("rule");
        self.symbols[rule] = Some(symbol);
        self.used.push(rule);
        symbol
    }

    /// A symbol that stands for any of these sequences.
    fn either(&mut self, bodies: Vec<Vec<SymIdx>>) -> Result<SymIdx, String> {
        let symbol = self.symbol("either");
        for body in bodies {
            self.add(symbol, body)?;
        }
        Ok(symbol)
    }

    /// A symbol that stands for a sequence.
    fn one(&mut self, body: Vec<SymIdx>) -> Result<SymIdx, String> {
        match *body {
            [symbol] => Ok(symbol),
            _ => self.either(vec![body]),
        }
    }

    fn word(&mut self, word: RegexAst) -> Result<Vec<SymIdx>, String> {
        let lexeme = self.lexer.add_greedy_lexeme(String::new(), word, false, None, usize::MAX);
        let symbol = self.symbol("word");
        self.grammar
            .make_terminal(symbol, lexeme.map_err(in_plain_words)?, &self.lexer)
            .map_err(in_plain_words)?;
        Ok(vec![symbol])
    }

    /// The symbols that are a part.
    fn sequence(&mut self, part: &Part) -> Result<Vec<SymIdx>, String> {
        let is_costly = self.lexer.cost() > self.limits.initial_lexer_fuel;
        if is_costly || self.grammar.num_symbols() > self.limits.max_grammar_size {
            return Err(TOO_COMPLEX.to_owned());
        }
        match part {
            Part::Text(text) | Part::Expression(text) if text.is_empty() => Ok(Vec::new()),
            Part::Text(text) => self.word(RegexAst::Literal(text.clone())),
            Part::Expression(expression) => self.word(RegexAst::Regex(expression.clone())),
            Part::NonEmpty(expression) => self.word(RegexAst::And(vec![
                RegexAst::Regex(expression.clone()),
                RegexAst::Regex("(?s:.)+".to_owned()),
            ])),
            Part::Rule(rule) => Ok(vec![self.rule(*rule)]),
            Part::Seq(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    all.extend(self.sequence(part)?);
                }
                Ok(all)
            }
            Part::Or(parts) => {
                let bodies: Result<Vec<_>, _> =
                    parts.iter().map(|part| self.sequence(part)).collect();
                Ok(vec![self.either(bodies?)?])
            }
            Part::Repeat(part, min, max) => {
                let body = self.sequence(part)?;
                if body.is_empty() {
                    return Ok(body);
                }
                let item = self.one(body)?;
                match (*min, *max) {
                    (1, None) => Ok(vec![self.endless(item, vec![item])?]),
                    (min, None) => {
                        let endless = self.endless(item, Vec::new())?;
                        Ok([self.exactly(item, min)?, vec![endless]].concat())
                    }
                    (min, Some(max)) => {
                        let more = self.at_most(item, max.saturating_sub(min))?;
                        Ok([self.exactly(item, min)?, more].concat())
                    }
                }
            }
        }
    }

    /// A symbol that stands for `first` and any number of items.
    fn endless(&mut self, item: SymIdx, first: Vec<SymIdx>) -> Result<SymIdx, String> {
        let symbol = self.symbol("endless");
        self.add(symbol, first)?;
        self.add(symbol, vec![symbol, item])?;
        Ok(symbol)
    }

    fn piece(&mut self, item: SymIdx) -> Result<SymIdx, String> {
        self.one(written_out(item, PIECE))
    }

    fn exactly(&mut self, item: SymIdx, n: u32) -> Result<Vec<SymIdx>, String> {
        if n <= MAX_WRITTEN_OUT {
            return Ok(written_out(item, n));
        }
        let piece = self.piece(item)?;
        Ok([written_out(item, n % PIECE), self.exactly(piece, n / PIECE)?].concat())
    }

    fn at_most(&mut self, item: SymIdx, n: u32) -> Result<Vec<SymIdx>, String> {
        if n == 0 {
            return Ok(Vec::new());
        }
        let bodies = match n < MIN_OPTIONAL_PIECES {
            true => (0..=n).map(|n| written_out(item, n)).collect(),
            false => {
                let piece = self.piece(item)?;
                // As many pieces as there can be and what is left; or fewer, and less than a piece.
                let most = [self.exactly(piece, n / PIECE)?, self.at_most(item, n % PIECE)?];
                let fewer = [self.at_most(piece, n / PIECE - 1)?, self.at_most(item, PIECE - 1)?];
                vec![most.concat(), fewer.concat()]
            }
        };
        Ok(vec![self.either(bodies)?])
    }
}

fn written_out(item: SymIdx, n: u32) -> Vec<SymIdx> {
    vec![item; n as usize]
}

#[cfg(test)]
mod tests {
    use crate::grammars::Rule;
    use crate::grammars::tests::follows;

    /// Items that are no word are repeated by rules, long repetitions piece by piece.
    #[test]
    fn repetitions_of_rules_are_counted() {
        for (bounds, min, max) in [
            ("*", 0_usize, 40),
            ("+", 1, 40),
            ("?", 0, 1),
            ("{0}", 0, 0),
            ("{1,}", 1, 40),
            ("{9,}", 9, 40),
            ("{8}", 8, 8),
            ("{9}", 9, 9),
            ("{35}", 35, 35),
            ("{0,11}", 0, 11),
            ("{0,12}", 0, 12),
            ("{2,31}", 2, 31),
        ] {
            let grammar = format!("root ::= \".\" item{bounds} \".\"\nitem ::= \"(\" item? \")\"");
            let rule = Rule::Grammar(grammar);
            let edges = [0, 1, 2, min, min + 1, max, max + 1, 7, 10, 30, 40];
            for n in edges.into_iter().chain(min.checked_sub(1)) {
                let text = format!(".{}.", "()".repeat(n));
                let fits = (min..=max).contains(&n) || n > 40 && max == 40;
                assert_eq!(follows(&rule, &text), fits, "{n} of {bounds}");
            }
        }
    }

    /// llguidance's own language may skip text between words; a grammar of parts skips none.
    #[test]
    fn nothing_is_skipped_between_words() {
        let rule = Rule::Grammar("root ::= \"(\" root? \")\"".into());
        assert!(follows(&rule, "(())"));
        for text in [" (())", "( ())", "(()) ", "(()\n)"] {
            assert!(!follows(&rule, text), "{text:?}");
        }
    }

    #[test]
    fn grammars_that_match_little_are_followed() {
        let empty = ["root ::= \"\"", "root ::= (\"\" | a)*\na ::= a", "root ::= \"a\"{0}"];
        for grammar in empty {
            assert!(follows(&Rule::Grammar(grammar.into()), ""), "{grammar}");
        }
        for grammar in ["root ::= root", "root ::= a\na ::= \"a\" a"] {
            let rule = Rule::Grammar(grammar.into());
            assert!(!follows(&rule, "") && !follows(&rule, "a"), "{grammar}");
        }
        assert!(follows(&Rule::Regex(String::new()), ""));
        let unused = "root ::= \"a\"\nb ::= b \"b\"";
        assert!(follows(&Rule::Grammar(unused.into()), "a"), "unused rules are left out");
    }
}
