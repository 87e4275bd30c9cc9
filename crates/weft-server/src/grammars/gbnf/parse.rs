//! Reads a grammar of llama.cpp into rules.

use super::{Expr, escaped};

const MAX_RULES: usize = 300;
/// Groups inside each other.
const MAX_DEPTH: usize = 64;
/// Repetitions of one item, such as the two of `"a"+?`.
const MAX_REPETITIONS: usize = 4;

/// Reads a grammar.
pub(super) struct Parser<'g> {
    grammar: &'g str,
    at: usize,
    names: Vec<String>,
    rules: Vec<Option<Expr>>,
    depth: usize,
}

impl<'g> Parser<'g> {
    pub(super) fn new(grammar: &'g str) -> Self {
        let (names, rules) = (vec!["root".to_owned()], vec![None]);
        Self { grammar, at: 0, names, rules, depth: 0 }
    }

    /// All rules; the first is the root.
    pub(super) fn rules(mut self) -> Result<Vec<Expr>, String> {
        self.skip();
        while !self.rest().is_empty() {
            let Some(name) = self.name() else { return Err(self.wrong("the name of a rule")) };
            if !self.take("::=") {
                return Err(self.wrong("::="));
            }
            let rule = self.rule_of(&name)?;
            if self.rules[rule].is_some() {
                return Err(self.at_line(&format!("the rule {name} is there twice")));
            }
            let body = self.alternatives()?;
            self.rules[rule] = Some(body);
        }
        let missing = self.rules.iter().position(Option::is_none);
        if let Some(missing) = missing {
            return Err(format!("the grammar has no rule {}", self.names[missing]));
        }
        Ok(self.rules.into_iter().flatten().collect())
    }

    fn rest(&self) -> &'g str {
        &self.grammar[self.at..]
    }

    fn at_line(&self, what: &str) -> String {
        let line = self.grammar[..self.at].matches('\n').count() + 1;
        format!("line {line} of the grammar: {what}")
    }

    fn wrong(&self, wanted: &str) -> String {
        let found: String = self.rest().chars().take(12).collect();
        self.at_line(&format!("{wanted} is expected, and there is {found:?}"))
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn take(&mut self, token: &str) -> bool {
        let is_there = self.rest().starts_with(token);
        if is_there {
            self.at += token.len();
            self.skip();
        }
        is_there
    }

    fn name(&mut self) -> Option<String> {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let end = self.rest().find(|c| !is_letter(c)).unwrap_or(self.rest().len());
        let name = self.rest()[..end].to_owned();
        self.at += end;
        self.skip();
        (!name.is_empty()).then_some(name)
    }

    fn rule_of(&mut self, name: &str) -> Result<usize, String> {
        if let Some(known) = self.names.iter().position(|known| known == name) {
            return Ok(known);
        }
        if self.names.len() == MAX_RULES {
            return Err(self.at_line(&format!("there are more than {MAX_RULES} rules")));
        }
        self.names.push(name.to_owned());
        self.rules.push(None);
        Ok(self.names.len() - 1)
    }

    fn alternatives(&mut self) -> Result<Expr, String> {
        let mut all = vec![self.sequence()?];
        while self.take("|") {
            all.push(self.sequence()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::Or(all) })
    }

    fn sequence(&mut self) -> Result<Expr, String> {
        let mut items = Vec::new();
        while let Some(item) = self.item()? {
            let repeated = self.repetition(item)?;
            items.push(repeated);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Expr::Seq(items) })
    }

    fn item(&mut self) -> Result<Option<Expr>, String> {
        let item = match self.rest().chars().next() {
            Some('"') => self.text()?,
            Some('[') => self.class()?,
            Some('(') => {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    let what = format!("more than {MAX_DEPTH} groups are inside each other");
                    return Err(self.at_line(&what));
                }
                self.take("(");
                let inner = self.alternatives()?;
                if !self.take(")") {
                    return Err(self.wrong(")"));
                }
                self.depth -= 1;
                inner
            }
            Some('.') => {
                self.take(".");
                Expr::Class("(?s:.)".to_owned())
            }
            Some('<' | '!') => {
                return Err(self.at_line("tokens in a grammar are not supported: write texts"));
            }
            Some(c) if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => {
                let start = self.at;
                let name = self.name().unwrap_or_default();
                if self.rest().starts_with("::=") {
                    // The next rule.
                    self.at = start;
                    return Ok(None);
                }
                Expr::Rule(self.rule_of(&name)?)
            }
            None | Some('|' | ')') => return Ok(None),
            Some(_) => return Err(self.wrong("a text, a class, a group or a rule")),
        };
        Ok(Some(item))
    }

    fn repetition(&mut self, mut item: Expr) -> Result<Expr, String> {
        for _ in 0..=MAX_REPETITIONS {
            let (min, max) = match () {
                () if self.take("*") => (0, None),
                () if self.take("+") => (1, None),
                () if self.take("?") => (0, Some(1)),
                () if self.take("{") => self.bounds()?,
                () => return Ok(item),
            };
            item = Expr::Repeat(Box::new(item), min, max);
        }
        Err(self.at_line(&format!("an item is repeated more than {MAX_REPETITIONS} times over")))
    }

    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        let start = self.at;
        let min = self.number()?;
        let (min, max) = match self.take(",") {
            true => (min.unwrap_or(0), self.number()?),
            false => (min.unwrap_or(0), min),
        };
        let is_empty = self.rest().starts_with('}') && self.at == start;
        if is_empty || !self.take("}") || max.is_some_and(|max| max < min) {
            return Err(self.at_line("a repetition is {n}, {n,}, {,n} or {n,m} with n up to m"));
        }
        Ok((min, max))
    }

    /// A number, if there is one.
    fn number(&mut self) -> Result<Option<u32>, String> {
        let rest = self.rest();
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        if digits.is_empty() {
            return Ok(None);
        }
        let number = digits.parse();
        let number = number.map_err(|_| self.at_line(&format!("{digits} is too large")))?;
        self.at += digits.len();
        self.skip();
        Ok(Some(number))
    }

    fn text(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.character()? {
                (Some('"'), false) => break,
                (Some(character), _) => text.push(character),
                (None, _) => return Err(self.at_line("a text does not end")),
            }
        }
        self.skip();
        Ok(Expr::Text(text))
    }

    /// A character, and whether it was written with a backslash.
    fn character(&mut self) -> Result<(Option<char>, bool), String> {
        let mut characters = self.rest().chars();
        let Some(first) = characters.next() else { return Ok((None, false)) };
        self.at += first.len_utf8();
        if first != '\\' {
            return Ok((Some(first), false));
        }
        let Some(kind) = characters.next() else { return Ok((None, true)) };
        self.at += kind.len_utf8();
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok((Some('\n'), true)),
            'r' => return Ok((Some('\r'), true)),
            't' => return Ok((Some('\t'), true)),
            '"' | '\\' | '[' | ']' | '-' | '^' | '/' => return Ok((Some(kind), true)),
            _ => return Err(self.at_line(&format!("\\{kind} is not known"))),
        };
        let hex = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(character) = hex.and_then(char::from_u32) else {
            return Err(self.at_line(&format!("\\{kind} needs {digits} digits of a character")));
        };
        self.at += digits;
        Ok((Some(character), true))
    }

    fn class(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let is_negated = self.rest().starts_with('^');
        self.at += usize::from(is_negated);
        let mut class = String::from(if is_negated { "[^" } else { "[" });
        let mut is_empty = true;
        loop {
            let from = match self.character()? {
                (Some(']'), false) => break,
                (Some(character), _) => character,
                (None, _) => return Err(self.at_line("a class of characters does not end")),
            };
            is_empty = false;
            class.push_str(&escaped(from));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                match self.character()? {
                    (Some(to), _) if to >= from => class.push_str(&format!("-{}", escaped(to))),
                    _ => return Err(self.at_line("a range of characters ends before it begins")),
                }
            }
        }
        self.skip();
        match (is_empty, is_negated) {
            (true, true) => Ok(Expr::Class("(?s:.)".to_owned())),
            (true, false) => Err(self.at_line("a class of characters is empty")),
            _ => Ok(Expr::Class(format!("{class}]"))),
        }
    }
}
